"""When cards are asked: new and changed ones at once, silent ones with growing pauses, settled ones never."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from controlplane.base.card_cli import ListedPath
from controlplane.base.card_identify import Identified, IdentifyError
from controlplane.cluster.card_checker import LONGEST_PAUSE, CardChecker
from controlplane.model.cards import CardPath, CardRecord

ONE = CardPath("tcp", "127.0.0.1", "4420")
CARD = CardRecord("h1", "xdp0", "L0P0", "nqn.x", "", (ONE,))


class Cards:
    """Answers by NQN; no serial: silence. Counts how often it is asked."""

    def __init__(self) -> None:
        self.serials = {"nqn.x": "L0P0"}
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, path: ListedPath, nqn: str) -> Identified:
        self.asked += 1
        await self.gate.wait()
        if not self.serials.get(nqn):
            raise IdentifyError("silence")
        return Identified(self.serials[nqn], nqn, False, ())


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def attend(checker: CardChecker, *cards: CardRecord) -> None:
    checker.attend(cards)
    await checker.settle(10.0)


async def test_a_card_that_gave_its_serial_is_not_asked_again_until_it_changes() -> None:
    cards, clock = Cards(), Clock()
    checker = CardChecker(cards, clock)
    for _ in range(5):
        await attend(checker, CARD)
        clock.now += 1000
    assert cards.asked == 1
    assert checker.answers(CARD)[ONE].serial == "L0P0"
    await attend(checker, replace(CARD, device="xdp7"))
    assert cards.asked == 1, "a device name is no identity"
    await attend(checker, replace(CARD, paths=(CardPath("tcp", "127.0.0.2", "4420"),)))
    assert cards.asked == 2
    await attend(checker, replace(CARD, state="stopped"))
    assert checker.answers(CARD) == {}
    await attend(checker, CARD)
    assert cards.asked == 3, "who comes back may be another card"


async def test_silence_is_asked_about_with_growing_pauses_and_how_long_it_lasts_is_known() -> None:
    cards, clock = Cards(), Clock()
    cards.serials = {}
    checker = CardChecker(cards, clock)
    for _ in range(600):
        await attend(checker, CARD)
        clock.now += 1.0
    assert 600 / LONGEST_PAUSE <= cards.asked <= 600 / (LONGEST_PAUSE / 2) + 8
    assert checker.waited(CARD) == 600.0
    assert checker.answers(CARD)[ONE].error == "silence"


async def test_discovery_does_not_wait_for_a_card_and_no_inquiry_is_left_behind() -> None:
    cards = Cards()
    cards.gate.clear()
    checker = CardChecker(cards)
    checker.attend([CARD])
    await checker.settle(0.01)
    assert checker.answers(CARD) == {}
    checker.attend([CARD])
    await asyncio.sleep(0)
    assert cards.asked == 1, "one inquiry at a time"
    before = len(asyncio.all_tasks())
    await checker.close()
    assert len(asyncio.all_tasks()) == before - 1
