"""What of a shard's last output goes into a list of many."""

from __future__ import annotations

import pytest

from controlplane.fleet.documents import newest


@pytest.mark.parametrize(
    ("lines", "room", "kept"),
    [
        (10, 100, ["one", "two", "three"]),
        (2, 100, ["two", "three"]),
        (10, 8, ["two", "three"]),
        (10, 7, ["three"]),
        (10, 4, []),
    ],
)
def test_the_newest_lines_that_have_room_are_kept(lines: int, room: int, kept: list[str]) -> None:
    assert newest(("one", "two", "three"), lines, room) == kept
