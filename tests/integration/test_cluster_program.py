"""awide-cluster as a program: its settings are checked, and refusals are one line and an exit code."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli
from tests.support.cluster_hosts import API_PORT, ClusterHost
from tests.support.procs import Program, python_module


def outcome(*arguments: str) -> tuple[int, str]:
    with Program(python_module("controlplane.apps.awide_cluster", *arguments)) as program:
        return program.wait_exit(), program.tail()


def configured(tmp_path: Path, net: LoopbackNet, **settings: str) -> ClusterHost:
    host = ClusterHost("storage-1", net.host(1), tmp_path)
    host.set_cards()
    host.configure(**settings)
    return host


def test_valid_settings_are_said_to_be_so(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    configured(tmp_path, loopback_net)
    code, text = outcome("--config-dir", str(tmp_path / "config"), "--validate-config")
    assert (code, "host storage-1 are valid" in text) == (0, True)


def test_insecure_mode_must_be_asked_for_by_name(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    """Without a word, every connection needs a certificate; other words are refused in one line."""
    host = configured(tmp_path, loopback_net, AWC_SECURITY="")
    host.start()
    try:
        assert host.running.wait_event("ready")["security"] == "mtls"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host.address, API_PORT), timeout=5)
    finally:
        host.stop()
    configured(tmp_path, loopback_net, AWC_SECURITY="insecure")
    code, text = outcome("--config-dir", str(tmp_path / "config"), "--validate-config")
    assert code == 2
    assert "AWC_SECURITY=insecure-loopback" in text
    assert text.count("\n") == 0


def test_a_public_address_is_refused(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    configured(tmp_path, loopback_net, AWC_ADDRESS="192.0.2.1")
    code, text = outcome("--config-dir", str(tmp_path / "config"))
    assert (code, "not a loopback address" in text) == (2, True)


def test_a_taken_port_is_a_clear_refusal(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    host = configured(tmp_path, loopback_net)
    with socket.create_server((host.address, API_PORT)):
        code, text = outcome("--config-dir", str(tmp_path / "config"))
    assert code == 1
    assert f"{host.address}:{API_PORT} can't be bound" in text


def test_a_second_service_is_refused_and_takes_nothing_from_the_first(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    """Started by hand beside systemd's, it would replace its socket and start an etcd on its data."""
    host = configured(tmp_path, loopback_net, AWC_SECURITY="mtls")
    host.secure = True
    host.start()
    try:
        code, text = outcome("--config-dir", str(tmp_path / "config"))
        assert (code, "stop that one first" in text) == (1, True), text
        assert run_cli("--host", host.asked_at, "--output", "json", "get_members").returncode == 1
    finally:
        host.stop()


@pytest.mark.parametrize("setting", ["AWC_STATE_DIR", "AWC_ADMIN_SOCKET"])
def test_a_place_that_can_not_be_written_is_told_as_such(
    tmp_path: Path, loopback_net: LoopbackNet, setting: str
) -> None:
    (tmp_path / "file").write_text("")
    configured(tmp_path, loopback_net, AWC_SECURITY="mtls", **{setting: str(tmp_path / "file" / "x" / "y")})
    code, text = outcome("--config-dir", str(tmp_path / "config"))
    assert code == 1
    assert "correct the setting that names it" in text


def test_a_damaged_membership_file_stops_the_start(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    host = configured(tmp_path, loopback_net)
    host.member_file.parent.mkdir(parents=True)
    host.member_file.write_text('{"version": 1, "pha')
    code, text = outcome("--config-dir", str(tmp_path / "config"))
    assert (code, "member.json can't be used" in text) == (2, True)


def test_help_and_version() -> None:
    code, text = outcome("--help")
    assert (code, "--config-dir" in text) == (0, True)
    assert outcome("--version")[1].startswith("awide-cluster ")
