"""`/cluster/step`: the membership step in progress.

A change of etcd's members can't be part of a transaction. So the leader writes down what it is about to do,
does it, and clears the record; a new leader finds the record and finishes or clears the step before any
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from controlplane.store import codec, kv, schema
from controlplane.store.client import EtcdClient
from controlplane.store.election import Leadership
from controlplane.store.errors import OutcomeUnknown
from controlplane.store.writes import fenced_txn

StepAction = Literal["add", "promote", "remove"]


@dataclass(frozen=True, slots=True)
class MembershipStep:
    """One step. `member_id` is 0 for `add`, whose member has no id yet; `members` are the ids seen before."""

    id: str
    action: StepAction
    host: str
    member_id: int
    peer_url: str
    members: tuple[int, ...]


async def begin_step(client: EtcdClient, leadership: Leadership, step: MembershipStep) -> bool:
    """Write the step; False when another one is in progress. Raises LeadershipLost, or StoreError."""
    operation = kv.put(schema.STEP_KEY, encode_step(step))
    try:
        return await fenced_txn(client, leadership, [kv.absent(schema.STEP_KEY)], [operation])
    except OutcomeUnknown:
        return await read_step(client) == step


async def read_step(client: EtcdClient) -> MembershipStep | None:
    """The step in progress. Raises StoreError (RecordError: it is unreadable)."""
    pair = await client.get(schema.STEP_KEY)
    return None if pair is None else decode_step(pair.value)


async def clear_step(client: EtcdClient, leadership: Leadership, step: MembershipStep) -> None:
    """Remove the record of a step that is done or given up. Raises LeadershipLost, or StoreError.

    It is harmless to repeat: only the record of this very step is removed.
    """
    pair = await client.get(schema.STEP_KEY)
    if pair is None or pair.value != encode_step(step):
        return
    await fenced_txn(
        client, leadership, [kv.unchanged(schema.STEP_KEY, pair.mod_revision)], [kv.delete(schema.STEP_KEY)]
    )


def encode_step(step: MembershipStep) -> bytes:
    """The step as JSON."""
    return codec.encode(
        {
            "id": step.id,
            "action": step.action,
            "host": step.host,
            "member_id": step.member_id,
            "peer_url": step.peer_url,
            "members": list(step.members),
        }
    )


def decode_step(value: bytes) -> MembershipStep:
    """Inverse of `encode_step`. Raises RecordError."""
    fields = codec.Fields(value)
    action = next((known for known in get_args(StepAction) if known == fields.text("action")), None)
    if action is None:
        raise codec.RecordError(f"action is {fields.text('action')!r}, not one of {get_args(StepAction)}")
    return MembershipStep(
        fields.text("id"),
        action,
        fields.text("host"),
        fields.integer("member_id", 0, 2**64 - 1),
        fields.text("peer_url"),
        fields.integers("members"),
    )
