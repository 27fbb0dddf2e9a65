"""Settings of the cluster service: defaults, precedence, and one clear line for each mistake."""

import contextlib
import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.cluster.envfile import SettingsError
from controlplane.cluster.settings import KEYS, load_settings

INSECURE = {"AWC_SECURITY": "insecure-loopback"}


def test_defaults_are_the_manuals(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, INSECURE | {"AWC_HOST": "storage-1"})
    assert (settings.api_port, settings.etcd_client_port, settings.etcd_peer_port) == (5000, 2379, 2380)
    assert (settings.exporter_port, settings.cycle_seconds) == (7891, 6.0)
    assert (settings.warmup_cycles, settings.bad_member_strikes) == (3, 3)
    assert settings.data_dir == Path("/var/lib/etcd")
    assert settings.card_cli == ("akv-softcard", "list", "--json")
    assert settings.client_url == "http://127.0.0.1:2379"


def test_certificates_are_the_default_and_allow_any_address(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"AWC_HOST": "storage-1", "AWC_ADDRESS": "192.0.2.7"})
    assert settings.security == "mtls"
    assert settings.pki_dir == tmp_path / "state" / "pki"
    assert settings.enroll_port == 5001
    assert settings.admin_socket == Path("/run/awide-cluster/admin.sock")
    assert (settings.client_url, settings.peer_url) == ("https://192.0.2.7:2379", "https://192.0.2.7:2380")


def test_environment_wins_over_files(tmp_path: Path) -> None:
    (tmp_path / "awide-cluster.env").write_text("AWC_HOST=from-file\nAWC_API_PORT=5001\n")
    (tmp_path / "adpcli_compat.env").write_text("AWC_XDP_SERIALS=xdp0:L0P0,xdp1:L0P1\n")
    settings = load_settings(tmp_path, INSECURE | {"AWC_API_PORT": "5002"})
    assert settings.host == "from-file"
    assert settings.api_port == 5002
    assert settings.xdp_serials == {"xdp0": "L0P0", "xdp1": "L0P1"}


def test_what_the_record_tells_of_exporters_and_data_addresses(tmp_path: Path) -> None:
    storage = load_settings(tmp_path, INSECURE)
    assert (storage.addresses["ping"], "data" in storage.addresses) == ("127.0.0.1:9427", False)
    witness = load_settings(tmp_path, INSECURE | {"AWC_WITNESS": "1"})
    assert "ping" not in witness.addresses
    data = {"AWC_WITNESS": "1", "AWC_DATA_ADDRESSES": "2001:DB8::0:1, ::ffff:192.0.2.1,192.0.2.1"}
    pinged = load_settings(tmp_path, INSECURE | data).addresses
    assert (pinged["data"], pinged["ping"]) == ("192.0.2.1,2001:db8::1", "127.0.0.1:9427")


def test_prometheus_may_be_on_the_hosts_own_address(tmp_path: Path) -> None:
    own = {"AWC_ADDRESS": "127.0.0.9", "AWC_PROMETHEUS_URL": "http://127.0.0.9:9090/"}
    assert load_settings(tmp_path, INSECURE | own).prometheus_url == "http://127.0.0.9:9090"


