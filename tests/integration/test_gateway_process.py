"""akv-gateway as a process, between a real etcd, a real GetMembers server and a real DataplaneService."""

from __future__ import annotations

import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from controlplane.model.cards import Health
from tests.support.addresses import LoopbackNet, free_port
from tests.support.cluster_records import ClusterRecords
from tests.support.etcd import EtcdCluster
from tests.support.grpc_peers import ClusterHost, RecordingDataplane, serials
from tests.support.pod import Pod
from tests.support.procs import Program, python_module, wait_until

# The longest interval that gateway.yaml allows: what takes effect within a test came through the watch.
NEVER_POLLS = 60_000


@pytest.fixture
def records(etcd: EtcdCluster) -> ClusterRecords:
    """A cluster with two healthy cards."""
    records = ClusterRecords(etcd.members[0], str(uuid4()))
    records.create()
    records.join("L0P0")
    records.join("L0P1")
    return records


@pytest.fixture
def host(etcd: EtcdCluster, records: ClusterRecords, loopback_net: LoopbackNet) -> Iterator[ClusterHost]:
    host = ClusterHost(loopback_net.host(1), records.uuid, etcd.endpoints)
    yield host
    host.stop()


@pytest.fixture
def pod(tmp_path: Path, host: ClusterHost) -> Iterator[Pod]:
    pod = Pod(tmp_path / "pod", [host.entry])
    yield pod
    pod.stop()


@pytest.fixture
def dataplane(pod: Pod) -> Iterator[RecordingDataplane]:
    dataplane = RecordingDataplane(pod.socket)
    yield dataplane
    dataplane.stop()


