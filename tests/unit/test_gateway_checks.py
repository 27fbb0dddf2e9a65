"""What a gateway's configuration asks of this machine: cores, ports, files, secrets, certificates."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from controlplane.base.gateway_checks import CONTROL_CHECKS, DATAPLANE_CHECKS, check_machine
from controlplane.base.gateway_config import GatewayConfig
from controlplane.base.namespace_secrets import load_namespace_secrets
from controlplane.base.pki import Role
from tests.support.addresses import LoopbackNet
from tests.support.gateway_yaml import DEVICE, changed, load
from tests.support.pki import TestAuthority


def usable(directory: Path, **changes: Any) -> GatewayConfig:
    """A configuration that this machine could run, with changes."""
    places = {
        "state_dir": str(directory),
        "status_file": str(directory / "s.prom"),
        "dataplane_socket": str(directory / "d.sock"),
        "client_socket": str(directory / "c.sock"),
    }
    settings = {"core_list": None, "cluster_security": "insecure-loopback", "port": 1024, **places, **changes}
    return load(directory, changed(**settings))


def test_a_usable_configuration_has_no_problem(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    assert check_machine(usable(tmp_path, bind_address=loopback_net.host(1))) == []


MACHINE = [
    (
        {"storage_backend": "kv-spdk"},
        "set storage_backend: kv-nvme, or build where pkg-config finds spdk_nvme",
    ),
    ({"cluster_security": "mtls"}, "cluster_ca: is missing, and the cluster takes no call without a"),
    (
        {"cluster_security": "mtls", "cluster_ca": "/none", "cluster_cert": "/none", "cluster_key": "/none"},
        "cluster_cert: /none can't be read: No such file or directory",
    ),
    ({"cluster_key": "/x"}, "cluster_key: '/x' beside cluster_security: insecure-loopback is of no use"),
    (
        {"cluster_hostname": "127.0.0.1,192.0.2.1:5000"},
        "cluster_hostname: 192.0.2.1 is not a loopback address",
    ),
    (
        {"cluster_hostname": None, "storage_devices": [{**DEVICE, "transport": "rdma"}]},
        "storage_devices: transport 'rdma' of L0P0 is not in this build; write transport: tcp",
    ),
    ({"status_file": "/tmp/"}, "status_file: '/tmp/' is a directory; name a file in it"),
    (
        {"bind_address": "0.0.0.0"},
        "bind_address: '0.0.0.0' lets every host use the cache; set namespace_secrets",
    ),
    (
        {"core_list": "4000-4004"},
        "core_list: '4000-4004' has cores that this process may not use (4000-4004)",
    ),
    ({"state_dir": "/dev/null/x"}, "state_dir: '/dev/null/x' can't be written"),
    ({"status_file": "/dev/null/x/s.prom"}, "/dev/null is not a directory"),
    (
        {"namespace_secrets": "/none/secrets.yaml"},
        "No such file or directory; write the file or remove namespace_secrets",
    ),
    ({"metrics": "192.0.2.77:9000"}, "metrics: '192.0.2.77:9000' can't be listened on: "),
    ({"start_clean": 1, "shared_storage": False}, "start_clean: 1 is not supported by this build"),
    ({"bind_address": "192.0.2.77"}, "is not an address of this host"),
]


@pytest.mark.parametrize(
    ("changes", "line"), MACHINE, ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_what_this_machine_cannot_do_is_told(
    tmp_path: Path, loopback_net: LoopbackNet, changes: dict[str, Any], line: str
) -> None:
    config = usable(tmp_path, **{"bind_address": loopback_net.host(1), **changes})
    assert line in "\n".join(check_machine(config))


def test_a_port_in_use_is_told(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with socket.socket() as listener:
        listener.bind((loopback_net.host(1), 0))
        listener.listen()
        port = listener.getsockname()[1]
        (problem,) = check_machine(usable(tmp_path, bind_address=loopback_net.host(1), port=port))
    assert problem.startswith(f"port: {port} on {loopback_net.host(1)} is in use; choose a free port")


SECRETS = [
    (f"a: '{'0' * 64}'\n", None),
    (f"a: '{'0f' * 32}'\nmodel-7b: '{'1e' * 32}'\n", None),
    ("a: '00'\n", "a: the secret has 1 bytes; write 64 hexadecimal digits"),
    ("a: SWORDFISH\n", "a: the secret is not hexadecimal"),
    ("a: 12345678\n", "a: the secret is not text"),
    ("", "has no namespace; write NAME: SECRET lines"),
    (f"{'n' * 129}: '{'0' * 64}'\n", "a namespace has 1 to 128 bytes"),
]


@pytest.mark.parametrize(("text", "line"), SECRETS)
def test_the_secrets_file_is_checked_and_never_shown(
    tmp_path: Path, loopback_net: LoopbackNet, text: str, line: str | None
) -> None:
    secrets = tmp_path / "secrets.yaml"
    secrets.touch(0o600)
    secrets.write_text(text)
    config = usable(tmp_path, bind_address=loopback_net.host(1), namespace_secrets=str(secrets))
    problems = check_machine(config)
    if line is None:
        assert problems == []
        assert all(len(secret) == 32 for secret in load_namespace_secrets(secrets).values())
    else:
        assert line in "\n".join(problems)
        assert "SWORDFISH" not in "\n".join(problems)


def test_secrets_open_to_others_are_refused(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text("a: b")
    secrets.chmod(0o640)
    config = usable(tmp_path, bind_address=loopback_net.host(1), namespace_secrets=str(secrets))
    (problem,) = check_machine(config)
    assert "chmod 600" in problem


def credentials(authority: TestAuthority, role: Role) -> dict[str, str]:
    files = authority.issue(role, "pod-1")
    return {
        "cluster_security": "mtls",
        "cluster_ca": str(files.ca),
        "cluster_cert": str(files.certificate),
        "cluster_key": str(files.key),
    }


def test_a_gateway_shows_the_certificate_of_a_gateway(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    """One that may do more is refused, and with certificates the cluster's hosts may be anywhere."""
    authority = TestAuthority(tmp_path / "pki")
    places = {"bind_address": loopback_net.host(1), "cluster_hostname": "192.0.2.1"}
    right = usable(tmp_path, **places, **credentials(authority, Role.GATEWAY))
    assert check_machine(right) == []
    wrong = usable(tmp_path, **places, **credentials(authority, Role.ADMIN))
    assert "is the certificate of admin pod-1; a gateway may do less" in "\n".join(check_machine(wrong))


def test_the_dataplane_needs_no_certificate(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    config = usable(tmp_path, bind_address=loopback_net.host(1), cluster_security="mtls")
    assert check_machine(config, DATAPLANE_CHECKS) == []
    assert check_machine(config, CONTROL_CHECKS) != []
