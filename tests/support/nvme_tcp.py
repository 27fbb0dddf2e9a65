"""A tiny NVMe/TCP initiator in plain Python, written from the specification and not from the product's code.

It is the second opinion in tests of the software card: slow, strict, one command at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from types import TracebackType

from tests.support.nvme_wire import (
    C2H_DATA,
    CMD,
    H2C_DATA,
    LAST,
    R2T,
    RESP,
    SUCCESS,
    Options,
    Pdu,
    ProtocolError,
    Wire,
)

IN_CAPSULE, TRANSPORT = 0x01, 0x5A
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:5f0c9e2e-3b1f-4b39-9c39-4f2c0b7d6a11"
HOST_ID = bytes(range(16))
INVALID_FIELD, ABORTED, KEY_ABSENT, KEY_EXISTS, UNRECOVERED = 0x02, 0x07, 0x87, 0x89, 0x88


def sgl(kind: int, length: int) -> bytes:
    """A data block descriptor of `length` bytes."""
    return struct.pack("<QI3xB", 0, length, kind)


def sqe(
    opcode: int,
    *,
    nsid: int = 0,
    data: bytes = sgl(TRANSPORT, 0),
    cdw2: int = 0,
    cdw3: int = 0,
    cdw: tuple[int, ...] = (),
    flags: int = 0x40,
) -> bytes:
    """A submission queue entry without its command id; `cdw` are dwords 10 and up."""
    words = (*cdw, *([0] * (6 - len(cdw))))
    return struct.pack("<BBHIIIQ16s6I", opcode, flags, 0, nsid, cdw2, cdw3, 0, data, *words)


@dataclass(frozen=True)
class Completion:
    """`status` without phase, `code` = SCT and SC without DNR; `data` of all C2HData PDUs."""

    status: int
    result: int
    data: bytes
    sqhd: int

    @property
    def code(self) -> int:
        return self.status & 0x7FF


class Queue:
    """One queue pair; commands one at a time unless `submit` and `complete` are used apart."""

    def __init__(self, address: tuple[str, int], options: Options | None = None) -> None:
        self.wire = Wire(address, options)
        self.wire.greet()
        self._next_cid = 1
        self._data: dict[int, bytes] = {}
        self._received: dict[int, bytearray] = {}
        self.answered: set[int] = set()  # command ids of all completions so far

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wire.close()

    def submit(self, entry: bytes, data: bytes = b"", in_capsule: bool = True) -> int:
        """Send a command and give its id. Data that is not sent in the capsule goes out when R2T asks."""
        cid = self._next_cid
        self._next_cid = cid % 0xFFF0 + 1
        entry = entry[:2] + struct.pack("<H", cid) + entry[4:]
        if not in_capsule:
            self._data[cid] = data
        self.wire.send(CMD, entry, data if in_capsule else b"")
        return cid

    def complete(self, cid: int | None = None) -> tuple[int, Completion]:
        """Serve PDUs until a completion (of `cid`, where given) has come."""
        while True:
            pdu = self.wire.receive()
            if pdu.kind == R2T:
                self._answer_r2t(pdu)
            elif pdu.kind == C2H_DATA:
                self._take_data(pdu)
            elif pdu.kind == RESP:
                got, completion = self._completion(pdu)
                if cid is None or got == cid:
                    return got, completion
            else:
                raise ProtocolError(f"PDU type {pdu.kind} from a card")

    def command(self, entry: bytes, data: bytes = b"", in_capsule: bool = True) -> Completion:
        return self.complete(self.submit(entry, data, in_capsule))[1]

    def connect(self, nqn: str, **fields: int | str | bytes) -> Completion:
        """Fabrics Connect; fields: qid, sqsize, cattr, kato, cntlid, recfmt, hostnqn, hostid."""

        def number(name: str, default: int) -> int:
            value = fields.get(name, default)
            assert isinstance(value, int)
            return value

        hostid = fields.get("hostid", HOST_ID)
        assert isinstance(hostid, bytes)
        data = hostid + struct.pack("<H238x", number("cntlid", 0xFFFF))
        data += nqn.encode().ljust(256, b"\0") + str(fields.get("hostnqn", HOST_NQN)).encode().ljust(
            512, b"\0"
        )
        cdw10 = number("recfmt", 0) | number("qid", 0) << 16
        cdw11 = number("sqsize", 31) | number("cattr", 0) << 16
        entry = sqe(0x7F, nsid=1, data=sgl(IN_CAPSULE, 1024), cdw=(cdw10, cdw11, number("kato", 0)))
        return self.command(entry, data)

    def property_get(self, offset: int) -> Completion:
        return self.command(sqe(0x7F, nsid=4, cdw=(1 if offset == 0 else 0, offset)))

    def property_set(self, offset: int, value: int) -> Completion:
        return self.command(sqe(0x7F, nsid=0, cdw=(0, offset, value)))

    def identify(self, cns: int, nsid: int = 0, csi: int = 0) -> Completion:
        return self.command(sqe(0x06, nsid=nsid, data=sgl(TRANSPORT, 4096), cdw=(cns, csi << 24)))

    def store(self, key: bytes, value: bytes, options: int = 0, in_capsule: bool | None = None) -> Completion:
        inline = len(value) <= 8192 if in_capsule is None else in_capsule
        return self.command(kv(0x01, key, len(value), options=options, in_capsule=inline), value, inline)

    def retrieve(self, key: bytes, buffer: int) -> Completion:
        return self.command(kv(0x02, key, buffer))

    def exist(self, key: bytes) -> int:
        return self.command(kv(0x14, key)).code

    def delete(self, key: bytes) -> int:
        return self.command(kv(0x10, key)).code

    def list_keys(self, start: bytes = b"", buffer: int = 4096) -> list[bytes]:
        answer = self.command(kv(0x06, start, buffer))
        if answer.code:
            raise ProtocolError(f"list: status {answer.code:#x}")
        (count,) = struct.unpack_from("<I", answer.data)
        keys, at = [], 4
        for _ in range(count):
            (length,) = struct.unpack_from("<H", answer.data, at)
            keys.append(answer.data[at + 2 : at + 2 + length])
            at += (2 + length + 3) // 4 * 4
        return keys

    def answer_r2t(self) -> None:
        """Take the next PDU, which must be an R2T, and send what it asks for."""
        pdu = self.wire.receive()
        if pdu.kind != R2T:
            raise ProtocolError(f"PDU type {pdu.kind} instead of R2T")
        self._answer_r2t(pdu)

    def _answer_r2t(self, pdu: Pdu) -> None:
        cid, tag, offset, length = struct.unpack_from("<HHII", pdu.header, 8)
        data = self._data[cid]
        if offset + length > len(data):
            raise ProtocolError("R2T beyond the command's data")
        piece = min(self.wire.max_h2c_data, self.wire.options.h2c_piece)
        for at in range(offset, offset + length, piece):
            part = data[at : min(at + piece, offset + length)]
            last = LAST if at + len(part) == offset + length else 0
            self.wire.send(H2C_DATA, struct.pack("<HHII4x", cid, tag, at, len(part)), part, last)

    def _take_data(self, pdu: Pdu) -> None:
        cid, _, offset, length = struct.unpack_from("<HHII", pdu.header, 8)
        if length != len(pdu.data):
            raise ProtocolError("DATAL is not the length of the data")
        buffer = self._received.setdefault(cid, bytearray())
        if offset != len(buffer):
            raise ProtocolError("C2HData out of order")
        buffer += pdu.data
        if pdu.flags & SUCCESS:
            raise ProtocolError("SUCCESS flag: the size of a value would be lost")

    def _completion(self, pdu: Pdu) -> tuple[int, Completion]:
        result, sqhd, _, cid, status = struct.unpack_from("<QHHHH", pdu.header, 8)
        self._data.pop(cid, None)
        self.answered.add(cid)
        return cid, Completion(status >> 1, result, bytes(self._received.pop(cid, b"")), sqhd)


def kv(
    opcode: int, key: bytes, size: int = 0, *, options: int = 0, nsid: int = 1, in_capsule: bool = False
) -> bytes:
    """A key-value command (KV Command Set 1.0): key bytes 0-7 in CDW2-3, 8-15 in CDW14-15."""
    padded = key.ljust(16, b"\0")
    low = struct.unpack("<II", padded[:8])
    high = struct.unpack("<II", padded[8:16])
    kind = IN_CAPSULE if in_capsule else TRANSPORT
    moved = size if opcode in (0x01, 0x02, 0x06) else 0
    cdw = (size, len(key) | options << 8, 0, 0, *high)
    return sqe(opcode, nsid=nsid, data=sgl(kind, moved), cdw2=low[0], cdw3=low[1], cdw=cdw)


class Host:
    """An enabled controller with its admin queue; `queue()` adds I/O queues."""

    def __init__(
        self, address: tuple[str, int], nqn: str, options: Options | None = None, kato: int = 0
    ) -> None:
        self.address = address
        self.nqn = nqn
        self.options = options
        self.admin = Queue(address, options)
        self.queues: list[Queue] = []
        answer = self.admin.connect(nqn, kato=kato)
        if answer.status:
            raise ProtocolError(f"Connect: status {answer.status:#x}")
        self.cntlid = answer.result & 0xFFFF
        self.admin.property_set(0x14, 0x460061)  # entry sizes 64 and 16 bytes, all command sets, enable
        if self.admin.property_get(0x1C).result & 3 != 1:
            raise ProtocolError("the controller is not ready")

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queue(self, options: Options | None = None, sqsize: int = 127) -> Queue:
        """The next I/O queue."""
        queue = Queue(self.address, options or self.options)
        answer = queue.connect(self.nqn, qid=len(self.queues) + 1, cntlid=self.cntlid, sqsize=sqsize)
        if answer.status:
            queue.wire.close()
            raise ProtocolError(f"Connect: status {answer.status:#x}")
        self.queues.append(queue)
        return queue

    def close(self) -> None:
        for queue in (*self.queues, self.admin):
            queue.wire.close()
