"""Whom clustercli calls: what its options ask for, and combinations that make no sense."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from clustercli.main import hoist
from clustercli.target import Target, TargetError, read_target
from controlplane.base.credentials import CredentialFiles
from controlplane.base.pki import Role
from tests.support.cli import run_cli
from tests.support.pki import TestAuthority


@pytest.fixture
def files(tmp_path: Path) -> CredentialFiles:
    return TestAuthority(tmp_path).issue(Role.ADMIN, "alice")


def target_of(host: str | None, files: CredentialFiles | None, at: Path = Path("/nowhere")) -> Target:
    if files is None:
        return read_target(host, None, None, None, at)
    return read_target(host, files.ca, files.certificate, files.key, at)


def test_this_hosts_socket_is_asked_where_there_is_one(tmp_path: Path, files: CredentialFiles) -> None:
    path = tmp_path / "s"
    assert target_of(None, None, path).address == "127.0.0.1:5000"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert target_of(None, None, path).address == f"unix:{path}"
        assert target_of("127.0.0.9", None, path).address == "127.0.0.9:5000"
        assert target_of(None, files, path).address == "127.0.0.1:5000"


def test_a_certificate_lets_any_host_be_asked(files: CredentialFiles) -> None:
    target = target_of("storage-1", files)
    assert target.address == "storage-1:5000"
    assert target.credentials is not None
    assert target.credentials.identity.name == "alice"
    assert target.files == files


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("192.0.2.7", "not a loopback address: give --ca, --cert and --key"),
        ("[2001:db8::1]:5000", "not a loopback address"),
        ("storage-1:99999", "--host: port"),
    ],
)
def test_nothing_goes_unencrypted_over_a_network(host: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        target_of(host, None)


def test_options_that_do_not_go_together(files: CredentialFiles) -> None:
    with pytest.raises(TargetError, match=r"--cert, --key is missing: --ca, --cert and --key go together"):
        read_target("storage-1", files.ca, None, None)
    with pytest.raises(TargetError, match="takes no certificate"):
        target_of("unix:/run/x.sock", files)
    files.key.chmod(0o644)
    with pytest.raises(TargetError, match="is open to others"):
        target_of("storage-1", files)


def test_the_options_may_stand_behind_the_command() -> None:
    assert hoist(["get_cluster", "--ca", "a", "--cert=b", "--key", "c"]) == [
        "--ca", "a", "--cert=b", "--key", "c", "get_cluster",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["nan", "-nan", "inf", "1e400", "0", "-1", "ten", ""])
@pytest.mark.parametrize(
    "words",
    [
        ["--timeout", "{}", "get_members"],
        ["get_members", "--watch", "--every", "{}"],
        ["stop", "m", "--for", "{}"],
    ],
)
def test_seconds_that_are_none_are_refused(words: list[str], value: str) -> None:
    """Before anyone is asked."""
    outcome = run_cli("--host", "127.0.0.1:1", *(word.format(value) for word in words))
    assert outcome.returncode == 2, outcome
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--num-dbs", "99999999999"],
        ["events", "--limit", "99999999999"],
        ["start", "m", "--replicas", "99999999999"],
        ["start", ""],
        ["fabric-scan", "gpu-1", "mlx5_0/" + "1" * 5000],
        ["remove_node", "-n", "\udcff"],
        ["create_cluster", "--name", "\udcff\udcfe"],
    ],
)
def test_what_no_host_can_be_sent_is_refused(words: list[str]) -> None:
    outcome = run_cli("--host", "127.0.0.1:1", *words)
    assert outcome.returncode == 2, outcome
    assert "Traceback" not in outcome.stderr
