"""Write the first inputs of the fuzz targets: tests/fuzz/corpus/<target>/.

Usage: make_fuzz_corpus.py [DIRECTORY]

Made from the byte-exact examples in tests/vectors and from the shortest scripts that reach each part of a
target (tests/fuzz/*.cpp say how a target reads its input).
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT / "tests/vectors"
LENDING, REGIONS, HELLO_SENT, HOLD, SMALL_VALUES, REMOTE, SECRETS = 128, 64, 32, 8, 4, 2, 1


def _u16(value: int) -> bytes:
    return struct.pack("<H", value)


def envelope() -> Iterator[bytes]:
    """The first 64 bytes of every committed value, as they are and with a seal of their own."""
    for value in json.loads((VECTORS / "envelope.json").read_text())["values"]:
        for segment in value["segments"]:
            raw = bytes.fromhex(segment["envelope"])
            size = struct.pack("<I", len(raw) + segment["end"] - segment["start"])
            yield b"\0" + raw + size
            yield b"\1" + raw + size + b"\0"


def gateway() -> Iterator[bytes]:
    """The committed conversations, frame by frame, and scripts of well-formed frames."""
    for conversation in json.loads((VECTORS / "protocol.json").read_text())["conversations"]:
        frames = [bytes.fromhex(step["send"]) for step in conversation["steps"]]
        script = b"".join(b"\0" + _u16(len(frame)) + frame for frame in frames)
        for how in (0, SECRETS, REMOTE, SMALL_VALUES, HOLD):
            yield bytes([how]) + script
    rng = random.Random(20260713)
    for how in (HELLO_SENT, HELLO_SENT | HOLD, HELLO_SENT | SMALL_VALUES, HELLO_SENT | SMALL_VALUES | HOLD):
        for _ in range(4):
            yield bytes([how]) + bytes([1, 1, 2, 1, 0, 200, 200, 200]) + rng.randbytes(200)
    # A file of 12 KiB, registered; a PUT and a GET in it; the file shrinks; both again; UNREGISTER.
    grow, register = bytes([248, 3]), bytes([250, 0]) + _u16(12288)
    put, get = (bytes([1, opcode, 0, opcode, 0, 1]) + _u16(3000) for opcode in (3, 4))
    script = grow + register + put + get + bytes([248, 0]) + put + get + bytes([1, 9, 0, 9, 0, 1])
    for how in (0, HOLD, SMALL_VALUES, HOLD | SMALL_VALUES):
        yield bytes([REGIONS | HELLO_SENT | how]) + script + bytes([3, 3, 5, 6])

    # ALLOC, PUT, GET twice, BORROW twice, RETURN, a PUT while one is lent, a flood of other keys.
    alloc, put, get = (
        bytes([1, 1, 0, 1, 0, 100]),
        *(bytes([1, op, 0, op, 0, 0]) + _u16(2999) for op in (3, 4)),
    )
    borrow, back = bytes([1, 11, 1, 2, 0, 0, 0]), bytes([1, 12, 0, 3, 0, 0])
    flood = b"".join(bytes([1, op, 0, op, 0, key]) + _u16(2999) for key in range(1, 8) for op in (3, 4))
    for how in (0, HOLD, REGIONS, SMALL_VALUES):
        script = alloc + put + get + get + borrow + borrow + back + put + flood + back
        yield bytes([LENDING | HELLO_SENT | how]) + script + bytes([3, 3, 5, 6])


def nvme() -> Iterator[bytes]:
    """One PDU of each kind in each role, and KV commands."""
    sizes = {0: 128, 1: 128, 2: 24, 3: 24, 4: 72, 5: 24, 6: 24, 7: 24, 9: 24}
    for kind, size in sizes.items():
        common = struct.pack("<BBBBI", kind, 0, size, 0, size)
        for how in range(8):
            yield bytes([0, how]) + common + bytes(size - 8)
        data = struct.pack("<BBBBI", kind, 4, size, size, size + 16)
        yield bytes([0, kind & 1]) + data + struct.pack("<HHII", 1, 1, 0, 16) + bytes(size)
    for opcode in (0x01, 0x02, 0x06, 0x10, 0x14, 0x7F):
        yield (
            bytes([1, opcode, 0x40])
            + bytes(8)
            + b"k" * 8
            + bytes(24)
            + struct.pack("<II", 4096, 16)
            + b"k" * 16
        )


def bring_up() -> Iterator[bytes]:
    """A controller that answers everything with success, and ones that do so with other pages."""
    good = struct.pack("<II", 1, 0)
    rng = random.Random(20260714)
    yield bytes([0]) + (b"\0" + good) * 12
    for how in (4, 8, 16, 24):
        yield bytes([1]) + b"".join(bytes([how]) + good + rng.randbytes(12) for _ in range(12))


def initiator() -> Iterator[bytes]:
    """Commands in each direction, then data, R2T and responses for them."""
    rng = random.Random(20260715)
    submit = [bytes([7 + 8 * direction]) for direction in (0, 1, 2)]
    data = b"\1" + b"\x04" + _u16(1) + _u16(63) + rng.randbytes(256)
    r2t = b"\3" + b"\1" + _u16(0) + _u16(8192)
    done = b"\4" + b"\0"
    for how in (0, 4, 5, 6, 7, 8, 16, 32):
        for sent in submit:
            yield bytes([how]) + sent + data + done
            yield bytes([how]) + sent + r2t + r2t + done
        yield bytes([how]) + b"".join(submit) + rng.randbytes(300)


def softcard() -> Iterator[bytes]:
    """Stores and retrieves on a connection that is set up, and every step of setting one up."""
    rng = random.Random(20260716)
    store, retrieve = bytes([24, 0]) + _u16(3000), bytes([24, 1]) + _u16(4096)
    waits = bytes([24, 0x40]) + _u16(9000) + bytes([22]) + b"\4\0\0" + _u16(0) + _u16(9000)
    for how in (0, 1, 0x10, 0x20, 0x30, 0x40):
        yield bytes([how]) + store + retrieve + waits
        yield bytes([how]) + rng.randbytes(300)
    for how in (2, 3):
        yield bytes([how]) + b"\1\0" + b"\2\0\0" + b"\3" + b"\x11\0" + b"\x12\1\1" + store
        yield bytes([how]) + b"\0" + _u16(128) + rng.randbytes(128)


def card_file() -> Iterator[bytes]:
    """Stores, replacements and removals in one to four lives, with and without damage."""
    rng = random.Random(20260717)
    for lives in range(4):
        steps = b"".join(
            bytes([rng.choice((0x08, 0x10, 0x18, 0x00, 0x28)) | i % 8]) + rng.randbytes(2) for i in range(60)
        )
        wound = b"\1" + struct.pack("<I", rng.randrange(100_000)) + _u16(3) + b"rot"
        for damage in (b"\0", wound):
            yield bytes([lives]) + (b"\x3c" + steps + damage) * (lives + 1)
    together = b"".join(
        b"\x40" + bytes([4]) + b"".join(bytes([rng.randrange(8)]) + rng.randbytes(2) for _ in range(5))
        for _ in range(12)
    )
    yield bytes([2]) + (b"\x0c" + together + b"\0") * 3
    # Headers of the first segments under right checksums: superblock, segment, trailer, record, table entry.
    for kind in range(5):
        place = (1).to_bytes(2, "little") if kind == 3 else b"\1" if kind == 4 else b""
        field = {0: 12, 1: 8, 2: 4, 3: 16, 4: 20}[kind]
        forgery = bytes([0, kind]) + place + bytes([field, 4]) + b"\xff\xff\xff\x7f"
        yield bytes([4 | 1]) + (b"\x3c" + steps + b"\1" + forgery + b"\0") * 2


TARGETS = (envelope, gateway, nvme, bring_up, initiator, softcard, card_file)


def main() -> None:
    """Write every target's inputs, named by their order."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests/fuzz/corpus"
    for seeds in TARGETS:
        folder = target / seeds.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for index, data in enumerate(seeds()):
            (folder / f"seed-{index:02d}").write_bytes(data)


if __name__ == "__main__":
    main()
