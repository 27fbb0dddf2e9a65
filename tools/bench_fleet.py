"""Load one leader with many simulated agents over TLS, and measure what it costs and how it answers.

Usage: python -m tools.bench_fleet [--agents 2000] [--seconds 60] [--commands 500]

Three kinds of processes: a real etcd, the leader (both fleet services with the cluster's gRPC options), and
processes of agents. Each agent has a certificate and a connection of its own, sends a heartbeat every 5 s
(a load, GPU memory; a rate of a port every third time), and answers requests for logs. Measured are the
leader's CPU and memory from /proc, the time it takes to handle a heartbeat inside the leader, and the round
trip of a command: an operator's GetLogs through the leader to a random agent and back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from akv.v1 import agent_pb2 as pb
from akv.v1 import agent_pb2_grpc, fleet_pb2, fleet_pb2_grpc

from controlplane.base import pki, tls
from controlplane.base.backoff import Backoff
from controlplane.base.credentials import CredentialFiles, Credentials, write_credentials
from controlplane.base.logging import configure_logging
from controlplane.base.pki import Role
from controlplane.fleet.connections import Connection
from controlplane.fleet.fleet import Fleet
from controlplane.fleet.term import Term
from controlplane.store.client import EtcdClient
from controlplane.store.election import Standing, campaign
from controlplane.store.lease import Lease
from tests.support.etcd import run_etcd
from tests.support.waiting import eventually

HEARTBEAT_SECONDS = 5.0
GPUS = 8
END_SECONDS = 30.0
OPTIONS = [("grpc.max_receive_message_length", 4 << 20), ("grpc.keepalive_time_ms", 20000)]
CHANNEL = [*tls.TLS_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values are."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# --- the leader's process ---


async def lead(directory: Path, endpoint: str) -> None:
    """Serve until stdin ends; then print the figures of the handling as JSON."""
    configure_logging("bench", level="warning")
    files = CredentialFiles.in_directory(directory / "host")
    fleet = Fleet("host-1", require_identity=True)
    server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=8192)
    for register in fleet.registrations:
        register(server)
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(files))
    await server.start()
    async with EtcdClient([endpoint], call_seconds=5.0) as client:
        lease = await Lease.grant(client, 60)
        won = await campaign(client, lease, "host-1")
        standing = Standing(client, won, "host-1", f"127.0.0.1:{port}")
        task = asyncio.create_task(fleet.run(lambda: standing))
        await eventually(lambda: fleet.term() is not None, "the host leads", 30.0)
        took: list[float] = []
        busy: list[float] = []
        time_handling(took, busy)
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        print(json.dumps({"took": took, "busy": busy}), flush=True)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop(0)
        await lease.close()


def time_handling(took: list[float], busy: list[float]) -> None:
    """Note how long each heartbeat takes from its arrival to the end of what it changes: by the clock, which
    goes on while other programs have the core, and in CPU time."""
    handle = Term.handle

    def timed(self: Term, connection: Connection, message: pb.AgentMessage) -> None:
        began, used = time.perf_counter(), time.thread_time()
        handle(self, connection, message)
        if message.HasField("heartbeat"):
            took.append(time.perf_counter() - began)
            busy.append(time.thread_time() - used)

    Term.handle = timed  # type: ignore[method-assign]


# --- processes of agents ---


class Agent:
    """One simulated node."""

    def __init__(self, name: str, target: str, credentials: grpc.ChannelCredentials) -> None:
        self.name = name
        self._channel = grpc.aio.secure_channel(target, credentials, options=CHANNEL)
        self._sequence = 0
        self._speaking = asyncio.Lock()

    async def run(self) -> None:
        """Hold a stream, and open the next when it ends, as the real agent does."""
        backoff = Backoff(0.5, 10.0)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self._stream()
            await asyncio.sleep(backoff.next())

    async def _stream(self) -> None:
        """Register, then send heartbeats and answer."""
        call = agent_pb2_grpc.AgentServiceStub(self._channel).Connect()
        await self._say(call, register=self._description())
        answers = asyncio.create_task(self._answer(call))
        beats = 0
        try:
            await asyncio.sleep(random.random() * HEARTBEAT_SECONDS)
            while not answers.done():
                await self._say(call, heartbeat=self._heartbeat(beats))
                beats += 1
                await asyncio.sleep(HEARTBEAT_SECONDS)
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    async def _say(self, call: Any, **part: Any) -> None:
        async with self._speaking:
            self._sequence += 1
            await call.write(pb.AgentMessage(sequence=self._sequence, **part))

    async def _answer(self, call: Any) -> None:
        while isinstance(message := await call.read(), pb.LeaderMessage):
            if message.HasField("logs_request"):
                answer = pb.LogsAnswer(
                    request_id=message.logs_request.request_id, lines=["x" * 80] * 20, sources=["agent"]
                )
                await self._say(call, logs_answer=answer)

    def _description(self) -> pb.Register:
        gpus = [
            pb.Gpu(index=n, uuid=f"{self.name}-{n}", model="H100", memory_total_bytes=80 << 30)
            for n in range(GPUS)
        ]
        return pb.Register(
            node_id=self.name,
            incarnation=1,
            agent_version="0.1.0",
            features=["logs", "drain"],
            gpus=gpus,
            memory_total_bytes=1 << 40,
            engines=pb.EnginesReport(versions={"vllm": "1"}),
        )

    def _heartbeat(self, number: int) -> pb.Heartbeat:
        used = [pb.GpuMemory(index=n, used_bytes=random.randrange(1 << 30)) for n in range(GPUS)]
        beat = pb.Heartbeat(
            load=pb.NodeLoad(cpu_percent=random.random() * 100, cpu_count=64, load1=3.0),
            gpu_memory=pb.GpuMemoryReport(gpus=used),
        )
        if number % 3 == 0:
            counters = {"port_xmit_data": number << 30, "port_rcv_data": number << 30}
            port = pb.IbPort(hca="mlx5_0", port=1, state="ACTIVE", counters=counters)
            beat.ib_ports.ports.append(port)
        return beat


async def agents(directory: Path, target: str, first: int, count: int) -> None:
    """Run agents until killed."""
    async with asyncio.TaskGroup() as group:
        for number in range(first, first + count):
            credentials = tls.channel_credentials(load(directory / f"gpu-{number}"))
            agent = Agent(f"gpu-{number}", target, credentials)
            group.create_task(agent.run())
            await asyncio.sleep(0.04)


def load(directory: Path) -> Credentials:
    """Credentials of one identity."""
    return CredentialFiles.in_directory(directory).load()


# --- the measurement ---


def issue_all(directory: Path, count: int) -> None:
    """A CA, and credentials of the host, an administrator and every agent."""
    now = pki.utc_now()
    authority = pki.create_authority("bench", "00000000-0000-4000-8000-000000000000", now)
    names = {"host": (Role.HOST, "host-1"), "admin": (Role.ADMIN, "bench")}
    names |= {f"gpu-{n}": (Role.AGENT, f"gpu-{n}") for n in range(count)}
    for folder, (role, name) in names.items():
        key = pki.new_key()
        certificate = pki.issue(authority, key.public_key(), pki.Identity(role, name), now, 1)
        files = CredentialFiles.in_directory(directory / folder)
        write_credentials(files, authority.certificate_pem, pki.to_pem(certificate), pki.key_pem(key))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


async def start(*arguments: str) -> asyncio.subprocess.Process:
    """Another process of this program."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tools.bench_fleet",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 26,
    )


