"""A simulated exporter: real HTTP on an address of the test's own, with the text that the test sets."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class HttpExporter:
    """Serves `text` at /metrics; while `text` is None it answers 503."""

    def __init__(self, address: str, port: int, text: str = "") -> None:
        self.text: str | None = text
        self.endpoint = f"{address}:{port}"
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = (exporter.text or "").encode()
                self.send_response(503 if exporter.text is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer((address, port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name=self.endpoint, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening: the exporter is gone."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


def card_status(**values: float) -> str:
    """xdp_service_status by serial."""
    lines = [
        f'xdp_service_status{{xdp="xdp0",serial="{serial}"}} {value}\n' for serial, value in values.items()
    ]
    return "".join(lines)


def ping_loss(source: str, **percents: tuple[str, float]) -> str:
    """ping_loss_percent by destination: (address, percent)."""
    return "".join(
        f'ping_loss_percent{{source="{source}",destination="{host}",address="{address}"}} {percent}\n'
        for host, (address, percent) in percents.items()
    )
