"""`/checks/<host>/<device>`: what each listed card said of itself, for operators; gateways don't read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args
from urllib.parse import quote, unquote

from controlplane.model.card_check import CardCheck, CheckState
from controlplane.store import codec, kv
from controlplane.store.client import EtcdClient
from controlplane.store.writes import delete_key, put_if_changed

CHECKS_PREFIX = b"/checks/"
STATES: tuple[CheckState, ...] = get_args(CheckState)


async def read_checks(client: EtcdClient, *, seconds: float | None = None) -> tuple[CardCheck, ...]:
    """All verdicts that can be read. Raises StoreError."""
    answer = await client.range(CHECKS_PREFIX, kv.prefix_end(CHECKS_PREFIX), seconds=seconds)
    decoded = (_decode(pair.key, pair.value) for pair in answer.kvs)
    return tuple(check for check in decoded if check is not None)


async def write_checks(client: EtcdClient, host: str, checks: Iterable[CardCheck]) -> tuple[CardCheck, ...]:
    """Make these the host's verdicts, on change only; returns those that were written. Raises StoreError."""
    wanted = {_key(host, check.device): check for check in checks}
    prefix = CHECKS_PREFIX + quote(host, safe="").encode("ascii") + b"/"
    for pair in (await client.range(prefix, kv.prefix_end(prefix))).kvs:
        if pair.key not in wanted:
            await delete_key(client, pair.key)
    return tuple(
        [check for key, check in wanted.items() if await put_if_changed(client, key, _encode(check))]
    )


def _key(host: str, device: str) -> bytes:
    return CHECKS_PREFIX + f"{quote(host, safe='')}/{quote(device, safe='')}".encode("ascii")


def _encode(check: CardCheck) -> bytes:
    return codec.encode(
        {"xdp_serial": check.xdp_serial, "nqn": check.nqn, "state": check.state, "text": check.text}
    )


def _decode(key: bytes, value: bytes) -> CardCheck | None:
    """A verdict; None for one that can't be read, since nothing depends on it and its host repairs it."""
    names = key.removeprefix(CHECKS_PREFIX).decode("ascii", "replace").split("/")
    try:
        fields = codec.Fields(value)
        state = next((known for known in STATES if known == fields.text("state")), None)
        if state is None or len(names) != 2:
            return None
        host, device = map(unquote, names)
        return CardCheck(
            host,
            device,
            fields.text("xdp_serial"),
            fields.text("nqn"),
            state,
            fields.text("text", empty=True),
        )
    except codec.RecordError:
        return None
