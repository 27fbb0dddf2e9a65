"""Keys and records: what is written is read back, and what is damaged becomes a sentence."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from akv.etcd import etcd_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from controlplane.model.cards import (
    CardPath,
    CardRecord,
    ClusterConfig,
    Health,
    HealthRecord,
    HostRecord,
    RegistryEntry,
    UnreadableRecord,
)
from controlplane.store import codec, schema
from controlplane.store.kv import prefix_end
from controlplane.store.snapshot import build_snapshot
from controlplane.store.step import MembershipStep, decode_step, encode_step

names = st.text(min_size=1, max_size=20)


@given(names, names)
def test_any_name_has_a_key_of_its_own(host: str, device: str) -> None:
    assert schema.parse_key(schema.card_key(host, device)) == schema.RecordKey("card", host, device)
    assert schema.parse_key(schema.health_key(host, device)) == schema.RecordKey("health", host, device)
    assert schema.parse_key(schema.node_key(host)) == schema.RecordKey("node", host)
    assert schema.parse_key(schema.registry_key(device)) == schema.RecordKey("registry", "", device)
    assert schema.card_key(host, device).startswith(schema.host_prefix(host) + b"cards/")


def test_plain_names_are_spelt_as_documented() -> None:
    assert schema.card_key("storage-1", "xdp0") == b"/targets/storage-1/cards/xdp0"
    assert schema.registry_key("L0P0") == b"/cluster/cards/L0P0"


@pytest.mark.parametrize(
    "key",
    [
        b"/leader",
        b"/cluster/step",
        b"/cluster/",
        b"/cluster/cards/",
        b"/cluster/cards/a/b",
        b"/targets//node",
        b"/targets/h/node/x",
        b"/targets/h/cards/",
        b"/targets/h/other/x",
        b"/targets/h",
        b"",
        b"\xff",
    ],
)
def test_other_keys_are_no_records(key: bytes) -> None:
    assert schema.parse_key(key) is None


def test_empty_names_are_refused() -> None:
    with pytest.raises(ValueError, match="empty host"):
        schema.node_key("")


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"/a/", b"/a0"), (b"a\xff\xff", b"b"), (b"\xff", b"\0"), (b"", b"\0")]
)
def test_prefix_end(prefix: bytes, end: bytes) -> None:
    assert prefix_end(prefix) == end


PATH = CardPath("tcp", "2001:db8::1", "4420")
RECORDS = [
    (schema.CONFIG_KEY, ClusterConfig("lab", 1.5, "u-1"), codec.encode_config),
    (schema.registry_key("S 1"), RegistryEntry("S 1", "nqn.x", "", 3), codec.encode_registry),
    (schema.node_key("h/1"), HostRecord("h/1", True, False, {"data": "10.0.0.1"}), codec.encode_host),
    (
        schema.card_key("h", "x0"),
        CardRecord("h", "x0", "S", "nqn", "u", (PATH,), "stopped"),
        codec.encode_card,
    ),
    (
        schema.health_key("h", "x0"),
        HealthRecord("h", "x0", "S", Health.SICK, Health.UNKNOWN, 12.25, "é"),
        codec.encode_health,
    ),
]


def pair(key: bytes, value: bytes) -> pb.KeyValue:
    return pb.KeyValue(key=key, value=value)


def test_records_are_read_back_as_written() -> None:
    snapshot = build_snapshot(9, [pair(key, encode(record)) for key, record, encode in RECORDS])  # type: ignore[operator]
    found = [snapshot.config, *snapshot.registry, *snapshot.hosts, *snapshot.cards, *snapshot.health]
    assert found == [record for _, record, _ in RECORDS]
    assert snapshot.revision == 9
    assert not snapshot.problems


def test_spellings_of_an_address_are_made_one() -> None:
    record = CardRecord("h", "x0", "S", "nqn", "u", (CardPath("tcp", "::FFFF:10.0.0.1", "4420"),))
    assert codec.decode_card("h", "x0", codec.encode_card(record)).paths[0].traddr == "10.0.0.1"


def changed(base: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({k: v for k, v in (base | changes).items() if v is not ...}).encode()


CARD: dict[str, Any] = {"xdp_serial": "S", "nqn": "n", "uuid": "", "paths": [], "state": "running"}
HEALTH: dict[str, Any] = {"health_xdp": 0, "last_known": 0, "since": 1, "reason": "", "xdp_serial": "S"}
NODE: dict[str, Any] = {"enabled": 1, "witness": False, "addresses": {}}
ENTRY: dict[str, Any] = {"serial": "S", "nqn": "n", "uuid": "", "join_seq": 1}
LONG_PATH = {"transport": "tcp", "traddr": "10.0.0.1", "trsvcid": "70000"}

BAD = [
    (schema.card_key("h", "x"), b"", "not JSON"),
    (schema.card_key("h", "x"), b"\xff\xfe", "not JSON"),
    (schema.card_key("h", "x"), b"[" * 100_000, "not JSON"),
    (schema.card_key("h", "x"), b"[]", "not a JSON object"),
    (schema.card_key("h", "x"), changed(CARD, nqn=...), "nqn is missing"),
    (schema.card_key("h", "x"), changed(CARD, xdp_serial=""), "xdp_serial is empty"),
    (schema.card_key("h", "x"), changed(CARD, xdp_serial=5), "xdp_serial is 5, not a text"),
    (schema.card_key("h", "x"), changed(CARD, paths={}), "paths is {}, not a list"),
    (schema.card_key("h", "x"), changed(CARD, paths=[1]), "not an object"),
    (schema.card_key("h", "x"), changed(CARD, paths=[LONG_PATH]), "port '70000'"),
    (schema.card_key("h", "x"), changed(CARD, paths=[LONG_PATH | {"transport": "fc"}]), "transport is 'fc'"),
    (
        schema.card_key("h", "x"),
        changed(CARD, paths=[LONG_PATH | {"trsvcid": "1", "traddr": "host"}]),
        "'host'",
    ),
    (schema.health_key("h", "x"), changed(HEALTH, health_xdp=3), "health_xdp is 3"),
    (schema.health_key("h", "x"), changed(HEALTH, health_xdp=True), "health_xdp is True"),
    (schema.health_key("h", "x"), changed(HEALTH, since="now"), "since is 'now'"),
    (schema.health_key("h", "x"), changed(HEALTH, since=float("nan")), "since is nan"),
    (schema.health_key("h", "x"), changed(HEALTH, since=10**400), "too large a number"),
    (schema.health_key("h", "x"), changed(HEALTH, reason="\ud800"), "no Unicode text"),
    (schema.node_key("h"), changed(NODE, enabled=2), "enabled is 2"),
    (schema.node_key("h"), changed(NODE, enabled=10**400), "enabled is 1000"),
    (schema.node_key("h"), changed(NODE, addresses={"\ud800": "a"}), "no Unicode text"),
    (schema.node_key("h"), changed(NODE, witness=1), "witness is 1"),
    (schema.node_key("h"), changed(NODE, addresses={"a": 1}), "addresses has a value"),
    (schema.registry_key("T"), changed(ENTRY), "serial is 'S', not that of its key"),
    (schema.registry_key("S"), changed(ENTRY, join_seq=0), "join_seq is 0"),
    (schema.CONFIG_KEY, changed({"name": "n", "created": 1, "uuid": ""}), "uuid is empty"),
]


@pytest.mark.parametrize(("key", "value", "sentence"), BAD)
def test_a_bad_record_is_a_sentence_and_unknown(key: bytes, value: bytes, sentence: str) -> None:
    good = pair(schema.node_key("good"), codec.encode_host(HostRecord("good", True, False)))
    snapshot = build_snapshot(1, [pair(key, value), good])
    (problem,) = snapshot.problems
    assert sentence in problem
    name = schema.parse_key(key)
    assert name is not None
    assert snapshot.unreadable == (UnreadableRecord(name.kind, name.host, name.name),)
    assert [host.host for host in snapshot.hosts] == ["good"]


@given(st.binary(max_size=200))
def test_no_bytes_raise(value: bytes) -> None:
    for key, _, _ in RECORDS:
        build_snapshot(1, [pair(key, value)])


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.just(10**400),
    st.floats(),
    st.text(),
    st.just("\ud800"),
    st.lists(st.dictionaries(st.sampled_from(["transport", "traddr", "trsvcid"]), st.text()), max_size=2),
    st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
)


@given(st.data())
def test_no_document_raises_and_what_is_read_can_be_sent(data: st.DataObject) -> None:
    config: dict[str, Any] = {"name": "n", "created": 1, "uuid": "u"}
    for (key, _, _), base in zip(RECORDS, (config, ENTRY, NODE, CARD, HEALTH), strict=True):
        changes = data.draw(st.dictionaries(st.sampled_from(sorted(base)), odd, max_size=2))
        found = build_snapshot(1, [pair(key, changed(base, **changes))])
        json.dumps(asdict(found), ensure_ascii=False).encode()


def test_what_no_one_could_read_is_not_written() -> None:
    with pytest.raises(codec.RecordError, match="no Unicode text"):
        codec.encode_host(HostRecord("h", True, False, {"data": "\ud800"}))


def test_unknown_fields_are_ignored() -> None:
    assert codec.decode_host("h", changed(NODE, later={"x": 1})).enabled


def test_steps_are_read_back_with_64_bit_ids() -> None:
    step = MembershipStep("id-1", "promote", "h", 2**64 - 1, "http://127.0.0.1:2380", (1, 2**63))
    assert decode_step(encode_step(step)) == step
    with pytest.raises(codec.RecordError, match="action is 'explode'"):
        decode_step(encode_step(step).replace(b"promote", b"explode"))
