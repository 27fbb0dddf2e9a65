"""Cards that fail as the software card's switches make them, under a running dataplane: the status says how,
the other card serves on, and nothing wrong is ever returned."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from akv.v1.dataplane_pb2 import CardStatus

from controlplane.model.routing import slot_for_dialog
from integration.client import Client, Status
from tests.support.addresses import LoopbackNet
from tests.support.dataplane import Dataplane, TestCard
from tests.support.procs import wait_until
from tests.support.softcard import Card

SERIALS = ("L0P0", "L0P1")
SIZE = 64 << 10
BLOCKS = 12


class Pair:
    """Two cards under one dataplane, with blocks on both; `bad` is made to fail, `well` is not."""

    def __init__(self, directory: Path, net: LoopbackNet) -> None:
        self.bad, self.well = (
            Card(directory / serial, net.host(11 + at), serial=serial) for at, serial in enumerate(SERIALS)
        )
        # Without a read cache, so that each GET asks its card.
        self.dataplane = Dataplane(
            directory / "dataplane",
            net,
            storage_backend="kv-nvme",
            io_timeout_ms=1000,
            io_timeout_strikes=3,
            read_cache_size=0,
            nvme_tcp_digests="prefer",
        )
        self.dataplane.start()
        plan = self.dataplane.apply([TestCard.of(card) for card in (self.bad, self.well)])
        slots = {card.serial: card.slot for card in plan.cards}
        self.client: Client = self.dataplane.client()
        self.blocks: dict[str, dict[int, tuple[bytes, bytes]]] = {serial: {} for serial in SERIALS}
        # One for each GET: what a hung card may still write into is not taken for another.
        self.buffers = {serial: self.client.alloc(BLOCKS, SIZE) for serial in SERIALS}
        while any(len(blocks) < BLOCKS for blocks in self.blocks.values()):
            dialog = random.getrandbits(64)
            slot = slot_for_dialog(dialog, plan.routable)
            serial = next(serial for serial in SERIALS if slots[serial] == slot)
            if len(self.blocks[serial]) < BLOCKS:
                self.blocks[serial][dialog] = self.put(serial, dialog)

    def put(self, serial: str, dialog: int) -> tuple[bytes, bytes]:
        key, payload = os.urandom(32), os.urandom(SIZE)
        [buffer, *_] = self.buffers[serial]
        buffer.view[:] = payload
        assert self.client.put([key], [buffer], dialog) == [Status.OK]
        return key, payload

    def hits(self, serial: str) -> int:
        """How many of the card's blocks come back; each is compared byte by byte."""
        found = 0
        asked = zip(self.blocks[serial].items(), self.buffers[serial], strict=True)
        for (dialog, (key, payload)), buffer in asked:
            [got] = self.client.get([key], [buffer], dialog)
            if got.status == Status.OK:
                assert bytes(buffer.view) == payload
                found += 1
        return found

    def status(self, card: Card) -> CardStatus:
        (status,) = [told for told in self.dataplane.status().cards if told.serial == card.serial]
        return status

    def see(self, trouble: str, told: str = "") -> None:
        """Waits until the status names the bad card's trouble, which goes on; the other card has none.

        Only slow it may have been within the last ten seconds, on a busy machine.
        """

        def named() -> bool:
            self.hits(self.bad.serial)
            status = self.status(self.bad)
            return status.trouble == trouble and told in status.last_error

        wait_until(named, f"the card's trouble is {trouble!r}: {told!r}", 60)
        assert self.hits(self.well.serial) == BLOCKS
        assert self.status(self.well).trouble in {"", "slow"}

    def strike(self) -> None:
        """GETs of the bad card's blocks until the fault has struck; the other card answers all the while."""

        def struck() -> bool:
            self.hits(self.bad.serial)
            assert self.hits(self.well.serial) == BLOCKS
            return self.bad.hits() > 0

        wait_until(struck, "the fault strikes", 60)

    def recover(self) -> None:
        """Everything comes back, into blocks of its own: those of GETs that timed out stay quarantined."""
        self.bad.fault("clear")
        self.buffers[self.bad.serial] = self.client.alloc(BLOCKS, SIZE)
        self.dataplane.wait_active(set(SERIALS))
        wait_until(lambda: self.hits(self.bad.serial) == BLOCKS, "all blocks are back", 60)

    def stop(self) -> None:
        self.client.close()
        self.dataplane.stop()
        for card in (self.bad, self.well):
            card.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair"), LoopbackNet.pick())
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("fault", "trouble", "told"),
    [
        ("drop", "reset", "Connection reset by peer"),
        ("half-close", "closed", "the target closed the connection"),
        ("wrong-id", "wrong-id", "no outstanding command has id"),
        ("hang", "hung", "commands in a row passed their deadline of 1000 ms"),
    ],
)
def test_a_card_that_leaves_service_says_why(pair: Pair, fault: str, trouble: str, told: str) -> None:
    pair.bad.fault("retrieve", fault)
    pair.strike()
    pair.see(trouble, told)
    pair.recover()


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (("corrupt",), "corrupt-values"),
        (("short",), "wrong-length"),
        (("bad-digest",), "wrong-digest"),
        (("error", "status=6"), "command-errors"),
        (("delay", "ms=700", "count=1"), "slow"),
    ],
    ids=["corrupt", "short", "bad-digest", "error", "delay"],
)
def test_a_card_that_answers_wrongly_or_late_stays(pair: Pair, words: tuple[str, ...], trouble: str) -> None:
    pair.bad.fault("retrieve", *words)
    pair.strike()
    pair.see(trouble)
    assert {card.state for card in pair.dataplane.status().cards} == {"live"}
    pair.bad.fault("clear")
    assert pair.hits(pair.well.serial) == BLOCKS
