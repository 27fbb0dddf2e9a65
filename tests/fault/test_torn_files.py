"""Files that a crash or a failing disk has cut: read as what they were, or refused, never as something else.

The membership file, the ids in etcd's log and the card's store have their own tests beside this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.agent.engines.environment import MANIFEST, Environment, Wanted
from controlplane.agent.files import DocumentError, read_document
from controlplane.agent.incarnation import FILE, AgentState
from controlplane.agent.settings import load_agent_config
from controlplane.agent.shards.process import ProcessId
from controlplane.agent.shards.record import INTENT, SPEC, STATE, HolderState, Intent, RecordError, ShardDir
from controlplane.agent.shards.spec import ShardSpec
from controlplane.agent.waiting import WaitingStart, WaitingStarts
from controlplane.base import pki
from controlplane.base.config_errors import ConfigError
from controlplane.base.credentials import CredentialsError, read_private, write_file
from controlplane.base.gateway_config import load_gateway_config
from controlplane.base.namespace_secrets import load_namespace_secrets
from controlplane.base.ping_targets import PingTarget, PingTargetsError, encode_targets, parse_targets
from controlplane.base.ping_targets import ping_targets as targets_of
from controlplane.base.pki import Role
from controlplane.cluster.envfile import SettingsError
from controlplane.cluster.etcd_ends import last_words
from controlplane.cluster.monitoring import write_changed
from controlplane.cluster.settings import load_settings
from controlplane.gateway.state import PIN_FILE, StateDir, StateError
from dataplane.places import HOST_UUID_FILE, PlaceError, host_uuid
from tests.support.addresses import LoopbackNet
from tests.support.pki import TestAuthority
from tests.support.softcard import Card, card_cli

UUID = "6f3c1fb0-6a8f-4b5e-9d62-0c1b0a5d7e11"
SHARD = ShardSpec("m-0-0", "m/0", "m", "p", 1, "llamacpp", "0.1", ("/bin/true",))


def prefixes(path: Path) -> Iterator[bytes]:
    """Let the file be each of its prefixes in turn; those that lack more than white space are given."""
    whole = path.read_bytes()
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        if whole[:kept].strip() != whole.strip():
            yield whole[:kept]
    path.write_bytes(whole)


def test_every_prefix_of_a_pin_is_the_cluster_or_refused(tmp_path: Path) -> None:
    with StateDir(tmp_path) as state:
        state.pin(UUID)
        path = tmp_path / PIN_FILE
        whole = path.read_bytes()
        for kept in range(len(whole)):
            path.write_bytes(whole[:kept])
            if whole[:kept].decode().strip() == UUID:
                assert state.pinned_uuid() == UUID
                continue
            with pytest.raises(StateError, match=PIN_FILE):
                state.pinned_uuid()


def test_every_prefix_of_the_ping_targets_is_all_of_them_or_refused() -> None:
    targets = targets_of("storage-1", [PingTarget("storage-2", "127.0.0.2"), PingTarget("storage-3", "::1")])
    whole = encode_targets(targets)
    for kept in range(len(whole)):
        try:
            assert parse_targets(whole[:kept]) == targets
        except PingTargetsError:
            assert whole[:kept].strip() != whole.strip()


def test_every_prefix_of_a_cards_record_is_the_card_or_a_failed_list(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    """A list that fails is unknown; an empty one would take the card away."""
    with Card(tmp_path / "state", loopback_net.host(1)) as card:
        path = card.state_dir / f"{card.serial}.card.json"
        whole = path.read_bytes()
        for kept in range(len(whole)):
            path.write_bytes(whole[:kept])
            listed = card_cli("list", "--json", "--state-dir", str(card.state_dir))
            if listed.returncode == 0:
                assert [c["serial"] for c in json.loads(listed.stdout)["cards"]] == [card.serial]
            else:
                assert path.name in listed.stderr
                assert not listed.stdout
        path.write_bytes(whole)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem", "ca.key"])
def test_every_prefix_of_a_credentials_file_is_all_of_it_or_refused(tmp_path: Path, name: str) -> None:
    """Never another identity, another root of trust, or a program that ends without a word."""
    authority = TestAuthority(tmp_path)
    files = authority.issue(Role.HOST, "storage-1")
    ca_key = files.key.with_name("ca.key")
    write_file(ca_key, pki.key_pem(authority.authority.key), private=True)
    path = files.key.with_name(name)
    whole = path.read_bytes()
    good = files.load()
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        try:
            assert files.load() == good
            found = pki.load_authority(good.ca_pem, read_private(ca_key), pki.utc_now())
            assert found.certificate == authority.authority.certificate
        except (CredentialsError, pki.PkiError):
            assert whole[:kept].strip() != whole.strip(), name


def test_every_prefix_of_an_agents_record_is_refused_and_no_incarnation_comes_twice(tmp_path: Path) -> None:
    with AgentState(tmp_path) as state:
        first = state.next_incarnation(1000.0)
        path = tmp_path / FILE
        whole = path.read_bytes()
        for kept in range(len(whole)):
            path.write_bytes(whole[:kept])
            if whole[:kept].strip() != whole.strip():
                with pytest.raises(DocumentError):
                    read_document(path)
            assert state.next_incarnation(1001.0) > first


def test_every_prefix_of_a_shards_records_is_refused_or_the_wish_to_run(tmp_path: Path) -> None:
    """What can't be read never drains, stops or starts anything, and is no other shard's."""
    shard = ShardDir(tmp_path / SHARD.shard_id)
    shard.create(SHARD, "token")
    state = HolderState("token", "running", ProcessId(7, 11, "b"), ProcessId(8, 12, "b"), 1000.0)
    shard.write_state(state)
    shard.write_intent(Intent(wish="drain", ready=True, drain_until=2000.0, drain_seconds=60.0))
    for _ in prefixes(shard.path / SPEC):
        with pytest.raises(RecordError, match=SPEC):
            shard.spec()
    for _ in prefixes(shard.path / STATE):
        with pytest.raises(RecordError, match=STATE):
            shard.state()
    for _ in prefixes(shard.path / INTENT):
        assert shard.intent() == Intent()
    assert (shard.spec(), shard.state()) == ((SHARD, "token"), state)


def test_a_torn_end_on_a_full_disk_is_refused(tmp_path: Path) -> None:
    """It is written over blanks that were set aside: a torn one is followed by those."""
    shard = ShardDir(tmp_path / SHARD.shard_id)
    shard.create(SHARD, "token")
    state = HolderState("token", "ended", ProcessId(7, 11, "b"), None, 1000.0)
    shard.write_end(state)
    assert shard.state() == state
    whole = (shard.path / STATE).read_bytes()
    for kept in range(len(whole.rstrip())):
        (shard.path / STATE).write_bytes(whole[:kept].ljust(len(whole)))
        with pytest.raises(RecordError, match=STATE):
            shard.state()


def test_every_prefix_of_a_waiting_start_is_forgotten_and_starts_nothing(tmp_path: Path) -> None:
    starts = WaitingStarts(tmp_path)
    start = WaitingStart(SHARD, "weights", 1000.0)
    starts.put(start)
    for _ in prefixes(tmp_path / f"{SHARD.shard_id}.json"):
        assert starts.read() == []
    assert starts.read() == [start]


def test_every_prefix_of_an_engines_record_makes_it_unfinished(tmp_path: Path) -> None:
    """It is installed anew then."""
    engine = Environment(tmp_path, Wanted("llamacpp", "0.1"))
    engine.python.parent.mkdir(parents=True)
    engine.python.touch()
    engine.finish({"a": "1"})
    assert engine.is_whole()
    for _ in prefixes(engine.path / MANIFEST):
        assert not engine.is_whole()


def test_every_prefix_of_a_host_identifier_is_refused(tmp_path: Path) -> None:
    whole = host_uuid(tmp_path)
    for _ in prefixes(tmp_path / HOST_UUID_FILE):
        with pytest.raises(PlaceError, match=HOST_UUID_FILE):
            host_uuid(tmp_path)
    assert host_uuid(tmp_path) == whole


def test_every_prefix_of_what_prometheus_reads_is_put_right_by_the_next_cycle(tmp_path: Path) -> None:
    files = {"targets/cards.json": '[{"targets": ["a:1"]}]\n', "prometheus.yml": "global: {}\n"}
    write_changed(tmp_path, files)
    for name, content in files.items():
        for _ in prefixes(tmp_path / name):
            assert write_changed(tmp_path, files) == [name]
            assert (tmp_path / name).read_text() == content


def test_every_prefix_of_etcds_log_tells_its_last_whole_reason(tmp_path: Path) -> None:
    log, output = tmp_path / "etcd.log", tmp_path / "etcd.out"
    entries = [json.dumps({"level": "fatal", "msg": "m", "error": error}) for error in ("first", "second")]
    log.write_text("\n".join(entries) + "\n")
    told = {last_words(log, 0, output) for _ in prefixes(log)}
    assert told == {"", "m: first"}
    assert last_words(log, 0, output) == "m: second"


ENV = """\
# Settings of this host's cluster service
AWC_HOST=storage-1
AWC_ADDRESS=192.0.2.10
AWC_WITNESS=0
AWC_DATA_DIR=/srv/etcd
AWC_CARD_CLI="akv-softcard list --json"
AWC_STATE_DIR=/srv/awide-cluster
"""
SERIALS = "AWC_XDP_SERIALS=xdp0:L0P0,xdp1:L0P1\n"


@pytest.mark.parametrize(("name", "text"), [("awide-cluster.env", ENV), ("adpcli_compat.env", SERIALS)])
def test_every_prefix_of_the_settings_is_read_or_refused_in_one_line(
    tmp_path: Path, name: str, text: str
) -> None:
    """Cut settings find no membership, since what names its place comes last: such a host starts nothing."""
    (tmp_path / name).write_text(text)
    said = []
    for part in prefixes(tmp_path / name):
        try:
            settings = load_settings(tmp_path, {})
        except SettingsError as error:
            said.append(str(error))
        else:
            assert settings.state_dir != Path("/srv/awide-cluster"), part
    assert said
    assert not any("\n" in sentence for sentence in said)


def test_every_prefix_of_a_programs_yaml_is_read_or_refused(tmp_path: Path) -> None:
    gateway, agent = tmp_path / "gateway.yaml", tmp_path / "agent.yaml"
    gateway.write_text(
        "cluster_hostname: storage-1,storage-2\nnum_dbs: 128\nport: 5557\nshared_storage: true\n"
        f"cluster_security: insecure-loopback\nstate_dir: {tmp_path}\ncore_list: '0,1'\n"
    )
    agent.write_text(
        "node_id: gpu-1\naddress: 127.0.0.1\ncluster_hostname: 127.0.0.1\n"
        "cluster_security: insecure-loopback\nweight_roots:\n  - path: /srv/weights\n"
    )
    refused = 0
    for _ in prefixes(gateway):
        try:
            load_gateway_config(gateway)
        except ConfigError:
            refused += 1
    for _ in prefixes(agent):
        try:
            load_agent_config(agent, {})
        except ConfigError:
            refused += 1
    assert refused > 100


def test_every_prefix_of_the_secrets_has_the_whole_secrets_or_is_refused(tmp_path: Path) -> None:
    secrets = {"one": bytes(range(32)), "two": bytes(32)}
    path = tmp_path / "secrets.yaml"
    path.touch(mode=0o600)
    path.write_text("".join(f'{name}: "{secret.hex()}"\n' for name, secret in secrets.items()))
    for _ in prefixes(path):
        try:
            found = load_namespace_secrets(path)
        except ConfigError:
            continue
        assert found.items() <= secrets.items()
