"""Cards that are asked for their serial: right, wrong, silent, duplicate; forgetting one; events; plan."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clustercli.call import CallError
from tests.support.addresses import LoopbackNet
from tests.support.cli import run_cli
from tests.support.cluster_hosts import (
    ClusterHost,
    ask_cards,
    ask_cluster,
    ask_events,
    card,
    cards_of,
    cli_json,
    cluster_hosts,
)
from tests.support.procs import Program, python_environment, python_module, wait_until
from tests.support.softcard import Card

pytestmark = pytest.mark.slow
PATIENCE = 30.0


def listed(real: Card, device: str = "xdp0", **changes: Any) -> dict[str, Any]:
    """A running software card as a card CLI lists it, with what the CLI says wrongly."""
    return {
        "id": device,
        "serial": real.serial,
        "nqn": real.nqn,
        "uuid": None,
        "state": "running",
        "addresses": [{"transport": "tcp", "traddr": real.address[0], "trsvcid": str(real.address[1])}],
        **changes,
    }


def shown(host: ClusterHost) -> dict[str, dict[str, Any]]:
    """The cards command's cards by serial."""
    return {entry["xdp_serial"]: entry for entry in ask_cards(host)["cards"]}


def wait_check(host: ClusterHost, serial: str, check: str) -> dict[str, Any]:
    """Until one place of the card has this check; that place."""

    def probe() -> dict[str, Any] | None:
        places = shown(host).get(serial, {"places": []})["places"]
        return next((place for place in places if place["check"] == check), None)

    return wait_until(probe, f"{serial} is {check}", PATIENCE, every=0.2)


def wait_joined(host: ClusterHost, serial: str) -> None:
    """Until the card was checked, and is shown by both commands as one of the cluster's."""
    wait_check(host, serial, "checked")
    wait_until(lambda: serial in cards_of(ask_cluster(host)), f"{serial} is registered", every=0.2)
    wait_until(lambda: shown(host)[serial]["places"][0]["in_use"], f"{serial} is in use", every=0.2)


def events(host: ClusterHost) -> list[dict[str, Any]]:
    return list(ask_events(host)["events"])


@pytest.fixture
def card_dir(tmp_path: Path) -> Path:
    return tmp_path / "cards"


@pytest.fixture
def host(tmp_path: Path, loopback_net: LoopbackNet) -> Iterator[ClusterHost]:
    """A cluster of one host that lists no cards yet, and registers none without asking it."""
    with cluster_hosts(tmp_path / "hosts", loopback_net, 1, AWC_CARD_CHECK_SECONDS="3600") as (host,):
        host.set_cards()
        cli_json(host, "create_cluster", "--name", "kv-cache")
        yield host


def restart(host: ClusterHost, **settings: str) -> None:
    host.running.stop()
    host.configure(**settings)
    host.start()
    wait_until(lambda: answers(host), "the cluster answers again", PATIENCE, 0.2)


def answers(host: ClusterHost) -> bool:
    try:
        return bool(ask_cluster(host))
    except CallError:
        return False


def test_a_wrong_serial_is_reported_once_with_the_remedy_and_never_registered(
    host: ClusterHost, loopback_net: LoopbackNet, card_dir: Path
) -> None:
    with Card(card_dir, loopback_net.host(11), serial="L0P0") as real:
        host.set_cards(listed(real, serial="HW-4711"))
        place = wait_check(host, "HW-4711", "mismatch")
        assert "AWC_XDP_SERIALS=xdp0:L0P0" in place["check_text"]
        assert not place["in_use"]
        assert shown(host)["HW-4711"]["join_seq"] == 0
        assert cards_of(ask_cluster(host)) == {}
        (problem,) = wait_until(lambda: ask_cluster(host)["card_problems"], "the problem is shown")
        assert problem.startswith("host-1 xdp0 (HW-4711): mismatch")
        cycles = len(host.running.events("cycle"))
        wait_until(lambda: len(host.running.events("cycle")) >= cycles + 6, "six more cycles", PATIENCE)
        assert len(host.running.events("card check")) == 1
        alarms = wait_until(lambda: [e for e in events(host) if e["kind"] == "alarm"], "the alarm is noted")
        assert [alarm["subject"] for alarm in alarms] == ["HW-4711"]

        restart(host, AWC_CARD_CHECK_SECONDS="3600", AWC_XDP_SERIALS="xdp0:L0P0")
        wait_joined(host, "L0P0")
        cards = shown(host)
        assert list(cards) == ["L0P0"]
        assert (cards["L0P0"]["join_seq"], cards["L0P0"]["places"][0]["in_use"]) == (1, True)
        assert cards_of(ask_cluster(host))["L0P0"]["slot"] == cards["L0P0"]["slot"] >= 0


