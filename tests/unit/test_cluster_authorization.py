"""Roles: every method that a host serves is decided, by role, and refusals say what is needed."""

from __future__ import annotations

import pytest
from akv.v1 import agent_pb2, cluster_pb2, fleet_pb2, pki_pb2

from controlplane.base.pki import Identity, Role
from controlplane.cluster.authorization import JOIN, allowed_roles, is_recorded, refusal_of, summary_of

ADMIN, HOST, GATEWAY, AGENT = Role.ADMIN, Role.HOST, Role.GATEWAY, Role.AGENT
METHODS = [
    f"/{service.full_name}/{method.name}"
    for module in (agent_pb2, cluster_pb2, fleet_pb2, pki_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
# Read-only calls that a gateway may make, and nothing else of ours.
GATEWAY_MAY = {
    "/akv.v1.ClusterService/GetMembers",
    "/akv.v1.ClusterService/GetCluster",
    "/akv.v1.OperatorService/ListCards",
    "/akv.v1.OperatorService/ShowPlan",
    "/akv.v1.PkiService/RenewCertificate",
}
AGENT_MAY = {"/akv.v1.AgentService/Connect", "/akv.v1.PkiService/RenewCertificate"}


def may(role: Role) -> set[str]:
    return {method for method in METHODS if role in allowed_roles(method)}


def test_a_gateway_reads_and_no_more() -> None:
    assert may(GATEWAY) == GATEWAY_MAY


def test_an_agent_has_its_stream_and_no_more() -> None:
    assert may(AGENT) == AGENT_MAY


def test_an_administrator_may_do_all_but_be_an_agent() -> None:
    assert set(METHODS) - may(ADMIN) == {"/akv.v1.AgentService/Connect"}


def test_a_host_administers_nothing_by_itself() -> None:
    refused = set(METHODS) - may(HOST)
    assert {
        "/akv.v1.ClusterService/CreateCluster",
        "/akv.v1.ClusterService/AddNode",
        "/akv.v1.ClusterService/RemoveNode",
        "/akv.v1.PkiService/IssueCertificate",
        "/akv.v1.PkiService/CreateToken",
        "/akv.v1.PkiService/RevokeName",
        "/akv.v1.OperatorService/ForgetCard",
        "/akv.v1.AgentService/Connect",
    } <= refused
    assert {JOIN, "/akv.v1.OperatorService/CheckPeer", "/akv.v1.FleetService/ApplyModel"} <= may(HOST)


@pytest.mark.parametrize("method", ["/akv.v1.NewService/Do", "/grpc.reflection.v1alpha.X/Y", "/", ""])
def test_what_is_not_listed_is_for_administrators(method: str) -> None:
    assert allowed_roles(method) == {ADMIN}


def test_everyone_may_ask_for_health() -> None:
    assert allowed_roles("/grpc.health.v1.Health/Check") == set(Role)


def test_a_host_joins_as_itself_only() -> None:
    request = cluster_pb2.JoinClusterRequest(host="storage-2")
    assert refusal_of(JOIN, Identity(HOST, "storage-2"), request) == ""
    assert "host storage-1 can't join as 'storage-2'" in refusal_of(
        JOIN, Identity(HOST, "storage-1"), request
    )


def test_a_refusal_says_who_is_asked_for_and_who_came() -> None:
    method = "/akv.v1.ClusterService/RemoveNode"
    reason = refusal_of(method, Identity(GATEWAY, "pod-7"), cluster_pb2.RemoveNodeRequest())
    assert reason == (
        "akv.v1.ClusterService/RemoveNode is for the role admin, and the certificate is that of gateway "
        "pod-7: show one of the right role (clustercli pki issue)"
    )


def test_every_call_that_changes_something_is_recorded_and_no_other() -> None:
    """All methods are named, so that one that is added later is decided about here too."""
    recorded = {method.rpartition("/")[2] for method in METHODS if is_recorded(method)}
    assert recorded == {
        *("CreateCluster", "AddNode", "RemoveNode", "ForgetCard"),
        *("IssueCertificate", "RenewCertificate", "RevokeName", "CreateToken"),
        *("ApplyModel", "DeleteModel", "ScaleModel", "DrainNode", "SetEngines", "RemoveNodeWeights"),
        *("ForgetNode", "ScanFabric", "TestRail"),
    }
    assert {method.rpartition("/")[2] for method in METHODS} - recorded == {
        *("GetMembers", "GetCluster", "JoinCluster", "ListCards", "ShowPlan", "ListEvents"),
        *("CheckHost", "CheckPeer", "GetPki", "Connect"),
        *("ListNodes", "GetNode", "GetLogs", "ListShards", "GetModels", "ListFabricMaps", "PairRails"),
    }
    assert not is_recorded("/grpc.health.v1.Health/Check")


def test_a_summary_hides_secrets_and_stays_short() -> None:
    request = cluster_pb2.AddNodeRequest(via_host="storage-1", token="akv1.5001.x.SECRET.y")
    assert summary_of(request) == "via_host='storage-1' token=(hidden)"
    long = summary_of(cluster_pb2.AddNodeRequest(via_host="a\n" * 4000))
    assert len(long) == 400
    assert "\n" not in long
    assert summary_of(iter(())) == ""
