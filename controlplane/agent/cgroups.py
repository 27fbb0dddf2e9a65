"""cgroup v2 limits of shards, below one directory that was delegated to the agent (`cgroup_root`).

<root>/anchor          processes that were in the root: cgroup v2 allows none beside its children
<root>/shard-<id>      one engine with everything that it starts; its holder stays outside
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from controlplane.agent.shards.spec import ShardSpec, SpecError
from controlplane.base.logging import get_logger

ANCHOR = "anchor"
_CONTROLLERS = ("memory", "pids")

log = get_logger("cgroups")


class Cgroups:
    """Limits below `root`; where there is none or it can't be used, `problem` says why and none are made."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self.problem = "cgroup_root is not set" if root is None else ""

    def set_up(self) -> None:
        """Make the root ready for children with limits."""
        root = self._root
        if root is None:
            return
        try:
            available = (root / "cgroup.controllers").read_text(encoding="ascii").split()
            missing = [name for name in _CONTROLLERS if name not in available]
            if missing:
                self.problem = f"{root} has no controller {missing[0]}: delegate it (Delegate=memory pids)"
                return
            (root / ANCHOR).mkdir(exist_ok=True)
            for pid in (root / "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(ProcessLookupError):
                    (root / ANCHOR / "cgroup.procs").write_text(pid, encoding="ascii")
            enable = " ".join(f"+{name}" for name in _CONTROLLERS)
            (root / "cgroup.subtree_control").write_text(enable, encoding="ascii")
        except OSError as error:
            self.problem = f"{root} can't be used for limits: {error.strerror}"
        if self.problem:
            log.warning("Shards get no limits", reason=self.problem)

    def prepare(self, spec: ShardSpec) -> ShardSpec:
        """The spec with the cgroup that its engine is to join. Raises SpecError where it can't be made."""
        if self._root is None or self.problem:
            if spec.memory_bytes:
                log.warning("Shard gets no limit of memory", shard=spec.shard_id, reason=self.problem)
            return spec
        path = self._path(self._root, spec)
        try:
            path.mkdir(exist_ok=True)
            limit = str(spec.memory_bytes) if spec.memory_bytes else "max"
            (path / "memory.max").write_text(limit, encoding="ascii")
            # One that is over its limit ends as a whole, and not one worker of it at a time.
            (path / "memory.oom.group").write_text("1", encoding="ascii")
            with suppress(FileNotFoundError):  # no swap in this kernel
                (path / "memory.swap.max").write_text("0" if spec.memory_bytes else "max", encoding="ascii")
        except OSError as error:
            raise SpecError(f"shard {spec.shard_id}: no limits at {path}: {error.strerror}") from error
        return replace(spec, cgroup=str(path))

    def release(self, spec: ShardSpec) -> None:
        """Remove the cgroup of a shard that has ended; one that still has a process stays."""
        if spec.cgroup:
            with suppress(OSError):
                Path(spec.cgroup).rmdir()

    def _path(self, root: Path, spec: ShardSpec) -> Path:
        return root / f"shard-{spec.shard_id}"
