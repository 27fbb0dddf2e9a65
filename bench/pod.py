"""Software cards in memory and a gateway pod with a fixed list of them, for measurements on one machine."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.processes import READY_SECONDS, Child, ProcessError, child, free_port
from controlplane.model.routing import slot_for_dialog
from controlplane.model.slots import match_slots

HOST = "127.0.0.1"
BIN = Path(sys.executable).parent
_CONTROL_SECONDS = 10.0
_ACTIVE = "xkv_gateway_storage_groups_active"


@dataclass(frozen=True)
class Card:
    """One running software card."""

    serial: str
    nqn: str
    port: int
    process: Child
    directory: Path

    def control(self, line: str) -> dict[str, Any]:
        """What `akv-softcard ctl` would ask, without a process for it. Raises ProcessError for a refusal."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_CONTROL_SECONDS)
            sock.connect(str(self.directory / f"{self.serial}.card.sock"))
            sock.sendall(line.encode() + b"\n")
            with sock.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        if "error" in answer:
            raise ProcessError(f"{self.serial} refused {line!r}: {answer['error']}")
        return answer

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """SIGSTOP until the block ends: the card hangs with all its connections open."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@dataclass(frozen=True)
class Pod:
    """Cards, the dataplane with one worker, its control process, and where clients connect."""

    cards: list[Card]
    dataplane: Child
    control: Child
    socket: Path
    status_file: Path

    def wait_active(self, count: int) -> None:
        """Until the status file tells of `count` cards in use. Raises ProcessError after a minute."""
        deadline = time.monotonic() + READY_SECONDS
        while f"{_ACTIVE} {count}\n" not in self.status_file.read_text():
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.status_file} did not tell of {count} cards in {READY_SECONDS} s")
            time.sleep(0.05)

    def dialogs_of(self, card: Card, count: int) -> list[int]:
        """Dialog ids whose blocks go to this card while all cards are in use; always the same ones."""
        return dialogs_of(card.serial, [each.serial for each in self.cards], count)


def dialogs_of(serial: str, serials: Collection[str], count: int) -> list[int]:
    """`count` dialog ids that the gateways of these cards send to the card `serial`."""
    slots = match_slots(serials)
    ids, found = random.Random(serial), list[int]()
    while len(found) < count:
        dialog = ids.getrandbits(64)
        slot = slot_for_dialog(dialog, slots)
        if slot is not None and slots[slot] == serial:
            found.append(dialog)
    return found


@contextmanager
def running_pod(directory: Path, *, cards: int = 1, capacity: int, **settings: Any) -> Iterator[Pod]:
    """The pod, once the gateway uses all cards. `capacity` bytes are each card's; `settings` are keys of
    gateway.yaml. Everything ends with the block."""
    with ExitStack() as stack:
        running = [stack.enter_context(running_card(directory, number, capacity)) for number in range(cards)]
        config = _config(directory, running, settings)
        dataplane = _program(stack, directory, "akv-dataplane", config)
        control = _program(stack, directory, "akv-gateway", config)
        status = directory / "status.prom"
        control.wait_file(status, f"{_ACTIVE} {cards}\n")
        yield Pod(running, dataplane, control, directory / "gateway.sock", status)


@contextmanager
def running_card(directory: Path, number: int, capacity: int) -> Iterator[Card]:
    """A software card of `capacity` bytes in memory, once it listens."""
    serial, port = f"B{number}P0", free_port(HOST)
    nqn = f"nqn.2024-01.io.akv.bench:{serial.lower()}"
    command: list[str | Path] = [BIN / "akv-softcard", "serve", "--id", f"xdp{number}", "--serial", serial]
    command += ["--nqn", nqn, "--listen", f"{HOST}:{port}", "--state-dir", directory]
    command += ["--capacity", str(capacity)]
    with child(command, directory / f"{serial}.log") as process:
        process.wait_port(HOST, port)
        yield Card(serial, nqn, port, process, directory)


def _config(directory: Path, cards: list[Card], settings: dict[str, Any]) -> Path:
    devices = [
        {"serial": card.serial, "nqn": card.nqn, "traddr": HOST, "trsvcid": card.port} for card in cards
    ]
    own = {
        "storage_devices": devices,
        "port": free_port(HOST),
        "dataplane_socket": str(directory / "dataplane.sock"),
        "client_socket": str(directory / "gateway.sock"),
        "state_dir": str(directory),
        "status_file": str(directory / "status.prom"),
    }
    config = directory / "gateway.yaml"
    config.write_text(yaml.safe_dump(own | settings))
    return config


def _program(stack: ExitStack, directory: Path, name: str, config: Path) -> Child:
    return stack.enter_context(child([BIN / name, "--config", config], directory / f"{name}.log"))
