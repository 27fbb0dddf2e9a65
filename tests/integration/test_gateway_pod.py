"""Both processes of a gateway pod, with the real client on one side and a real etcd on the other."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from controlplane.model.cards import Health
from controlplane.model.routing import slot_for_dialog
from integration.client import Client, Status
from tests.support.addresses import LoopbackNet
from tests.support.cluster_records import ClusterRecords
from tests.support.dataplane import Dataplane
from tests.support.etcd import EtcdCluster
from tests.support.grpc_peers import ClusterHost
from tests.support.pod import Pod
from tests.support.procs import wait_until

ACTIVE = "xkv_gateway_storage_groups_active"


class WholePod:
    """A cluster of two cards in memory, the dataplane, and the control process on one configuration."""

    def __init__(self, directory: Path, net: LoopbackNet, etcd: EtcdCluster, stack: ExitStack) -> None:
        self.records = ClusterRecords(etcd.members[0], str(uuid4()))
        self.records.create()
        for serial in ("L0P0", "L0P1"):
            self.records.join(serial)
        host = ClusterHost(net.host(2), self.records.uuid, etcd.endpoints)
        stack.callback(host.stop)
        self.dataplane = Dataplane(directory, net, cluster_hostname=host.entry, cluster_poll_ms=100)
        self.control = Pod(directory, [host.entry])
        self.control.settings |= self.dataplane.settings
        stack.callback(self.dataplane.stop)
        stack.callback(self.control.stop)

    def start(self) -> Client:
        """Start both, until both cards are in use; a client that is connected."""
        self.control.start()
        self.dataplane.start()
        self.control.wait_status(ACTIVE, 2)
        client = self.dataplane.client()
        assert client.wait_connected(30), client.last_error
        return client

    def slot_of(self, dialog: int) -> str:
        """Serial of the card that a dialog belongs to while both cards route."""
        slots = {card.slot: card.serial for card in self.dataplane.status().cards}
        slot = slot_for_dialog(dialog, slots.keys())
        assert slot is not None
        return slots[slot]


@pytest.fixture
def pod(tmp_path: Path, loopback_net: LoopbackNet, etcd: EtcdCluster) -> Iterator[WholePod]:
    with ExitStack() as stack:
        yield WholePod(tmp_path / "pod", loopback_net, etcd, stack)


def hits(client: Client, blocks: dict[int, bytes]) -> set[int]:
    """Dialogs whose one block comes back; what comes back is byte for byte what was put."""
    found = set()
    for dialog, payload in blocks.items():
        buffer = bytearray(len(payload))
        [got] = client.get([_key(dialog)], [buffer], dialog)
        if got.status == Status.OK:
            assert bytes(buffer) == payload
            found.add(dialog)
    return found


def _key(dialog: int) -> bytes:
    return dialog.to_bytes(8, "little") * 4


def test_a_sick_card_costs_its_own_dialogs_alone_and_brings_them_back(pod: WholePod) -> None:
    with pod.start() as client:
        blocks = {random.getrandbits(64): os.urandom(2000) for _ in range(40)}
        for dialog, payload in blocks.items():
            assert client.put([_key(dialog)], [payload], dialog) == [Status.OK]
        homes = {dialog: pod.slot_of(dialog) for dialog in blocks}
        assert hits(client, blocks) == set(blocks)
        card = pod.records.cards["L0P0"]
        pod.records.health(card, Health.SICK)
        pod.control.wait_status(ACTIVE, 1)
        assert hits(client, blocks) == {dialog for dialog, home in homes.items() if home != card.serial}
        pod.records.health(card, Health.HEALTHY)
        pod.control.wait_status(ACTIVE, 2)
        assert hits(client, blocks) == set(blocks)


def test_the_dataplane_serves_on_while_the_control_process_is_killed_and_started(pod: WholePod) -> None:
    with pod.start() as client:
        before = pod.control.running.wait_event("Plan applied")
        pod.control.running.kill()
        assert client.put([_key(1)], [b"x" * 100], 1) == [Status.OK]
        again = pod.control.start()
        assert again.wait_event("Plan continued")["fingerprint"] == before["fingerprint"]
        pod.control.wait_status("xkv_gateway_plan_in_sync", 1)
        assert hits(client, {1: b"x" * 100}) == {1}
        assert not again.events("Plan applied")


def test_a_killed_dataplane_gets_the_plan_again(pod: WholePod) -> None:
    with pod.start():
        pod.dataplane.kill()
        pod.control.wait_status("xkv_gateway_dataplane_up", 0)
        pod.dataplane.start()
        pod.control.wait_status(ACTIVE, 2)
        pod.control.wait_status("xkv_gateway_plan_in_sync", 1)


def test_a_suspended_dataplane_is_not_taken_for_a_dead_one(pod: WholePod) -> None:
    with pod.start():
        applied = len(pod.control.running.events("Plan applied"))
        pod.dataplane.running.suspend()
        pod.control.wait_status("xkv_gateway_dataplane_up", 0)
        assert ACTIVE not in pod.control.status()
        pod.control.running.wait_event("Dataplane does not answer")
        pod.control.wait_status("xkv_gateway_plan_in_sync", 0)
        pod.dataplane.running.resume()
        pod.control.running.wait_event("Dataplane answers again")
        pod.control.wait_status(ACTIVE, 2)
        wait_until(lambda: pod.control.status().get("xkv_gateway_plan_in_sync") == 1, "in sync again")
        assert len(pod.control.running.events("Plan applied")) == applied


def test_changes_that_meet_a_suspended_dataplane_are_applied_later(pod: WholePod) -> None:
    with pod.start():
        pod.dataplane.running.suspend()
        pod.records.join("L1P0")
        pod.control.running.wait_event("Cluster card joined")
        pod.control.running.wait_event("Dataplane does not answer")
        pod.dataplane.running.resume()
        pod.control.wait_status(ACTIVE, 3)
        pod.control.wait_status("xkv_gateway_plan_in_sync", 1)
