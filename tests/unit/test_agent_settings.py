"""agent.yaml and AKV_AGENT_*: what is taken, and what is refused with key, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.agent.settings import load_agent_config
from controlplane.apps.akv_agent import main
from controlplane.base.config_errors import ConfigError
from controlplane.base.pki import Role
from tests.support.pki import TestAuthority

LOOPBACK = {
    "node_id": "gpu-1",
    "address": "127.0.0.1",
    "cluster_hostname": "127.0.0.2,127.0.0.3:5001,[::1]",
    "cluster_security": "insecure-loopback",
}


def write(folder: Path, **keys: Any) -> Path:
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in keys.items() if value is not None}))
    return path


def load(folder: Path, environment: dict[str, str] | None = None, **keys: Any) -> Any:
    return load_agent_config(write(folder, **{**LOOPBACK, **keys}), environment or {})


def test_the_least_that_is_needed(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert [str(host) for host in config.hosts()] == ["127.0.0.2:5000", "127.0.0.3:5001", "[::1]:5000"]
    assert config.credentials() is None
    assert sorted(config.engine_kinds()) == ["llamacpp", "sglang", "vllm"]


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    environment = {"AKV_AGENT_NODE_ID": "gpu-2", "AKV_AGENT_HEARTBEAT_MS": "250", "OTHER": "x"}
    config = load(tmp_path, environment, heartbeat_ms=1000)
    assert (config.node_id, config.heartbeat_ms) == ("gpu-2", 250)


def test_an_engine_of_the_operators_own(tmp_path: Path) -> None:
    engine = {
        "package": "mine",
        "requirement": "mine=={version}",
        "command": ["{env}/bin/mine"],
        "probe": ["{env}/bin/mine", "--version"],
        "variants": {"cpu": {"pip_arguments": ["--no-index"]}},
    }
    kind = load(tmp_path, engines={"mine": engine}).engine_kinds()["mine"]
    assert kind.filled(kind.command, "1", Path("/e")) == ("/e/bin/mine",)
    assert kind.choose("", has_cuda=True) == "cpu"
    assert kind.choose("cuda", has_cuda=True) is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"node_id": None}, "node_id: is missing"),
        ({"node_id": "a/b"}, "node_id: 'a/b' can't be a node's name"),
        ({"address": "host"}, "address: 'host' is not an IP address"),
        ({"cluster_hostname": "a,,b"}, "cluster_hostname: 'a,,b' can't be used"),
        ({"cluster_hostname": "127.0.0.1,127.0.0.1"}, "names a host twice"),
        ({"cluster_hostname": "10.0.0.1"}, "10.0.0.1:5000 is not loopback"),
        ({"cluster_security": None}, "cluster_ca, cluster_cert and cluster_key: not all are set"),
        ({"cluster_ca": "/x"}, "insecure-loopback beside a certificate"),
        ({"cluster_security": "none"}, "cluster_security: 'none' is not allowed"),
        ({"heartbeat": 5}, "heartbeat: 5 under an unknown key; did you mean heartbeat_ms?"),
        ({"heartbeat_ms": "5s"}, "write milliseconds without a unit or quotes, 5000"),
        ({"state_dir": "relative"}, "state_dir: 'relative' is not an absolute path"),
        ({"weight_roots": [{"path": "/w", "share": True}]}, "did you mean shared?"),
        ({"weight_roots": [{"path": "/w"}, {"path": "/w/inner"}]}, "lies in weight_roots[0].path"),
        ({"engines_dir": "/var/lib/akv/agent/engines"}, "engines_dir: '/var/lib/akv/agent/engines' lies in"),
        ({"fabrics": {"a": ["m0"], "b": ["m0"]}}, "has m0 on two fabrics"),
        ({"labels": {"bad key!": "x"}}, "has the label 'bad key!'"),
        ({"engines": {"UPPER": {"package": "p"}}}, "engines.UPPER.requirement: is missing"),
        ({"cgroup_root": "/sys/fs/cgroup\nx"}, "is not an absolute path"),
    ],
)
def test_what_is_refused(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, **keys)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("AKV_AGENT_NODEID", "x", "the agent has no setting nodeid"),
        ("AKV_AGENT_LABELS", "x", "labels has more than one value"),
        ("AKV_AGENT_HEARTBEAT_MS", "fast", "heartbeat_ms: 'fast' is not a whole number"),
    ],
)
def test_variables_that_are_refused(tmp_path: Path, variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, {variable: value})
    assert words in str(error.value)


def test_certificates_are_checked_at_once(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path / "pki")

    def keys(role: Role, name: str) -> dict[str, Any]:
        files = authority.issue(role, name)
        paths = {"cluster_ca": files.ca, "cluster_cert": files.certificate, "cluster_key": files.key}
        return {"cluster_security": "mtls", **{key: str(path) for key, path in paths.items()}}

    config = load(tmp_path, **keys(Role.AGENT, "gpu-1"))
    assert config.credentials().load().identity.name == "gpu-1"
    wrong = {
        "is of host gpu-1; an agent's is wanted": keys(Role.HOST, "gpu-1"),
        "is not the certificate's name, 'gpu-9'": keys(Role.AGENT, "gpu-9"),
        "No such file": {**keys(Role.AGENT, "gpu-1"), "cluster_key": "/nowhere/key.pem"},
        "is not that of a CA": {
            **keys(Role.AGENT, "gpu-1"),
            "cluster_ca": str(authority.issue(Role.AGENT, "gpu-1").certificate),
        },
    }
    for words, given in wrong.items():
        with pytest.raises(ConfigError) as error:
            load(tmp_path, **given)
        assert words in str(error.value)
    authority.issue(Role.AGENT, "gpu-1").key.chmod(0o644)
    with pytest.raises(ConfigError, match="open to others"):
        load(
            tmp_path,
            **{**keys(Role.AGENT, "gpu-2"), "cluster_key": str(tmp_path / "pki/agent-gpu-1/key.pem")},
        )


def test_the_program_validates_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, **LOOPBACK)
    for arguments in (["--validate-config", str(path)], ["--config", str(path), "--validate-config"]):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
        assert "the configuration of node gpu-1 is valid" in capsys.readouterr().out
    write(tmp_path, **{**LOOPBACK, "node_id": ""})
    with pytest.raises(SystemExit) as end:
        main(["--validate-config", str(path)])
    assert end.value.code == 2
    assert "agent.yaml: node_id: ''" in capsys.readouterr().err
