"""The agent's own state: documents, and an incarnation that only grows."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from controlplane.agent import incarnation
from controlplane.agent.files import DocumentError, read_document, write_document
from controlplane.agent.incarnation import AgentState, StateError


def test_documents_are_private_and_replaced_in_whole(tmp_path: Path) -> None:
    path = tmp_path / "d.json"
    assert read_document(path) is None
    write_document(path, {"a": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_document(path) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    for damage in (b"", b"[1]", b"\xff", b"{" * 10_000, b'{"a":'):
        path.write_bytes(damage)
        with pytest.raises(DocumentError):
            read_document(path)


def test_incarnations_only_grow(tmp_path: Path) -> None:
    with AgentState(tmp_path) as state:
        first = state.next_incarnation(1000.0)
        assert state.next_incarnation(10.0) == first + 1  # the clock went back
        (tmp_path / "incarnation.json").write_bytes(b"torn")
        assert state.next_incarnation(2000.0) == 2000
        with pytest.raises(StateError, match="another akv-agent"):
            AgentState(tmp_path)
    with AgentState(tmp_path) as state:
        assert state.next_incarnation(1.0) == 2001


@pytest.mark.parametrize(
    ("code", "wall", "refused"),
    [(errno.ENOSPC, 2000.0, False), (errno.ENOSPC, 500.0, True), (errno.EIO, 2000.0, True)],
)
def test_an_incarnation_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, wall: float, refused: bool
) -> None:
    """On a full disk the clock is enough, unless it went back: then two starts would have one number."""

    def fail(path: Path, document: object) -> None:
        raise OSError(code, os.strerror(code))

    with AgentState(tmp_path) as state:
        assert state.next_incarnation(1000.0) == 1000
        monkeypatch.setattr(incarnation, "write_document", fail)
        if refused:
            with pytest.raises(StateError, match="can't be written"):
                state.next_incarnation(wall)
        else:
            assert state.next_incarnation(wall) == 2000