def test_a_silent_card_waits_and_is_registered_when_it_answers(
    host: ClusterHost, loopback_net: LoopbackNet, card_dir: Path
) -> None:
    with Card(card_dir, loopback_net.host(11), serial="L0P0") as real:
        here = listed(real)
        real.suspend()
        try:
            host.set_cards(here)
            wait_check(host, "L0P0", "unchecked")
            assert cards_of(ask_cluster(host)) == {}
        finally:
            real.resume()
        wait_joined(host, "L0P0")
        assert cards_of(ask_cluster(host))["L0P0"]["state"] == "running"


def test_a_registered_card_that_falls_silent_stays(
    host: ClusterHost, loopback_net: LoopbackNet, card_dir: Path
) -> None:
    with Card(card_dir, loopback_net.host(11), serial="L0P0") as real:
        host.set_cards(listed(real))
        wait_joined(host, "L0P0")
        host.set_cards(listed(real, state="stopped"))
        wait_check(host, "L0P0", "unchecked")
        wait_until(lambda: cards_of(ask_cluster(host))["L0P0"]["state"] == "stopped", "it is shown stopped")
        host.set_cards(listed(real))
        wait_check(host, "L0P0", "checked")


def test_a_card_that_never_answers_is_let_in_after_a_while(tmp_path: Path, loopback_net: LoopbackNet) -> None:
    with cluster_hosts(tmp_path, loopback_net, 1, AWC_CARD_CHECK_SECONDS="1") as (host,):
        cli_json(host, "create_cluster", "--name", "kv-cache")
        wait_until(lambda: cards_of(ask_cluster(host)), "the card is registered", PATIENCE, every=0.2)
        place = wait_check(host, "L0P1", "unchecked")
        assert "can't be asked" in place["check_text"]
        assert place["in_use"]


def test_a_second_serial_for_an_nqn_is_a_duplicate_until_the_first_is_forgotten(
    tmp_path: Path, loopback_net: LoopbackNet
) -> None:
    with cluster_hosts(tmp_path, loopback_net, 1) as (host,):
        host.set_cards(card(0) | {"serial": "WRONG"})
        cli_json(host, "create_cluster", "--name", "kv-cache")
        wait_until(lambda: "WRONG" in cards_of(ask_cluster(host)), "WRONG is registered", PATIENCE, every=0.2)
        slot = shown(host)["WRONG"]["slot"]
        host.set_cards(card(0))
        place = wait_check(host, "L0P0", "duplicate")
        assert "clustercli cards forget WRONG" in place["check_text"]
        assert list(cards_of(ask_cluster(host))) == ["WRONG"]

        refused = run_cli("--host", host.api, "cards", "forget", "WRONG")
        assert refused.returncode == 1
        assert "--even-if-listed" in refused.stderr
        unknown = run_cli("--host", host.api, "cards", "forget", "NOBODY")
        assert unknown.returncode == 1
        assert "its cards are WRONG" in unknown.stderr

        answer = cli_json(host, "cards", "forget", "WRONG", "--even-if-listed")
        assert (answer["freed_slot"], answer["moved_serials"]) == (slot, [])
        wait_until(lambda: list(cards_of(ask_cluster(host))) == ["L0P0"], "L0P0 joins", PATIENCE, every=0.2)
        assert shown(host)["L0P0"]["join_seq"] == 1
        words = "was forgotten by an administrator"
        wait_until(lambda: [e for e in events(host) if e["subject"] == "WRONG" and words in e["text"]], words)


