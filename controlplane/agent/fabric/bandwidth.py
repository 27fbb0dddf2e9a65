"""One side of a bandwidth test: `ib_write_bw` on an adapter, plain TCP where no adapter is named."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.connections import is_listening
from controlplane.agent.discovery.infiniband import ETHERNET, read_ports, roce_v2_gid
from controlplane.agent.fabric import tcp
from controlplane.agent.fabric.perftest import TableError, parse_bandwidth
from controlplane.agent.step import StepError, run_step
from controlplane.base.addresses import AddressError, canonical_host
from controlplane.base.bounded_command import CommandError, bounded_process, last_output
from controlplane.base.logging import get_logger

PROGRAM = "ib_write_bw"
MAX_SECONDS = 600
MAX_OUTPUT = 64 << 10
MARGIN_SECONDS = 60.0
# Both sides may have to install: twice this is within what the leader waits beyond the test's own length.
INSTALL_SECONDS = 110.0
LISTEN_SECONDS = 30.0
LISTEN_POLL = 0.05
DEFAULT_BYTES = 1 << 20
_SERVER, _CLIENT = agent_pb2.FABRIC_TEST_SIDE_SERVER, agent_pb2.FABRIC_TEST_SIDE_CLIENT

Listening = Callable[[int], None]

log = get_logger("fabric")


class NotPossibleError(Exception):
    """The test can't be made here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class BandwidthMeans:
    """What this node tests with: its address for TCP, /sys, and what installs perftest, if anything does."""

    address: str
    sys_root: Path
    install: Sequence[str] = ()


async def run_test(
    request: agent_pb2.FabricTestRequest, means: BandwidthMeans, listening: Listening
) -> agent_pb2.FabricTestAnswer:
    """Carry out one side; a failure is an answer with its error. `listening` is told the server's port."""
    try:
        _check(request)
        if not request.hca:
            return await _over_tcp(request, means.address, listening)
        return await _over_verbs(request, means, listening)
    except (NotPossibleError, tcp.TcpTestError, TableError) as error:
        return agent_pb2.FabricTestAnswer(request_id=request.request_id, error=str(error), gid_index=-1)


def _check(request: agent_pb2.FabricTestRequest) -> None:
    if request.side not in {_SERVER, _CLIENT}:
        raise NotPossibleError("which side? the request names neither server nor client")
    if not 1 <= request.seconds <= MAX_SECONDS:
        raise NotPossibleError(f"a test of {request.seconds} s: ask for 1 to {MAX_SECONDS}")
    if request.tcp_port > 65535 or (request.side == _CLIENT and not request.tcp_port):
        raise NotPossibleError(f"{request.tcp_port} is not a port")
    if request.side == _CLIENT:
        try:
            canonical_host(request.peer)
        except AddressError as error:
            raise NotPossibleError(f"peer: {error}") from None


async def _over_tcp(
    request: agent_pb2.FabricTestRequest, address: str, listening: Listening
) -> agent_pb2.FabricTestAnswer:
    if request.side == _SERVER:
        moved = await tcp.serve(address, request.tcp_port, request.seconds, listening)
    else:
        size = request.message_bytes or DEFAULT_BYTES
        moved = await tcp.send(request.peer, request.tcp_port, request.seconds, size)
    return agent_pb2.FabricTestAnswer(
        request_id=request.request_id,
        peak_gbps=moved.gbps,
        average_gbps=moved.gbps,
        gid_index=-1,
        output=f"plain TCP, one connection: {moved.count} bytes in {moved.seconds:.3f} s",
    )


async def _over_verbs(
    request: agent_pb2.FabricTestRequest, means: BandwidthMeans, listening: Listening
) -> agent_pb2.FabricTestAnswer:
    gid = _gid_index(request, means.sys_root)
    program = await _program(means.install)
    port = request.tcp_port or _free_port()
    command = perftest_command(program, request, port, gid)
    output = await _run(command, request, port, listening)
    bandwidth = parse_bandwidth(output)
    return agent_pb2.FabricTestAnswer(
        request_id=request.request_id,
        peak_gbps=max(bandwidth.peak_gbps, bandwidth.average_gbps),  # not measured in a test by time
        average_gbps=bandwidth.average_gbps,
        gid_index=gid,
        output=output[-MAX_OUTPUT:],
    )


async def _program(install: Sequence[str]) -> str:
    """Where the program is; it is installed first where that is allowed. Raises NotPossibleError."""
    program = shutil.which(PROGRAM)
    if program is None and install:
        log.info("Installs perftest", command=install[0])
        try:
            await run_step(install, seconds=INSTALL_SECONDS)
        except StepError as error:
            raise NotPossibleError(
                f"{PROGRAM} is not installed, and perftest_install failed: {error}"
            ) from error
        program = shutil.which(PROGRAM)
    if program is None:
        raise NotPossibleError(
            f"{PROGRAM} is not installed on this node: install the package perftest, or set perftest_install"
        )
    return program


def perftest_command(
    program: str, request: agent_pb2.FabricTestRequest, tcp_port: int, gid_index: int
) -> list[str]:
    """The command line of one side; both sides get the same but for the peer."""
    command = [program, "-d", request.hca, "-i", str(request.port or 1), "-p", str(tcp_port)]
    command += ["-s", str(request.message_bytes or DEFAULT_BYTES), "-D", str(request.seconds), "-F"]
    command += ["--report_gbits"]
    if gid_index >= 0:
        command += ["-x", str(gid_index)]
    if request.side == _CLIENT:
        command.append(request.peer)
    return command


def _gid_index(request: agent_pb2.FabricTestRequest, sys_root: Path) -> int:
    """-1 for InfiniBand, the RoCE v2 GID for Ethernet. Raises NotPossibleError."""
    number = request.port or 1
    ports = [port for port in read_ports(sys_root) if (port.hca, port.port) == (request.hca, number)]
    if not ports:
        raise NotPossibleError(f"this node has no adapter {request.hca[:40]!r} with a port {number}")
    if ports[0].state != "ACTIVE":
        raise NotPossibleError(f"{request.hca}/{number} is {ports[0].state or 'in no state'}, not ACTIVE")
    if ports[0].link_layer != ETHERNET:
        return -1
    index = roce_v2_gid(sys_root, request.hca, number)
    if index is None:
        raise NotPossibleError(f"{request.hca}/{number} has no RoCE v2 GID: give its interface an address")
    return index


async def _run(
    command: list[str], request: agent_pb2.FabricTestRequest, port: int, listening: Listening
) -> str:
    # A client that has to install the program first comes late.
    margin = MARGIN_SECONDS + (INSTALL_SECONDS if request.side == _SERVER else 0.0)
    try:
        async with bounded_process(command, request.seconds + margin, merged=True) as process:
            if request.side == _SERVER:
                await _until_it_listens(port, process)
                listening(port)
            output = (await last_output(process, 4 * MAX_OUTPUT)).decode("utf-8", "replace")
            code = await process.wait()
    except CommandError as error:
        raise NotPossibleError(str(error)) from error
    if code != 0:
        raise NotPossibleError(f"{PROGRAM} ended with code {code}: {_end_of(output)}")
    return output


async def _until_it_listens(port: int, process: asyncio.subprocess.Process) -> None:
    """Until the server can be reached; its output is buffered and can't tell."""
    end = time.monotonic() + LISTEN_SECONDS
    while not is_listening(port):
        if process.returncode is not None or time.monotonic() > end:
            return
        await asyncio.sleep(LISTEN_POLL)


def _end_of(output: str) -> str:
    return " | ".join(output.split("\n"))[-400:].strip(" |") or "no output"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
