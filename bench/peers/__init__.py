"""Other caches beside ours on this machine, in one run and interleaved: `python -m bench.peers`."""
