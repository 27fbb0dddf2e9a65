"""A web server with one file of weights, which breaks off, refuses or stands still as a test wants."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DATA = bytes(range(256)) * 12_000


class Store(ThreadingHTTPServer):
    """Serves DATA, breaking off after 1 MiB of an answer as often as `breaks` says.

    `status` is answered instead when it is set. While `open` is not, an answer stands still after 1 MiB,
    and breaks off there if `cut` is.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.breaks = 0
        self.ranges: list[str | None] = []
        self.status = 0
        self.cut = False
        self.open = threading.Event()
        self.open.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/models/tiny.gguf"


class Handler(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if self.server.status:
            self.send_error(self.server.status)
            return
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if begin >= len(DATA):
            self.send_error(416)
            return
        data = DATA[begin:]
        self.send_response(206 if wanted else 200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever asked has gone
            self._send(data)

    def _send(self, data: bytes) -> None:
        self.wfile.write(data[: 1 << 20])
        self.wfile.flush()
        if self.server.breaks:
            self.server.breaks -= 1
            self.connection.shutdown(2)
            return
        self.server.open.wait(60)
        if self.server.cut:
            self.connection.shutdown(2)
            return
        self.wfile.write(data[1 << 20 :])

    def log_message(self, format: str, *args: object) -> None:
        return


@contextlib.contextmanager
def weights_store() -> Iterator[Store]:
    """A store that serves."""
    server = Store()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.open.set()
        server.shutdown()
        server.server_close()
        thread.join()


def digest(data: bytes = DATA) -> str:
    """What is added to an address, so that nothing else can come."""
    return f"#sha256={hashlib.sha256(data).hexdigest()}"
