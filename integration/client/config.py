"""What a client is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

DEFAULT_SOCKET = "/run/akv/gateway.sock"
DEFAULT_ARENA_BYTES = 64 << 20
_MAX_NAMESPACE_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of one client; validated when made.

    Attributes:
        socket: path of the gateway's Unix socket; None speaks TCP to `host` and `port`.
        host: an IP address or `localhost`, which is the default; only with `socket=None`. Names are not
            looked up: a look-up can block the engine for seconds.
        namespace: the key space of one model configuration, 1..128 bytes of UTF-8.
        secret: the namespace's shared secret of 32 bytes, None where it has none.
        arena_bytes: shared memory to ask for; 0 means inline data only. TCP is always inline.
        regions: ask for the right to register memory of this process (`register`); TCP has none.
        borrow: ask for the right to read blocks where the gateway's read cache has them (`borrow`).
        timeout: deadline of a call in seconds where the call names none; more than the gateway's
            io_timeout_ms, so that it is the gateway who gives up on a card.
        connect_timeout: seconds for connect and HELLO of one attempt.
        backoff_first, backoff_cap: seconds between attempts to reconnect.
        silence_limit: seconds without any byte from the gateway, after a missed deadline, until the
            connection is given up.
        strict: raise instead of answering "miss" when the gateway is away, late or refuses.
    """

    socket: str | None = DEFAULT_SOCKET
    host: str | None = None
    port: int = 5557
    namespace: str = "default"
    secret: bytes | None = None
    arena_bytes: int = DEFAULT_ARENA_BYTES
    regions: bool = True
    borrow: bool = True
    timeout: float = 6.0
    connect_timeout: float = 2.0
    backoff_first: float = 0.05
    backoff_cap: float = 2.0
    silence_limit: float = 10.0
    strict: bool = False

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()

    def _check_names(self) -> None:
        size = len(self.namespace.encode())
        if not 1 <= size <= _MAX_NAMESPACE_BYTES or "\0" in self.namespace:
            raise ValueError(
                f"namespace has {size} bytes: it must have 1 to {_MAX_NAMESPACE_BYTES}, and no NUL among them"
            )
        if self.secret is not None and len(self.secret) != 32:
            raise ValueError(f"secret has {len(self.secret)} bytes: it must have 32")
        if self.socket is not None and self.host is not None:
            raise ValueError(
                f"host is {self.host!r} and socket is {self.socket!r}: give socket=None to speak TCP"
            )
        if self.socket is None:
            try:
                ip_address(self.ip)
            except ValueError:
                raise ValueError(
                    f"host is {self.host!r}: give an IP address or localhost, names are not looked up"
                ) from None

    def _check_numbers(self) -> None:
        if self.socket is None and not 1 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: it must be 1 to 65535")
        if self.arena_bytes < 0:
            raise ValueError(f"arena_bytes is {self.arena_bytes}: it must be 0 or more")
        for name in ("timeout", "connect_timeout", "backoff_first", "backoff_cap", "silence_limit"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be more than 0 seconds")

    @property
    def ip(self) -> str:
        """Where TCP goes to."""
        return "127.0.0.1" if self.host is None or self.host == "localhost" else self.host

    @property
    def address(self) -> str:
        """Where the gateway is, for messages."""
        return self.socket if self.socket is not None else f"{self.ip} port {self.port}"
