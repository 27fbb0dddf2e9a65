"""What a replay tells of cards that know their blocks and don't bring them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.figures import trace as figure
from bench.generate import write_trace
from bench.main import main
from bench.pod import Pod, running_pod
from tests.support.figures import figure_options

REQUESTS = 60
STRIKES = 2


@contextmanager
def failing_pod(directory: Path, **settings: Any) -> Iterator[Pod]:
    """Each card fails its first reads; lookups and stores are done."""
    with running_pod(directory, **settings) as pod:
        for card in pod.cards:
            card.control(f"fault retrieve error count={STRIKES}")
        yield pod


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    with path.open("w") as out:
        write_trace(out, REQUESTS, seed=4)
    return path


@pytest.mark.parametrize(("more", "code"), [((), 3), (("--bounded",), 0)])
def test_blocks_that_are_found_and_not_read_fail_a_replay_unless_cards_may_drop_them(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], code: int
) -> None:
    with (
        failing_pod(tmp_path, capacity=1 << 28, read_cache_size=0) as pod,
        pytest.raises(SystemExit) as ended,
    ):
        main(["replay", "--trace", str(trace), "--socket", str(pod.socket), "--json", *more])
    said = capsys.readouterr()
    summary = json.loads(said.out.splitlines()[-1])
    assert summary["matched_blocks"] == summary["expected_blocks"], "every block is found"
    assert summary["wrong_blocks"] == summary["errors"] == 0
    assert summary["unread_blocks"] == summary["matched_blocks"] - summary["got_blocks"] == STRIKES
    assert f"{STRIKES} blocks were found, but not read" in said.err
    assert ended.value.code == code


def test_the_figure_does_not_hold_where_blocks_are_found_and_not_read(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "running_pod", failing_pod)
    directory = tmp_path / "figure"
    directory.mkdir()
    options = figure_options(directory, trace=trace, requests=REQUESTS)
    claims = {claim.what: claim for claim in figure.measure(options).claims}
    assert claims["hit ratio, farthest from the simulation"].holds, "the lookups alone don't show it"
    assert not claims["blocks found but not read"].holds
