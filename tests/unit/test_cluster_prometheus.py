"""Prometheus' answers, good and bad, and the files that are written for it: the pure parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.ping_targets import PingTarget
from controlplane.cluster.evidence import HostEndpoints, PathLoss
from controlplane.cluster.monitoring import write_changed
from controlplane.cluster.prometheus_files import host_targets, pings_of, prometheus_config, scrape_files
from controlplane.cluster.prometheus_source import AnswerError, evidence_of, parse_answer
from controlplane.model.cards import CardPath, CardRecord, ClusterSnapshot, HostRecord, UnreadableRecord

HOSTS = {"s1": HostEndpoints("192.0.2.1:7891", "192.0.2.1:9427"), "s2": HostEndpoints("192.0.2.2:7891")}


def series(name: str, value: Any, **labels: str) -> dict[str, Any]:
    return {"metric": {"__name__": name, **labels}, "value": [1795975645.2, value]}


def up(host: str, value: str = "1") -> dict[str, Any]:
    return series("up", value, job="akv-cards", host=host)


def status(host: str, serial: str, value: str) -> dict[str, Any]:
    return series("xdp_service_status", value, job="akv-cards", host=host, serial=serial, xdp="xdp0")


def answer(*result: Any, **extra: Any) -> bytes:
    document = {"status": "success", "data": {"resultType": "vector", "result": list(result)}, **extra}
    return json.dumps(document).encode()


def test_status_is_taken_from_the_target_that_our_configuration_names() -> None:
    body = answer(up("s1"), up("s2"), status("s1", "A", "1"), status("s2", "A", "0"), status("s9", "B", "0"))
    evidence = evidence_of(parse_answer(body), HOSTS)
    assert {host: dict(sample.status) for host, sample in evidence.samples.items()} == {
        "s1": {"A": 1.0},
        "s2": {"A": 0.0},
    }
    assert not evidence.problem


def test_a_target_that_is_down_or_missing_is_an_error_whatever_its_series_say() -> None:
    evidence = evidence_of(parse_answer(answer(up("s1", "0"), status("s1", "A", "0"))), HOSTS)
    assert "does not answer Prometheus" in evidence.samples["s1"].error
    assert "no fresh scrape" in evidence.samples["s2"].error
    assert all(not sample.status for sample in evidence.samples.values())


def test_loss_counts_only_where_source_and_target_are_one_host() -> None:
    labels = {"destination": "s2", "address": "192.0.2.2"}
    good = series("ping_loss_percent", "75", job="akv-ping", host="s1", source="s1", **labels)
    copied = series("ping_loss_percent", "100", job="akv-ping", host="s2", source="s1", **labels)
    foreign = series("ping_loss_percent", "100", job="other", host="s1", source="s1", **labels)
    stranger = series("ping_loss_percent", "100", job="akv-ping", host="s9", source="s9", **labels)
    evidence = evidence_of(parse_answer(answer(good, copied, foreign, stranger)), HOSTS)
    assert evidence.loss == (PathLoss("s1", "s2", "192.0.2.2", 75.0),)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "did not answer with success"),
        (b'{"status": "error", "error": "boom"}', "did not answer with success"),
        (answer(warnings=["remote read: boom"]), "calls its answer partial"),
        (b'{"status": "success"}', "did not answer with a vector"),
        (b'{"status": "success", "data": {"resultType": "matrix", "result": []}}', "with a vector"),
        (b'{"status": "success", "data": {"resultType": "vector", "result": {}}}', "no list"),
        (answer(up("s1"), "x"), "can't be read"),
        (answer({"metric": {}, "value": [1]}), "can't be read"),
        (answer({"metric": {}, "value": [1, "1"]}), "no texts"),
        (answer(series("up", 1)), "no texts"),
        (answer(series("up", "one")), "no number"),
    ],
)
def test_an_answer_that_is_not_wholly_right_is_no_answer(body: bytes, words: str) -> None:
    with pytest.raises(AnswerError, match=words):
        parse_answer(body)


@given(st.binary())
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with pytest.raises(AnswerError):
        parse_answer(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("metric", "value", "__name__", "host")), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.lists(JSON, max_size=4))
def test_no_document_breaks_the_reader(result: list[Any]) -> None:
    try:
        found = parse_answer(answer(*result))
    except AnswerError:
        return
    assert len(found) == len(result)


def host(name: str, number: int, *, enabled: bool = True, witness: bool = False, **more: str) -> HostRecord:
    addresses = {"exporter": f"192.0.2.{number}:7891", "ping": f"192.0.2.{number}:9427", **more}
    return HostRecord(name, enabled, witness, addresses)


def card(of: str, *addresses: str) -> CardRecord:
    paths = tuple(CardPath("tcp", address, "4420") for address in addresses)
    return CardRecord(of, "xdp0", f"serial-{of}", "nqn.x", "", paths)


PICTURE = ClusterSnapshot(
    revision=1,
    config=None,
    hosts=(
        host("s1", 1, data="198.51.100.9, ::ffff:198.51.100.1,rubbish"),
        host("s2", 2),
        HostRecord("w1", True, True, {"exporter": "192.0.2.3:7891"}),
        host("gone", 4, enabled=False),
    ),
    cards=(
        card("s1", "198.51.100.1"),
        card("s2", "198.51.100.2", "2001:db8::2"),
        card("gone", "198.51.100.4"),
    ),
)


def test_targets_are_the_enabled_hosts_and_their_data_addresses() -> None:
    targets = host_targets(PICTURE, ())
    files = {name: json.loads(content) for name, content in scrape_files(targets).items()}
    assert files["targets/cards.json"] == [
        {"targets": ["192.0.2.1:7891"], "labels": {"host": "s1", "witness": "0"}},
        {"targets": ["192.0.2.2:7891"], "labels": {"host": "s2", "witness": "0"}},
        {"targets": ["192.0.2.3:7891"], "labels": {"host": "w1", "witness": "1"}},
    ]
    assert [group["labels"]["host"] for group in files["targets/ping.json"]] == ["s1", "s2"]
    assert pings_of("s2", targets) == (PingTarget("s1", "198.51.100.1"), PingTarget("s1", "198.51.100.9"))
    assert pings_of("w1", targets)[2:] == (PingTarget("s2", "198.51.100.2"), PingTarget("s2", "2001:db8::2"))


def test_a_host_that_cannot_be_read_keeps_its_targets_and_a_disabled_one_does_not() -> None:
    before = host_targets(PICTURE, ())
    unreadable = tuple(UnreadableRecord("node", name) for name in ("s2", "gone", "s7"))
    hosts = tuple(record for record in PICTURE.hosts if record.host != "s2")
    picture = replace(PICTURE, hosts=hosts, unreadable=unreadable, cards=PICTURE.cards[:1])
    assert host_targets(picture, before) == before
    lost_card = replace(
        PICTURE, cards=PICTURE.cards[:1], unreadable=(UnreadableRecord("card", "s2", "xdp0"),)
    )
    assert host_targets(lost_card, before) == before
    disabled = replace(lost_card, hosts=(*hosts, host("s2", 2, enabled=False)))
    assert [target.host for target in host_targets(disabled, before)] == ["s1", "w1"]


def test_the_configuration_scrapes_both_jobs() -> None:
    config = yaml.safe_load(prometheus_config(5))
    assert config["global"] == {"scrape_interval": "5000ms", "scrape_timeout": "4000ms"}
    files = {job["job_name"]: job["file_sd_configs"][0]["files"] for job in config["scrape_configs"]}
    assert files == {"akv-cards": ["targets/cards.json"], "akv-ping": ["targets/ping.json"]}


def test_files_are_replaced_only_when_they_differ_and_are_readable_by_prometheus(tmp_path: Path) -> None:
    files = {"targets/cards.json": "[]\n", "prometheus.yml": "a: 1\n"}
    assert write_changed(tmp_path, files) == ["targets/cards.json", "prometheus.yml"]
    assert write_changed(tmp_path, files) == []
    before = (tmp_path / "prometheus.yml").stat().st_ino
    assert write_changed(tmp_path, {**files, "targets/cards.json": "[1]\n"}) == ["targets/cards.json"]
    assert (tmp_path / "prometheus.yml").stat().st_ino == before
    assert (tmp_path / "prometheus.yml").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["cards.json", "prometheus.yml", "targets"]


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"AWC_MONITORING_DIR=.*create it"):
        write_changed(tmp_path / "no", {"a": "b"})
    assert not (tmp_path / "no").exists()
