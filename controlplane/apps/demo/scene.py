"""Where the story stands, and what its promises have in common."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.apps.demo.errors import DemoError
from controlplane.apps.demo.observers import count_in_log, read_status_file, routable
from controlplane.apps.demo.processes import run_to_end
from controlplane.apps.demo.replay import Replay, bench
from controlplane.apps.demo.requests import Placement
from controlplane.apps.demo.stage import Stage
from controlplane.apps.demo.watches import Coverage, Prediction, Troubles, Watch

PASS_SECONDS = 60.0
_STATS_SECONDS = 10.0


@dataclass
class Scene:
    """The running processes, the replay that goes on, and which dialog belongs to which card.

    `whole`: the placement with every card that has joined in routing.
    """

    stage: Stage
    replay: Replay
    rows: int
    trace_arguments: Sequence[str]
    whole: Placement
    say: Callable[[str], None]
    prediction: Prediction = field(default_factory=Prediction)
    troubles: Troubles = field(default_factory=Troubles)

    def pump(self, until: Callable[[], bool], seconds: float, what: str) -> float:
        """Let the replay go on until `until` holds, with every process watched; how many seconds it took."""
        began = time.monotonic()

        def check() -> bool:
            self.stage.check_alive()
            return until()

        self.replay.pump(check, seconds, what)
        return time.monotonic() - began

    def pump_while(self, holds: Callable[[], bool], seconds: float, what: str) -> float:
        """As `pump`, while `holds` does; when (CLOCK_MONOTONIC) it was last known to hold."""
        last = time.monotonic()

        def over() -> bool:
            nonlocal last
            asked = time.monotonic()
            if holds():
                last = asked
                return False
            return True

        self.pump(over, seconds, what)
        return last

    def one_pass(self) -> None:
        """Let the replay go on until every row was replayed once from now on."""
        coverage = Coverage(self.rows, time.monotonic())
        with self.watching(coverage):
            self.pump(lambda: coverage.complete, PASS_SECONDS, f"a pass over {self.rows} requests")

    @contextmanager
    def watching(self, *watches: Watch) -> Iterator[None]:
        """Feed the watches while inside."""
        self.replay.watches += watches
        try:
            yield
        finally:
            for watch in watches:
                self.replay.watches.remove(watch)

    def served_placement(self) -> Placement:
        """By the plan that the dataplane serves now."""
        plan = self.stage.dataplane_view.plan()
        if plan is None:
            raise DemoError("the dataplane tells no plan")
        return Placement.of(plan)

    def routes_to(self, serials: frozenset[str]) -> bool:
        """The dataplane's plan routes to exactly these cards, and the dataplane uses each."""
        view = self.stage.dataplane_view
        return routable(view.plan()) == serials and frozenset(view.active()) == serials

    def dialogs_of(self, serial: str) -> set[int]:
        """The replayed dialogs that the card has while every card is in routing."""
        return {dialog for dialog in self.prediction.dialogs if self.whole.serial(dialog) == serial}

    def logged(self, sentence: str) -> int:
        """How often the gateway's control process logged the sentence, in all its lives."""
        control = self.stage.control
        return 0 if control is None else count_in_log(control.log_text(), sentence)

    def status_file(self) -> Mapping[tuple[str, str], float]:
        """What the gateway's status file tells now, by (name, label value)."""
        return read_status_file(self.stage.status_file)

    def leased_bytes(self) -> int:
        """Shared memory that is leased to clients, by the dataplane's own account; -1 while it tells none."""
        status = self.stage.dataplane_view.status()
        return -1 if status is None else int(status.counters["leased_bytes"])

    def client_stats(self) -> Mapping[str, int]:
        """The counters as a client gets them (STATS)."""
        command = bench("stats", "--socket", str(self.stage.client_socket))
        found: Mapping[str, int] = json.loads(run_to_end(command, _STATS_SECONDS, "akv-bench stats"))
        return found

    def troubles_since(self) -> Callable[[], tuple[bool, str]]:
        """A function that tells whether nothing bad happened from now on, and the words for it."""
        wrong, errors = self.troubles.wrong, self.troubles.errors

        def tell() -> tuple[bool, str]:
            new_wrong, new_errors = self.troubles.wrong - wrong, self.troubles.errors - errors
            return new_wrong == 0 and new_errors == 0, f"{new_errors} client errors, {new_wrong} wrong blocks"

        return tell
