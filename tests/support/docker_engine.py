"""A Docker engine for tests: the part of its HTTP API that the etcd runner calls, over a Unix socket.

It is no Docker: a container is a child process, without a namespace or an image. Requests are kept, so that
a test can compare what was asked for with the engine's API.
"""

from __future__ import annotations

import json
import re
import socketserver
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

API = "1.44"
_IMAGE = re.compile(r"/images/(.+)/json")
_CONTAINER = re.compile(r"/containers/([^/]+)(/\w+)?")


@dataclass
class Container:
    """One container: what it was created with, and its process."""

    id: str
    name: str
    body: dict[str, Any]
    output: Path
    process: subprocess.Popen[bytes] | None = None
    stopped_with: list[int] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """What the engine tells of it."""
        code = self.process.poll() if self.process is not None else None
        running = self.process is not None and code is None
        status = "running" if running else "created" if self.process is None else "exited"
        state = {"Running": running, "Status": status, "ExitCode": _status(code)}
        config = {"Labels": self.body.get("Labels"), "Tty": False, "Image": self.body["Image"]}
        return {"Id": self.id, "Name": f"/{self.name}", "State": state, "Config": config}


class Engine:
    """The engine's state. `programs` maps the name of an image to the program that its `etcd` is."""

    def __init__(self, directory: Path, programs: dict[str, Path]) -> None:
        self.directory = directory
        self.programs = programs
        self.containers: dict[str, Container] = {}
        self.created: list[dict[str, Any]] = []
        self._numbers = 0

    def create(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body["Image"] not in self.programs:
            return 404, {"message": f"No such image: {body['Image']}"}
        if name and self.find(name) is not None:
            return 409, {"message": f'Conflict. The container name "/{name}" is already in use'}
        self._numbers += 1
        container_id = f"{self._numbers:064x}"
        output = self.directory / f"{self._numbers}.output"
        self.containers[container_id] = Container(container_id, name or f"c{self._numbers}", body, output)
        self.created.append(body)
        return 201, {"Id": container_id, "Warnings": []}

    def find(self, key: str) -> Container | None:
        return next((c for c in self.containers.values() if key in {c.id, c.name}), None)

    def start(self, container: Container) -> tuple[int, Any]:
        program = self.programs[container.body["Image"]]
        with container.output.open("wb") as output:
            container.process = subprocess.Popen(
                [program, *container.body["Cmd"]], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        return 204, None

    def stop(self, container: Container, seconds: int) -> tuple[int, Any]:
        container.stopped_with.append(seconds)
        if container.process is not None and container.process.poll() is None:
            container.process.terminate()
            try:
                container.process.wait(seconds)
            except subprocess.TimeoutExpired:
                container.process.kill()
                container.process.wait(10)
        return 204, None

    def remove(self, container: Container) -> tuple[int, Any]:
        if container.process is not None and container.process.poll() is None:
            container.process.kill()
            container.process.wait(10)
        del self.containers[container.id]
        return 204, None

    def wait(self, container: Container) -> tuple[int, Any]:
        assert container.process is not None
        return 200, {"StatusCode": _status(container.process.wait(30)), "Error": None}

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """The engine's answer to one request; bytes are sent as a stream of the container's output."""
        if path == "/version":
            return 200, {"ApiVersion": API, "MinAPIVersion": "1.24", "Version": "27.0.0"}
        if (method, path) == ("POST", "/containers/create"):
            return self.create(query.get("name", [""])[0], body)
        if method == "GET" and (image := _IMAGE.fullmatch(path)) is not None:
            known = image[1] in self.programs
            return (200, {"Id": image[1]}) if known else (404, {"message": f"No such image: {image[1]}"})
        match = _CONTAINER.fullmatch(path)
        container = self.find(match[1]) if match is not None else None
        if match is None or container is None:
            return 404, {"message": f"No such container: {match[1] if match is not None else path}"}
        actions: dict[tuple[str, str], Callable[[], tuple[int, Any]]] = {
            ("GET", "/json"): lambda: (200, container.document()),
            ("POST", "/start"): lambda: self.start(container),
            ("POST", "/stop"): lambda: self.stop(container, int(query["t"][0])),
            ("POST", "/wait"): lambda: self.wait(container),
            ("GET", "/logs"): lambda: (200, _frame(container.output.read_bytes())),
            ("DELETE", ""): lambda: self.remove(container),
        }
        action = actions.get((method, match[2] or ""))
        return action() if action is not None else (404, {"message": f"page not found: {method} {path}"})


class DockerServer:
    """Serves an Engine on a Unix socket; a context manager that ends every container."""

    def __init__(self, socket: Path, engine: Engine) -> None:
        self.engine = engine
        self._server = _UnixServer(str(socket), _handler(engine))
        self._thread = threading.Thread(target=self._server.serve_forever, name="docker-engine", daemon=True)

    def __enter__(self) -> DockerServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        for container in list(self.engine.containers.values()):
            self.engine.remove(container)


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _handler(engine: Engine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            parts = urlsplit(self.path)
            path = re.sub(r"^/v[0-9.]+", "", parts.path)
            status, answer = engine.answer(self.command, path, parse_qs(parts.query), body)
            stream = isinstance(answer, bytes)
            data = answer if stream else b"" if answer is None else json.dumps(answer).encode()
            self.send_response(HTTPStatus(status))
            kind = "application/vnd.docker.multiplexed-stream" if stream else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the tests' output is not a log of requests."""

        def address_string(self) -> str:
            return "unix"

    return Handler


def _frame(output: bytes) -> bytes:
    """Output of a container without a terminal: kind 2 is stderr, then the length, big-endian."""
    return b"\x02\0\0\0" + len(output).to_bytes(4, "big") + output


def _status(code: int | None) -> int:
    """An exit code as the engine tells it: a signal n is 128 + n."""
    return 0 if code is None else 128 - code if code < 0 else code
