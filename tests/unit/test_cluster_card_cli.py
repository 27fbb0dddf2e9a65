"""The card CLI: a good list is read, and everything else is an error, never an empty list."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.base.card_cli import CardCli, CardCliError, parse_card_list
from tests.support.procs import wait_until

GOOD: dict[str, Any] = {
    "id": "xdp0",
    "serial": "L0P0",
    "nqn": "nqn.2026-01.test:L0P0",
    "uuid": "u0",
    "state": "running",
    "addresses": [{"transport": "tcp", "traddr": "::ffff:127.0.0.1", "trsvcid": "4420"}],
}


def listing(*cards: Any) -> str:
    return json.dumps({"cards": list(cards)})


def test_a_good_list_comes_out_canonical_and_sorted() -> None:
    other = GOOD | {"id": "xdp1", "serial": " L0P1  ", "state": "stopped", "addresses": [], "uuid": None}
    first, second = parse_card_list(listing(other, GOOD))
    assert (first.device, first.paths[0].traddr, first.paths[0].trsvcid) == ("xdp0", "127.0.0.1", "4420")
    assert (second.device, second.serial, second.uuid, second.state) == ("xdp1", "L0P1", "", "stopped")
    assert parse_card_list(listing()) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"id": "a/b"},
        {"id": 7},
        {"serial": ""},
        {"serial": "L0/P0"},
        {"serial": "x" * 21},
        {"nqn": "iqn.x"},
        {"nqn": "nqn." + "x" * 300},
        {"state": "asleep"},
        {"addresses": None},
        {"addresses": ["tcp"]},
        {"addresses": [{"transport": "fc", "traddr": "127.0.0.1", "trsvcid": "1"}]},
        {"addresses": [{"transport": "tcp", "traddr": "host", "trsvcid": "1"}]},
        {"addresses": [{"transport": "tcp", "traddr": "127.0.0.1", "trsvcid": "0"}]},
        {"addresses": [{"transport": "tcp", "traddr": "127.0.0.1", "trsvcid": "70000"}]},
        {"addresses": [{"transport": "tcp", "traddr": "127.0.0.1", "trsvcid": "1" * 5000}]},
    ],
)
def test_one_bad_card_makes_the_whole_list_unusable(change: dict[str, Any]) -> None:
    with pytest.raises(CardCliError):
        parse_card_list(listing(GOOD | {"id": "xdp1", "serial": "L0P1"}, GOOD | change))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cards": {}}', "[" * 5000, '{"cards": [null]}'])
def test_what_is_no_list_is_an_error(text: str) -> None:
    with pytest.raises(CardCliError):
        parse_card_list(text)


def test_a_device_listed_twice_and_too_many_cards_are_errors() -> None:
    with pytest.raises(CardCliError, match="twice"):
        parse_card_list(listing(GOOD, GOOD))
    with pytest.raises(CardCliError, match="more than"):
        parse_card_list(listing(*(GOOD | {"id": f"xdp{n}"} for n in range(300))))


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        parse_card_list(text)
    except CardCliError:
        return


def script(directory: Path, body: str) -> str:
    path = directory / "cards"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_command_is_run(tmp_path: Path) -> None:
    cli = CardCli([script(tmp_path, f"echo '{listing(GOOD)}'")], 10.0)
    assert [card.serial for card in await cli.list_cards()] == ["L0P0"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"echo '{listing(GOOD)}'; exit 3", "exited with code 3"),
        ("echo garbage", "not JSON"),
        ("printf '\\377\\376'", "not UTF-8"),
        ("head -c 3000000 /dev/zero", "more than"),
        ("true", "not JSON"),
    ],
)
async def test_a_failing_command_is_an_error(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(CardCliError, match=words):
        await CardCli([script(tmp_path, body)], 10.0).list_cards()


async def test_a_missing_command_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CardCliError, match="can't be run"):
        await CardCli([str(tmp_path / "none")], 1.0).list_cards()


async def test_a_hanging_command_ends_at_the_deadline_with_its_children(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    cli = CardCli([script(tmp_path, f"sleep 60 & echo $! > {marker}; wait")], 0.5)
    began = time.monotonic()
    with pytest.raises(CardCliError, match="no answer within"):
        await cli.list_cards()
    assert time.monotonic() - began < 5
    await asyncio.to_thread(wait_until, lambda: ended(marker.read_text().strip()), "its child ended")


def ended(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().split(")")[1].split()[0] == "Z"