async def wait_ready(stub: Any, count: int, seconds: float) -> float:
    """Until every agent is ready; how long that took."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        answer = await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=120)
        if sum(node.state == fleet_pb2.NODE_STATE_READY for node in answer.nodes) >= count:
            return time.monotonic() - began
        await asyncio.sleep(2.0)
    raise SystemExit(f"{len(answer.nodes)} of {count} agents registered within {seconds} s")


async def round_trips(stub: Any, count: int, commands: int) -> list[float]:
    """Seconds of each command, one after the other, to random agents."""
    took = []
    for _ in range(commands):
        request = fleet_pb2.GetLogsRequest(node_id=f"gpu-{random.randrange(count)}", lines=20)
        began = time.perf_counter()
        await stub.GetLogs(request, timeout=30)
        took.append(time.perf_counter() - began)
    return took


async def measure(options: argparse.Namespace) -> None:
    """Run everything once and print the figures."""
    with tempfile.TemporaryDirectory() as name, run_etcd(Path(name) / "etcd") as etcd:
        directory = Path(name)
        issue_all(directory, options.agents)
        leader = await start("--lead", name, etcd.endpoints[0])
        assert leader.stdout is not None
        target = f"127.0.0.1:{(await leader.stdout.readline()).decode().strip()}"
        share = -(-options.agents // options.processes)
        spans = [(f, min(share, options.agents - f)) for f in range(0, options.agents, share)]
        loads = [await start("--agents-of", name, target, str(first), str(n)) for first, n in spans]
        try:
            await report(options, directory, target, leader)
        finally:
            for process in loads:
                process.kill()
                await process.wait()
            await end(leader)


async def end(leader: asyncio.subprocess.Process) -> None:
    """Let the leader end, which it does when its stdin does; say so where it ended otherwise."""
    assert leader.stdin is not None
    leader.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await leader.wait()
    except TimeoutError:
        leader.kill()
        await leader.wait()
    if leader.returncode:
        print(f"leader ended with {leader.returncode}", file=sys.stderr)


async def report(
    options: argparse.Namespace, directory: Path, target: str, leader: asyncio.subprocess.Process
) -> None:
    """Measure the leader under load."""
    credentials = tls.channel_credentials(load(directory / "admin"))
    channel_options = [*CHANNEL, ("grpc.max_receive_message_length", 64 << 20)]
    async with grpc.aio.secure_channel(target, credentials, options=channel_options) as channel:
        stub = fleet_pb2_grpc.FleetServiceStub(channel)
        registered = await wait_ready(stub, options.agents, 300.0)
        await asyncio.sleep(2 * HEARTBEAT_SECONDS)
        cpu, began = cpu_seconds(leader.pid), time.monotonic()
        await asyncio.sleep(options.seconds)
        used = (cpu_seconds(leader.pid) - cpu) / (time.monotonic() - began)
        commands = await round_trips(stub, options.agents, options.commands)
        answer = await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=30)
        lost = sum(node.state != fleet_pb2.NODE_STATE_READY for node in answer.nodes)
        memory = resident_mib(leader.pid)
    assert leader.stdin is not None
    assert leader.stdout is not None
    leader.stdin.close()
    handling = json.loads(await leader.stdout.readline())
    print(f"load of the machine        {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores at the end")
    print(f"agents                     {options.agents}, {lost} of them not ready at the end")
    print(f"all registered after       {registered:.1f} s")
    print(f"leader's CPU               {100 * used:.0f} % of one core over {options.seconds:g} s")
    print(f"leader's memory            {memory:.0f} MiB ({1024 * memory / options.agents:.0f} KiB an agent)")
    show("handling of a heartbeat", handling["took"], 1e6, "us")
    show("    in CPU time", handling["busy"], 1e6, "us")
    show("round trip of a command", commands, 1e3, "ms")


def show(what: str, values: list[float], scale: float, unit: str) -> None:
    """One line of figures."""
    p50, p99 = statistics.median(values) * scale, percentile(values, 0.99) * scale
    most = max(values) * scale
    print(f"{what:26} p50 {p50:.1f} {unit}, p99 {p99:.1f} {unit}, most {most:.1f} {unit} of {len(values)}")


def main() -> None:
    """Run the bench, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure the CPU")
    parser.add_argument("--commands", type=int, default=500)
    parser.add_argument("--processes", type=int, default=4, help="processes that share the agents")
    parser.add_argument("--lead", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--agents-of", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 65536)), hard))
    if options.lead:
        asyncio.run(lead(Path(options.lead[0]), options.lead[1]))
    elif options.agents_of:
        folder, target, first, count = options.agents_of
        asyncio.run(agents(Path(folder), target, int(first), int(count)))
    else:
        asyncio.run(measure(options))


if __name__ == "__main__":
    main()
