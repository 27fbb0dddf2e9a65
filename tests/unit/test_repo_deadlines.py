"""Every call of a gRPC method in the product has a deadline, and every handler of a host runs within one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from akv.etcd import etcd_pb2
from akv.v1 import agent_pb2, cluster_pb2, dataplane_pb2, fleet_pb2, pki_pb2
from grpc_health.v1 import health_pb2

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("clustercli", "controlplane", "dataplane", "integration")
MODULES = (agent_pb2, cluster_pb2, dataplane_pb2, etcd_pb2, fleet_pb2, health_pb2, pki_pb2)
METHODS = [
    method
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
UNARY = {method.name for method in METHODS if not (method.client_streaming or method.server_streaming)}
# The services on :5000. The dataplane's is for its own control process, which gives each call a deadline.
SERVICERS = ("controlplane/cluster", "controlplane/fleet")


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def calls_without_deadline(tree: ast.AST) -> list[int]:
    """Lines in which a unary method of a stub is called, and no timeout is given."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in UNARY
        and not any(keyword.arg == "timeout" for keyword in call.keywords)
    ]


def handlers_without_deadline(tree: ast.AST) -> list[str]:
    """Handlers of unary methods that do more than await what runs within a deadline."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    servicers = [found for found in classes if any("Servicer" in ast.unparse(base) for base in found.bases)]
    handlers = [node for found in servicers for node in found.body if isinstance(node, ast.AsyncFunctionDef)]
    return [
        handler.name
        for handler in handlers
        if handler.name in UNARY and not ast.unparse(handler.body[-1]).startswith("return await self._run(")
    ]


def test_calls_and_handlers_have_deadlines() -> None:
    calls, handlers = {}, {}
    for path in sources(*PRODUCT):
        tree, name = ast.parse(path.read_text(encoding="utf-8")), str(path.relative_to(ROOT))
        calls[name] = calls_without_deadline(tree)
        handlers[name] = handlers_without_deadline(tree) if name.startswith(SERVICERS) else []
    assert {name: found for name, found in calls.items() if found} == {}
    assert {name: found for name, found in handlers.items() if found} == {}


def test_the_check_finds_what_it_is_there_for() -> None:
    code = "async def f(s):\n    await s.GetCluster(request)\n    await s.GetCluster(request, timeout=1)\n"
    assert calls_without_deadline(ast.parse(code)) == [2]
    bad = "class A(x.SomeServicer):\n    async def GetCluster(self, r, c):\n        return await work()\n"
    assert handlers_without_deadline(ast.parse(bad)) == ["GetCluster"]
    good = bad.replace("work()", "self._run(c, 1, work)")
    assert handlers_without_deadline(ast.parse(good)) == []
