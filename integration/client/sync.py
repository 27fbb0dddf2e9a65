"""The client for threads: calls block until their deadline at most; a thread receives and reconnects."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from integration.client.config import ClientConfig
from integration.client.engine import Engine
from integration.client.errors import ClientError
from integration.client.forks import guard
from integration.client.link import Link
from integration.client.loans import Borrow, Loan, Return, Views, lost
from integration.client.memory import Block
from integration.client.operations import Alloc, Delete, Exists, Free, Hasty, MatchPrefix, Operation, Stats
from integration.client.regions import Region, Register, Unregister
from integration.client.session import Call
from integration.client.transfers import Get, Got, Put
from integration.client.view import ClientView, Implementation, find_native
from integration.client.wire import Status

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")
P = ParamSpec("P")
_POLL_WRITE = select.POLLOUT
_POLL_END = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_POLL_READ = select.POLLIN | _POLL_END
_FAULT_PAUSE = 0.05  # seconds
# The socket, whether to read and to write, and when the timer is due.
_State = tuple[int, bool, bool, float | None]


class Client(ClientView):
    """A client of one gateway, thread-safe. What calls answer while it is away: docs/client.md."""

    def __init__(self, config: ClientConfig) -> None:
        self.renew_lock()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._engine = Engine(config, self._changed.notify_all, _ignore_descriptor, self._link)
        self._watched: _State = (-1, False, False, None)
        self._closing = False
        with self._lock:
            self._engine.start()
        self._thread = threading.Thread(target=self._serve, name="akv-client", daemon=True)
        self._thread.start()
        guard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fork_lock(self) -> threading.Lock:
        """See Locked."""
        return self._lock

    def renew_lock(self) -> None:
        """See Locked."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    def close(self) -> None:
        """End the session: blocks become invalid, waiting calls end. May be called twice."""
        with self._lock:
            self._closing = True
            self._engine.close()
            self._wake()
        self._thread.join()

    @property
    def counters(self) -> dict[str, int]:
        """As in ClientView; the receiving thread counts too."""
        with self._lock:
            return super().counters

    def wait_connected(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a session; False at once where the secret is refused."""
        with self._lock:
            self._changed.wait_for(lambda: self._engine.ready or self._engine.hopeless, timeout)
            return self._engine.ready

    def alloc(self, count: int, length: int, *, timeout: float | None = None) -> list[Block]:
        """Lease `count` blocks of `length` bytes: all, or an empty list without memory or gateway."""
        return self._run(Alloc(count, length), timeout)

    def free(self, blocks: Iterable[Block], *, timeout: float | None = None) -> None:
        """Give blocks back; blocks of a lost session need it not."""
        wait = self._seconds(timeout)
        self._run(Free(blocks), wait)

    def register(
        self, descriptor: int, *, offset: int = 0, length: int | None = None, timeout: float | None = None
    ) -> Region:
        """Let cards read and write a part of a memfd or of a file in /dev/shm themselves; see docs/client.md.

        The descriptor may be closed afterwards. Where the session can't have it, its blocks are sent inline.
        """
        region = Region(descriptor, offset, length)
        self._run(Register(region), timeout)
        return region

    def unregister(self, region: Region, *, timeout: float | None = None) -> bool:
        """End a region, also in sessions to come; True once the gateway has let go of its memory."""
        with self._lock:
            self._engine.forget(region)
        return self._run(Unregister(region), timeout)

    def put(
        self,
        keys: Sequence[ReadableBuffer],
        data: Sequence[Block | ReadableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Status]:
        """Store one block for each key, best effort: OK, or why not. Memory but blocks is sent inline."""
        return self._hot(Put, timeout, keys, data, dialog)

    def get(
        self,
        keys: Sequence[ReadableBuffer],
        into: Sequence[Block | WriteableBuffer],
        dialog: int,
        *,
        timeout: float | None = None,
    ) -> list[Got]:
        """Read one block for each key into the memory given for it."""
        return self._hot(Get, timeout, keys, into, dialog)

    def borrow(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> Borrowed:
        """Blocks where the gateway's read cache has them, to be read in place until they are released.

        For each key a read-only view, or None where the cache has no copy: then `get` it.
        """
        return Borrowed(self, Loan(*self._hot(Borrow, timeout, keys, dialog)))

    def match_prefix(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> int:
        """How many keys from the first on are present without a gap."""
        return self._hot(MatchPrefix, timeout, keys, dialog)

    def exists(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> list[bool]:
        """Which keys are present."""
        return self._hot(Exists, timeout, keys, dialog)

    def delete(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> list[bool]:
        """Remove keys; True where a key is certainly gone."""
        return self._run(Delete(keys, dialog), timeout)

    def stats(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The gateway's counters; empty while it is away."""
        return self._run(Stats(), timeout)

    def _hot(
        self, kind: Callable[P, Hasty[T]], timeout: float | None, *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Run what callers wait for most: a subclass may have a faster way."""
        return self._run(kind(*arguments, **named), timeout)

    def _exchange(
        self, loan: Loan, keys: Sequence[ReadableBuffer], dialog: int, timeout: float | None
    ) -> tuple[bool, Loan]:
        """Return a loan, and take another one; a subclass may do both in one round trip."""
        return self._hot(Return, timeout, loan), Loan(*self._hot(Borrow, timeout, keys, dialog))

    def _run(self, operation: Operation[T], timeout: float | None) -> T:
        wait = self._seconds(timeout)
        ended = threading.Event()
        call = Call(operation, ended.set, time.monotonic())
        try:
            self._drive(self._engine.submit, call)
            if not ended.wait(wait):
                self._drive(self._engine.abandon, call)
        except BaseException:
            # A signal's handler raised. What still comes touches no memory of the caller, and goes back.
            self._drive(self._engine.withdraw, call)
            raise
        result: T = self._conclude(call)
        return result

    def _conclude(self, call: Call) -> Any:
        with self._lock:
            try:
                return self._engine.conclude(call)
            finally:
                self._wake_if_changed()

    def _drive(self, step: Callable[[Call], None], call: Call) -> None:
        """One step of the engine for `call`, alone."""
        with self._lock:
            try:
                step(call)
            except BaseException as error:
                # A signal's handler raised in the middle: frames and credits may be half accounted for.
                self._engine.fail(error)
                raise
            finally:
                self._wake_if_changed()

    def _link(self, config: ClientConfig) -> Link:
        return Link(config)

    def _state(self) -> _State:
        engine = self._engine
        return engine.descriptor, engine.wants_read, engine.wants_write, engine.next_timer()

    def _wake_if_changed(self) -> None:
        if self._state() != self._watched:
            self._wake()

    def _wake(self) -> None:
        if self._engine.foreign:
            return  # the thread is the parent's
        # Full means that the thread wakes anyway, closed that it has ended.
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    def _serve(self) -> None:
        try:
            while not self._closing:
                try:
                    self._turn()
                except Exception as error:  # noqa: BLE001 - told by the engine's log
                    with self._lock:
                        self._engine.fail(error)
                    # What fails each time must not take a core.
                    time.sleep(_FAULT_PAUSE)
        finally:
            # Whatever ended this thread, no call may wait for it any more.
            with self._lock:
                self._engine.close()
                self._changed.notify_all()
            self._wake_receiver.close()
            self._wake_sender.close()

    def _turn(self) -> None:
        with self._lock:
            self._watched = descriptor, wants_read, wants_write, timer = self._state()
        poll = select.poll()
        poll.register(self._wake_receiver, select.POLLIN)
        if descriptor >= 0:
            poll.register(
                descriptor, (_POLL_READ if wants_read else _POLL_END) | (_POLL_WRITE if wants_write else 0)
            )
        timeout = None if timer is None else max(math.ceil((timer - time.monotonic()) * 1000), 0)
        ready = dict(poll.poll(timeout))
        woken = self._wake_receiver.fileno() in ready
        if woken:
            self._wake_receiver.recv(4096)
        events = ready.get(descriptor, 0)
        with self._lock:
            if woken:
                self._engine.handle_attention()
            if events:
                self._engine.handle_io(
                    readable=bool(events & _POLL_READ), writable=bool(events & _POLL_WRITE)
                )
            self._engine.handle_timers()


class Borrowed(Views):
    """See Views; leaving a `with` block releases them. LoanLostError: they were lost before."""

    def __init__(self, client: Client, loan: Loan) -> None:
        super().__init__(loan)
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        proven, failure = False, None
        try:
            proven = self.release()
        except ClientError as strict:
            failure = strict
        self._judge(proven, failure, error)

    def release(self, *, timeout: float | None = None) -> bool:
        """Give the blocks back. True: what was read until now was their content; else drop it."""
        wait = self._client._seconds(timeout)
        if self._begin_release():
            self._proven = self._client._hot(Return, wait, self._loan)
        return self._proven

    def exchange(
        self, keys: Sequence[ReadableBuffer], dialog: int, *, timeout: float | None = None
    ) -> Borrowed:
        """`release` and `borrow` of others: one round trip with the native implementation.

        Raises LoanLostError where what was read until now is to be dropped; then nothing is borrowed.
        """
        wait = self._client._seconds(timeout)
        if not self._begin_release():
            return self._client.borrow(keys, dialog, timeout=wait)
        try:
            self._proven, loan = self._client._exchange(self._loan, keys, dialog, wait)
        except ClientError as strict:
            raise lost() from strict
        following = Borrowed(self._client, loan)
        if not self._proven:
            following.release(timeout=wait)
            raise lost()
        return following


def _ignore_descriptor(descriptor: int) -> None:
    """A poll set is made anew each turn: nothing has to be unwatched."""


def connect(*, wait: float = 2.0, implementation: Implementation | None = None, **settings: Any) -> Client:
    """Make a client and wait up to `wait` seconds for its first session.

    Takes the settings of `ClientConfig`. The client works without a session too, answering misses, and
    connects when the gateway is there; a strict one raises instead. `implementation` None takes
    AKV_CLIENT_IMPLEMENTATION's, or the native one where it is installed.

    Raises:
        ValueError, TypeError: a setting that can't be right.
        ImportError: the native implementation was asked for and is not installed.
        GatewayUnavailableError, AuthenticationError: only with `strict=True`.
    """
    config = ClientConfig(**settings)
    client = client_class(implementation)(config)
    if not client.wait_connected(wait) and config.strict:
        error = client._no_session(config)
        client.close()
        raise error
    return client


def client_class(implementation: Implementation | None) -> type[Client]:
    """The class of clients that `implementation` names; None is the fastest that is there."""
    if (native := find_native(implementation)) is not None:
        made: type[Client] = native.NativeClient
        return made
    return Client
