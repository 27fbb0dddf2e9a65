"""Asks a card itself who it is (`akv-nvme identify`): NVMe-oF's own answer, as a gateway would get it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.base.bounded_command import CommandError, run_bounded
from controlplane.base.card_cli import ListedPath

MAX_OUTPUT_BYTES = 64 << 10
# The program keeps its own deadline; this much more is for its start.
START_SECONDS = 5.0


class IdentifyError(Exception):
    """The card did not say who it is. The text says why and is the same while the cause is the same."""


@dataclass(frozen=True, slots=True)
class Identified:
    """What a subsystem said of itself. `namespaces` are the UUIDs or NGUIDs, sorted."""

    serial: str
    nqn: str
    multi_controller: bool
    namespaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CardIdentify:
    """The command `akv-nvme` and the deadline of one inquiry in seconds."""

    command: Sequence[str] = ("akv-nvme",)
    timeout: float = 3.0

    async def ask(self, path: ListedPath, nqn: str) -> Identified:
        """Ask the subsystem at one address. Raises IdentifyError."""
        if path.transport != "tcp":
            raise IdentifyError(f"it is reached over {path.transport}, which this host can't ask over")
        arguments = ["identify", "--json", "--traddr", path.traddr, "--trsvcid", path.trsvcid]
        arguments += ["--nqn", nqn, "--timeout-ms", str(round(self.timeout * 1000))]
        try:
            command = [program(self.command[0]), *self.command[1:], *arguments]
            done = await run_bounded(command, self.timeout + START_SECONDS, MAX_OUTPUT_BYTES)
        except CommandError as error:
            raise IdentifyError(str(error)) from error
        if done.code != 0:
            words = done.errors.decode("utf-8", "replace").strip().splitlines()[-1:]
            told = words[0].removeprefix("akv-nvme: ")[:200] if words else f"exit code {done.code}"
            raise IdentifyError("".join(c if c.isprintable() else "?" for c in told))
        return parse_identified(done.output)


def program(name: str) -> str:
    """`name` as found on PATH, or beside this Python, where an installation puts it; else as it is."""
    beside = Path(sys.executable).parent / name
    return shutil.which(name) or (str(beside) if beside.is_file() else name)


def parse_identified(output: bytes) -> Identified:
    """Read the program's JSON. Raises IdentifyError.

    What a card says of itself comes before operators' eyes: what could move a terminal's cursor is no serial.
    """
    try:
        document = json.loads(output)
        names = [
            entry["uuid"] or entry["nguid"] or f"nsid {entry['nsid']}" for entry in document["namespaces"]
        ]
        serial, nqn = _text(document, "serial").strip(), _text(document, "nqn")
        if not all(text.isprintable() for text in (serial, nqn, *map(str, names))):
            raise IdentifyError("it says a serial or a name with characters that can't be shown")
        return Identified(serial, nqn, document["multi_controller"] is True, tuple(sorted(map(str, names))))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise IdentifyError("akv-nvme printed something that is not its JSON") from None


def _text(document: dict[str, Any], key: str) -> str:
    value = document[key]
    if not isinstance(value, str):
        raise TypeError(key)
    return value
