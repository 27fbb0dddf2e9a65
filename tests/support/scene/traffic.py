"""What the engines behind the gateways see: replays that go on while something breaks, and their judges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.apps.demo.replay import Replay
from controlplane.apps.demo.requests import Placement, Served
from controlplane.apps.demo.watches import AllFull, Coverage, Homecoming, Prediction, Shift, Troubles, Watch

PASS_SECONDS = 60.0


@dataclass
class Stream:
    """One gateway's replay and what was seen of it."""

    gateway: str
    replay: Replay
    dialogs: set[int] = field(default_factory=set)
    troubles: Troubles = field(default_factory=Troubles)

    def __post_init__(self) -> None:
        self.replay.watches += [self, self.troubles]

    def feed(self, served: Served) -> None:
        """Remember the dialogs."""
        self.dialogs.add(served.dialog)

    def dialogs_of(self, placement: Placement, serials: frozenset[str]) -> set[int]:
        """The dialogs that a placement gives to these cards."""
        return {dialog for dialog in self.dialogs if placement.serial(dialog) in serials}


class Traffic:
    """The replays of all gateways, each over `rows` rows again and again, in a namespace of its own."""

    def __init__(self, streams: Sequence[Stream], rows: int) -> None:
        self.streams = tuple(streams)
        self.rows = rows

    def pump(self, until: Callable[[], bool], seconds: float, what: str) -> float:
        """Judge what comes until `until` holds; seconds that it took. AssertionError after `seconds`."""
        began = time.monotonic()
        while not until():
            if time.monotonic() - began > seconds:
                raise AssertionError(f"not within {seconds:.0f} s: {what}")
            for stream in self.streams:
                stream.replay.turn()
                assert stream.replay.child.running, stream.replay.child.tail()
        return time.monotonic() - began

    def one_pass(self) -> None:
        """Let every gateway serve each row once from now on."""
        covers = [Coverage(self.rows, time.monotonic()) for _ in self.streams]
        with self.watching(covers):
            self.pump(lambda: all(c.complete for c in covers), PASS_SECONDS, f"a pass over {self.rows} rows")

    def wait_served(self) -> None:
        """Until every client is connected and served again: one request without an error."""
        last = [Last(time.monotonic()) for _ in self.streams]
        with self.watching(last):
            self.pump(lambda: all(watch.served for watch in last), PASS_SECONDS, "every client is served")

    @contextmanager
    def watching(self, watches: Sequence[Watch]) -> Iterator[None]:
        """Feed the nth watch with the nth gateway's requests while inside."""
        for stream, watch in zip(self.streams, watches, strict=True):
            stream.replay.watches.append(watch)
        try:
            yield
        finally:
            for stream, watch in zip(self.streams, watches, strict=True):
                stream.replay.watches.remove(watch)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Every request of every gateway hits in full, until the end of the block and a pass more."""
        full = [AllFull(time.monotonic()) for _ in self.streams]
        errors = [stream.troubles.errors for stream in self.streams]
        with self.watching(full):
            yield
            self.one_pass()
        for stream, watch in zip(self.streams, full, strict=True):
            assert watch.requests >= self.rows, f"{stream.gateway}: only {watch.requests} requests"
            assert not watch.short, (
                f"{stream.gateway}: {len(watch.short)} requests were not full: {watch.short[:2]}"
            )

        assert errors == [stream.troubles.errors for stream in self.streams], "calls failed"

    @contextmanager
    def shift(self, before: Placement, after: Placement) -> Iterator[Departure]:
        """Dialogs that `after` places elsewhere miss once, the others hit in full, a pass more included."""
        departure = Departure([Shift(before, after, time.monotonic()) for _ in self.streams])
        with self.watching(departure.shifts):
            yield departure
            self.one_pass()
        for stream, shift in zip(self.streams, departure.shifts, strict=True):
            moved = {d for d in stream.dialogs if before.serial(d) != after.serial(d)}
            assert moved, f"{stream.gateway}: no dialog moves, so nothing was tested"
            assert shift.missed == moved, (
                f"{stream.gateway}: {len(shift.missed)} of {len(moved)} dialogs missed"
            )
            assert shift.kept, f"{stream.gateway}: no dialog stays, so nothing was tested"
            assert not shift.short, f"{stream.gateway}: dialogs of other cards suffered: {shift.short[:2]}"
            assert not shift.impossible, f"{stream.gateway}: found what was gone: {shift.impossible[:2]}"

    def expect_home(self, placement: Placement, serial: str) -> None:
        """The dialogs of a card that came back are found there, all of them."""
        homes = [Homecoming(placement, serial, time.monotonic()) for _ in self.streams]
        with self.watching(homes):
            self.one_pass()
        for stream, home in zip(self.streams, homes, strict=True):
            own = stream.dialogs_of(placement, frozenset({serial}))
            assert home.found == own, f"{stream.gateway}: {len(home.found)} of {len(own)} dialogs came home"
            assert not home.short, f"{stream.gateway}: {home.short[:2]}"

    def first_pass(self) -> None:
        """Everything is stored once; what is found is what unlimited cards would find."""
        seen = [Prediction() for _ in self.streams]
        with self.watching(seen):
            what = f"a first pass over {self.rows} rows"
            self.pump(lambda: all(watch.requests == self.rows for watch in seen), PASS_SECONDS, what)
        assert all(watch.different == 0 for watch in seen), "the first pass differs from the simulation"

    def finish(self) -> None:
        """End the replays; nobody met a wrong block."""
        for stream in self.streams:
            summary = stream.replay.finish()
            assert summary["wrong_blocks"] == 0
            assert stream.troubles.wrong == 0

    def stop(self) -> None:
        """End the processes, also after a failure."""
        for stream in self.streams:
            stream.replay.child.stop()


@dataclass
class Last:
    """Whether a request that began after `since` was served without an error."""

    since: float
    served: bool = False

    def feed(self, served: Served) -> None:
        """Take one request."""
        self.served = self.served or (served.began >= self.since and not served.errors)


@dataclass
class Departure:
    """The watches of a change that is under way."""

    shifts: list[Shift]

    def gone_now(self) -> None:
        """From this moment nothing of the departed card can be found any more."""
        for shift in self.shifts:
            shift.gone = time.monotonic()
