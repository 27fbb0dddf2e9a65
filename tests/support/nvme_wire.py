"""NVMe/TCP's PDUs on a socket, in plain Python, written from the specification, not from the product."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

ICREQ, ICRESP, H2C_TERM, C2H_TERM, CMD, RESP, H2C_DATA, C2H_DATA, R2T = 0, 1, 2, 3, 4, 5, 6, 7, 9
HDGST, DDGST, LAST, SUCCESS = 1, 2, 4, 8


def _crc_table() -> list[int]:
    table = []
    for index in range(256):
        value = index
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), as digests use it."""
    value = 0xFFFFFFFF
    for byte in data:
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Pdu:
    """One PDU as it came: `header` without digest, `data` without digest."""

    kind: int
    flags: int
    header: bytes
    data: bytes


class ProtocolError(Exception):
    """The card said something that the specification forbids."""


class Terminated(Exception):
    """The card ended the connection by a termination request."""

    def __init__(self, fes: int, fei: int, header: bytes) -> None:
        super().__init__(f"C2HTermReq fes={fes} fei={fei}")
        self.fes = fes
        self.fei = fei
        self.header = header


@dataclass
class Options:
    """How a connection talks: digests, the alignment it asks for, and the size of its H2CData pieces."""

    header_digest: bool = False
    data_digest: bool = False
    padded_digests: bool = False
    """Data digests go over the data padded with zeros to whole dwords, as SPDK has them."""
    hpda: int = 0
    maxr2t: int = 0
    h2c_piece: int = 1 << 30
    timeout: float = 10.0
    corrupt: Callable[[int, bytes], bytes] = field(default=lambda kind, pdu: pdu)


class Wire:
    """A socket that speaks PDUs; `greet` exchanges ICReq and ICResp."""

    def __init__(self, address: tuple[str, int], options: Options | None = None) -> None:
        self.options = options or Options()
        self.socket = socket.create_connection(address, timeout=self.options.timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.max_h2c_data = 0
        self._digests = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def greet(self) -> None:
        options = self.options
        wanted = (HDGST if options.header_digest else 0) | (DDGST if options.data_digest else 0)
        body = struct.pack("<HBBI112x", 0, options.hpda, wanted, options.maxr2t)
        self.socket.sendall(struct.pack("<BBBBI", ICREQ, 0, 128, 0, 128) + body)
        reply = self.receive()
        if reply.kind != ICRESP:
            raise ProtocolError(f"ICReq answered by PDU type {reply.kind}")
        pfv, cpda, digests, self.max_h2c_data = struct.unpack_from("<HBBI", reply.header, 8)
        if pfv != 0 or cpda != 0 or digests != wanted or self.max_h2c_data < 4096:
            raise ProtocolError(f"ICResp {reply.header[:16].hex()}")
        self._digests = digests

    def frame(self, kind: int, specific: bytes, data: bytes = b"", flags: int = 0) -> bytes:
        """The bytes of one PDU with the digests agreed on."""
        hlen = 8 + len(specific)
        header_digest = self._digests & HDGST
        offset = hlen + (4 if header_digest else 0)
        plen, pdo, flags = offset, 0, flags | header_digest
        if data:
            pdo, plen = offset, offset + len(data)
            if self._digests & DDGST:
                plen, flags = plen + 4, flags | DDGST
        out = struct.pack("<BBBBI", kind, flags, hlen, pdo, plen) + specific
        if header_digest:
            out += struct.pack("<I", crc32c(out))
        out += data
        if data and self._digests & DDGST:
            out += struct.pack("<I", self._data_digest(data))
        return out

    def _data_digest(self, data: bytes) -> int:
        padding = -len(data) % 4 if self.options.padded_digests else 0
        return crc32c(data + bytes(padding))

    def send(self, kind: int, specific: bytes, data: bytes = b"", flags: int = 0) -> None:
        self.socket.sendall(self.options.corrupt(kind, self.frame(kind, specific, data, flags)))

    def receive(self) -> Pdu:
        """The next PDU, verified. EOFError at the end of the stream; Terminated for a termination request."""
        common = self._exactly(8)
        kind, flags, hlen, pdo, plen = struct.unpack("<BBBBI", common)
        if plen > 64 << 20 or hlen < 24 or plen < hlen:
            raise ProtocolError(f"common header {common.hex()}")
        header = common + self._exactly(hlen - 8)
        if bool(flags & HDGST) != bool(self._digests & HDGST) and kind not in (ICRESP, C2H_TERM):
            raise ProtocolError(f"header digest flag of {common.hex()}")
        read = hlen
        if flags & HDGST:
            (digest,) = struct.unpack("<I", self._exactly(4))
            read += 4
            if digest != crc32c(header):
                raise ProtocolError("header digest")
        data = self._read_data(kind, flags, pdo, plen, read)
        if kind == C2H_TERM:
            fes, low, high = struct.unpack_from("<HHH", header, 8)
            raise Terminated(fes, low | high << 16, data)
        return Pdu(kind, flags, header, data)

    def _read_data(self, kind: int, flags: int, pdo: int, plen: int, read: int) -> bytes:
        if plen == read:
            return b""
        start = read if kind == C2H_TERM else pdo
        alignment = (self.options.hpda + 1) * 4
        if start < read or (kind == C2H_DATA and start % alignment):
            raise ProtocolError(f"data offset {pdo}")
        self._exactly(start - read)
        tail = 4 if flags & DDGST else 0
        data = self._exactly(plen - start - tail)
        if tail and struct.unpack("<I", self._exactly(4))[0] != self._data_digest(data):
            raise ProtocolError("data digest")
        return data

    def _exactly(self, count: int) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            got = self.socket.recv_into(view)
            if got == 0:
                raise EOFError("the card closed the connection")
            view = view[got:]
        return bytes(buffer)
