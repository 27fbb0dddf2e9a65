"""The client itself, without a loop: connecting, reconnecting, deadlines, what is answered while the gateway
is away.

A driver (a thread or an asyncio loop) watches `descriptor`, calls `handle_io` when it is ready and
`handle_timers` when `next_timer` is due. Nothing here blocks. Not thread-safe: the driver serialises.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from integration.client.backoff import Backoff
from integration.client.config import ClientConfig
from integration.client.errors import (
    AuthenticationError,
    ClientError,
    DeadlineExceededError,
    GatewayUnavailableError,
    ProtocolError,
    RequestRefusedError,
)
from integration.client.forks import Home
from integration.client.link import FastCall, FastSession, Link
from integration.client.operations import Hasty
from integration.client.regions import Region, Register
from integration.client.session import Call, Session, nothing
from integration.client.wire import Frame

_log = logging.getLogger("akv.client")

_COUNTED = (
    (GatewayUnavailableError, "unavailable"),
    (DeadlineExceededError, "deadlines"),
    (RequestRefusedError, "refused"),
    (ProtocolError, "protocol_errors"),
)


class Engine:
    """State of one client.

    `on_change` is called when it gets a session, loses it, or an attempt failed; `on_closing` with the number
    of a socket that is about to be closed.
    """

    def __init__(
        self,
        config: ClientConfig,
        on_change: Callable[[], None],
        on_closing: Callable[[int], None],
        links: Callable[[ClientConfig], Link] = Link,
        clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self.counters: Counter[str] = Counter()
        self.last_error: ClientError | None = None
        # Why the last attempt or session failed: told by the errors of calls that find none.
        self._loss: ClientError | None = None
        self._on_change = on_change
        self._on_closing = on_closing
        self._reported: str | None = None
        self._links = links
        self._clock = clock
        self._backoff = Backoff(config.backoff_first, config.backoff_cap, rng)
        self._link: Link | None = None
        self._session: Session | None = None
        self._timer: float | None = None
        self._last_received = clock()
        self._silent_since: float | None = None
        self._closed = False
        # Told to each new session.
        self.regions: list[Region] = []
        # The gateway refused the last attempt's proof, or had none itself.
        self.denied = False
        # A forked child shares the socket: what it sent would tear the parent's stream.
        self._home = Home()

    # For the driver

    @property
    def descriptor(self) -> int:
        """The socket to watch, -1 while there is none."""
        return self.link.descriptor if self.link is not None else -1

    @property
    def wants_write(self) -> bool:
        """The socket is to be watched for writing too."""
        return self.link is not None and self.link.wants_write

    @property
    def wants_read(self) -> bool:
        """The socket is to be watched for reading; where it is not, its end must be noticed all the same."""
        return self.link is not None and (
            self._session is None or self._session.watched or self.link.wants_read
        )

    def next_timer(self) -> float | None:
        """When `handle_timers` is due, by the clock; None: never."""
        return None if self.foreign else self._timer

    def start(self) -> None:
        """Begin the first attempt to connect."""
        self._connect()

    def close(self) -> None:
        """End every call and the session; nothing reconnects any more."""
        self._closed = True
        if self.foreign:
            return
        self._drop(GatewayUnavailableError("the client is closed"))
        self._timer = None

    def handle_io(self, *, readable: bool, writable: bool) -> None:
        """The socket is ready."""
        link = self.link
        if link is None:
            return
        try:
            if writable:
                link.on_writable()
            if readable:
                self._read(link)
        except OSError as error:
            self._break(error)
        except ClientError as error:
            self._lose(error)

    def handle_attention(self) -> None:
        """The link called for it, without its socket being ready."""
        link = self.link
        if link is not None and self._session is not None and link.last_received is not None:
            self.handle_io(readable=True, writable=False)

    def handle_timers(self) -> None:
        """The timer is due: connect, or give up what took too long."""
        if self.foreign:
            return
        self._listen()
        now = self._clock()
        if self._closed or self._timer is None or now < self._timer:
            return
        self._timer = None
        if self._link is None:
            self._connect()
        elif self._session is None:
            self._lose(GatewayUnavailableError(f"gateway at {self.config.address} did not answer HELLO"))
        elif self._silent_since is not None:
            self._lose(GatewayUnavailableError(f"gateway at {self.config.address} is silent"))

    def fail(self, error: BaseException) -> None:
        """A step of the engine was ended by what it does not know: the session may be half changed."""
        if not self.foreign and not self._closed:
            _log.error("a fault of the client costs its session", exc_info=error)
            self._lose(GatewayUnavailableError(f"gateway at {self.config.address}: {error!r} in the client"))

    # For the caller

    @property
    def foreign(self) -> bool:
        """This process is a forked child of the client's: nothing of its parent's may be touched."""
        return self._home.left

    @property
    def hopeless(self) -> bool:
        """To wait for a session is no use: the secret is refused, or this process can have none."""
        return self.denied or self.foreign

    @property
    def ready(self) -> bool:
        """There is a session whose gateway answers."""
        if self.foreign:
            return False
        self._listen()
        return self._session is not None and self._silent_since is None

    @property
    def shared_memory(self) -> bool:
        """Blocks are leased from shared memory in the present session."""
        return self._session is not None and self._session.view.arena is not None

    @property
    def borrowing(self) -> bool:
        """The present session may read blocks where the gateway's read cache has them."""
        return self._session is not None and self._session.view.cache is not None

    def submit(self, call: Call) -> None:
        """Begin a call; it may end at once."""
        if isinstance(call.operation, Register):
            # In the same step, or a session that begins in between would be told twice.
            self.regions.append(call.operation.region)
        session, link = self._session, self.link
        if session is not None and link is not None and (self.ready or call.operation.gives_back):
            self._step(link, lambda: session.start(call))
        if not self.ready:
            # What is to be given back was sent to a silent gateway all the same: nobody waits for its answer.
            call.finish(GatewayUnavailableError(self._why_unavailable()))

    def abandon(self, call: Call) -> None:
        """The deadline of a call came: end it.

        A gateway that sent nothing since the call's start counts as away until it answers a probe: that tells
        a slow card, which costs its own dialogs only, from a gateway that stands still.
        """
        session, link = self._session, self.link
        if call.finished or session is None or link is None:
            call.finish(GatewayUnavailableError(self._why_unavailable()))
            return
        self._listen()
        if call.in_flight and self._last_received <= call.started and self._silent_since is None:
            self._silent_since = self._clock()
            self._timer = self._silent_since + self.config.silence_limit
            session.probe()
            _log.info("gateway at %s does not answer: misses until it does", self.config.address)
        self._step(link, lambda: session.abandon(call))

    def withdraw(self, call: Call) -> None:
        """The caller of `call` went away, and sees no result also where there is one: end it."""
        call.operation.withdraw()
        session, link = self._session, self.link
        if session is None or link is None:
            call.finish(GatewayUnavailableError(self._why_unavailable()))
        else:
            # No deadline passed: that tells nothing of the gateway.
            self._step(link, lambda: session.abandon(call))

    def forget(self, region: Region) -> None:
        """Sessions to come are not told of the region any more."""
        self.regions = [known for known in self.regions if known is not region]

    def conclude(self, call: Call) -> Any:
        """The result of a finished call; counts its error, and raises it where the client is strict."""
        if call.error is not None:
            self.last_error = call.error
            for kind, name in _COUNTED:
                if isinstance(call.error, kind):
                    self.counters[name] += 1
            if self.config.strict:
                self.withdraw(call)
                raise call.error
        return call.operation.result()

    @property
    def link(self) -> Link | None:
        """The present connection; none in a forked child."""
        return None if self.foreign else self._link

    @property
    def fast(self) -> FastSession | None:
        """The session for calls that go past this engine; None where a call has to wait, or there is none."""
        session, link = self._session, self._link
        if session is None or link is None or session.waiting or not self.ready:
            return None
        return link.fast

    def take_over(self, fast: FastCall, call: Call) -> None:
        """End a call that went past this engine and has no plain answer: a refusal, a deadline, a loss."""
        session, link = self._session, self.link
        if session is None or link is None or not link.has_made(fast):
            call.finish(self.last_error or GatewayUnavailableError(self._why_unavailable()))
            return
        assert isinstance(call.operation, Hasty)
        request = call.operation.whole_request(session.view)
        # Interrupted when it had its result: its blocks are held no longer.
        session.adopt(call, fast.request_id, request._replace(blocks=()) if fast.answered else request)
        fast.disown()
        self.handle_io(readable=True, writable=False)
        if call.operation.abandoned:
            self.withdraw(call)
        else:
            self.abandon(call)

    # Inside

    def _listen(self) -> None:
        """Notice what was received past this engine: a gateway that answers others is not silent."""
        heard = self._link.last_received if self._link is not None and self._session is not None else None
        if heard is None or heard <= self._last_received:
            return
        self._last_received = heard
        if self._silent_since is not None and heard > self._silent_since:
            self._silent_since = self._timer = None

    def _why_unavailable(self) -> str:
        if self._closed:
            return "the client is closed"
        if self.foreign:
            return "the client was made before a fork: make another one in the child"
        if self._session is not None:
            return f"gateway at {self.config.address} does not answer"
        return f"no session with the gateway at {self.config.address}" + (
            f" ({self._loss})" if self._loss is not None else ""
        )

    def _connect(self) -> None:
        self._timer = self._clock() + self.config.connect_timeout
        try:
            self._link = self._links(self.config)
        except OSError as error:
            self._break(error)

    def _read(self, link: Link) -> None:
        for frame in link.read():
            if self._session is None:
                self._shake_hands(link, frame)
            else:
                self._last_received = self._clock()
                self._silent_since = self._timer = None
                self._session.receive(frame)
        if self._session is not None:
            self._session.pump()
        link.flush()
        if link.ended:
            raise GatewayUnavailableError(f"gateway at {self.config.address} closed the connection")

    def _shake_hands(self, link: Link, frame: Frame) -> None:
        view = link.shake_hands(frame)
        if view is None:
            return
        self._session = link.session(view)
        self._timer = None
        self._last_received = self._clock()
        self._backoff.reset()
        self._reported = None
        self.denied = False
        self.counters["sessions"] += 1
        _log.info("session %d with the gateway at %s", view.welcome.session_id, self.config.address)
        self.regions = [region for region in self.regions if not region.closed]
        for region in self.regions:
            self._session.start(Call(Register(region), nothing, self._clock()))
        self._on_change()

    def _step(self, link: Link, step: Callable[[], None]) -> None:
        """Let the session do something, and send what came of it."""
        try:
            step()
            link.flush()
        except OSError as error:
            self._break(error)

    def _break(self, error: OSError) -> None:
        """The operating system refused something: the attempt or the session is over."""
        self._lose(GatewayUnavailableError(f"gateway at {self.config.address}: {error.strerror or error}"))

    def _lose(self, error: ClientError) -> None:
        """The attempt or the session failed: end its calls and plan the next attempt."""
        if str(error) != self._reported:
            _log.warning("%s; calls answer misses until it is back", error)
            self._reported = str(error)
        self.last_error = self._loss = error
        self.denied = isinstance(error, AuthenticationError)
        self._drop(error)
        self._timer = self._clock() + self._backoff.next_delay()
        self._on_change()

    def _drop(self, error: ClientError) -> None:
        link, session = self._link, self._session
        self._link = self._session = self._silent_since = None
        if link is not None:
            self._on_closing(link.descriptor)
            link.close()
        if session is not None:
            self.counters["sessions_lost"] += 1
            session.lose(error)
