"""Streams that take no message: when one is ended, and that the others are not."""

from __future__ import annotations

import grpc

from controlplane.fleet.connections import Connection, Connections


async def test_a_stream_is_ended_once_one_message_has_been_on_its_way_for_too_long() -> None:
    connections = Connections()
    stuck, idle = (Connection(node, 1, frozenset(), "") for node in ("stuck", "idle"))
    for connection in (stuck, idle):
        connections.attach(connection)
    stuck.writing_since = 100.0
    connections.end_stalled(129.9, 30.0)
    assert not stuck.ended.done()
    connections.end_stalled(130.0, 30.0)
    connections.end_stalled(999.0, 30.0)
    assert stuck.ended.result().code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stuck.ended.result().sentence == "node stuck has read no command for 30 s"
    assert not idle.ended.done()
    stuck.writing_since = None
