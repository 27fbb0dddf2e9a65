"""The status file: what this gateway holds true and uses, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from akv.v1 import dataplane_pb2

from controlplane.model.plan import GatewayPlan

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the status file tells. `dataplane` is None while the dataplane does not answer.

    Times are Unix seconds; `last_answer` is None before the first answer of the cluster.
    """

    plan: GatewayPlan | None
    cluster_mode: bool
    stale: bool
    last_answer: float | None
    slots_moved: int
    cards_without_slot: int
    problems: int
    plan_in_sync: bool
    dataplane: dataplane_pb2.GetStatusResponse | None
    written: float


@dataclass(slots=True)
class _Page:
    lines: list[str] = field(default_factory=list)

    def add(self, name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        """One metric family; nothing when it has no sample."""
        rows = [f"xkv_gateway_{name}{_labels(labels)} {value:.17g}" for labels, value in samples]
        if rows:
            self.lines += [f"# HELP xkv_gateway_{name} {text}", f"# TYPE xkv_gateway_{name} {kind}", *rows]


def render(picture: Picture) -> str:
    """The whole file. A value that is not known has no sample, so that it can't be taken for a fresh one."""
    page = _Page()
    _cluster(page, picture)
    _plan(page, picture)
    _cards(page, picture)
    _dataplane(page, picture)
    page.add("status_timestamp_seconds", "gauge", "When this file was written.", [({}, picture.written)])
    return "\n".join(page.lines) + "\n"


def _cluster(page: _Page, picture: Picture) -> None:
    if not picture.cluster_mode:
        return
    page.add(
        "cluster_answered",
        "gauge",
        "1 while the cluster answers, 0 while it is stale.",
        [({}, not picture.stale)],
    )
    if picture.last_answer is not None:
        text = "When the cluster last gave an answer that counts."
        page.add("cluster_last_answer_timestamp_seconds", "gauge", text, [({}, picture.last_answer)])
    page.add(
        "cluster_slots_moved", "counter", "Cards that a join or a forget moved.", [({}, picture.slots_moved)]
    )
    page.add("cluster_problems", "gauge", "Problems in the cluster's records now.", [({}, picture.problems)])
    text = "Registered cards beyond the eighth, which are not used."
    page.add("cluster_cards_without_slot", "gauge", text, [({}, picture.cards_without_slot)])


def _plan(page: _Page, picture: Picture) -> None:
    if picture.plan is None:
        return
    labels = {"fingerprint": picture.plan.fingerprint}
    page.add(
        "cluster_slot_plan_info", "gauge", "The slot plan; equal on all gateways of a cluster.", [(labels, 1)]
    )
    page.add("plan_in_sync", "gauge", "1 while the dataplane serves this plan.", [({}, picture.plan_in_sync)])


def _cards(page: _Page, picture: Picture) -> None:
    """Which cards are really in use: the dataplane's word, not the plan's."""
    if picture.dataplane is None:
        return
    active = {card.serial: card.active for card in picture.dataplane.cards}
    serials = [card.serial for card in picture.plan.cards] if picture.plan else sorted(active)
    page.add("storage_groups_active", "gauge", "Cards in use now.", [({}, sum(active.values()))])
    page.add(
        "storage_group_active",
        "gauge",
        "1 for each card in use, 0 for one that is not.",
        [({"group": serial}, active.get(serial, False)) for serial in serials],
    )
    page.add(
        "storage_group_state",
        "gauge",
        "The dataplane's connection to the card.",
        [({"group": card.serial, "state": card.state}, 1) for card in picture.dataplane.cards],
    )
    page.add(
        "storage_group_trouble",
        "gauge",
        "What is wrong with the card; none for a card that does well.",
        [
            ({"group": card.serial, "trouble": card.trouble}, 1)
            for card in picture.dataplane.cards
            if card.trouble
        ],
    )
    for name, text in _CARD_COUNTERS.items():
        samples = [({"group": card.serial}, float(getattr(card, name))) for card in picture.dataplane.cards]
        page.add(f"storage_group_{name}_total", "counter", text, samples)


_CARD_COUNTERS = {
    "reconnects": "Connections to the card that were made again.",
    "timeouts": "Commands that the card did not answer in time.",
    "gets": "Blocks asked of the card.",
    "hits": "Blocks that the card had.",
    "puts": "Blocks given to the card.",
}


def _dataplane(page: _Page, picture: Picture) -> None:
    answers = picture.dataplane is not None
    page.add("dataplane_up", "gauge", "1 while the dataplane answers its control process.", [({}, answers)])
    if picture.dataplane is None:
        return
    counters = sorted(picture.dataplane.counters.items())
    page.add(
        "dataplane_counter_total",
        "counter",
        "Counters of the data path by name.",
        [({"name": name}, value) for name, value in counters],
    )


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
