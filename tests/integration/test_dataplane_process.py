"""akv-dataplane as a program: its start, its refusals, its gRPC service and its end."""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from akv.v1 import dataplane_pb2, plan_pb2

from controlplane.gateway.messages import plan_to_message
from integration.client import Status
from tests.support.dataplane import RPC_SECONDS, Dataplane, TestCard, make_plan
from tests.support.procs import LATENCY_DEVICE, Program, descriptors, python_module, wait_until

CARDS = [TestCard("M0"), TestCard("M1")]
OTHER_CLUSTER = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="module")
def dataplane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataplane]:
    with Dataplane(tmp_path_factory.mktemp("dataplane")) as process:
        yield process


def message(sequence: int, cluster: str = "", cards: list[TestCard] = CARDS) -> plan_pb2.Plan:
    plan = make_plan(cards, cluster=cluster) if cluster else make_plan(cards)
    return plan_to_message(plan, sequence)


def apply(dataplane: Dataplane, plan: plan_pb2.Plan, *, allow: bool = False) -> bool:
    request = dataplane_pb2.ApplyPlanRequest(plan=plan, allow_cluster_change=allow)
    return bool(dataplane.stub.ApplyPlan(request, timeout=RPC_SECONDS).changed)


def refusal(dataplane: Dataplane, plan: plan_pb2.Plan) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        apply(dataplane, plan)
    return caught.value.code(), caught.value.details() or ""


def test_plans_are_ordered_and_idempotent(tmp_path: Path) -> None:
    with Dataplane(tmp_path) as dataplane:
        served = dataplane.stub.GetPlan(dataplane_pb2.GetPlanRequest(), timeout=RPC_SECONDS)
        assert not served.HasField("plan")
        assert apply(dataplane, message(5))
        assert not apply(dataplane, message(5))
        code, text = refusal(dataplane, message(4))
        assert (code, "older than 5" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
        code, text = refusal(dataplane, message(5, cards=CARDS[:1]))
        assert (code, "another content" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
        code, text = refusal(dataplane, message(9, OTHER_CLUSTER))
        assert (code, "allow_cluster_change" in text) == (grpc.StatusCode.FAILED_PRECONDITION, True)
        served = dataplane.stub.GetPlan(dataplane_pb2.GetPlanRequest(), timeout=RPC_SECONDS)
        assert served.plan == message(5)
        assert apply(dataplane, message(1, OTHER_CLUSTER), allow=True)
        dataplane.running.wait_event("Initializing MemoryBackend with 2 storage devices")
        added = dataplane.running.wait_event("Plan served")["added"]
        assert added == ["M0", "M1"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plan: plan.ClearField("cluster_uuid"), "cluster_uuid"),
        (lambda plan: setattr(plan, "sequence", 0), "sequence"),
        (lambda plan: setattr(plan, "layout_version", 2), "layout_version: 2"),
        (lambda plan: setattr(plan, "num_dbs", 0), "num_dbs"),
        (lambda plan: setattr(plan, "fingerprint", "xyz"), "fingerprint: 'xyz'"),
        (lambda plan: setattr(plan, "fingerprint", "0" * 16), "fingerprint 0000000000000000"),
        (lambda plan: setattr(plan.slots[1], "slot", 8), "slots[1].slot: 8"),
        (lambda plan: setattr(plan.slots[1], "slot", plan.slots[0].slot), "slots[1].slot"),
        (lambda plan: setattr(plan.slots[0].card, "serial", ""), "slots[0].card.serial"),
        (lambda plan: setattr(plan.slots[0].card, "serial", "x" * 21), "slots[0].card.serial"),
        (lambda plan: setattr(plan.slots[1].card, "serial", plan.slots[0].card.serial), "in two slots"),
        (lambda plan: setattr(plan.slots[0].card, "nqn", "iqn.1"), "slots[0].card.nqn: 'iqn.1'"),
        (lambda plan: setattr(plan.slots[0].card, "uuid", "1234"), "slots[0].card.uuid: '1234'"),
        (lambda plan: setattr(plan.slots[0].card.paths[0], "transport", "ib"), "paths[0].transport: 'ib'"),
        (lambda plan: setattr(plan.slots[0].card.paths[0], "traddr", "host-1"), "paths[0].traddr: 'host-1'"),
        (lambda plan: setattr(plan.slots[0].card.paths[0], "trsvcid", "70000"), "paths[0].trsvcid: '70000'"),
        (lambda plan: plan.slots[0].card.paths.extend([plan.slots[0].card.paths[0]] * 16), "17 paths"),
    ],
)
def test_a_wrong_field_is_named(dataplane: Dataplane, change: object, text: str) -> None:
    plan = message(1)
    change(plan)  # type: ignore[operator]
    code, told = refusal(dataplane, plan)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert text in told


def test_a_request_without_a_plan_is_refused(dataplane: Dataplane) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        dataplane.stub.ApplyPlan(dataplane_pb2.ApplyPlanRequest(), timeout=RPC_SECONDS)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_sockets_are_for_their_owner_alone(dataplane: Dataplane) -> None:
    for key in ("dataplane_socket", "client_socket"):
        assert stat.S_IMODE(os.stat(dataplane.settings[key]).st_mode) == 0o600
    assert stat.S_IMODE((dataplane.directory / "host_uuid").stat().st_mode) == 0o600


