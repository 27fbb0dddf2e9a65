"""The agent's messages about its shards. Pure: the time is an argument."""

from __future__ import annotations

from akv.v1 import agent_pb2

from controlplane.agent.shards.life import Phase, Status
from controlplane.agent.shards.shard import Shard
from controlplane.agent.shards.spec import ShardSpec

_STATES = {
    Phase.STARTING: agent_pb2.SHARD_STATE_STARTING,
    Phase.RUNNING: agent_pb2.SHARD_STATE_RUNNING,
    Phase.DRAINING: agent_pb2.SHARD_STATE_DRAINING,
    Phase.STOPPED: agent_pb2.SHARD_STATE_STOPPED,
    Phase.FAILED: agent_pb2.SHARD_STATE_FAILED,
}


def event_of(spec: ShardSpec, status: Status) -> agent_pb2.AgentMessage:
    """The event that tells a shard's status."""
    event = agent_pb2.ShardEvent(
        shard_id=spec.shard_id,
        replica_id=spec.replica_id,
        generation=spec.generation,
        state=_STATES[status.phase],
        error=status.error,
        last_output=status.last_output.splitlines(),
        port=0 if status.phase.ended else spec.port,
    )
    if status.exit_code is not None:
        event.exit_code = status.exit_code
    return agent_pb2.AgentMessage(shard_event=event)


def running_shard(shard: Shard, now: float) -> agent_pb2.RunningShard:
    """One line of a Register; `now` is Unix seconds."""
    spec, state = shard.spec, shard.state
    return agent_pb2.RunningShard(
        shard_id=spec.shard_id,
        replica_id=spec.replica_id,
        model=spec.model,
        profile=spec.profile,
        generation=spec.generation,
        state=_STATES[shard.status.phase],
        port=spec.port,
        gpu_uuids=spec.gpu_uuids,
        age_seconds=max(0.0, now - state.started) if state is not None else 0.0,
        pid=state.engine.pid if state is not None and state.engine is not None else 0,
    )
