"""What packet loss between hosts says about a card: pure functions over what the ping exporters saw.

One host that loses packets to a card may itself be the one that is cut off. So loss counts only when at least
two hosts see it to all of a card's data addresses, each of them reaches some other host, and nobody reaches
the card.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.cluster.evidence import PathLoss
from controlplane.model.cards import CardRecord


@dataclass(frozen=True, slots=True)
class LossLimits:
    """From `lost` percent on a path counts as lost; below `reached` it works; between, it says nothing."""

    lost: float = 50.0
    reached: float = 25.0
    sources: int = 2


DEFAULT_LIMITS = LossLimits()


@dataclass(frozen=True, slots=True)
class LossFinding:
    """Hosts by what they see of one card, each sorted.

    `losing` see it lost and reach another host; `cut_off` see it lost and reach nobody; `reaching` get
    through.
    """

    losing: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    reaching: tuple[str, ...] = ()
    agreed: bool = False

    @property
    def note(self) -> str:
        """What is seen and not acted on, for people; empty when there is nothing to tell."""
        seen = self.losing + self.cut_off
        if self.agreed or not seen:
            return ""
        if self.reaching:
            why = f"{', '.join(self.reaching)} {_verb(self.reaching, 'reaches', 'reach')} it"
        elif len(self.losing) < len(seen):
            why = f"{', '.join(self.cut_off)} {_verb(self.cut_off, 'reaches', 'reach')} no other host"
        else:
            why = "one host alone does not count"
        return f"packet loss seen by {', '.join(sorted(seen))} is not acted on: {why}"


def _verb(hosts: Sequence[str], one: str, many: str) -> str:
    return one if len(hosts) == 1 else many


def find_loss(card: CardRecord, losses: Iterable[PathLoss], limits: LossLimits) -> LossFinding:
    """What the other hosts see of the card's data addresses."""
    addresses = {path.traddr for path in card.paths}
    to_card: dict[str, dict[str, float]] = {}
    reaches_others: set[str] = set()
    for loss in losses:
        if loss.source in {card.host, loss.destination}:
            continue
        if loss.address in addresses:
            seen = to_card.setdefault(loss.source, {})
            seen[loss.address] = max(loss.percent, seen.get(loss.address, 0.0))
        elif loss.destination != card.host and loss.percent < limits.reached:
            reaches_others.add(loss.source)
    lost = [source for source, seen in to_card.items() if _all_lost(seen, addresses, limits)]
    losing = tuple(sorted(source for source in lost if source in reaches_others))
    cut_off = tuple(sorted(source for source in lost if source not in reaches_others))
    reaching = tuple(sorted(s for s, seen in to_card.items() if min(seen.values()) < limits.reached))
    return LossFinding(losing, cut_off, reaching, len(losing) >= limits.sources and not reaching)


def _all_lost(seen: dict[str, float], addresses: set[str], limits: LossLimits) -> bool:
    """A path that is not measured may work."""
    return seen.keys() == addresses and min(seen.values()) >= limits.lost