def test_ipv6_loopback_is_bracketed_in_urls(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, INSECURE | {"AWC_ADDRESS": "[0:0::1]"})
    assert settings.address == "::1"
    assert settings.api_endpoint == "[::1]:5000"
    assert settings.peer_url == "http://[::1]:2380"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"AWC_SECURITY": "mtls", "AWC_ENROLL_PORT": "5000"}, ["AWC_ENROLL_PORT", "own port"]),
        ({"AWC_SECURITY": "mtls", "AWC_HOST": "root"}, ["AWC_HOST", "root"]),
        ({"AWC_SECURITY": "mtls", "AWC_HOST": "a" * 65}, ["AWC_HOST", "64"]),
        ({"AWC_SECURITY": "mtls", "AWC_PKI_DIR": "/var/lib/etcd/pki"}, ["AWC_PKI_DIR", "lost together"]),
        ({"AWC_SECURITY": "mtls", "AWC_ADMIN_SOCKET": "/" + "s" * 107}, ["AWC_ADMIN_SOCKET", "107"]),
        ({"AWC_SECURITY": "none"}, ["AWC_SECURITY", "none"]),
        ({"AWC_ADDRESS": "192.0.2.7"}, ["192.0.2.7", "loopback"]),
        ({"AWC_ADDRESS": "storage-1"}, ["AWC_ADDRESS", "storage-1"]),
        ({"AWC_HOST": "a/b"}, ["AWC_HOST", "a/b"]),
        ({"AWC_API_PORT": "0"}, ["AWC_API_PORT", "0"]),
        ({"AWC_API_PORT": "2379"}, ["AWC_API_PORT", "own port"]),
        ({"AWC_PING_PORT": "7891"}, ["AWC_PING_PORT", "own port"]),
        ({"AWC_METRICS": "direct"}, ["AWC_METRICS", "exporters"]),
        ({"AWC_PROMETHEUS_URL": "127.0.0.1:9090"}, ["AWC_PROMETHEUS_URL", "http://ADDRESS:PORT"]),
        ({"AWC_PROMETHEUS_URL": "http://127.0.0.1"}, ["AWC_PROMETHEUS_URL", "no port"]),
        ({"AWC_PROMETHEUS_URL": "http://192.0.2.9:9090"}, ["AWC_PROMETHEUS_URL", "own Prometheus"]),
        ({"AWC_DATA_ADDRESSES": "192.0.2.1,storage-1"}, ["AWC_DATA_ADDRESSES", "storage-1"]),
        ({"AWC_PING_LOSS_PERCENT": "0"}, ["AWC_PING_LOSS_PERCENT", "from 1 to 100"]),
        ({"AWC_AGENT_WRITE_SECONDS": "0"}, ["AWC_AGENT_WRITE_SECONDS", "from 1 to 3600"]),
        ({"AWC_SCRAPE_SECONDS": "0"}, ["AWC_SCRAPE_SECONDS"]),
        ({"AWC_MONITORING_DIR": "here"}, ["AWC_MONITORING_DIR", "relative"]),
        ({"AWC_DATA_DIR": "etcd"}, ["AWC_DATA_DIR", "relative"]),
        ({"AWC_DATA_DIR": "/etcd\0"}, ["AWC_DATA_DIR", "can't be seen"]),
        ({"AWC_ETCD_RUNNER": "podman"}, ["AWC_ETCD_RUNNER", "process or docker"]),
        ({"AWC_ETCD_IMAGE": "etcd image"}, ["AWC_ETCD_IMAGE", "quay.io"]),
        ({"AWC_ETCD_CONTAINER": "-rm"}, ["AWC_ETCD_CONTAINER", "letters"]),
        ({"AWC_DOCKER_SOCKET": "docker.sock"}, ["AWC_DOCKER_SOCKET", "relative"]),
        ({"AWC_ETCD_QUOTA_BYTES": "1M"}, ["AWC_ETCD_QUOTA_BYTES", "whole number"]),
        ({"AWC_LEARNER_SECONDS": "0"}, ["AWC_LEARNER_SECONDS", "from 1"]),
        ({"AWC_EVEN_VOTERS_SECONDS": "0"}, ["AWC_EVEN_VOTERS_SECONDS", "from 1"]),
        ({"AWC_EXPORTER_TLS": "1"}, ["AWC_EXPORTER_TLS=1", "AWC_SECURITY=mtls"]),
        ({"AWC_CYCLE_SECONDS": "nan"}, ["AWC_CYCLE_SECONDS"]),
        ({"AWC_CARD_CLI": "list 'x"}, ["AWC_CARD_CLI", "quotes"]),
        ({"AWC_CARD_CLI": "  "}, ["AWC_CARD_CLI", "no command"]),
        ({"AWC_CARD_CLI": "''"}, ["AWC_CARD_CLI", "no command"]),
        ({"AWC_XDP_SERIALS": "xdp0"}, ["AWC_XDP_SERIALS", "xdp0:L0P0"]),
        ({"AWC_XDP_SERIALS": "xdp0:A,xdp1:A"}, ["AWC_XDP_SERIALS", "repeats"]),
        ({"AWC_STATE_DIR": "/var/lib/etcd/state"}, ["AWC_STATE_DIR", "lost together"]),
    ],
)
def test_a_bad_value_is_named(tmp_path: Path, environment: dict[str, str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(tmp_path, INSECURE | environment)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_misspelt_key_in_a_file_is_refused_with_the_right_spelling(tmp_path: Path) -> None:
    (tmp_path / "awide-cluster.env").write_text("AWC_CYCLE_SECOND=3\n")
    with pytest.raises(SettingsError, match="did you mean AWC_CYCLE_SECONDS"):
        load_settings(tmp_path, INSECURE)


def test_a_settings_file_that_is_none_or_has_no_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "awide-cluster.env"
    os.mkfifo(path)
    with pytest.raises(SettingsError, match="is a pipe or a device; name a regular file"):
        load_settings(tmp_path, INSECURE)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(SettingsError, match="is a pipe or a device; name a regular file"):
        load_settings(tmp_path, INSECURE)
    path.unlink()
    path.write_text("#" * (2**16 + 1))
    with pytest.raises(SettingsError, match="at most 65536 are read"):
        load_settings(tmp_path, INSECURE)


def test_a_missing_config_dir_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / ("long" * 2000), tmp_path / "a\0b"):
        with pytest.raises(SettingsError, match="not a directory"):
            load_settings(path, INSECURE)


@given(key=st.sampled_from(sorted(KEYS)), text=st.text(max_size=80))
def test_no_value_of_any_key_is_more_than_a_refusal(key: str, text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "awide-cluster.env").write_text(f"{key}={text}\n", encoding="utf-8")
        for environment in (INSECURE, {key: text} | INSECURE):
            with contextlib.suppress(SettingsError):
                load_settings(Path(directory), environment)


def test_the_manual_has_every_key_and_its_default() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
    table = page.partition("## Settings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*)\|([^|]*)\|", table, re.MULTILINE)
    told: dict[str, str] = {}
    for keys, defaults in rows:
        names, text = re.findall(r"`(\w+)`", keys), defaults.strip().strip("`")
        values = text.split(", ") if len(names) > 1 else [text]
        told |= dict(zip(names, values if len(values) == len(names) else [text] * len(names), strict=True))
    assert set(told) == set(KEYS)
    plain = {name: key.default for name, key in KEYS.items() if key.default and name != "AWC_CARD_CLI"}
    assert {name: told[name] for name in plain} == plain
