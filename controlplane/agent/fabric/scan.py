"""Mapping the fabric that a port is on: by `ibnetdiscover`, else what this node's own /sys tells of it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.discovery.infiniband import ETHERNET, read_ports
from controlplane.agent.discovery.sysfs import entries, read_text
from controlplane.base.bounded_command import CommandError, run_bounded

PROGRAM = "ibnetdiscover"
SECONDS = 150.0
# A message to the leader may have 4 MiB.
MAX_OUTPUT = 3 << 20
MAX_ERROR = 400
_UNSET_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


async def scan(request: agent_pb2.FabricScanRequest, sys_root: Path) -> agent_pb2.FabricScanAnswer:
    """Answer a scan; every failure is an answer with its error."""
    begin = time.monotonic()
    answer = agent_pb2.FabricScanAnswer(request_id=request.request_id)
    wanted = (request.hca, request.port or 1)
    port = next((port for port in read_ports(sys_root) if (port.hca, port.port) == wanted), None)
    if port is None:
        answer.error = f"this node has no adapter {request.hca[:40]!r} with a port {wanted[1]}"
    elif port.link_layer == ETHERNET:
        answer.output = _own_view(port, sys_root, "RoCE has no subnet manager to map it")
    elif shutil.which(PROGRAM) is None:
        answer.output = _own_view(port, sys_root, f"{PROGRAM} is not installed (package infiniband-diags)")
    else:
        await _discover(port, answer)
    answer.took_seconds = time.monotonic() - begin
    return answer


async def _discover(port: agent_pb2.IbPort, answer: agent_pb2.FabricScanAnswer) -> None:
    command = (PROGRAM, "-C", port.hca, "-P", str(port.port))
    try:
        done = await run_bounded(command, SECONDS, MAX_OUTPUT)
    except CommandError as error:
        answer.error = str(error)
        return
    if done.code != 0:
        said = (done.errors or done.output).decode("utf-8", "replace").strip()
        answer.error = f"{PROGRAM} ended with code {done.code}: {said[-MAX_ERROR:]}"
        return
    answer.output = done.output.decode("utf-8", "replace").rstrip()


def _own_view(port: agent_pb2.IbPort, sys_root: Path, why: str) -> str:
    """What /sys says of the port, in lines of `name value`."""
    lines = [f"# this node's view of {port.hca}/{port.port} only: {why}"]
    for name in ("state", "physical_state", "rate_gbps", "link_layer", "node_guid", "port_guid", "network"):
        lines.append(f"{name} {getattr(port, name)}")
    base = sys_root / "class" / "infiniband" / port.hca / "ports" / str(port.port)
    for path in entries(base / "gids"):
        gid = read_text(path)
        if gid and gid != _UNSET_GID:
            kind = read_text(base / "gid_attrs" / "types" / path.name)
            lines.append(f"gid {path.name} {gid} {kind}".rstrip())
    return "\n".join(lines)
