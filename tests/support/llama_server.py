"""llama.cpp's own HTTP server, in the environment where the package xllamacpp is installed; SIGTERM ends it.

python llama_server.py --model FILE --host ADDR --port PORT
"""

from __future__ import annotations

import argparse
import importlib
import signal


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    llama = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = 512
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = llama.Server(params)
    print(f"serving at {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
