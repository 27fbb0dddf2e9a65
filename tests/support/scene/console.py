"""The operator: clustercli on a host of the network, and what its answers say."""

from __future__ import annotations

import base64
import json
import select
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.hosts import NetHost
from tests.support.procs import ROOT, python_environment, python_module

_ANSWER_SECONDS = 150.0
READ_SECONDS = 5.0


@dataclass(frozen=True)
class Answer:
    """What one command gave: exit code and output."""

    code: int
    out: str
    err: str

    def document(self) -> dict[str, Any]:
        """The JSON that it printed. AssertionError when it failed."""
        assert self.code == 0, self.err
        return dict(json.loads(self.out))


class Console:
    """clustercli as an operator runs it on `host`; commands come one after the other."""

    def __init__(self, host: NetHost) -> None:
        self._process = subprocess.Popen(
            host.command(python_module("tests.support.scene.console_server")),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=python_environment(),
            cwd=ROOT,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate(timeout=10)

    def cli(self, target: str, *arguments: str, seconds: float | None = None) -> Answer:
        """`clustercli --host target --output json arguments…`; `seconds` is its --timeout."""
        timeout = ["--timeout", str(seconds)] if seconds is not None else []
        return self._ask({"cli": ["--host", target, "--output", "json", *timeout, *arguments]})

    def cluster(self, target: str) -> dict[str, Any] | None:
        """get_cluster's document; None when it is refused or does not come in time."""
        return self._read(target, "get_cluster")

    def members(self, target: str) -> dict[str, Any] | None:
        """get_members' document, as `cluster`."""
        return self._read(target, "get_members")

    def etcd_key(self, endpoint: str, key: str, revision: int = 0) -> dict[str, Any] | None:
        """One key as etcd has it (at a revision), in base64; None without the key or an answer."""
        body = {"key": base64.b64encode(key.encode()).decode(), "revision": revision}
        answer = self._ask({"etcd": f"http://{endpoint}/v3/kv/range", "body": body})
        pairs = answer.document().get("kvs", []) if answer.code == 0 else []
        return dict(pairs[0]) if pairs else None

    def etcd_has_leader(self, endpoint: str) -> bool:
        """The member answers, and knows a leader."""
        answer = self._ask({"etcd": f"http://{endpoint}/v3/maintenance/status", "body": {}})
        return answer.code == 0 and answer.document().get("leader", "0") != "0"

    def _read(self, target: str, command: str) -> dict[str, Any] | None:
        answer = self.cli(target, command, seconds=READ_SECONDS)
        return answer.document() if answer.code == 0 else None

    def _ask(self, order: dict[str, Any]) -> Answer:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(order) + "\n")
        stdin.flush()
        ready, _, _ = select.select([stdout], [], [], _ANSWER_SECONDS)
        line = stdout.readline() if ready else ""
        assert line, f"the console gave no answer to {order}: it ended with {self._process.poll()}"
        return Answer(**json.loads(line))


def cards_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Cards of a get_cluster document by serial; those of disabled hosts too."""
    return {card["xdp_serial"]: card for host in document["hosts"] for card in host["cards"]}


def health_of(document: dict[str, Any] | None) -> dict[str, int]:
    """health_xdp by serial; empty without a document."""
    return {} if document is None else {s: card["health_xdp"] for s, card in cards_of(document).items()}