def test_the_card_set_becomes_a_plan_and_a_status_file(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    program = pod.start()
    plan = dataplane.wait_plan(lambda plan: len(plan.slots) == 2, "a plan with both cards")
    assert plan.cluster_uuid == records.uuid
    assert (plan.num_dbs, plan.layout_version) == (128, 1)
    assert serials(plan) == {"L0P0", "L0P1"}
    assert [path.trsvcid for slot in plan.slots for path in slot.card.paths] == ["4420", "4420"]
    program.wait_event("Using cluster mode")
    used = program.wait_event("Cluster plan in use")
    assert used["fingerprint"] == plan.fingerprint
    samples = pod.wait_status("xkv_gateway_storage_groups_active", 2)
    assert samples['xkv_gateway_storage_group_active{group="L0P0"}'] == 1
    assert samples[f'xkv_gateway_cluster_slot_plan_info{{fingerprint="{plan.fingerprint}"}}'] == 1
    assert samples["xkv_gateway_cluster_slots_moved"] == 0
    pod.wait_status("xkv_gateway_plan_in_sync", 1)
    assert stat.S_IMODE((pod.directory / "cluster_uuid").stat().st_mode) == 0o600
    assert program.stop() == 0
    program.wait_event("Stopped")


def test_changes_arrive_by_the_watch_long_before_the_next_poll(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    records.health(records.cards["L0P1"], Health.SICK)
    program = pod.start(cluster_poll_ms=NEVER_POLLS)
    dataplane.wait_plan(lambda plan: serials(plan, routable=False) == {"L0P1"}, "the sick card is out")
    records.health(records.cards["L0P1"], Health.HEALTHY)
    dataplane.wait_plan(lambda plan: serials(plan) == {"L0P0", "L0P1"}, "the healthy card is in")
    records.join("L1P0")
    dataplane.wait_plan(lambda plan: serials(plan) == {"L0P0", "L0P1", "L1P0"}, "the new card is in")
    program.wait_event("Cluster card joined", where=lambda event: event["serial"] == "L1P0")
    records.unlist(records.cards["L1P0"])
    moved = records.come_back(records.cards["L1P0"], "xdp9", 4999)
    plan = dataplane.wait_plan(
        lambda plan: any(path.trsvcid == "4999" for slot in plan.slots for path in slot.card.paths),
        "the new port",
    )
    assert moved.serial in serials(plan)


def test_a_sick_card_is_out_after_the_polls_and_in_again_at_once(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    program = pod.start()
    full = dataplane.wait_plan(lambda plan: len(serials(plan)) == 2, "both cards")
    card = records.cards["L0P0"]
    records.health(card, Health.SICK)
    plan = dataplane.wait_plan(lambda plan: serials(plan) == {"L0P1"}, "the sick card is out")
    assert plan.fingerprint == full.fingerprint
    assert [slot.reason for slot in plan.slots if not slot.routable] == ["sick"]
    pod.wait_status('xkv_gateway_storage_group_active{group="L0P0"}', 0)
    records.health(card, Health.HEALTHY)
    dataplane.wait_plan(lambda plan: len(serials(plan)) == 2, "both cards again")
    program.wait_event("Cluster card in service")
    order = [event["event"] for event in program.events() if event["event"].startswith("Cluster card")]
    assert order == ["Cluster card out of service", "Cluster card in service"]


def test_an_absent_card_is_disconnected_and_keeps_its_slot(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    pod.start()
    full = dataplane.wait_plan(lambda plan: len(serials(plan)) == 2, "both cards")
    records.unlist(records.cards["L0P0"])
    plan = dataplane.wait_plan(lambda plan: serials(plan) == {"L0P1"}, "the absent card is out")
    gone = next(slot for slot in plan.slots if not slot.routable)
    assert (gone.reason, list(gone.card.paths)) == ("absent", [])
    records.come_back(records.cards["L0P0"], "xdp5", 4421)
    back = dataplane.wait_plan(lambda plan: len(serials(plan)) == 2, "both cards again")
    assert [(slot.slot, slot.card.serial) for slot in back.slots] == [
        (slot.slot, slot.card.serial) for slot in full.slots
    ]


def test_a_killed_control_process_comes_back_with_the_same_plan(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    program = pod.start()
    plan = dataplane.wait_plan(lambda plan: len(serials(plan)) == 2, "both cards")
    pod.wait_status("xkv_gateway_plan_in_sync", 1)
    program.kill()
    assert dataplane.plan == plan
    again = pod.start()
    assert again.wait_event("Plan continued")["fingerprint"] == plan.fingerprint
    records.join("L1P0")
    later = dataplane.wait_plan(lambda plan: len(plan.slots) == 3, "a later card")
    assert [applied.sequence for applied in dataplane.applied][-2:] == [plan.sequence, later.sequence]
    assert later.sequence == plan.sequence + 1


def test_a_restarted_dataplane_gets_the_plan_again(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    program = pod.start(cluster_poll_ms=NEVER_POLLS)
    plan = dataplane.wait_plan(lambda plan: len(plan.slots) == 2, "a plan")
    dataplane.stop()
    program.wait_event("Dataplane connection lost")
    pod.wait_status("xkv_gateway_dataplane_up", 0)
    assert "xkv_gateway_storage_groups_active" not in pod.status()
    dataplane.start()
    assert dataplane.wait_plan(bool, "the plan again").fingerprint == plan.fingerprint
    pod.wait_status("xkv_gateway_dataplane_up", 1)


def test_a_plan_that_the_dataplane_refuses_is_not_current_and_is_tried_again(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    dataplane.refuse = "no thanks"
    program = pod.start(cluster_poll_ms=NEVER_POLLS)
    program.wait_event("Dataplane refuses")
    wait_until(lambda: dataplane.refused >= 3, "several tries")
    pod.wait_status("xkv_gateway_plan_in_sync", 0)
    assert len(program.events("Dataplane refuses")) == 1
    dataplane.refuse = None
    dataplane.wait_plan(lambda plan: len(plan.slots) == 2, "the plan after all")
    pod.wait_status("xkv_gateway_plan_in_sync", 1)


def test_a_second_control_process_for_one_pod_is_refused(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    first = pod.start()
    first.wait_event("Using cluster mode")
    second = pod.start()
    try:
        assert second.wait_exit() == 3
        assert "another akv-gateway runs" in second.tail()
    finally:
        pod.program = first


def test_a_corrupt_pin_is_refused_with_its_remedy(pod: Pod) -> None:
    (pod.directory / "cluster_uuid").write_text("rubbish")
    program = pod.start()
    assert program.wait_exit() == 3
    assert "remove it to pin the cluster that answers next" in program.tail()


def test_a_ninth_card_is_an_error_in_the_log_and_not_used(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    for number in range(2, 9):
        records.join(f"L0P{number}")
    program = pod.start()
    plan = dataplane.wait_plan(lambda plan: len(plan.slots) == 8, "eight cards")
    assert "L0P8" not in serials(plan)
    problem = program.wait_event("Cluster problem")
    assert "L0P8" in problem["problem"]
    assert problem["level"] == "error"
    pod.wait_status("xkv_gateway_cluster_cards_without_slot", 1)


def test_an_unreadable_record_is_shown_and_takes_no_card_away(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane
) -> None:
    program = pod.start()
    plan = dataplane.wait_plan(lambda plan: len(serials(plan)) == 2, "both cards")
    records.put(b"/targets/host-L0P0/cards/xdp0", b"not json")
    records.put(b"/cluster/cards/L0P1", b"{}")
    pod.wait_status("xkv_gateway_cluster_problems", 2)
    records.health(records.cards["L0P1"], Health.SICK)
    after = dataplane.wait_plan(lambda plan: serials(plan) == {"L0P0"}, "three more polls were read")
    assert after.fingerprint == plan.fingerprint
    wait_until(lambda: len(program.events("Cluster problem")) >= 2, "both problems are told")
    assert len(program.events("Cluster problem")) == 2


def test_a_fixed_list_of_cards_needs_no_cluster(tmp_path: Path) -> None:
    pod = Pod(tmp_path / "pod", [], cluster_security="mtls")
    dataplane = RecordingDataplane(pod.socket)
    try:
        devices = [
            {
                "serial": f"L0P{number}",
                "nqn": f"nqn.t:{number}",
                "traddr": f"127.0.0.{number}",
                "trsvcid": 4420,
            }
            for number in (1, 2)
        ]
        program = pod.start(storage_devices=devices)
        plan = dataplane.wait_plan(lambda plan: len(plan.slots) == 2, "a plan of the list")
        assert serials(plan) == {"L0P1", "L0P2"}
        pod.wait_status("xkv_gateway_storage_groups_active", 2)
        assert not program.events("Using cluster mode")
    finally:
        pod.stop()
        dataplane.stop()


def test_metrics_are_served_over_http_when_asked_for(
    pod: Pod, records: ClusterRecords, dataplane: RecordingDataplane, loopback_net: LoopbackNet
) -> None:
    address = f"{loopback_net.host(7)}:{free_port(loopback_net.host(7))}"
    pod.start(metrics=address)
    pod.wait_status("xkv_gateway_storage_groups_active", 2)
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=15) as answer:
        assert "xkv_gateway_storage_groups_active 2" in answer.read().decode()


@pytest.mark.parametrize("flag", ["--validate-config", "--config"])
def test_a_bad_file_is_refused_with_one_line_and_exit_code_2(pod: Pod, flag: str) -> None:
    pod.settings["shared_memory_size"] = "10GiB"
    pod.config.write_text("\n".join(f"{key}: {value}" for key, value in pod.settings.items()))
    program = Program(python_module("controlplane.apps.akv_gateway", flag, str(pod.config)))
    assert program.wait_exit() == 2
    (line,) = program.lines
    assert line == (
        "gateway.yaml: shared_memory_size: '10GiB' is not a whole number; "
        "write the size in bytes without a unit or quotes, 10737418240"
    )
