"""What a card says of itself, read from the program that asks it: of the right shape, and fit to be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.base.card_cli import ListedPath
from controlplane.base.card_identify import CardIdentify, IdentifyError, parse_identified

GOOD: dict[str, Any] = {
    "serial": "L0P0 ",
    "nqn": "nqn.2026-01.test:L0P0",
    "multi_controller": False,
    "namespaces": [{"nsid": 1, "uuid": "b", "nguid": None}, {"nsid": 2, "uuid": None, "nguid": "a"}],
}
PATH = ListedPath("tcp", "127.0.0.1", "4420")


def test_a_good_answer_is_read() -> None:
    found = parse_identified(json.dumps(GOOD).encode())
    assert (found.serial, found.namespaces, found.multi_controller) == ("L0P0", ("a", "b"), False)


@pytest.mark.parametrize(
    "change",
    [
        {"serial": "L0\x1b[2JP0"},
        {"nqn": "nqn.2026-01.test:\r\n"},
        {"namespaces": [{"nsid": 1, "uuid": "\x07", "nguid": None}]},
        {"serial": 7},
        {"namespaces": None},
    ],
)
def test_what_can_not_be_shown_or_read_is_no_answer(change: dict[str, Any]) -> None:
    with pytest.raises(IdentifyError) as refused:
        parse_identified(json.dumps(GOOD | change).encode())
    assert str(refused.value).isprintable()


async def test_the_programs_words_are_fit_to_be_shown(tmp_path: Path) -> None:
    program = tmp_path / "asks"
    program.write_text("#!/bin/sh\nprintf 'akv-nvme: it says \\033[2J\\007\\n' >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(IdentifyError, match=r"^it says \?\[2J\?$"):
        await CardIdentify((str(program),)).ask(PATH, "nqn.2026-01.test:L0P0")
