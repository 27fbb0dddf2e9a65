"""Software cards for tests: the real program on a loopback address of the test's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.nvme_tcp import Host
from tests.support.nvme_wire import Options
from tests.support.procs import PATIENCE, ROOT, Program, lasting_descriptors, wait_until


def softcard_program() -> str:
    """AKV_SOFTCARD, the installed program, or the newest one built in this tree."""
    named = os.environ.get("AKV_SOFTCARD")
    installed = shutil.which("akv-softcard", path=str(Path(sys.executable).parent))
    built = sorted(
        ROOT.glob("build/*/dataplane/core/softcard/akv-softcard"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for candidate in (named, installed, *map(str, built)):
        if candidate is not None:
            return candidate
    raise AssertionError("akv-softcard is not built: run `make setup`, or name it in AKV_SOFTCARD")


def card_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the card CLI to its end."""
    command = [softcard_program(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def list_cards(state_dir: Path) -> list[dict[str, Any]]:
    done = card_cli("list", "--json", "--state-dir", str(state_dir))
    assert done.returncode == 0, done.stderr
    cards: list[dict[str, Any]] = json.loads(done.stdout)["cards"]
    return cards


class Card(Program):
    """One running card; ready when the constructor returns."""

    def __init__(
        self,
        state_dir: Path,
        address: str,
        *,
        card_id: str = "xdp0",
        serial: str = "L0P0",
        nqn: str | None = None,
        capacity: str = "64M",
        extra: Sequence[str] = (),
    ) -> None:
        self.state_dir = state_dir
        self.card_id = card_id
        self.serial = serial
        self.nqn = nqn or f"nqn.2024-01.io.akv.test:{serial.lower()}"
        super().__init__(
            [
                *(softcard_program(), "serve", "--id", card_id, "--serial", serial, "--nqn", self.nqn),
                *("--listen", f"{address}:0", "--state-dir", str(state_dir), "--capacity", capacity, *extra),
            ],
            name=f"card-{serial}",
        )
        ready = self.wait_event("ready")
        self.address: tuple[str, int] = (ready["traddr"], int(ready["trsvcid"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A card that still runs must stop cleanly (a sanitizer's report would be another exit code)."""
        running = self.returncode is None
        code = self.stop()
        assert error is not None or not running or code == 0, self.tail()

    def host(self, options: Options | None = None, kato: int = 0) -> Host:
        return Host(self.address, self.nqn, options, kato)

    def stats(self) -> dict[str, Any]:
        return self._control("stats")

    def fault(self, *words: str) -> dict[str, Any]:
        """Switch a fault on, or `list` or `clear` them (docs/softcard.md, "Fault switches")."""
        return self._control("fault", *words)

    def hits(self) -> int:
        """How often the faults that are on have struck."""
        return sum(fault["hits"] for fault in self.fault("list")["faults"])

    def _control(self, *words: str) -> dict[str, Any]:
        done = card_cli("ctl", "--state-dir", str(self.state_dir), "--id", self.card_id, *words)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def descriptors(self) -> int:
        return lasting_descriptors(self.pid)

    def resident_bytes(self) -> int:
        return self._memory_bytes(1)

    def allocated_bytes(self) -> int:
        """Of its own memory, whether it was touched yet or not."""
        return self._memory_bytes(5)

    def _memory_bytes(self, field: int) -> int:
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[field]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def wait_connections(self, count: int, seconds: float = PATIENCE) -> None:
        wait_until(lambda: self.stats()["connections"] == count, f"{count} connections", seconds)
