"""Other caches beside ours on this machine, in one run and interleaved: `make bench WHAT=peers`."""
