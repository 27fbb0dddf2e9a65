"""Services of other packages that stand beside the cluster's on one host, as the fleet's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from controlplane.cluster.api import Registration
from controlplane.store.election import Standing


class Companion(Protocol):
    """Served on the host's address, and told of the election."""

    @property
    def registrations(self) -> Sequence[Registration]:
        """The services to add to the host's server."""

    async def run(self, standing: Callable[[], Standing]) -> None:
        """Work until cancelled; `standing()` is what the host knows of the election at that moment."""
