"""`/pki/`: the names that have certificates, and the open join tokens. Gateways can't read it.

A name belongs to one role for ever, since etcd knows a caller by its name alone. Of a token only a hash is
kept, and the transaction that takes it away is what makes it good once.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from akv.etcd import etcd_pb2 as pb

from controlplane.base.backoff import Tries
from controlplane.store import codec, kv
from controlplane.store.client import EtcdClient
from controlplane.store.errors import OutcomeUnknown, StoreUnavailable
from controlplane.store.writes import put_if_changed

PKI_PREFIX = b"/pki/"
NAMES_PREFIX = PKI_PREFIX + b"names/"
TOKENS_PREFIX = PKI_PREFIX + b"tokens/"
_TRIES = 4


@dataclass(frozen=True, slots=True)
class NameRecord:
    """The newest certificate of a name. `serial` is hexadecimal, `expires` Unix seconds.

    A revoked name is refused everywhere, with each certificate that it ever had, and is not given again.
    """

    name: str
    role: str
    serial: str
    expires: float
    issued_by: str
    revoked: bool = False


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """An open token: SHA-256 of its secret in hexadecimal, and until when it is good (Unix seconds)."""

    token_id: str
    secret_hash: str
    expires: float

    def matches(self, secret: bytes) -> bool:
        """Whether this is the token's secret."""
        return hmac.compare_digest(self.secret_hash, hash_of(secret))


def hash_of(secret: bytes) -> str:
    """What is kept of a token's secret; the secret is random and long, so no salt is needed."""
    return hashlib.sha256(secret).hexdigest()


async def read_names(client: EtcdClient) -> tuple[NameRecord, ...]:
    """Every name that has a certificate. Raises StoreError."""
    answer = await client.range(NAMES_PREFIX, kv.prefix_end(NAMES_PREFIX))
    return tuple(_decode_name(pair) for pair in answer.kvs)


async def read_name(client: EtcdClient, name: str) -> NameRecord | None:
    """Who has this name. Raises StoreError."""
    pair = await client.get(_name_key(name))
    return None if pair is None else _decode_name(pair)


async def claim_name(client: EtcdClient, record: NameRecord) -> NameRecord:
    """Note a new certificate; returns the record that holds: another's if the name is taken or revoked.

    Raises StoreError.
    """
    key, value = _name_key(record.name), _encode_name(record)
    async for _ in Tries(_TRIES):
        pair = await client.get(key)
        holder = _decode_name(pair) if pair is not None else record
        if holder.role != record.role or holder.revoked:
            return holder
        compare = [kv.unchanged(key, pair.mod_revision if pair is not None else 0)]
        try:
            if (await client.txn(compare, [kv.put(key, value)])).succeeded:
                return record
        except OutcomeUnknown:
            continue
    raise StoreUnavailable(f"the name {record.name} changes or answers get lost each time it is written")


async def revoke_name(client: EtcdClient, name: str) -> NameRecord | None:
    """Mark a name as revoked, for good; None when nobody has it. Raises StoreError."""
    holder = await read_name(client, name)
    if holder is None:
        return None
    revoked = replace(holder, revoked=True)
    await put_if_changed(client, _name_key(name), _encode_name(revoked))
    return revoked


async def read_tokens(client: EtcdClient) -> tuple[TokenRecord, ...]:
    """Open tokens, expired ones too. Raises StoreError."""
    answer = await client.range(TOKENS_PREFIX, kv.prefix_end(TOKENS_PREFIX))
    return tuple(_decode_token(pair) for pair in answer.kvs)


async def add_token(client: EtcdClient, token: TokenRecord, drop: Sequence[TokenRecord] = ()) -> None:
    """Write a token and forget those in `drop`. Raises StoreError."""
    value = codec.encode({"secret_hash": token.secret_hash, "expires": token.expires})
    operations = [kv.put(_token_key(token.token_id), value)]
    await client.txn([], operations + [kv.delete(_token_key(old.token_id)) for old in drop])


async def find_token(client: EtcdClient, token_id: str, secret: bytes) -> TokenRecord | None:
    """The open token with this secret, expired or not; None when there is none. Raises StoreError."""
    pair = await client.get(_token_key(token_id))
    token = _decode_token(pair) if pair is not None else None
    return token if token is not None and token.matches(secret) else None


async def take_token(client: EtcdClient, token: TokenRecord) -> bool:
    """Take a token away for good; False when someone else has taken it. Raises StoreError.

    After OutcomeUnknown the token is spent, perhaps by this call: it is not tried again.
    """
    key = _token_key(token.token_id)
    return (await client.txn([kv.present(key)], [kv.delete(key)])).succeeded


def _name_key(name: str) -> bytes:
    return NAMES_PREFIX + quote(name, safe="").encode("ascii")


def _token_key(token_id: str) -> bytes:
    return TOKENS_PREFIX + quote(token_id, safe="").encode("ascii")


def _encode_name(record: NameRecord) -> bytes:
    return codec.encode(
        {
            "role": record.role,
            "serial": record.serial,
            "expires": record.expires,
            "issued_by": record.issued_by,
            "revoked": record.revoked,
        }
    )


def _decode_name(pair: pb.KeyValue) -> NameRecord:
    fields = codec.Fields(pair.value)
    name = unquote(pair.key.removeprefix(NAMES_PREFIX).decode("ascii", "replace"))
    return NameRecord(
        name,
        fields.text("role"),
        fields.text("serial"),
        fields.number("expires"),
        fields.text("issued_by"),
        fields.flag("revoked"),
    )


def _decode_token(pair: pb.KeyValue) -> TokenRecord:
    fields = codec.Fields(pair.value)
    token_id = unquote(pair.key.removeprefix(TOKENS_PREFIX).decode("ascii", "replace"))
    return TokenRecord(token_id, fields.text("secret_hash"), fields.number("expires"))
