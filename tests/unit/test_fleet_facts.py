"""The inventory's fold: a heartbeat changes only what it carries."""

from __future__ import annotations

import pytest
from akv.v1 import agent_pb2 as pb

from controlplane.fleet.facts import MAX_PROBLEMS, FactChange, NodeFacts, fold, from_register
from controlplane.fleet.rates import rate


def gpu(index: int, **fields: object) -> pb.Gpu:
    return pb.Gpu(index=index, uuid=f"GPU-{index}", memory_total_bytes=80 << 30, **fields)  # type: ignore[arg-type]


def register(**fields: object) -> pb.Register:
    return pb.Register(node_id="gpu-1", incarnation=1, memory_total_bytes=512 << 30, **fields)  # type: ignore[arg-type]


def facts(**fields: object) -> NodeFacts:
    return from_register(register(**fields), 100.0)


def folded(before: NodeFacts, now: float = 105.0, **parts: object) -> tuple[NodeFacts, list[FactChange]]:
    after, changes = fold(before, pb.Heartbeat(**parts), now)  # type: ignore[arg-type]
    return after, list(changes)


FULL = {
    "gpus": [gpu(0, memory_used_bytes=5), gpu(1)],
    "storage": pb.StorageReport(file_systems=[pb.Storage(path="/data", free_bytes=7)]),
    "weights": pb.WeightsReport(weights=[pb.Weights(path="/data/w", size_bytes=3)]),
    "engines": pb.EnginesReport(versions={"vllm": "0.11"}),
    "provision": pb.ProvisionReport(engines=[pb.EngineInstall(engine="vllm", state="installed")]),
    "ib_ports": pb.IbPortsReport(ports=[pb.IbPort(hca="mlx5_0", port=1, sm_guid="a")]),
    "fabrics": pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric="ib0")]),
    "imex": pb.Imex(state="running"),
}


def test_an_empty_heartbeat_changes_nothing() -> None:
    before = facts(**FULL)
    after, changes = folded(before)
    assert after == before
    assert changes == []


PARTS: dict[str, object] = {
    "gpu_memory": pb.GpuMemoryReport(gpus=[pb.GpuMemory(index=1, used_bytes=9)]),
    "storage": pb.StorageReport(),
    "weights": pb.WeightsReport(),
    "memory_total_bytes": 1 << 40,
    "engines": pb.EnginesReport(),
    "provision": pb.ProvisionReport(),
    "load": pb.NodeLoad(cpu_percent=50),
    "ib_ports": pb.IbPortsReport(),
    "fabrics": pb.FabricsReport(),
    "gpu_fabric": pb.GpuFabricReport(gpus=[pb.GpuFabric(index=0, cluster_uuid="c", clique_id=2)]),
    "imex": pb.Imex(state="stopped"),
}
FIELD_OF = {
    "gpu_memory": {"gpus"},
    "memory_total_bytes": {"memory_total"},
    "ib_ports": {"ports", "ports_read", "rates"},
    "gpu_fabric": {"gpus"},
}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_each_part_changes_its_own_field_only(part: str) -> None:
    before = facts(**FULL)
    after, _ = folded(before, **{part: PARTS[part]})  # type: ignore[arg-type]
    changed = {
        name for name in NodeFacts.__dataclass_fields__ if getattr(before, name) != getattr(after, name)
    }
    assert changed, part
    assert changed <= FIELD_OF.get(part, {part})


def test_gpu_memory_is_set_by_index_and_an_unknown_index_is_ignored() -> None:
    report = pb.GpuMemoryReport(
        gpus=[pb.GpuMemory(index=1, used_bytes=9), pb.GpuMemory(index=7, used_bytes=1)]
    )
    after, changes = folded(facts(**FULL), gpu_memory=report)
    assert [g.memory_used_bytes for g in after.gpus] == [5, 9]
    assert changes == []


