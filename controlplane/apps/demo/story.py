"""The story: what happens, in which order, and what is told meanwhile."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.apps.demo.errors import DemoError, NotInTimeError
from controlplane.apps.demo.processes import run_to_end
from controlplane.apps.demo.promises import PROMISES
from controlplane.apps.demo.replay import bench
from controlplane.apps.demo.report import NAMES, Promise, Report
from controlplane.apps.demo.requests import Placement
from controlplane.apps.demo.scene import Scene
from controlplane.apps.demo.settings import (
    FIRST_CARDS,
    HOSTS,
    LEAST_REQUESTS,
    DemoSettings,
    Layout,
    choose_layout,
)
from controlplane.apps.demo.stage import Stage

Say = Callable[[str], None]

_BENCH_SECONDS = 60.0
# A card keeps each block with its envelope, on whole pages.
_OVERHEAD_BYTES = 8192


def tell(settings: DemoSettings, say: Say) -> Report:
    """Run the story; the report tells what was kept. Raises DemoError where it can't even begin."""
    began = time.monotonic()
    with demo_directory(settings.keep, say) as directory:
        trace, generated = _find_trace(settings, directory)
        say(f"trace {trace}{' (made for this run)' if generated else ''}, first {settings.requests} requests")
        simulated = _simulate(settings, trace)
        report = Report(simulated["requests"], settings.block_bytes, str(trace), generated)
        # Room for every block on one card: nothing is evicted, as the simulation has it.
        card_bytes = simulated["blocks"] * (settings.block_bytes + _OVERHEAD_BYTES)
        try:
            _run(settings, choose_layout(directory), card_bytes, report, say)
        except DemoError as error:
            report.failure = str(error)
        report.complete()
    report.seconds = time.monotonic() - began
    return report


def _run(settings: DemoSettings, layout: Layout, card_bytes: int, report: Report, say: Say) -> None:
    with Stage(layout, settings, card_bytes) as stage:
        set_up(stage, say)
        placement = wait_for_cards(stage)
        say(f"gateway uses {', '.join(placement.serials)} in slots {', '.join(map(str, placement.slots))}")
        scene = _begin_replay(stage, placement, report, say)
        try:
            _keep_promises(scene, report)
        finally:
            _sum_up(scene, report)


def set_up(stage: Stage, say: Say) -> None:
    """Three hosts with a healthy card each, one quorum, and the gateway pod."""
    for card in FIRST_CARDS:
        stage.start_card(card)
    for host in range(1, HOSTS + 1):
        stage.start_host(host)
    say(f"{HOSTS} storage hosts on {stage.layout.network}.1 to .{HOSTS}, a card on each")
    stage.form_cluster(say)
    say(f"etcd quorum of {HOSTS}")
    serials = {card.serial for card in FIRST_CARDS}
    stage.wait_until(lambda: serials <= _healthy(stage), 30.0, f"cards {', '.join(sorted(serials))} healthy")
    say("the leader finds every card healthy")
    stage.start_gateway()


def _healthy(stage: Stage) -> set[str]:
    return {serial for serial, card in stage.cluster.cards().items() if card.health_xdp == 0}


def wait_for_cards(stage: Stage) -> Placement:
    """Wait until the dataplane uses the first cards; its placement."""
    serials = tuple(sorted(card.serial for card in FIRST_CARDS))
    stage.wait_until(
        lambda: stage.dataplane_view.active() == serials, 30.0, "the dataplane uses the three cards"
    )
    plan = stage.dataplane_view.plan()
    if plan is None:
        raise DemoError("the dataplane uses cards but tells no plan")
    return Placement.of(plan)


def _begin_replay(stage: Stage, placement: Placement, report: Report, say: Say) -> Scene:
    slots = ",".join(map(str, placement.slots))
    rows = ["--trace", report.trace, "--requests", str(report.requests)]
    replay = stage.start_replay("replay", [*rows, "--loop", "--slots", slots])
    scene = Scene(stage, replay, report.requests, rows, placement, say)
    replay.watches += [scene.prediction, scene.troubles]
    return scene


def _keep_promises(scene: Scene, report: Report) -> None:
    for number, (name, keep) in enumerate(zip(NAMES, PROMISES, strict=True), start=1):
        scene.say(f"promise {number}: {name}")
        try:
            kept, detail = keep(scene)
        except NotInTimeError as error:
            kept, detail = False, str(error)
        scene.stage.check_alive()
        report.promises.append(Promise(name, kept, detail))
        scene.say(f"promise {number}: {'kept' if kept else 'BROKEN'}: {detail}")


def _sum_up(scene: Scene, report: Report) -> None:
    """What is known goes into the report, also when the story was cut short."""
    prediction = scene.prediction
    if prediction.requests == report.requests:
        report.expected_hit_ratio = prediction.expected_ratio
        report.measured_hit_ratio = prediction.measured_ratio
    report.wrong_blocks = scene.troubles.wrong
    report.client_errors = scene.troubles.errors
    report.replay = scene.replay.summary or {}
    spread = Counter(scene.whole.serial(dialog) for dialog in prediction.dialogs)
    report.spread = dict(sorted(spread.items()))


def _find_trace(settings: DemoSettings, directory: Path) -> tuple[Path, bool]:
    if settings.trace is not None:
        return settings.trace, False
    made = str(directory / "trace.jsonl")
    command = bench("locate-trace", "--else-generate", made, "--requests", str(settings.requests))
    found = json.loads(run_to_end(command, _BENCH_SECONDS, "looking for a trace"))
    return Path(found["path"]), bool(found["generated"])


def _simulate(settings: DemoSettings, trace: Path) -> dict[str, int]:
    command = bench("simulate", "--trace", str(trace), "--requests", str(settings.requests))
    found: dict[str, int] = json.loads(run_to_end(command, _BENCH_SECONDS, "reading the trace"))
    if found["requests"] < LEAST_REQUESTS:
        raise DemoError(
            f"{trace} has {found['requests']} requests: the story needs {LEAST_REQUESTS}, so that every card "
            "has dialogs; give a longer trace"
        )
    return found


@contextmanager
def demo_directory(keep: bool, say: Say) -> Iterator[Path]:
    """A temporary directory, gone at the end unless `keep`."""
    directory = Path(tempfile.mkdtemp(prefix="akv-demo-"))
    try:
        yield directory
    finally:
        if keep:
            say(f"logs and files are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
