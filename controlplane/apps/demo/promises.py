"""The seven promises: each does its harm, watches the replay meanwhile, and tells whether the promise was
kept."""

from __future__ import annotations

import time
from collections.abc import Sequence

from controlplane.apps.demo.processes import resume, suspend
from controlplane.apps.demo.requests import Served
from controlplane.apps.demo.scene import PASS_SECONDS, Scene
from controlplane.apps.demo.settings import FIRST_CARDS, FOURTH_CARD, POLL_MS
from controlplane.apps.demo.watches import AllFull, Homecoming, Shift, Transfers

# Kept or not, and the figures.
Outcome = tuple[bool, str]

# The card that is killed, and how it comes back: under another port and another device id.
VICTIM = FIRST_CARDS[1]
NEW_DEVICE = "xdp7"
OTHER_PORT = 1
SETTLE_SECONDS = 30.0
POLLS_ALLOWED = 2
NEXT_CLIENT_ROWS = 50
# The second client has moved that many blocks when it is killed.
TRANSFERS = 50
CLIENTS_KILLED = 3


def undisturbed(scene: Scene) -> Outcome:
    """1: three cards hit as an exact simulation of unlimited cards predicts."""
    seen, clean = scene.prediction, scene.troubles_since()
    scene.pump(
        lambda: seen.requests == scene.rows, 2 * PASS_SECONDS, f"a first pass over {scene.rows} requests"
    )
    no_trouble, troubles = clean()
    detail = (
        f"hit ratio measured {seen.measured_ratio:.5f}, expected {seen.expected_ratio:.5f}; "
        f"{seen.different} of {seen.requests} requests differ; {troubles}"
    )
    return no_trouble and seen.different == 0 and seen.matched == seen.expected, detail


def card_killed(scene: Scene) -> Outcome:
    """2: one card is killed; its dialogs miss, the others do not notice."""
    # Everything is stored after this: from here on a request that is not full was disturbed.
    scene.one_pass()
    clean, left = scene.troubles_since(), scene.whole.without(VICTIM.serial)
    shift = Shift(scene.whole, left, since=time.monotonic())
    scene.stage.cards.pop(VICTIM.serial).kill()
    shift.gone = time.monotonic()
    scene.say(f"card {VICTIM.serial} killed")
    with scene.watching(shift):
        what = f"{VICTIM.serial} leaves the plan's routing"
        out_after = scene.pump(lambda: scene.routes_to(frozenset(left.serials)), SETTLE_SECONDS, what)
        scene.one_pass()
    no_trouble, troubles = clean()
    own = scene.dialogs_of(VICTIM.serial)
    detail = (
        f"other cards' dialogs: {_in_full(shift.kept, shift.short)}; "
        f"{len(shift.missed)} of {len(own)} dialogs of {VICTIM.serial} missed, "
        f"{len(shift.impossible)} requests found what was gone; out of the plan after "
        f"{out_after:.1f} s; {troubles}"
    )
    kept = shift.kept > 0 and not shift.short and shift.missed == own and not shift.impossible
    return kept and no_trouble, detail


def card_back(scene: Scene) -> Outcome:
    """3: the card comes back under another port and device id, and its dialogs hit again."""
    clean, began = scene.troubles_since(), time.monotonic()
    port = scene.stage.layout.ports.card + OTHER_PORT
    scene.stage.start_card(VICTIM, device=NEW_DEVICE, port=port)
    scene.say(f"card {VICTIM.serial} started as {NEW_DEVICE} on port {port}")
    others = Shift(scene.whole, scene.whole.without(VICTIM.serial), began)
    # Other cards have its dialogs by now: one that misses does so on this card, even before we see it in use.
    returning = Homecoming(scene.whole, VICTIM.serial, began)
    with scene.watching(others, returning):
        what = f"{VICTIM.serial} is in routing again"
        back_after = scene.pump(lambda: scene.routes_to(frozenset(scene.whole.serials)), SETTLE_SECONDS, what)
        home = Homecoming(scene.whole, VICTIM.serial, time.monotonic())
        with scene.watching(home):
            scene.one_pass()
    same = scene.served_placement().fingerprint == scene.whole.fingerprint
    no_trouble, troubles = clean()
    own = scene.dialogs_of(VICTIM.serial)
    detail = (
        f"{len(home.found)} of {len(own)} dialogs of {VICTIM.serial} hit again, "
        f"{len(returning.short)} requests did not; "
        f"other cards' dialogs: {_in_full(others.kept, others.short)}; "
        f"in use after {back_after:.1f} s, {'the same' if same else 'ANOTHER'} slot; {troubles}"
    )
    return home.found == own and not returning.short and not others.short and same and no_trouble, detail


