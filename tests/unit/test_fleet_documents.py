"""What of a shard's last output, and of a node, goes into a list of many."""

from __future__ import annotations

from typing import Any, cast

import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.fleet.documents import newest, node_summary
from controlplane.fleet.liveness import Limits
from controlplane.fleet.term import Term


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


async def test_no_node_makes_the_list_of_all_too_long() -> None:
    """With all that it can say, one node is a small part of a message."""
    long = "x" * 100_000
    term = Term(cast("Any", None), Limits())
    register = pb.Register(
        node_id="gpu-1",
        incarnation=1,
        agent_version=long,
        engines=pb.EnginesReport(versions={f"{n}{long}": long for n in range(100)}),
        fabrics=pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric=f"{n}{long}") for n in range(100)]),
        problems=[pb.Problem(text=f"{n}{long}") for n in range(100)],
    )
    term.inventory.register(register, 1)
    summary = node_summary(term, term.inventory.nodes["gpu-1"], {})
    assert summary.ByteSize() < 10_000
    assert len(summary.problems) == 16
