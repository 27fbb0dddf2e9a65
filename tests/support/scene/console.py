"""The operator: clustercli on a host of the network, and what its answers say."""

from __future__ import annotations

import json
import select
import subprocess
from dataclasses import dataclass
from typing import Any

from tests.hosts import NetHost
from tests.support.procs import ROOT, python_environment, python_module
from tests.support.scene.storage import StorageHost

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

    def cli(self, host: StorageHost, *arguments: str, seconds: float | None = None) -> Answer:
        """`clustercli --output json arguments…` to a host; `seconds` is its --timeout."""
        timeout = ["--timeout", str(seconds)] if seconds is not None else []
        return self._ask({"cli": ["--host", host.asked_at, "--output", "json", *timeout, *arguments]})

    def cluster(self, host: StorageHost) -> dict[str, Any] | None:
        """get_cluster's document; None when it is refused or does not come in time."""
        return self._read(host, "get_cluster")

    def members(self, host: StorageHost) -> dict[str, Any] | None:
        """get_members' document, as `cluster`."""
        return self._read(host, "get_members")

    def etcd_is_well(self, host: StorageHost) -> bool:
        """The host's member answers, knows a leader and reads through the quorum, by its own word."""
        scheme, pki = ("https", str(host.pki_dir)) if host.secure else ("http", "")
        answer = self._ask({"health": f"{scheme}://{host.etcd.endpoint}/health", "pki": pki})
        return answer.code == 0 and answer.document().get("health") == "true"

    def write_keys(self, host: StorageHost, times: int) -> None:
        """So many writes of keys that are no records, through the host's member."""
        pki = str(host.pki_dir) if host.secure else ""
        self._ask({"write": host.etcd.endpoint, "times": times, "pki": pki}).document()

    def _read(self, host: StorageHost, command: str) -> dict[str, Any] | None:
        answer = self.cli(host, command, seconds=READ_SECONDS)
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