def test_a_problem_of_the_node_keeps_its_first_gpu_out() -> None:
    before = facts(gpus=[gpu(0), gpu(1)])
    after, changes = folded(before, new_problems=[pb.Problem(text="xid 79")])
    assert after.sick_gpus == {0}
    assert [(c.kind, c.subject, c.after, c.warn) for c in changes] == [("problem", "node", "xid 79", True)]


def test_a_problem_of_one_gpu_keeps_that_one_out() -> None:
    after, changes = folded(facts(gpus=[gpu(0), gpu(1)]), new_problems=[pb.Problem(text="ecc", gpu_index=1)])
    assert after.sick_gpus == {1}
    assert changes[0].subject == "gpu 1"


def test_a_problem_of_a_node_without_gpus_is_kept_and_harms_nothing() -> None:
    after, changes = folded(facts(), new_problems=[pb.Problem(text="fan")])
    assert after.sick_gpus == frozenset()
    assert [problem.text for problem in after.problems] == ["fan"]
    assert len(changes) == 1


def test_problems_add_up_once_each_and_are_bounded() -> None:
    after, _ = folded(facts(problems=[pb.Problem(text="a")]), new_problems=[pb.Problem(text="b")])
    after, changes = folded(after, new_problems=[pb.Problem(text="b"), pb.Problem(text="a")])
    assert [problem.text for problem in after.problems] == ["a", "b"]
    assert changes == []
    after, _ = folded(after, new_problems=[pb.Problem(text=f"p{n}") for n in range(500)])
    assert len(after.problems) == MAX_PROBLEMS


def test_weights_are_emptied_only_when_the_list_is_meant() -> None:
    before = facts(**FULL)
    assert folded(before)[0].weights == before.weights
    assert folded(before, weights=pb.WeightsReport())[0].weights == ()


def test_memory_is_news_when_it_changes_and_zero_is_silence() -> None:
    after, changes = folded(facts(), memory_total_bytes=1 << 40)
    assert after.memory_total == 1 << 40
    assert [(c.kind, c.before, c.after) for c in changes] == [("memory", str(512 << 30), str(1 << 40))]
    assert folded(after, memory_total_bytes=1 << 40)[1] == []
    assert folded(after, memory_total_bytes=0)[0].memory_total == 1 << 40


def test_engines_gained_and_lost_are_news() -> None:
    after, changes = folded(facts(**FULL), engines=pb.EnginesReport(versions={"sglang": "0.5"}))
    assert after.engines == {"sglang": "0.5"}
    assert [(c.before, c.after) for c in changes] == [("vllm 0.11", "sglang 0.5")]


def install(state: str, detail: str = "") -> pb.ProvisionReport:
    return pb.ProvisionReport(
        engines=[pb.EngineInstall(engine="vllm", version="1", state=state, detail=detail)]
    )


def test_a_change_of_an_installation_is_news_and_its_progress_is_not() -> None:
    after, changes = folded(facts(), provision=install("downloading", "1 %"))
    assert [(c.subject, c.before, c.after) for c in changes] == [("vllm 1", "", "downloading")]
    after, changes = folded(after, provision=install("downloading", "50 %"))
    assert changes == []
    assert after.provision[0].detail == "50 %"
    after, changes = folded(after, provision=install("failed", "no space"))
    assert [(c.after, c.warn) for c in changes] == [("failed: no space", True)]


def port(xmit: int = 0, rcv: int = 0, sm: str = "a", number: int = 1) -> pb.IbPort:
    counters = {"port_xmit_data": xmit, "port_rcv_data": rcv}
    return pb.IbPort(hca="mlx5_0", port=number, sm_guid=sm, counters=counters)


def ports(*given: pb.IbPort) -> pb.IbPortsReport:
    return pb.IbPortsReport(ports=given)


@pytest.mark.parametrize(
    ("before", "now", "seconds", "expected"),
    [
        (100, 600, 5.0, 100.0),
        (0, 600, 5.0, 0.0),  # a first reading
        (600, 100, 5.0, 0.0),  # an adapter reset
        (100, 600, 120.5, 0.0),  # too long ago
        (100, 600, 120.0, 500 / 120),
        (100, 600, 0.0, 0.0),
        (100, 600, -1.0, 0.0),
    ],
)
def test_rate(before: int, now: int, seconds: float, expected: float) -> None:
    assert rate(before, now, seconds) == pytest.approx(expected)


