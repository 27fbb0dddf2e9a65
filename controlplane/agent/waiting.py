"""Starts that wait for their weights, on record, so that an agent that is started anew goes on with them.

<state_dir>/waiting/<shard id>.json
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from controlplane.agent.files import DocumentError, read_document, write_document
from controlplane.agent.shards.spec import SHARD_ID, ShardSpec, SpecError, spec_from_json
from controlplane.base.logging import get_logger

_SUFFIX = ".json"

log = get_logger("starts")


@dataclass(frozen=True, slots=True)
class WaitingStart:
    """What is to be started once `source` (as in the order) was fetched; `began` is Unix seconds."""

    spec: ShardSpec
    source: str
    began: float


class WaitingStarts:
    """The records of one agent. Errors of the file system pass through `put` as OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, start: WaitingStart) -> None:
        """Write it down; a record of an earlier start of the shard is replaced."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {"spec": start.spec.to_json(), "source": start.source, "began": start.began}
        write_document(self._of(start.spec.shard_id), document)

    def remove(self, shard_id: str) -> None:
        """It waits no more."""
        with suppress(OSError):
            self._of(shard_id).unlink()

    def read(self) -> list[WaitingStart]:
        """Every start that waits; a record that can't be read is named in the log and removed."""
        found = []
        for path in sorted(self._path.glob(f"*{_SUFFIX}")) if self._path.is_dir() else []:
            try:
                found.append(_read(path))
            except (DocumentError, SpecError, TypeError, ValueError) as error:
                log.warning(
                    "Waiting start forgotten, its record is unusable", path=str(path), error=str(error)
                )
                path.unlink(missing_ok=True)
        return found

    def _of(self, shard_id: str) -> Path:
        assert SHARD_ID.fullmatch(shard_id), shard_id
        return self._path / f"{shard_id}{_SUFFIX}"


def _read(path: Path) -> WaitingStart:
    """One record. Raises DocumentError, SpecError, TypeError or ValueError."""
    document = read_document(path) or {}
    spec = spec_from_json(document.get("spec") or {})
    source = document.get("source")
    if path.name != f"{spec.shard_id}{_SUFFIX}" or not isinstance(source, str):
        raise ValueError("it is the record of another shard, or names no source")
    return WaitingStart(spec, source, float(document.get("began") or 0.0))
