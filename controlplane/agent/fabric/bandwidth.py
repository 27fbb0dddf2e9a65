"""One side of a bandwidth test: `ib_write_bw` on an adapter, plain TCP where no adapter is named."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.connections import is_listening
from controlplane.agent.discovery.infiniband import ETHERNET, read_ports, roce_v2_gid
from controlplane.agent.fabric import tcp
from controlplane.agent.fabric.perftest import TableError, parse_bandwidth
from controlplane.base.addresses import AddressError, canonical_host

PROGRAM = "ib_write_bw"
MAX_SECONDS = 600
MAX_OUTPUT = 64 << 10
MARGIN_SECONDS = 60.0
LISTEN_SECONDS = 30.0
LISTEN_POLL = 0.05
DEFAULT_BYTES = 1 << 20
_SERVER, _CLIENT = agent_pb2.FABRIC_TEST_SIDE_SERVER, agent_pb2.FABRIC_TEST_SIDE_CLIENT

Listening = Callable[[int], None]


class NotPossibleError(Exception):
    """The test can't be made here; the message says why and what to do."""


async def run_test(
    request: agent_pb2.FabricTestRequest, sys_root: Path, address: str, listening: Listening
) -> agent_pb2.FabricTestAnswer:
    """Carry out one side; a failure is an answer with its error. `listening` is told the server's port."""
    try:
        _check(request)
        if not request.hca:
            return await _over_tcp(request, address, listening)
        return await _over_verbs(request, sys_root, listening)
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
    request: agent_pb2.FabricTestRequest, sys_root: Path, listening: Listening
) -> agent_pb2.FabricTestAnswer:
    program = shutil.which(PROGRAM)
    if program is None:
        raise NotPossibleError(f"{PROGRAM} is not installed on this node: install the package perftest")
    gid = _gid_index(request, sys_root)
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
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise NotPossibleError(f"{command[0]} can't be run: {error}") from error
    assert process.stdout is not None
    output = bytearray()
    try:
        async with asyncio.timeout(request.seconds + MARGIN_SECONDS):
            if request.side == _SERVER:
                await _until_it_listens(port, process)
                listening(port)
            await _collect(process.stdout, output)
            code = await process.wait()
    except TimeoutError:
        raise NotPossibleError(f"{PROGRAM} did not end in time: {_end_of(output)}") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if code != 0:
        raise NotPossibleError(f"{PROGRAM} ended with code {code}: {_end_of(output)}")
    return output.decode("utf-8", "replace")


async def _until_it_listens(port: int, process: asyncio.subprocess.Process) -> None:
    """Until the server can be reached; its output is buffered and can't tell."""
    end = time.monotonic() + LISTEN_SECONDS
    while not is_listening(port):
        if process.returncode is not None or time.monotonic() > end:
            return
        await asyncio.sleep(LISTEN_POLL)


async def _collect(stream: asyncio.StreamReader, output: bytearray) -> None:
    while data := await stream.read(65536):
        output += data
        del output[: -4 * MAX_OUTPUT]


def _end_of(output: bytearray) -> str:
    return " | ".join(bytes(output).decode("utf-8", "replace").split("\n"))[-400:].strip(" |") or "no output"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