def test_counters_become_rates_and_a_new_port_has_none_yet() -> None:
    before = facts(ib_ports=ports(port(1000, 2000)))
    after, _ = folded(before, 110.0, ib_ports=ports(port(2000, 4000), port(5, 5, number=2)))
    assert after.rates["mlx5_0", 1].transmit == pytest.approx(100.0)
    assert after.rates["mlx5_0", 1].receive == pytest.approx(200.0)
    assert after.rates["mlx5_0", 2].transmit == 0.0


def test_a_gap_over_two_minutes_makes_no_rate_and_the_next_reading_does() -> None:
    before = facts(ib_ports=ports(port(1000)))
    after, _ = folded(before, 300.0, ib_ports=ports(port(2000)))
    assert after.rates["mlx5_0", 1].transmit == 0.0
    after, _ = folded(after, 305.0, ib_ports=ports(port(2500)))
    assert after.rates["mlx5_0", 1].transmit == pytest.approx(100.0)


def test_a_changed_master_is_an_event_with_from_and_to() -> None:
    _, changes = folded(facts(ib_ports=ports(port(sm="a"))), ib_ports=ports(port(sm="b")))
    assert [(c.kind, c.subject, c.before, c.after) for c in changes] == [
        ("subnet-manager", "mlx5_0/1", "a", "b")
    ]


@pytest.mark.parametrize(("old", "new"), [("", "b"), ("a", ""), ("a", "a")])
def test_a_master_that_is_not_known_is_no_change(old: str, new: str) -> None:
    assert folded(facts(ib_ports=ports(port(sm=old))), ib_ports=ports(port(sm=new)))[1] == []


def test_an_nvlink_domain_lost_by_all_gpus_is_one_event() -> None:
    before = facts(gpus=[gpu(n, fabric=pb.GpuFabric(cluster_uuid="c", clique_id=1)) for n in (0, 1)])
    assert before.nvlink_domain == "c/1"
    lost = pb.GpuFabricReport(gpus=[pb.GpuFabric(index=n, state="in progress") for n in (0, 1)])
    after, changes = folded(before, gpu_fabric=lost)
    assert [(c.kind, c.before, c.after) for c in changes] == [("nvlink-domain", "c/1", "")]
    half, _ = folded(after, gpu_fabric=pb.GpuFabricReport(gpus=[pb.GpuFabric(index=0, cluster_uuid="c")]))
    assert half.nvlink_domain == "mixed"


def test_fabrics_gained_and_lost_are_news_and_a_rate_is_not() -> None:
    before = facts(**FULL)
    faster = pb.FabricsReport(fabrics=[pb.FabricAttachment(fabric="ib0", rate_gbps=400)])
    after, changes = folded(before, fabrics=faster)
    assert (after.fabrics[0].rate_gbps, changes) == (400, [])
    after, changes = folded(after, fabrics=pb.FabricsReport())
    assert [(c.kind, c.before, c.after, c.warn) for c in changes] == [("fabrics", "ib0", "", True)]


def test_load_is_kept_with_its_shards() -> None:
    load = pb.NodeLoad(load1=2.5, shards=[pb.ShardLoad(shard_id="m-0-0", cpu_cores=1.5)])
    after, changes = folded(facts(), load=load)
    assert after.load is not None
    assert after.load.shards[0].cpu_cores == 1.5
    assert changes == []


def test_imex_is_news_when_its_state_changes() -> None:
    after, changes = folded(facts(**FULL), imex=pb.Imex(state="stopped"))
    assert after.imex.state == "stopped"
    assert [(c.before, c.after) for c in changes] == [("running", "stopped")]


def test_an_agent_that_does_not_say_can_install_one_engine() -> None:
    assert facts().installable == ("llamacpp",)
    assert facts(installable_engines=["vllm", "sglang"]).installable == ("vllm", "sglang")
