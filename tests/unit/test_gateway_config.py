"""gateway.yaml: what is accepted, and for every kind of mistake one line with key, value and remedy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.addresses import HostPort
from controlplane.base.gateway_config import ConfigError, GatewayConfig, load_gateway_config
from tests.support.gateway_yaml import DEVICE, MANUAL, changed, load


def problems_of(directory: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(directory, text)
    return caught.value.problems


def test_the_manuals_file_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, MANUAL)
    assert config.cluster_hosts() == (
        HostPort("storage-1", 5000),
        HostPort("storage-2", 5000),
        HostPort("witness-1", 5000),
    )
    assert config.cores() == (100, 101, 102, 103, 104)
    assert config.shared_memory_size == 10 * 2**30
    assert (config.cluster_poll_ms, config.dataplane_socket) == (1000, "/run/akv/dataplane.sock")


def test_cluster_hosts_may_have_ports_and_be_ipv6(tmp_path: Path) -> None:
    hosts = "storage-1, 127.0.0.1:5001,[::1]:5002,[::2]"
    config = load(tmp_path, changed(cluster_hostname=hosts, cluster_api_port=6000))
    assert [str(host) for host in config.cluster_hosts()] == [
        "storage-1:6000",
        "127.0.0.1:5001",
        "[::1]:5002",
        "[::2]:6000",
    ]


def test_a_fixed_list_of_cards_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, changed(cluster_hostname=None, storage_devices=[DEVICE]))
    assert config.storage_devices is not None
    assert config.storage_devices[0].trsvcid == "4420"
    assert config.storage_devices[0].transport == "tcp"
    assert config.cluster_hosts() == ()


def test_a_port_is_read_in_the_spelling_that_plans_carry(tmp_path: Path) -> None:
    config = load(tmp_path, changed(cluster_hostname=None, storage_devices=[DEVICE | {"trsvcid": "04420"}]))
    assert config.storage_devices is not None
    assert config.storage_devices[0].trsvcid == "4420"


UUID = "00000000-0000-0000-0000-000000000000"
LINES = [
    ({"port": "5557"}, "port: '5557' is not a whole number; write digits alone, without quotes"),
    ({"port": 70000}, "port: 70000 is out of range; write at most 65535"),
    ({"port": 0}, "port: 0 is out of range; write at least 1"),
    ({"num_dbs": True}, "num_dbs: true is not a whole number; write digits alone, without quotes"),
    ({"num_dbs": 1.5}, "num_dbs: 1.5 is not a whole number; write digits alone, without quotes"),
    (
        {"shared_memory_size": "10GiB"},
        "shared_memory_size: '10GiB' is not a whole number; write the size in bytes without a unit or "
        "quotes, 10737418240",
    ),
    (
        {"read_cache_size": 2**40},
        "read_cache_size: 1099511627776 is more than shared_memory_size 10737418240, of which it is a part; "
        "make it smaller, or 0 for no cache",
    ),
    (
        {"lend_cached_blocks": True, "read_cache_size": 0},
        "lend_cached_blocks: true with read_cache_size 0 of shared_memory_size 10737418240; blocks to lend "
        "and sessions need memory each: set a size between",
    ),
    (
        {"lend_cached_blocks": True, "namespace_secrets": "/etc/akv/secrets.yaml"},
        "lend_cached_blocks: true with namespace_secrets would let a client of one namespace read the blocks "
        "of all; remove one of the two",
    ),
    (
        {"io_timeout_ms": "5s"},
        "io_timeout_ms: '5s' is not a whole number; write milliseconds without a unit or quotes, 5000",
    ),
    (
        {"shared_storage": "yes please"},
        "shared_storage: 'yes please' is not true or false; write true or false without quotes",
    ),
    (
        {"bind_address": "localhost"},
        "bind_address: 'localhost' is not an IP address; write an IPv4 or IPv6 address",
    ),
    ({"bind_address": 5}, "bind_address: 5 is not text; write it in quotes"),
    (
        {"storage_backend": "kv-spdq"},
        "storage_backend: 'kv-spdq' is not allowed; write 'kv-nvme', 'kv-memory' or 'kv-spdk'",
    ),
    (
        {"cluster_sick_poll": 3, "cluster_sick_polls": None},
        "cluster_sick_poll: 3 under an unknown key; did you mean cluster_sick_polls?",
    ),
    ({"zzz": 1}, "zzz: 1 under an unknown key; remove it"),
    (
        {"affinity_blocks": 63},
        "affinity_blocks: 63 under an unknown key; it is a setting of the client: set it in the connector's "
        "configuration",
    ),
    ({"cluster_cert": "x"}, "cluster_cert: 'x' is not an absolute path; begin it with /"),
    ({"core_list": "100-103"}, "core_list: '100-103' has 4 cores, but thread_pool_size 4 needs 5"),
    ({"core_list": "1,1,2,3,4"}, "core_list: '1,1,2,3,4' has core 1 twice; name each core once"),
    ({"core_list": "4-0"}, "core_list: '4-0' has the range 4-0 backwards; write 0-4"),
    ({"core_list": "one"}, "core_list: 'one' has the part 'one'; write cores as"),
    ({"core_list": 5}, "core_list: 5 is not text; write it in quotes"),
    (
        {"storage_devices": [DEVICE]},
        "storage_devices: 1 devices beside cluster_hostname 'storage-1,storage-2,witness-1'; remove one of",
    ),
    (
        {"cluster_hostname": None},
        "cluster_hostname: is missing; name the cluster hosts, or list the cards under",
    ),
    ({"cluster_hostname": "a,,b"}, "cluster_hostname: 'a,,b' has an empty entry; write HOST,HOST,HOST"),
    ({"cluster_hostname": "a,b,a"}, "cluster_hostname: 'a,b,a' names a twice; name each host once"),
    ({"cluster_hostname": "a:0"}, "cluster_hostname: 'a:0' has port 0; write a port from 1 to 65535"),
    ({"cluster_hostname": "::1:5000:x"}, "cluster_hostname: '::1:5000:x' can't be used: "),
    (
        {"start_clean": 1},
        "start_clean: 1 with shared_storage: true would clean a shared cache; set start_clean: 0",
    ),
    ({"start_clean": 2}, "start_clean: 2 is out of range; write at most 1"),
    ({"status_file": "status.prom"}, "status_file: 'status.prom' is not an absolute path; begin it with /"),
    ({"client_socket": "/" + "x" * 120}, "has 121 bytes; a Unix socket's path has at most 107"),
    (
        {"client_socket": "/run/akv/dataplane.sock"},
        "client_socket: '/run/akv/dataplane.sock' is dataplane_socket too; choose another path",
    ),
    (
        {"cluster_security": "none"},
        "cluster_security: 'none' is not allowed; write 'mtls' or 'insecure-loopback'",
    ),
    ({"accept_cluster_uuid": "x"}, "accept_cluster_uuid: 'x' is not a cluster's uuid; copy it from"),
    ({"metrics": "9000"}, "metrics: '9000' can't be used: "),
    ({"metrics": "localhost:9000"}, "metrics: 'localhost:9000' can't be used: "),
    ({"metrics": "127.0.0.1:0"}, "metrics: '127.0.0.1:0' has port 0"),
    ({"nvme_tcp_digests": "always"}, "nvme_tcp_digests: 'always' "),
    (
        {"cluster_hostname": None, "storage_devices": []},
        "storage_devices: [] has 0 entries; write at least 1",
    ),
    (
        {"cluster_hostname": None, "storage_devices": [DEVICE, DEVICE]},
        "storage_devices: serial 'L0P0' is there twice; list each card once",
    ),
    (
        {"cluster_hostname": None, "storage_devices": [{**DEVICE, "trsvcid": 0}]},
        "storage_devices[0].trsvcid: 0 is not a port; write a number from 1 to 65535",
    ),
    (
        {"cluster_hostname": None, "storage_devices": [{"serial": "a", "nqn": "nqn.a"}]},
        "storage_devices[0].traddr: is missing; add it",
    ),
    (
        {"cluster_hostname": None, "storage_devices": [{**DEVICE, "address": 1}]},
        "storage_devices[0].address: 1 under an unknown key; did you mean",
    ),
    ({"cluster_hostname": None, "storage_devices": "L0P0"}, "storage_devices: 'L0P0' is not a list;"),
    ({"cluster_hostname": None, "storage_devices": [7]}, "storage_devices[0]: 7 is not a mapping;"),
    (
        {"cluster_hostname": None, "storage_devices": [{**DEVICE, "nqn": "x"}]},
        "storage_devices[0].nqn: 'x' is not an NVMe qualified name;",
    ),
    (
        {"cluster_hostname": None, "storage_devices": [{**DEVICE, "serial": "a b"}]},
        "storage_devices[0].serial: 'a b' is not a serial number;",
    ),
    (
        {
            "cluster_hostname": None,
            "storage_devices": [DEVICE],
            "accept_cluster_uuid": UUID,
        },
        "without cluster_hostname; remove it",
    ),
    (
        {"status_file": "/run/akv/x", "dataplane_socket": "/run/akv/./x"},
        "dataplane_socket: '/run/akv/./x' is status_file too; choose another path",
    ),
]


@pytest.mark.parametrize(
    ("changes", "line"), LINES, ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_a_mistake_is_one_line(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    (problem,) = problems_of(tmp_path, changed(**changes))
    assert problem.startswith("gateway.yaml: ")
    assert line in problem
    assert "\n" not in problem


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    problems = problems_of(tmp_path, changed(port="x", num_dbs=0, shard=1))
    assert [problem.split(": ")[1] for problem in problems] == ["num_dbs", "port", "shard"]


TEXTS = [
    ("port: 1\nport: 2\n", "port: the key is there twice, in lines 1 and 2; remove one"),
    ("port: [1, 2\n", "correct the YAML syntax there"),
    ("- port\n", "is a list, not lines of KEY: VALUE"),
    ("5: 6\n", "line 1: a key must be a plain word"),
    ("port: !!python/object:os.system x\n", "correct the YAML syntax there"),
    ("a: &a [*a]\nport: 1\n", "under an unknown key"),
    # YAML 1.1 would read 64 and 630 here, and a date.
    ("cluster_hostname: a\nport: 0100\n", "port: '0100' is not a whole number"),
    ("cluster_hostname: a\nio_timeout_ms: 10:30\n", "io_timeout_ms: '10:30' is not a whole number"),
    ("cluster_hostname: a\nport: 2020-13-45\n", "port: '2020-13-45' is not a whole number"),
    ("cluster_hostname: a\nport: " + "9" * 5000, "line 2: the value can't be read"),
    ("port: !!int abc\n", "line 1: the value can't be read"),
    ("a: " + "[" * 5000, "is nested too deeply for a configuration"),
    ('"po\\e[31mrt": 1\n', r"'po\x1b[31mrt': 1 under an unknown key"),
    ("? " + "k" * 900 + "\n: 1\n", "kkk...kkk"),
    ("x0: &x0 [1]\n" + "".join(f"x{n}: &x{n} [*x{n - 1}, *x{n - 1}]\n" for n in range(1, 60)), "x59: [["),
]


@pytest.mark.parametrize(("text", "line"), TEXTS)
def test_text_that_is_no_configuration_is_refused(tmp_path: Path, text: str, line: str) -> None:
    assert line in "\n".join(problems_of(tmp_path, text))


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; check path"):
        load_gateway_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_gateway_config(tmp_path)
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for endless in (pipe, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is a pipe or a device; name a regular file"):
            load_gateway_config(endless)
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_gateway_config(path)
    path.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="is it the right file"):
        load_gateway_config(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(GatewayConfig.model_fields)), values)
def test_any_value_under_any_key_is_accepted_or_told_in_lines_with_the_key(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: Any
) -> None:
    directory = tmp_path_factory.getbasetemp()
    problems: tuple[str, ...] = ()
    try:
        load(directory, yaml.safe_dump({**yaml.safe_load(MANUAL), key: value}))
    except ConfigError as error:
        problems = error.problems
    assert all(problem.startswith("gateway.yaml: ") and "\n" not in problem for problem in problems)


def test_the_manual_lists_every_key_with_its_default() -> None:
    manual = (Path(__file__).resolve().parents[2] / "docs" / "gateway.md").read_text(encoding="utf-8")
    keys = manual.split("\n## gateway.yaml\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (\S*) ?\|", keys, re.MULTILINE))
    assert rows.keys() == GatewayConfig.model_fields.keys()
    for key, field in GatewayConfig.model_fields.items():
        default = "" if field.default is None else str(field.default)
        assert rows[key].strip("`") == (default.lower() if isinstance(field.default, bool) else default)