def refused(command: list[str]) -> str:
    with Program(command, name="akv-dataplane") as program:
        assert program.wait_exit(20) == 2, program.tail()
        assert len(program.lines) == 1, program.tail()
        return program.lines[0]


def test_a_port_in_use_is_one_clear_line(dataplane: Dataplane, tmp_path: Path) -> None:
    second = Dataplane(tmp_path, bind_address=dataplane.host, port=dataplane.port)
    line = refused(second.command())
    assert line.startswith("gateway.yaml: port: ")
    assert f"{dataplane.port} on {dataplane.host} is in use; choose a free port" in line


@pytest.mark.parametrize("key", ["dataplane_socket", "client_socket"])
def test_a_socket_in_use_is_one_clear_line_and_stays(dataplane: Dataplane, tmp_path: Path, key: str) -> None:
    second = Dataplane(tmp_path, **{key: dataplane.settings[key]})
    assert f"gateway.yaml: {key}: '{dataplane.settings[key]}' is in use" in refused(second.command())
    assert dataplane.status().backend == "kv-memory"


@pytest.mark.skipif(not os.access(LATENCY_DEVICE, os.W_OK), reason=f"needs {LATENCY_DEVICE}")
@pytest.mark.parametrize("wanted", [True, False])
def test_cores_wake_up_soon_while_a_worker_is_busy(tmp_path: Path, wanted: bool) -> None:
    with (
        Dataplane(tmp_path, short_wakeups=wanted) as dataplane,
        dataplane.client(arena_bytes=1 << 20) as client,
    ):
        dataplane.apply(CARDS)

        def is_asking() -> bool:
            return LATENCY_DEVICE in descriptors(dataplane.running.pid)

        wait_until(lambda: not is_asking(), "an idle gateway asks for nothing")
        [block] = client.alloc(1, 65536)
        began, asked = dataplane.counter("busy_ns"), False
        while not asked and dataplane.counter("busy_ns") < began + 500_000_000:
            for number in range(100):
                client.put([bytes([number]) * 32], [block], dialog=1)
            asked = is_asking()
        assert asked is wanted
        wait_until(lambda: not is_asking(), "it does not ask any more")


def test_cores_that_this_process_may_not_use_are_refused(tmp_path: Path) -> None:
    line = refused(Dataplane(tmp_path, core_list="4094-4095").command())
    assert "core_list: '4094-4095' has cores that this process may not use" in line


def test_kv_spdk_names_both_ways_out(tmp_path: Path) -> None:
    line = refused(Dataplane(tmp_path, storage_backend="kv-spdk").command())
    assert "set storage_backend: kv-nvme" in line
    assert "spdk_nvme" in line


def test_validate_config_starts_nothing(tmp_path: Path) -> None:
    made = Dataplane(tmp_path)
    made.command()
    with Program(python_module("dataplane.main", "--validate-config", str(made.config))) as program:
        assert program.wait_exit(20) == 0
        assert list(program.lines) == ["gateway.yaml: the configuration is valid"]
    assert not made.client_socket.exists()


def test_a_low_soft_limit_of_descriptors_is_raised(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    dataplane = Dataplane(tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        dataplane.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    raised, _ = resource.prlimit(dataplane.running.pid, resource.RLIMIT_NOFILE)
    dataplane.stop()
    assert raised == min(4096, hard)


def test_workers_are_pinned_to_their_cores(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    with Dataplane(tmp_path, core_list=f"{cores[1]},{cores[0]}") as dataplane:
        pid = dataplane.running.pid
        affinity = {
            Path(f"/proc/{pid}/task/{task}/comm").read_text().strip(): os.sched_getaffinity(int(task))
            for task in os.listdir(f"/proc/{pid}/task")
        }
    assert affinity["akv-worker-0"] == {cores[1]}
    assert cores[1] not in affinity[next(name for name in affinity if not name.startswith("akv-worker"))]


def test_sigterm_answers_what_is_outstanding_and_ends(tmp_path: Path) -> None:
    dataplane = Dataplane(tmp_path)
    dataplane.start()
    dataplane.apply(CARDS)
    with dataplane.client(strict=False) as client:
        assert client.wait_connected(30)
        assert client.put([bytes(32)], [b"x"], 1) == [Status.OK]
        worker = threading.Thread(target=dataplane.stop)
        worker.start()
        worker.join(20)
        assert not worker.is_alive()
        assert client.put([bytes(32)], [b"x"], 1) == [Status.NOT_STORED]
    assert dataplane.running.returncode == 0
    assert dataplane.running.events("Stopped")[-1]["clean"] is True
    assert not dataplane.client_socket.exists()
    assert not Path(dataplane.settings["dataplane_socket"]).exists()


def test_a_killed_dataplane_can_be_started_again(tmp_path: Path) -> None:
    dataplane = Dataplane(tmp_path)
    dataplane.start()
    identity = (dataplane.directory / "host_uuid").read_text()
    dataplane.kill()
    assert dataplane.client_socket.exists()
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(str(dataplane.client_socket))
    dataplane.start()
    dataplane.apply(CARDS)
    with dataplane.client() as client:
        assert client.wait_connected(30)
        assert client.put([bytes(32)], [b"x"], 1) == [Status.OK]
    assert (dataplane.directory / "host_uuid").read_text() == identity
    dataplane.stop()
