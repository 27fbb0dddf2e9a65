"""Data that are damaged in each way under a real etcd: it ends, and its end is judged as one of its data."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.cluster.etcd_binary import find_etcd
from controlplane.cluster.etcd_child import ChildEtcd
from controlplane.cluster.etcd_ends import EndKind, judge_end
from controlplane.cluster.etcd_runner import EtcdExit, EtcdStart
from controlplane.store import kv
from controlplane.store.client import EtcdClient
from tests.support.addresses import LoopbackNet

PAGE = 4096
PLENTY = 1 << 40
SECONDS = 60.0

Damage = Callable[[bytes], bytes]


def cut(share: float) -> Damage:
    return lambda content: content[: int(len(content) * share)]


def at(offset: int, bad: bytes) -> Damage:
    return lambda content: content[:offset] + bad + content[offset + len(bad) :]


def behind_meta(page: bytes) -> Damage:
    """Every page but the first two, since which others are in use depends on how writes fell into commits."""
    return lambda content: content[: 2 * PAGE] + page * (len(content) // PAGE - 2)


NOISE = random.Random(7).randbytes(PAGE)
DATABASE = "member/snap/db"
KINDS: dict[str, tuple[str, Damage]] = {
    "database cut to 100 bytes": (DATABASE, lambda content: content[:100]),
    "database cut to a page": (DATABASE, lambda content: content[:PAGE]),
    "database cut to a quarter": (DATABASE, cut(0.25)),
    "zeros behind the database's meta pages": (DATABASE, behind_meta(bytes(PAGE))),
    "noise behind the database's meta pages": (DATABASE, behind_meta(NOISE)),
    "noise at the head of the log": ("member/wal/*.wal", at(0, NOISE)),
    "noise in the log": ("member/wal/*.wal", at(5000, NOISE)),
    "log cut to nothing": ("member/wal/*.wal", lambda _: b""),
}


def start_of(directory: Path, address: str) -> EtcdStart:
    peer = f"http://{address}:2380"
    flags = {"unsafe-no-fsync": "true"}
    data, log = directory / "data", directory / "log"
    return EtcdStart("h1", f"http://{address}:2379", peer, data, log, f"h1={peer}", "new", "t", flags=flags)


async def ends(directory: Path, address: str) -> EtcdExit:
    runner = ChildEtcd(lambda: find_etcd().path)
    await runner.start(start_of(directory, address))
    try:
        async with asyncio.timeout(SECONDS):
            return await runner.wait()
    finally:
        await runner.stop()


async def make_data(directory: Path, address: str) -> None:
    runner = ChildEtcd(lambda: find_etcd().path)
    await runner.start(start_of(directory, address))
    async with EtcdClient([f"{address}:2379"], call_seconds=SECONDS) as client:
        for number in range(20):
            puts = [kv.put(b"/%d" % key, NOISE[:500]) for key in range(number * 50, number * 50 + 50)]
            await client.txn([], puts)
    await runner.stop()


@pytest.mark.slow
async def test_damaged_data_of_every_kind_are_judged_as_such(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    address = loopback_net.host(1)
    await make_data(tmp_path / "good", address)
    judged = {}
    for kind, (pattern, damage) in KINDS.items():
        case = tmp_path / "case"
        shutil.copytree(tmp_path / "good", case)
        (path,) = (case / "data").glob(pattern)
        path.write_bytes(damage(path.read_bytes()))
        ended = await ends(case, address)
        judged[kind] = (judge_end(ended, PLENTY), bool(ended.last_words))
        shutil.rmtree(case)
    assert judged == dict.fromkeys(KINDS, (EndKind.BAD_DATA, True))
