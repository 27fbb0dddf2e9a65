"""One session with a gateway after HELLO: calls, their frames, credits and replies. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from integration.client.errors import (
    ClientError,
    DeadlineExceededError,
    ProtocolError,
    RequestRefusedError,
)
from integration.client.memory import Block
from integration.client.operations import Operation, Request, SessionView, Stats
from integration.client.wire import ERROR_OPCODE, REPLY, Frame, FrameStatus, Header, Opcode, encode_frame

MAX_WAITING_CALLS = 1024


class Call:
    """One call under way. `done` is called once, when the result is as good as it will get."""

    def __init__(self, operation: Operation[Any], done: Callable[[], None], started: float) -> None:
        self.operation = operation
        self.started = started
        self.error: ClientError | None = None
        self.finished = False
        self.in_flight = 0
        # Its next request was made, and then there was no room for it.
        self.delayed = False
        self._requests: Iterator[tuple[int, Request]] | None = None
        self._following: tuple[int, Request] | None = None
        self._done = done

    def begin(self, requests: Iterator[Request]) -> None:
        """`requests` are to be sent; each is made only when there is room for it."""
        self._requests = enumerate(requests)

    def following(self) -> tuple[int, Request] | None:
        """The request to send next, and its number; None when all were sent."""
        if self._following is None and self._requests is not None:
            self._following = next(self._requests, None)
        return self._following

    def sent(self) -> None:
        """The request that `following` told is on its way."""
        self._following = None
        self.in_flight += 1

    def skip(self) -> None:
        """The request that `following` told is not to be sent: its entries have no answer."""
        self._following = None

    def end_requests(self) -> None:
        """All requests were sent, or no more are wanted."""
        self._requests = self._following = None

    @property
    def settled(self) -> bool:
        """Nothing is left to send or to wait for."""
        return self._requests is None and self.in_flight == 0

    def finish(self, error: ClientError | None = None) -> None:
        """The call ends, with `error` as the reason where it ended badly; only the first end counts."""
        if self.finished:
            return
        self.finished = True
        self.error = self.error or error
        self._done()


class Room(Protocol):
    """What a session may have under way, and how its requests are numbered."""

    def next_request_id(self) -> int:
        """An id that no request of the session had."""

    def has_room(self, entries: int, /) -> bool:
        """One more request may be sent."""

    def take_credit(self, entries: int, /) -> None:
        """It is sent."""

    def give_back(self, entries: int, /) -> None:
        """It is answered."""

    def set_hungry(self, hungry: bool, /) -> None:
        """Calls wait for room, or not."""


class Credits:
    """Room that is counted here: requests, and entries of all of them together."""

    def __init__(self, requests: int, entries: int) -> None:
        self._limits = requests, entries
        self._requests = 0
        self._entries = 0
        self._last_id = 0

    def next_request_id(self) -> int:
        """See Room."""
        self._last_id += 1
        return self._last_id

    def has_room(self, entries: int, /) -> bool:
        """See Room."""
        requests, most = self._limits
        return self._requests < requests and (not self._entries or self._entries + entries <= most)

    def take_credit(self, entries: int, /) -> None:
        """See Room."""
        self._requests += 1
        self._entries += entries

    def give_back(self, entries: int, /) -> None:
        """See Room."""
        self._requests -= 1
        self._entries -= entries

    def set_hungry(self, hungry: bool, /) -> None:
        """See Room."""


class _Sent(NamedTuple):
    call: Call
    part: int
    request: Request
    # It has a credit.
    counted: bool


def _still_lent(sent: _Sent, header: Header, body: memoryview) -> frozenset[int]:
    refused = header.opcode == ERROR_OPCODE or header.status != FrameStatus.OK
    return frozenset() if refused else sent.call.operation.still_lent(body)


def nothing() -> None:
    """Called when a call ends for which nobody waits."""


class Session:
    """Sends the calls' frames within the session's credits and hands replies back to them."""

    def __init__(self, view: SessionView, send: Callable[[bytes, int], None], room: Room) -> None:
        self.view = view
        self._send = send
        self._room = room
        self._waiting: deque[Call] = deque()
        self._outstanding: dict[int, _Sent] = {}
        # Blocks of answered requests that the gateway will tell to be free again.
        self._late: dict[int, tuple[Block, ...]] = {}

    @property
    def outstanding(self) -> int:
        """Frames that wait for their reply."""
        return len(self._outstanding)

    @property
    def watched(self) -> bool:
        """Something is to come that nobody else reads: a reply, or the notice for a late block."""
        return bool(self._outstanding or self._late)

    @property
    def waiting(self) -> bool:
        """Calls wait for room."""
        return bool(self._waiting)

    def adopt(self, call: Call, request_id: int, request: Request) -> None:
        """`call` goes on here with a request that was sent by other means, and holds its blocks."""
        self._outstanding[request_id] = _Sent(call, 0, request, counted=True)
        call.sent()

    def start(self, call: Call) -> None:
        """Begin a call; ends it at once when too many wait already."""
        if call.operation.gives_back:
            self._transmit_all(call)
            self._settle(call)
            return
        if len(self._waiting) >= MAX_WAITING_CALLS:
            call.finish(
                RequestRefusedError(FrameStatus.BUSY, f"{MAX_WAITING_CALLS} calls wait for the gateway")
            )
            return
        call.begin(call.operation.requests(self.view))
        self._waiting.append(call)
        self.pump()

    def probe(self) -> None:
        """Ask for something that the gateway answers at once, whatever its cards do; it takes no credit."""
        self._transmit_all(Call(Stats(), nothing, 0.0))

    def abandon(self, call: Call) -> None:
        """The caller waits no longer, or sees no result. Frames that were sent stay outstanding, and their
        blocks busy."""
        call.operation.abandoned = True
        if call in self._waiting:
            self._waiting.remove(call)
        call.end_requests()
        call.finish(DeadlineExceededError("the gateway did not answer in time"))
        self._settle(call)

    def receive(self, frame: Frame) -> None:
        """Take one frame; raises ProtocolError where it answers nothing that was asked."""
        header, body = frame
        sent = self._outstanding.get(header.request_id)
        if sent is None and self._released(header):
            return
        if sent is None:
            raise ProtocolError(_unexpected(header, body))
        self._take(sent, header, body)
        del self._outstanding[header.request_id]
        if sent.counted:
            self._room.give_back(sent.request.entries)
        lent = _still_lent(sent, header, body)
        late = []
        for place, block in enumerate(sent.request.blocks):
            if place not in lent:
                block.release()
            elif not block.leased:
                late.append(block)
        if late:
            self._late[header.request_id] = tuple(late)
        sent.call.in_flight -= 1
        self._settle(sent.call)
        self.pump()

    def lose(self, error: ClientError) -> None:
        """The session is over: its blocks are invalid, its calls end. Blocks in transfer stay busy."""
        self.view.lease.valid = False
        calls = [*self._waiting, *(sent.call for sent in self._outstanding.values())]
        self._waiting.clear()
        self._outstanding.clear()
        for call in calls:
            call.end_requests()
            call.finish(error)

    def _released(self, header: Header) -> bool:
        """The notice that cards have let go of the blocks that a reply called late."""
        if header.opcode != Opcode.RELEASED | REPLY or header.request_id not in self._late:
            return False
        for block in self._late.pop(header.request_id):
            block.release()
        return True

    def _take(self, sent: _Sent, header: Header, body: memoryview) -> None:
        operation = sent.call.operation
        if header.opcode == ERROR_OPCODE or (
            header.opcode == sent.request.opcode | REPLY and header.status != FrameStatus.OK
        ):
            refusal = _refusal(header, body)
            sent.call.error = sent.call.error or refusal
        elif header.opcode != sent.request.opcode | REPLY:
            raise ProtocolError(f"opcode 0x{header.opcode:04x} answers a {sent.request.opcode.name} request")
        elif header.entries != sent.request.entries:
            raise ProtocolError(
                f"{sent.request.opcode.name} reply has {header.entries} entries, "
                f"expected {sent.request.entries}"
            )
        elif not operation.abandoned or operation.absorbs_late:
            operation.absorb(sent.part, header, body)

    def pump(self) -> None:
        """Send what waits, as far as there is room."""
        while self._waiting:
            call = self._waiting[0]
            following = call.following()
            if following is None:
                self._waiting.popleft()
                call.end_requests()
                self._settle(call)
            elif call.delayed and not all(block.valid for block in following[1].blocks):
                # Given back while it waited, ahead of it: their memory may be another block's by now.
                call.skip()
            elif self._room.has_room(following[1].entries):
                self._room.take_credit(following[1].entries)
                self._transmit(call, *following, counted=True)
            else:
                call.delayed = True
                break
        self._room.set_hungry(bool(self._waiting))

    def _transmit_all(self, call: Call) -> None:
        """Send what the gateway answers at once and without a credit, past all that waits."""
        for index, request in enumerate(call.operation.requests(self.view)):
            self._transmit(call, index, request, counted=False)

    def _transmit(self, call: Call, index: int, request: Request, *, counted: bool) -> None:
        request_id = self._room.next_request_id()
        self._outstanding[request_id] = _Sent(call, index, request, counted)
        call.sent()
        for block in request.blocks:
            block.hold()
        header = Header(request.opcode, request.status, request.entries, request_id, request.dialog)
        self._send(encode_frame(header, request.body), request.descriptor)

    def _settle(self, call: Call) -> None:
        """End a call whose last reply is there, and send what its end asks for."""
        if not call.settled:
            return
        call.finish()
        following = call.operation.follow_up()
        if following is not None:
            self.start(Call(following, nothing, call.started))


def _refusal(header: Header, body: memoryview) -> RequestRefusedError:
    try:
        status = FrameStatus(header.status)
    except ValueError:
        raise ProtocolError(f"frame status {header.status} is unknown") from None
    return RequestRefusedError(status, str(body, "utf-8", "replace"))


def _unexpected(header: Header, body: memoryview) -> str:
    if header.opcode == ERROR_OPCODE:
        return f"the gateway reports: {str(body, 'utf-8', 'replace')}"
    return f"a reply with request id {header.request_id}, which is not outstanding"
