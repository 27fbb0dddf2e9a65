"""The node's weights as the agent uses them: found for a shard, fetched where they are missing, removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.shards.spec import SpecError
from controlplane.agent.weights.fetch import FetchError, Source, fetch, parse_source
from controlplane.agent.weights.removal import KeptError, empty_trash, remove_weights
from controlplane.agent.weights.roots import WeightRoot, resolve_roots

MAX_PATHS = 1000

Progress = Callable[[int, int], None]


class WeightCache:
    """The roots of one node. `changed` is called after something was added or removed."""

    def __init__(
        self, given: Iterable[tuple[Path, bool]], proc_root: Path, changed: Callable[[], None]
    ) -> None:
        self._given = list(given)
        self._proc = proc_root
        self._changed = changed
        self._one = asyncio.Lock()

    def roots(self) -> list[WeightRoot]:
        """The roots that exist at this moment. Does file system calls: not for the event loop."""
        return resolve_roots(self._given, self._proc)

    def clean(self) -> None:
        """Finish removals that an earlier life of the agent began. Not for the event loop."""
        empty_trash(self.roots())

    def place(self, text: str) -> tuple[str, Source | None]:
        """Where an order's weights are or will be, and the source where they must be fetched first.

        An absolute path, or one below a root; or an https:// address of a file. Raises SpecError.
        """
        if not text:
            return "", None
        roots = self.roots()
        if "://" not in text:
            return str(_below(text, roots)), None
        own = [root for root in roots if not root.shared]
        if not own:
            raise SpecError("weights from afar, and this node has no weight folder of its own (weight_roots)")
        try:
            source = parse_source(text, own[0].path)
        except FetchError as error:
            raise SpecError(str(error)) from None
        return str(source.path), None if source.path.exists() else source

    async def fetch(self, source: Source, progress: Progress) -> None:
        """Fetch it, one at a time. Raises FetchError."""
        async with self._one:
            if not source.path.exists():
                await fetch(source, progress)
                self._changed()

    async def remove(
        self, request: agent_pb2.RemoveWeights, in_use: Iterable[str]
    ) -> agent_pb2.RemoveWeightsAnswer:
        """Remove what may be removed, and say why the rest is kept."""
        answer = agent_pb2.RemoveWeightsAnswer(request_id=request.request_id)
        if len(request.paths) > MAX_PATHS:
            answer.error = f"{len(request.paths)} paths; at most {MAX_PATHS} in one request"
            return answer
        used = list(in_use)
        async with self._one:
            for path in request.paths:
                await self._remove_one(path, used, answer)
        self._changed()
        return answer

    async def _remove_one(self, path: str, used: list[str], answer: agent_pb2.RemoveWeightsAnswer) -> None:
        try:
            freed = await asyncio.to_thread(lambda: remove_weights(path, self.roots(), used, self._proc))
        except KeptError as error:
            answer.kept.append(agent_pb2.KeptWeights(path=path, reason=str(error)))
        else:
            answer.removed.append(path)
            answer.freed_bytes += freed


def _below(text: str, roots: list[WeightRoot]) -> Path:
    """The path of the order where it exists and lies below a root, links resolved. Raises SpecError."""
    if "\0" in text or not text.isprintable():
        raise SpecError(f"weights {text[:80]!r} is not a path")
    tries = [Path(text)] if text.startswith("/") else [root.path / text for root in roots]
    for path in tries:
        resolved = path.resolve()
        if resolved.exists() and any(resolved.is_relative_to(root.path) for root in roots):
            return resolved
    raise SpecError(f"weights {text[:200]!r} are not below any of this node's weight_roots")