def card_joins(scene: Scene) -> Outcome:
    """4: a fourth card joins and is used within two polls."""
    clean, serial = scene.troubles_since(), FOURTH_CARD.serial
    expected = scene.whole.joined_by(serial)
    shift = Shift(scene.whole, expected, time.monotonic())
    scene.stage.start_card(FOURTH_CARD, port=scene.stage.layout.ports.card + OTHER_PORT)
    with scene.watching(shift):
        unknown = scene.pump_while(
            lambda: serial not in scene.stage.cluster.cards(), SETTLE_SECONDS, f"{serial} is in the cluster"
        )
        everyone = frozenset(expected.serials)
        scene.pump(lambda: scene.routes_to(everyone), SETTLE_SECONDS, f"{serial} is in routing")
        polls = (time.monotonic() - unknown) * 1000 / POLL_MS
        # The second pass finds what the first one stored.
        scene.one_pass()
        scene.one_pass()
    card = scene.stage.dataplane_view.card(serial)
    stored = 0 if card is None else card.puts
    moved = {d for d in scene.prediction.dialogs if scene.whole.serial(d) != expected.serial(d)}
    as_planned = scene.served_placement().fingerprint == expected.fingerprint
    scene.whole = expected
    no_trouble, troubles = clean()
    detail = (
        f"{serial} used at most {polls:.2f} polls after the cluster told of it, "
        f"{stored} blocks stored on it; "
        f"{len(shift.missed)} of the {len(moved)} dialogs that the model moves missed once; other dialogs: "
        f"{_in_full(shift.kept, shift.short)}; "
        f"{'slots as the model plans' if as_planned else 'OTHER SLOTS THAN THE MODEL PLANS'}; {troubles}"
    )
    in_time = polls <= POLLS_ALLOWED and stored > 0
    kept = in_time and shift.missed == moved and not shift.impossible and not shift.short
    return kept and as_planned and no_trouble, detail


def etcd_suspended(scene: Scene) -> Outcome:
    """5: all etcd members are suspended, and nothing changes for the client."""
    clean, full, members = scene.troubles_since(), AllFull(time.monotonic()), scene.stage.etcd_pids()
    stale, answered = scene.logged("Cluster stale"), scene.logged("Cluster answered again")
    everyone = frozenset(scene.whole.serials)
    with scene.watching(full):
        try:
            suspend(members)
            scene.say(f"{len(members)} etcd members suspended")
            what = "the gateway logs 'Cluster stale'"
            stale_after = scene.pump(lambda: scene.logged("Cluster stale") > stale, SETTLE_SECONDS, what)
            scene.one_pass()
            all_used = scene.routes_to(everyone)
        finally:
            resume(members)
        requests = full.requests
        scene.say("etcd members resumed")
        what = "the gateway logs 'Cluster answered again'"
        back_after = scene.pump(
            lambda: scene.logged("Cluster answered again") > answered, SETTLE_SECONDS, what
        )
        scene.one_pass()
    all_used = all_used and scene.routes_to(everyone)
    same = scene.served_placement().fingerprint == scene.whole.fingerprint
    no_trouble, troubles = clean()
    detail = (
        f"{requests} requests meanwhile, in all {_in_full(full.requests, full.short)}; "
        f"'Cluster stale' after {stale_after:.1f} s, "
        f"'Cluster answered again' {back_after:.1f} s after they went on; "
        f"{'every card in use' if all_used and same else 'THE CARDS IN USE CHANGED'}; {troubles}"
    )
    return requests > 0 and not full.short and all_used and same and no_trouble, detail


