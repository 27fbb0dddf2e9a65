"""A small inference-like server: the real process under the agent's supervision in tests.

    python http_engine.py --host ADDR --port PORT [--warm-up SECONDS] [--ignore-term] [--spawn] [--chatter N]

GET /health answers 200 after the warm-up, 503 before. POST /v1/completions takes `seconds` (query) and then
answers. POST /drain answers 202 while requests run, 200 when none do, and new requests get 503 from then on.
POST /sicken makes GET /health answer 500 from then on. POST /crash exits with code 41, POST /abort ends by
SIGABRT. GET /environment shows what it runs with.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Engine(ThreadingHTTPServer):
    """The server and what it knows."""

    daemon_threads = True

    def __init__(self, host: str, port: int, warm_up: float) -> None:
        super().__init__((host, port), Handler)
        self.ready_at = time.monotonic() + warm_up
        self.draining = False
        self.sick = False
        self.active = 0
        self.lock = threading.Lock()

    def drain(self) -> int:
        with self.lock:
            self.draining = True
            return 202 if self.active else 200

    def enter(self) -> bool:
        with self.lock:
            if not self.draining:
                self.active += 1
            return not self.draining

    def leave(self) -> None:
        with self.lock:
            self.active -= 1


class Handler(BaseHTTPRequestHandler):
    """Routes of the module's text."""

    server: Engine

    def do_GET(self) -> None:
        if self.path == "/health":
            warm = time.monotonic() >= self.server.ready_at
            self._answer(500 if self.server.sick else 200 if warm else 503)
        elif urlsplit(self.path).path == "/environment":
            self._answer(200, {"environment": dict(os.environ), "pid": os.getpid(), "argv": sys.argv[1:]})
        else:
            self._answer(404)

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/drain":
            self._answer(self.server.drain())
        elif parts.path == "/sicken":
            self.server.sick = True
            self._answer(200)
        elif parts.path == "/crash":
            print("the engine found something that can't be", flush=True)
            os._exit(41)
        elif parts.path == "/abort":
            os.kill(os.getpid(), signal.SIGABRT)
        elif parts.path == "/v1/completions":
            self._complete(float(parse_qs(parts.query).get("seconds", ["0"])[0]))
        else:
            self._answer(404)

    def _complete(self, seconds: float) -> None:
        if not self.server.enter():
            self._answer(503, {"error": "draining"})
            return
        print("a request is under way", flush=True)
        try:
            time.sleep(seconds)
        finally:
            self.server.leave()
        self._answer(200, {"text": "done"})

    def _answer(self, status: int, body: object = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        print(f"{self.command} {self.path}", flush=True)


def _chatter(lines: int) -> None:
    for number in range(lines):
        print(f"line {number} {'x' * 80}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--warm-up", type=float, default=0.0)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--spawn", action="store_true")
    parser.add_argument("--chatter", type=int, default=0)
    options = parser.parse_args()
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.spawn:
        worker = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        print(f"worker {worker.pid}", flush=True)
    server = Engine(options.host, options.port, options.warm_up)
    print(f"serving on {options.host}:{server.server_address[1]}", flush=True)
    threading.Thread(target=_chatter, args=(options.chatter,), daemon=True).start()
    server.serve_forever()


if __name__ == "__main__":
    main()
