"""The native engine (dataplane/core/python/module.cpp)."""

from typing import Literal, TypeAlias

class ListenError(OSError):
    """A socket can't be had; the text names address and remedy."""

class CardView:
    """What the engine knows of one card of the plan, at one moment."""

    @property
    def serial(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def state(self) -> str:
        """One of CardStatus.state in protos/akv/v1/dataplane.proto."""
    @property
    def trouble(self) -> str:
        """CardStatus.trouble in protos/akv/v1/dataplane.proto; empty: nothing is wrong."""
    @property
    def active(self) -> bool:
        """Routable in the plan, and live."""
    @property
    def last_error(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def reconnects(self) -> int: ...
    @property
    def timeouts(self) -> int: ...
    @property
    def gets(self) -> int: ...
    @property
    def hits(self) -> int: ...
    @property
    def puts(self) -> int: ...
    @property
    def inflight(self) -> int: ...

_Path: TypeAlias = tuple[str, str, str]
_Slot: TypeAlias = tuple[int, bool, str, str, str, list[_Path]]

class Engine:
    """Listeners, workers and cards. One thread calls it; `start` and `stop` once each."""

    def __init__(
        self,
        *,
        backend: str,
        bind_address: str,
        port: int,
        client_socket: str,
        shared_memory_size: int,
        read_cache_size: int,
        lend_cached_blocks: bool,
        client_regions: int,
        client_regions_size: int,
        cores: list[int],
        workers: int,
        io_timeout_ms: int,
        io_timeout_strikes: int,
        digests: Literal["none", "prefer", "require"],
        secrets: dict[str, bytes],
        host_nqn: str,
        host_uuid: str,
        busy_poll: bool,
        short_wakeups: bool,
    ) -> None:
        """Bind the sockets.

        Raises:
            ListenError: an address or a socket path is taken.
            ValueError: the configuration can't work.
        """

    def start(self) -> None:
        """Start the worker threads and accept clients. Raises RuntimeError or OSError."""

    def apply_plan(
        self, *, cluster_uuid: str, sequence: int, num_dbs: int, fingerprint: str, slots: list[_Slot]
    ) -> bool:
        """Serve by this plan from the return on; False when it is served already.

        A slot is (slot, routable, serial, nqn, uuid, [(transport, traddr, trsvcid)]).

        Raises:
            ValueError: the plan can't be used; nothing changed.
            RuntimeError: the workers did not answer in time.
        """

    def status(self) -> list[CardView]: ...
    def counters(self) -> dict[str, int]: ...
    def stop(self, patience_ms: int) -> bool:
        """Answer what is outstanding, then end; False when cards still held buffers at the end."""

def capture_events() -> int:
    """Keep log events for `take_events` from now on; the descriptor is readable while some wait."""

def take_events() -> list[
    tuple[Literal["debug", "info", "warning", "error"], str, dict[str, bool | int | float | str]]
]:
    """All waiting events as (level, event name, fields), oldest first."""

def read_cache_hits(accesses: list[int], capacity: int) -> int:
    """How many of these accesses to blocks, by number, a read cache of `capacity` equal blocks would answer.

    The policy of the workers' caches alone, for measuring it (tools/bench_read_cache.py).
    """