@pytest.mark.parametrize("one_card", [True, False])
def test_one_serial_on_two_hosts_is_one_card_only_if_the_subsystem_says_so(
    tmp_path: Path, loopback_net: LoopbackNet, one_card: bool
) -> None:
    uuids = [f"11111111-2222-3333-4444-{last:012d}" for last in (1, 1 if one_card else 2)]
    with (
        Card(tmp_path / "a", loopback_net.host(11), serial="L0P0", extra=("--uuid", uuids[0])) as first_card,
        Card(tmp_path / "b", loopback_net.host(12), serial="L0P0", extra=("--uuid", uuids[1])) as second_card,
        cluster_hosts(tmp_path / "hosts", loopback_net, 2, AWC_CARD_CHECK_SECONDS="3600") as (first, second),
    ):
        first.set_cards(listed(first_card))
        second.set_cards()
        cli_json(first, "create_cluster", "--name", "kv-cache")
        wait_check(first, "L0P0", "checked")
        cli_json(second, "add_node", "-n", first.api)
        second.set_cards(listed(second_card, device="xdp7"))
        wanted = "checked" if one_card else "duplicate"

        def places() -> dict[str, dict[str, Any]]:
            return {place["host"]: place for place in shown(first)["L0P0"]["places"]}

        wait_until(lambda: places().get("host-2", {}).get("check") == wanted, wanted, PATIENCE, every=0.2)
        wait_until(lambda: places()["host-2"]["in_use"] == one_card, "whether it is in use", every=0.2)
        assert places()["host-1"]["in_use"]
        assert [entry["xdp_serial"] for entry in ask_cards(second)["cards"]] == ["L0P0"]
        if not one_card:
            assert "also that of host-1 xdp0" in places()["host-2"]["check_text"]


def test_plan_events_and_watch(host: ClusterHost, loopback_net: LoopbackNet, card_dir: Path) -> None:
    with Card(card_dir, loopback_net.host(11), serial="L0P0") as real:
        follower = Program(
            python_module("clustercli.main", "--host", host.api, "--output", "json", "events", "--follow"),
            env=python_environment(),
            name="follower",
        )
        try:
            host.set_cards(listed(real))
            wait_joined(host, "L0P0")
            plan = cli_json(host, "plan")
            assert plan["fingerprint"] == ask_cluster(host)["fingerprint"]
            (slot,) = plan["slots"]
            assert (slot["xdp_serial"], slot["host"], slot["routable"]) == ("L0P0", "host-1", True)
            assert cli_json(host, "plan", "--num-dbs", "64")["fingerprint"] != plan["fingerprint"]
            follower.wait_line("joined as xdp0 of host-1")
        finally:
            follower.stop()
        numbers = [event["number"] for event in events(host)]
        assert numbers == sorted(set(numbers))
        wait_until(lambda: {"leader", "card"} <= {event["kind"] for event in events(host)}, "both kinds")
        assert len(cli_json(host, "events", "--limit", "1")["events"]) == 1
        watched = Program(
            python_module(
                "clustercli.main",
                "--host",
                host.api,
                "--output",
                "json",
                "cards",
                "--watch",
                "--every",
                "0.2",
            ),
            env=python_environment(),
            name="watched",
        )
        try:
            wait_until(lambda: watched.tail().count('"cards"') >= 2, "two answers", PATIENCE)
        finally:
            os.kill(watched.pid, signal.SIGINT)
            assert watched.wait_exit() == 0
