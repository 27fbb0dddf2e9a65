"""A small gateway in Python: the other end of docs/protocol.md for tests of the client, with faults on
demand.

`python -m tests.support.gateway --socket PATH` runs one as a process of its own, to be suspended or killed.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hmac
import json
import mmap
import os
import secrets
import signal
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HEADER = struct.Struct("<IIHHIQQ")
ENTRY = struct.Struct("<32sQIHH")
MAGIC = 0x31564B41
HELLO, ALLOC, FREE, PUT, GET, EXISTS, DELETE, STATS, REGISTER, UNREGISTER, RELEASED = range(1, 12)
OK, MISS, NOT_STORED, TOO_LARGE, NO_SUCH_BLOCK, TOO_SMALL, LATE = range(7)
BUSY, AUTH_REQUIRED, AUTH_FAILED, BAD_REQUEST = 1, 2, 3, 4
NO_MEMORY, FRAME_NO_SUCH_BLOCK = 6, 7
BORROW, RETURN, NOT_CACHED = 12, 13, 7
INLINE = 0xFFFF
ALIGN = 4096


@dataclass
class Limits:
    """What HELLO grants."""

    max_batch: int = 4096
    credits: int = 32
    max_frame: int = 16 << 20
    max_value: int = 4 << 20
    max_arena: int = 1 << 30
    max_entries: int = 16_384
    max_regions: int = 4
    # Of the memory in which blocks are lent; 0: none are.
    lent_bytes: int = 0


@dataclass
class Faults:
    """What goes wrong on purpose."""

    # Replies to these opcodes wait until `let_go` is set.
    withheld: set[int] = field(default_factory=set)
    let_go: threading.Event = field(default_factory=threading.Event)
    # Rewrites a whole reply frame; None closes the connection instead.
    rewrite: Callable[[int, bytes], bytes | None] = lambda opcode, frame: frame
    mute_hello: bool = False


class Session:
    """One connection, served by one thread."""

    def __init__(self, gateway: ReferenceGateway, sock: socket.socket) -> None:
        self.gateway = gateway
        self.sock = sock
        self.namespace = ""
        self.arena: mmap.mmap | None = None
        self.memory_fds: list[int] = []
        # Where blocks are lent, how far it is used, and how often each offset is borrowed.
        self.cache: mmap.mmap | None = None
        self.cache_used = 0
        self.borrowed: Counter[int] = Counter()
        self.leased: dict[int, int] = {}
        self.regions: dict[int, mmap.mmap] = {}
        self.descriptors: list[int] = []
        self.next_offset = 0
        self.client_nonce = b""
        self.server_nonce = b""
        self.send_lock = threading.Lock()

    def serve(self) -> None:
        with contextlib.suppress(OSError, EOFError), self.sock:
            while True:
                magic, size, opcode, status, count, request, dialog = HEADER.unpack(
                    self._exactly(HEADER.size)
                )
                assert magic == MAGIC
                body = self._exactly(size)
                self.gateway.note(opcode, count, dialog)
                if opcode in self.gateway.faults.withheld:
                    threading.Thread(
                        target=self._later, args=(opcode, status, count, request, dialog, body), daemon=True
                    ).start()
                else:
                    self._answer(opcode, status, count, request, dialog, body)
        for descriptor in self.memory_fds:
            os.close(descriptor)

    def _later(self, *frame: int | bytes) -> None:
        self.gateway.faults.let_go.wait(60)
        with contextlib.suppress(OSError):
            self._answer(*frame)  # type: ignore[arg-type]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            wanted = min(size - len(data), 1 << 20)
            part, descriptors, _, _ = socket.recv_fds(self.sock, wanted, 4)
            self.descriptors += descriptors
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _answer(self, opcode: int, status: int, count: int, request: int, dialog: int, body: bytes) -> None:
        handlers = {
            HELLO: self._hello,
            ALLOC: self._alloc,
            FREE: self._free,
            PUT: self._put,
            GET: self._get,
            EXISTS: self._exists,
            DELETE: self._delete,
            STATS: self._stats,
            REGISTER: self._register,
            UNREGISTER: self._unregister,
            BORROW: self._borrow,
            RETURN: self._return,
        }
        result = handlers[opcode](count, body)
        if result is None:
            return
        reply_status, reply = result
        entries = 0 if opcode in {HELLO, STATS} else count
        frame = HEADER.pack(MAGIC, len(reply), opcode | 0x8000, reply_status, entries, request, 0) + reply
        rewritten = self.gateway.faults.rewrite(opcode, frame)
        if rewritten is None:
            self.sock.shutdown(socket.SHUT_RDWR)
            return
        with self.send_lock:
            self._send(rewritten, opcode == HELLO and reply_status == OK)

    def _send(self, frame: bytes, welcome: bool) -> None:
        if welcome and self.memory_fds:
            rights = array.array("i", self.memory_fds)
            sent = self.sock.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            frame = frame[sent:]
        self.sock.sendall(frame)

    def _hello(self, count: int, body: bytes) -> tuple[int, bytes] | None:
        if self.gateway.faults.mute_hello:
            return None
        low, high, features, wanted, nonce, mac, size = struct.unpack_from("<HHIQ32s32sH", body)
        assert low <= 1 <= high
        name = body[82 : 82 + size]
        self.namespace = name.decode()
        welcome_mac = bytes(32)
        if self.gateway.secrets:
            secret = self.gateway.secrets.get(self.namespace)
            if secret is None:
                return AUTH_FAILED, b"no such namespace"
            if not self.server_nonce:
                self.client_nonce, self.server_nonce = nonce, secrets.token_bytes(32)
                return AUTH_REQUIRED, self.server_nonce
            text = self.client_nonce + self.server_nonce + struct.pack("<H", size) + name
            if not hmac.compare_digest(mac, hmac.digest(secret, b"akv-hello-1" + text, "sha256")):
                return AUTH_FAILED, b"wrong mac"
            welcome_mac = hmac.digest(secret, b"akv-welcome-1" + text, "sha256")
        limits = self.gateway.limits
        arena = min(wanted, limits.max_arena) if features & 1 and self.sock.family == socket.AF_UNIX else 0
        lent = limits.lent_bytes if arena and features & 4 else 0
        if arena:
            self.arena = self._make_memory(arena)
        if lent:
            self.cache = self._make_memory(lent)
        regions = features & 2 and self.sock.family == socket.AF_UNIX and limits.max_regions
        fields = (
            1,
            0,
            int(bool(arena)) | (2 if regions else 0) | (4 if lent else 0),
            arena,
            ALIGN,
            limits.max_batch,
            limits.credits,
            limits.max_frame,
        )
        most = (limits.max_value, limits.max_entries)
        reply = struct.pack("<HHIQIIIIIIQ32s", *fields, *most, id(self), welcome_mac)
        if regions:
            reply += struct.pack("<IIQ", limits.max_regions, 0, 1 << 30)
        if lent:
            reply += struct.pack("<QII", lent, 1 << 14, 0)
        return OK, reply

    def _make_memory(self, size: int) -> mmap.mmap:
        """Memory of which the client gets the descriptor."""
        descriptor = os.memfd_create("akv-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.memory_fds.append(descriptor)
        return mmap.mmap(descriptor, size)

    def _alloc(self, count: int, body: bytes) -> tuple[int, bytes]:
        assert self.arena is not None
        lengths = struct.unpack(f"<{count}I", body)
        steps = [-(-length // ALIGN) * ALIGN for length in lengths]
        if self.next_offset + sum(steps) > len(self.arena):
            return NO_MEMORY, b""
        offsets = []
        for length, step in zip(lengths, steps, strict=True):
            offsets.append(self.next_offset)
            self.leased[self.next_offset] = length
            self.next_offset += step
        return OK, struct.pack(f"<{count}Q", *offsets)

    def _free(self, count: int, body: bytes) -> tuple[int, bytes]:
        for offset in struct.unpack(f"<{count}Q", body):
            del self.leased[offset]
        if not self.leased:
            self.next_offset = 0
        return OK, b""

    def _memory(self, region: int, offset: int, length: int) -> mmap.mmap | None:
        if region:
            return self.regions.get(region)
        return self.arena if self.leased.get(offset, 0) >= length else None

    def _register(self, count: int, body: bytes) -> tuple[int, bytes]:
        offset, length = struct.unpack("<QQ", body)
        descriptor = self.descriptors.pop(0)
        number = max(self.regions, default=0) + 1
        try:
            if number > self.gateway.limits.max_regions:
                return NO_MEMORY, b"too many regions"
            self.regions[number] = mmap.mmap(descriptor, length, offset=offset)
        finally:
            os.close(descriptor)
        return OK, struct.pack("<H6x", number)

    def _unregister(self, count: int, body: bytes) -> tuple[int, bytes]:
        del self.regions[struct.unpack("<H6x", body)[0]]
        return OK, b""

    def _borrow(self, count: int, body: bytes) -> tuple[int, bytes]:
        assert self.cache is not None
        reply = b""
        for i in range(count):
            data = self.gateway.store.get((self.namespace, body[i * 32 : i * 32 + 32]))
            if data is None:
                reply += struct.pack("<IIQ", NOT_CACHED, 0, 0)
                continue
            offset, end = self.cache_used, self.cache_used + len(data)
            self.cache[offset:end] = data
            self.cache_used = -(-end // ALIGN) * ALIGN
            self.borrowed[offset] += 1
            reply += struct.pack("<IIQ", OK, len(data), offset)
        return OK, reply

    def _return(self, count: int, body: bytes) -> tuple[int, bytes]:
        returned = Counter(struct.unpack(f"<{count}Q", body))
        if not returned <= self.borrowed:
            return FRAME_NO_SUCH_BLOCK, b"not borrowed so often"
        self.borrowed -= returned
        return OK, b""

    def _put(self, count: int, body: bytes) -> tuple[int, bytes]:
        position, statuses = count * ENTRY.size, []
        for key, offset, length, region, _ in ENTRY.iter_unpack(body[: count * ENTRY.size]):
            if region == INLINE:
                data, position = body[position : position + length], position + length
            elif (memory := self._memory(region, offset, length)) is not None:
                data = memory[offset : offset + length]
            else:
                statuses.append(NO_SUCH_BLOCK)
                continue
            self.gateway.store[self.namespace, key] = data
            statuses.append(OK)
        return OK, struct.pack(f"<{count}I", *statuses)

    def _get(self, count: int, body: bytes) -> tuple[int, bytes]:
        table, payloads = b"", []
        for key, offset, length, region, _ in ENTRY.iter_unpack(body):
            data = self.gateway.store.get((self.namespace, key))
            if data is None:
                table += struct.pack("<II", MISS, 0)
            elif len(data) > length:
                table += struct.pack("<II", TOO_SMALL, len(data))
            else:
                table += struct.pack("<II", OK, len(data))
                if region == INLINE:
                    payloads.append(data)
                elif (memory := self._memory(region, offset, length)) is not None:
                    memory[offset : offset + len(data)] = data
        return OK, b"".join([table, *payloads])

    def _exists(self, count: int, body: bytes) -> tuple[int, bytes]:
        present = [(self.namespace, body[i * 32 : i * 32 + 32]) in self.gateway.store for i in range(count)]
        prefix = present.index(False) if False in present else count
        bits = bytearray((count + 7) // 8)
        for i, there in enumerate(present):
            bits[i // 8] |= there << (i % 8)
        return OK, struct.pack("<II", prefix, 0) + bits

    def _delete(self, count: int, body: bytes) -> tuple[int, bytes]:
        for i in range(count):
            self.gateway.store.pop((self.namespace, body[i * 32 : i * 32 + 32]), None)
        return OK, struct.pack(f"<{count}I", *[OK] * count)

    def _stats(self, count: int, body: bytes) -> tuple[int, bytes]:
        leased = sum(sum(s.leased.values()) for s in self.gateway.sessions)
        return OK, json.dumps({"leased_bytes": leased, "pid": os.getpid()}).encode()


class ReferenceGateway:
    """Listens on a Unix socket or on TCP until closed. `seen` lists (opcode, entries, dialog) of every
    request."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        limits: Limits | None = None,
        secrets: dict[str, bytes] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.secrets = secrets or {}
        self.faults = Faults()
        self.store: dict[tuple[str, bytes], bytes] = {}
        self.sessions: list[Session] = []
        self.seen: list[tuple[int, int, int]] = []
        family = socket.AF_INET if path is None else socket.AF_UNIX
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind(("127.0.0.1", 0) if path is None else str(path))
        self._listener.listen(16)
        self.port = int(self._listener.getsockname()[1]) if path is None else 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> ReferenceGateway:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def note(self, opcode: int, count: int, dialog: int) -> None:
        self.seen.append((opcode, count, dialog))

    def batches(self, opcode: int) -> list[int]:
        """Entries of each request of that kind."""
        return [count for seen, count, _ in self.seen if seen == opcode]

    def disconnect(self) -> None:
        """Close every connection, and go on listening."""
        for session in self.sessions:
            with contextlib.suppress(OSError):
                session.sock.shutdown(socket.SHUT_RDWR)
        self.sessions.clear()

    def close(self) -> None:
        self.faults.let_go.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.disconnect()
        self._thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                session = Session(self, sock)
                self.sessions.append(session)
                threading.Thread(target=session.serve, daemon=True).start()


def main(path: str) -> None:
    """Serve until killed."""
    with ReferenceGateway(path):
        print(json.dumps({"event": "ready"}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[sys.argv.index("--socket") + 1])
