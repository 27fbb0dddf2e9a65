"""HELLO: version, namespace, shared memory and proof of the secret (docs/protocol.md, "HELLO"). No I/O."""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass

from integration.client.config import ClientConfig
from integration.client.errors import AuthenticationError, ProtocolError, RequestRefusedError
from integration.client.wire import (
    ERROR_OPCODE,
    FEATURE_BORROWING,
    FEATURE_REGIONS,
    FEATURE_SHARED_MEMORY,
    MAX_BATCH_CAP,
    MAX_FRAME_CAP,
    REPLY,
    TRANSFER_ENTRY,
    VERSION,
    FrameStatus,
    Header,
    Opcode,
    encode_frame,
)

NONCE_BYTES = 32
_HELLO = struct.Struct("<HHIQ32s32sH")
_WELCOME = struct.Struct("<HHIQIIIIIIQ32s")
_WELCOME_REGIONS = struct.Struct("<IIQ")
_WELCOME_BORROWING = struct.Struct("<QII")
_ZERO_MAC = bytes(32)
# What gateways took that did not tell it yet.
_ENTRIES_UNTOLD = 16_384


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the gateway granted. Sizes in bytes; `max_entries` of all outstanding requests together."""

    version: int
    features: int
    arena_bytes: int
    block_align: int
    max_batch: int
    credits: int
    max_frame: int
    max_value: int
    max_entries: int
    session_id: int
    max_regions: int = 0
    max_region_bytes: int = 0
    cache_bytes: int = 0
    max_borrowed: int = 0


def session_mac(
    label: bytes, secret: bytes, client_nonce: bytes, server_nonce: bytes, namespace: bytes
) -> bytes:
    """HMAC-SHA-256 over the nonces and the namespace, with a label for each direction."""
    text = label + client_nonce + server_nonce + struct.pack("<H", len(namespace)) + namespace
    return hmac.digest(secret, text, "sha256")


class Handshake:
    """The client's side of HELLO, one per connection."""

    def __init__(self, config: ClientConfig, nonce: bytes) -> None:
        self._namespace = config.namespace.encode()
        self._secret = config.secret
        local = config.socket is not None
        self._arena_bytes = config.arena_bytes if local else 0
        self._features = (
            (FEATURE_SHARED_MEMORY if self._arena_bytes else 0)
            | (FEATURE_REGIONS if local and config.regions else 0)
            | (FEATURE_BORROWING if self._arena_bytes and config.borrow else 0)
        )
        self._client_nonce = nonce
        self._server_nonce: bytes | None = None

    def hello(self) -> bytes:
        """The HELLO frame to send now: the first, or the one that answers the gateway's nonce."""
        mac = _ZERO_MAC
        if self._server_nonce is not None and self._secret is not None:
            mac = self._mac(b"akv-hello-1", self._secret, self._server_nonce)
        body = _HELLO.pack(
            VERSION,
            VERSION,
            self._features,
            self._arena_bytes,
            self._client_nonce,
            mac,
            len(self._namespace),
        )
        return encode_frame(Header(Opcode.HELLO, 0, 0, 0, 0), body + self._namespace)

    def receive(self, header: Header, body: memoryview) -> Welcome | None:
        """Take one frame; the welcome, or None when `hello()` has to be sent again with its proof."""
        if header.opcode == ERROR_OPCODE:
            raise self._refusal(header.status, str(body, "utf-8", "replace"))
        if header.opcode != Opcode.HELLO | REPLY:
            raise ProtocolError(f"the gateway answered HELLO with opcode 0x{header.opcode:04x}")
        if header.status == FrameStatus.AUTH_REQUIRED:
            self._take_nonce(body)
            return None
        if header.status != FrameStatus.OK:
            raise self._refusal(header.status, str(body, "utf-8", "replace"))
        return self._welcome(body)

    def _mac(self, label: bytes, secret: bytes, server_nonce: bytes) -> bytes:
        return session_mac(label, secret, self._client_nonce, server_nonce, self._namespace)

    def _refusal(self, status: int, text: str) -> AuthenticationError | RequestRefusedError | ProtocolError:
        if status == FrameStatus.AUTH_FAILED:
            return AuthenticationError(
                f"the gateway refused namespace {self._namespace.decode()!r}: {text or 'no reason given'}; "
                "check the namespace's secret on both sides"
            )
        try:
            return RequestRefusedError(FrameStatus(status), text)
        except ValueError:
            return ProtocolError(f"the gateway answered HELLO with unknown status {status}")

    def _take_nonce(self, body: memoryview) -> None:
        if self._secret is None:
            raise AuthenticationError(
                f"namespace {self._namespace.decode()!r} has a secret at the gateway and none here; "
                "give it as `secret`"
            )
        if self._server_nonce is not None or len(body) != NONCE_BYTES:
            raise ProtocolError("the gateway asked for proof twice, or with a nonce that has not 32 bytes")
        self._server_nonce = bytes(body)

    def _welcome(self, body: memoryview) -> Welcome:
        if len(body) < _WELCOME.size:
            raise ProtocolError(f"HELLO reply has {len(body)} bytes, not {_WELCOME.size}")
        fields = _WELCOME.unpack_from(body)
        version, _, features, arena, align, max_batch, credit, max_frame, max_value, entries = fields[:10]
        session_id, mac = fields[10:]
        self._check_mac(mac)
        welcome = Welcome(
            version=version,
            features=features,
            arena_bytes=arena,
            block_align=align,
            max_batch=min(max_batch, MAX_BATCH_CAP),
            credits=credit,
            max_frame=max_frame,
            max_value=max_value,
            max_entries=entries or _ENTRIES_UNTOLD,
            session_id=session_id,
            **_tails(features, body),
        )
        self._check_limits(welcome)
        return welcome

    def _check_mac(self, mac: bytes) -> None:
        if self._secret is None:
            return
        nonce = self._server_nonce
        if nonce is None or not hmac.compare_digest(mac, self._mac(b"akv-welcome-1", self._secret, nonce)):
            raise AuthenticationError(
                "the gateway did not prove that it knows the namespace's secret; nothing is sent to it"
            )

    def _check_limits(self, welcome: Welcome) -> None:
        if welcome.version != VERSION:
            raise ProtocolError(
                f"the gateway chose protocol version {welcome.version}, offered was {VERSION}"
            )
        if welcome.features & ~self._features:
            raise ProtocolError(
                f"the gateway granted features 0x{welcome.features:x} that were not asked for"
            )
        align = welcome.block_align
        if align < 1 or align & (align - 1):
            raise ProtocolError(f"block_align {align} is no power of two")
        if min(welcome.max_batch, welcome.credits, welcome.max_value) < 1:
            raise ProtocolError("max_batch, credits or max_value of the HELLO reply is 0")
        if welcome.max_entries < welcome.max_batch:
            raise ProtocolError(f"max_entries {welcome.max_entries} is below max_batch {welcome.max_batch}")
        smallest = TRANSFER_ENTRY.size * welcome.max_batch
        if not smallest <= welcome.max_frame <= MAX_FRAME_CAP:
            raise ProtocolError(
                f"max_frame {welcome.max_frame} bytes is not between a full batch ({smallest}) "
                f"and {MAX_FRAME_CAP}"
            )
        if bool(welcome.features & FEATURE_SHARED_MEMORY) != bool(welcome.arena_bytes):
            raise ProtocolError("shared memory was granted without a size, or a size without shared memory")
        if welcome.features & FEATURE_BORROWING and not (welcome.cache_bytes and welcome.arena_bytes):
            raise ProtocolError("borrowing was granted without a read cache, or without shared memory")


# By feature: what a welcome tells more, in this order.
_TAILS = (
    (FEATURE_REGIONS, _WELCOME_REGIONS, ("max_regions", None, "max_region_bytes")),
    (FEATURE_BORROWING, _WELCOME_BORROWING, ("cache_bytes", "max_borrowed", None)),
)


def _tails(features: int, body: memoryview) -> dict[str, int]:
    """What a welcome tells of the features that were granted; the reply ends with it."""
    granted = [(tail, names) for feature, tail, names in _TAILS if features & feature]
    size = _WELCOME.size + sum(tail.size for tail, _ in granted)
    if len(body) != size:
        raise ProtocolError(f"HELLO reply has {len(body)} bytes, not {size}")
    told: dict[str, int] = {}
    at = _WELCOME.size
    for tail, names in granted:
        fields = zip(names, tail.unpack_from(body, at), strict=True)
        told.update((name, value) for name, value in fields if name is not None)
        at += tail.size
    return told
