"""etcd as a container: the runner with the Docker SDK against an engine that is played by a small server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.cluster.etcd_binary import EtcdBinaryError, find_etcd
from controlplane.cluster.etcd_docker import OWNER_LABEL, DockerEtcd
from controlplane.cluster.etcd_runner import (
    EtcdRunnerError,
    EtcdStart,
    etcd_arguments,
    etcdctl_environment,
)
from controlplane.cluster.trust import etcd_tls_flags
from tests.support.addresses import LoopbackNet
from tests.support.cluster_hosts import ClusterHost, ask_members, cli_json
from tests.support.docker_engine import Container, DockerServer, Engine
from tests.support.etcd import EtcdMember
from tests.support.procs import wait_until
from tests.support.tls_etcd import HOST, run_tls_etcd

IMAGE, OLD_IMAGE = "quay.io/coreos/etcd:v3.5.30", "quay.io/coreos/etcd:v3.5.17"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    old = tmp_path / "old-etcd"
    old.write_text("#!/bin/sh\necho 'etcd Version: 3.5.17'\n")
    old.chmod(0o755)
    engine = Engine(tmp_path, {IMAGE: find_etcd().path, OLD_IMAGE: old})
    with DockerServer(tmp_path / "docker.sock", engine):
        yield engine


def runner_of(directory: Path, image: str = IMAGE, owner: str = "h1 /d") -> DockerEtcd:
    return DockerEtcd(directory / "docker.sock", image, "etcd", owner)


def start_of(net: LoopbackNet, directory: Path) -> EtcdStart:
    host = net.host(1)
    peer = f"http://{host}:2380"
    data, log = directory / "data", directory / "log"
    return EtcdStart("h1", f"http://{host}:2379", peer, data, log, f"h1={peer}", "new", "t")


async def serves(net: LoopbackNet) -> None:
    member = EtcdMember("h1", net.host(1), Path(os.devnull))
    await asyncio.to_thread(wait_until, member.has_leader, "etcd serves", 30.0)


async def test_a_container_is_made_with_the_hosts_network_and_no_privileges_and_serves(
    engine: Engine, tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    runner = runner_of(tmp_path)
    start = replace(start_of(loopback_net, tmp_path), reads=(tmp_path / "pki",))
    await runner.start(start)
    await serves(loopback_net)
    body = engine.created[-1]
    assert body["Entrypoint"] == ["etcd"]
    assert body["Cmd"] == etcd_arguments(start)
    assert body["User"] == f"{os.getuid()}:{os.getgid()}"
    assert body["Labels"] == {OWNER_LABEL: "h1 /d"}
    assert body["Env"] == [f"ETCDCTL_ENDPOINTS={start.client_url}"]
    host = body["HostConfig"]
    assert host["NetworkMode"] == "host"
    assert host["CapDrop"] == ["ALL"]
    assert host["RestartPolicy"]["Name"] == "no"
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}
    directories = [(start.data_dir, "rw"), (start.log_dir, "rw"), (tmp_path / "pki", "ro")]
    assert host["Binds"] == [f"{path}:{path}:{mode}" for path, mode in directories]
    assert runner.running
    await runner.stop()
    assert engine.containers == {}


def test_etcdctl_in_the_container_shows_the_hosts_certificate(tmp_path: Path) -> None:
    """`docker exec etcd etcdctl member list`, as the manual has it, in the environment of the container."""
    with run_tls_etcd(tmp_path) as etcd:
        data, log = tmp_path / "data", tmp_path / "log"
        flags = etcd_tls_flags(etcd.host_files)
        start = EtcdStart(HOST, etcd.client_url, etcd.peer_url, data, log, "", "new", "t", flags=flags)
        done = wait_until(lambda: member_list(etcdctl_environment(start)), "etcdctl is answered")
    assert f"started, {HOST}, {etcd.peer_url}, {etcd.client_url}" in done


def member_list(environment: dict[str, str]) -> str | None:
    program = find_etcd().path.with_name("etcdctl")
    command: list[str | Path] = [program, "--command-timeout=5s", "member", "list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout if done.returncode == 0 else None


async def test_an_end_is_told_with_its_code_and_a_killed_one_with_its_signal(
    engine: Engine, tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    runner = runner_of(tmp_path)
    await runner.start(start_of(loopback_net, tmp_path))
    await serves(loopback_net)
    container = engine.find("etcd")
    assert container is not None
    assert container.process is not None
    container.process.kill()
    async with asyncio.timeout(60):
        assert (await runner.wait()).code == -signal.SIGKILL
    assert not runner.running
    bad = replace(start_of(loopback_net, tmp_path), flags={"no-such-flag": "1"})
    await runner.start(bad)
    async with asyncio.timeout(60):
        ended = await runner.wait()
    assert ended.code > 0
    assert "no-such-flag" in ended.last_words
    await runner.stop()


async def test_a_container_that_an_earlier_run_left_is_replaced_and_a_removed_one_is_noticed(
    engine: Engine, tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    start = start_of(loopback_net, tmp_path)
    await runner_of(tmp_path).start(start)
    await serves(loopback_net)
    left = engine.find("etcd")
    assert left is not None
    runner = runner_of(tmp_path)
    await runner.start(start)
    assert left.id not in engine.containers
    assert left.stopped_with == [3], "it was asked to stop, with time to do so"
    present = engine.find("etcd")
    assert present is not None
    engine.remove(present)
    async with asyncio.timeout(60):
        assert (await runner.wait()).last_words == "its container was removed"


async def test_what_docker_can_not_do_is_told_with_the_way_out(
    engine: Engine, tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    start = start_of(loopback_net, tmp_path)
    await runner_of(tmp_path).start(start)
    with pytest.raises(EtcdRunnerError, match=r"not of this service.*docker rm"):
        await runner_of(tmp_path, owner="another").start(start)
    assert engine.find("etcd") is not None, "another's container is left alone"
    await runner_of(tmp_path).stop()
    with pytest.raises(EtcdRunnerError, match="docker load"):
        await runner_of(tmp_path, image="quay.io/coreos/etcd:v9").start(start)
    with pytest.raises(EtcdBinaryError, match="too old"):
        await runner_of(tmp_path, image=OLD_IMAGE).start(start)
    assert engine.containers == {}, "nothing is left of the version check"
    away = DockerEtcd(tmp_path / "no.sock", IMAGE, "etcd", "h1")
    with pytest.raises(EtcdRunnerError, match=r"no\.sock can't start etcd"):
        await away.start(start)


def another(engine: Engine, left: Container | None) -> Container | None:
    """The container `etcd` when it is not the one that was left."""
    found = engine.find("etcd")
    return found if found is not left else None


@pytest.mark.slow
def test_a_host_runs_its_member_as_a_container_and_takes_it_over_after_a_kill(
    engine: Engine, tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    host = ClusterHost("host-1", loopback_net.host(1), tmp_path / "host-1")
    host.set_cards()
    host.configure(
        AWC_ETCD_RUNNER="docker", AWC_DOCKER_SOCKET=str(tmp_path / "docker.sock"), AWC_ETCD_IMAGE=IMAGE
    )
    host.start()
    try:
        cli_json(host, "create_cluster", "--name", "kv-cache")
        before = ask_members(host)["members"]
        left = engine.find("etcd")
        host.running.kill()
        wait_until(host.etcd.has_leader, "the member serves on while its service is away")
        host.start()
        wait_until(lambda: another(engine, left), "a new container", 30.0)
        wait_until(host.etcd.has_leader, "etcd serves", 30.0)
        wait_until(lambda: ask_members(host)["members"] == before, "the members are as before")
    finally:
        host.stop()
    assert engine.find("etcd") is None, "a clean stop removes the container"