def control_killed(scene: Scene) -> Outcome:
    """6: the control process is killed and started again; the dataplane serves on with the same plan."""
    stage, clean, full = scene.stage, scene.troubles_since(), AllFull(time.monotonic())
    plan = stage.dataplane_view.plan()
    control, stage.control = stage.control, None
    with scene.watching(full):
        if control is not None:
            control.kill()
        scene.say("control process killed")
        scene.one_pass()
        without = full.requests
        written = _status_written(scene)
        stage.start_control()
        scene.say("control process started again")
        scene.pump(
            lambda: _fresh_and_whole(scene, written), SETTLE_SECONDS, "a status file with every card in use"
        )
        scene.one_pass()
    after = stage.dataplane_view.plan()
    same = plan is not None and after is not None and list(plan.slots) == list(after.slots)
    told = ("xkv_gateway_cluster_slot_plan_info", scene.whole.fingerprint) in scene.status_file()
    no_trouble, troubles = clean()
    detail = (
        f"{without} requests without it, in all {_in_full(full.requests, full.short)}; "
        f"plan {scene.whole.fingerprint} {'is the same' if same and told else 'CHANGED'} after the restart; "
        f"{troubles}"
    )
    return without >= scene.rows and not full.short and same and told and no_trouble, detail


def _status_written(scene: Scene) -> float:
    return scene.status_file().get(("xkv_gateway_status_timestamp_seconds", ""), 0.0)


def _fresh_and_whole(scene: Scene, written: float) -> bool:
    active = scene.status_file().get(("xkv_gateway_storage_groups_active", ""), 0.0)
    return _status_written(scene) > written and active == len(scene.whole.serials)


def client_killed(scene: Scene) -> Outcome:
    """7: clients are killed in the middle of transfers; their memory comes back, the next one works."""
    clean, full = scene.troubles_since(), AllFull(time.monotonic())
    with scene.watching(full):
        losses = [_kill_a_client(scene, number) for number in range(1, CLIENTS_KILLED + 1)]
        scene.one_pass()
    scene.replay.finish()
    rows, next_full = min(NEXT_CLIENT_ROWS, scene.rows), AllFull(0.0)
    following = scene.stage.start_replay("next-client", [*scene.trace_arguments, "--requests", str(rows)])
    following.watches += [next_full, scene.troubles]
    following.wait_summary(PASS_SECONDS)
    left = scene.client_stats()["leased_bytes"]
    no_trouble, troubles = clean()
    detail = (
        f"{CLIENTS_KILLED} clients killed: {', '.join(str(leased) for leased, _ in losses)} bytes came back "
        f"within {max(seconds for _, seconds in losses):.2f} s, {left} leased at the end; next client: "
        f"{_in_full(next_full.requests, next_full.short)}; {troubles}"
    )
    all_back = all(leased > 0 for leased, _ in losses) and left == 0
    kept = all_back and not full.short and next_full.requests == rows and not next_full.short
    return kept and no_trouble, detail


def _kill_a_client(scene: Scene, number: int) -> tuple[int, float]:
    """Kill a client that transfers without a pause; its leased bytes, and seconds until they were back."""
    before, moved = scene.leased_bytes(), Transfers()
    arguments = [*scene.trace_arguments, "--loop", "--namespace", f"second-{number}"]
    client = scene.stage.start_replay(f"second-client-{number}", arguments)
    client.watches += [moved, scene.troubles]
    client.pump(
        lambda: min(moved.read, moved.stored) > TRANSFERS, SETTLE_SECONDS, "a second client's transfers"
    )
    leased = scene.leased_bytes() - before
    killed = time.monotonic()
    client.child.kill()
    scene.say(f"a second client killed after {moved.read} blocks read and {moved.stored} stored")
    scene.pump(
        lambda: scene.leased_bytes() == before, SETTLE_SECONDS, f"leased memory is back at {before} bytes"
    )
    return leased, time.monotonic() - killed


def _in_full(requests: int, short: Sequence[Served]) -> str:
    return f"{requests - len(short)} of {requests} requests in full"


PROMISES = (undisturbed, card_killed, card_back, card_joins, etcd_suspended, control_killed, client_killed)
