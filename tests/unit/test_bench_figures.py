"""What the figures of docs/performance.md are made of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from bench.dialogs import Request
from bench.figures import hot, initiator, path, peers, spdk
from bench.figures.__main__ import main as figures_program
from bench.figures.__main__ import without_paths
from bench.figures.options import Options
from bench.figures.page import main as page_program
from bench.figures.page import rewritten, tables
from bench.figures.path import least, report
from bench.figures.record import Claim, Report, Row, ratios
from bench.figures.spdk import total_mib_per_s
from bench.initiator import Case as InitiatorCase
from bench.peers.measure import Case, Plan, Run
from bench.pod import dialogs_of
from bench.processes import ProcessError, child
from bench.simulate import LruCache
from controlplane.model.routing import slot_for_dialog
from controlplane.model.slots import match_slots
from tests.support.figures import figure_options

REPORT = Report(
    "example",
    [Row("get 2 MiB", "GB/s", [1.0, 4.0, 2.0], {"size": 2 << 20})],
    [Claim("against TCP", 0.75, 0.8), Claim("ratio of p99", 1.1, 1.2, at_most=True)],
    {"cards": 1},
)


def test_a_record_has_every_value_and_what_was_wanted() -> None:
    record = json.loads(json.dumps(REPORT.record(["python", "x"], {"cores": 2})))
    [row] = record["rows"]
    assert (row["median"], row["least"], row["greatest"], row["values"]) == (2.0, 1.0, 4.0, [1.0, 4.0, 2.0])
    assert row["size"] == 2 << 20
    assert [(claim["wanted"], claim["holds"]) for claim in record["claims"]] == [
        ("at least 0.8", False),
        ("at most 1.2", True),
    ]
    assert record["command"] == ["python", "x"]
    assert record["machine"] == {"cores": 2}


def test_the_table_names_what_falls_short() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(REPORT.table())
    text = captured.get()
    assert "get 2 MiB" in text
    assert "against TCP: 0.75, wanted at least 0.8: FALLS SHORT" in text
    assert "ratio of p99: 1.1, wanted at most 1.2: holds" in text


def test_ratios_are_of_the_same_repeat() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])


def test_dialogs_go_to_their_card() -> None:
    serials = ["B0P0", "B1P0", "B2P0", "B3P0"]
    slots = match_slots(serials)
    for serial in serials:
        dialogs = dialogs_of(serial, serials, 20)
        assert len(set(dialogs)) == 20
        assert {slots[slot_for_dialog(dialog, slots) or 0] for dialog in dialogs} == {serial}


def _run(cache: str, case: Case, repeat: int, speed: float) -> Run:
    return Run(cache, case, repeat, speed, speed * 1000, 0.1, 0.2, 0.5, wrong=0)


def test_the_claim_of_a_cache_is_that_of_its_worst_size() -> None:
    plan = Plan(("loopback", "ours"), 2, [1 << 20, 2 << 20], [1, 32], 64 << 20, exists=True)
    speeds = {1 << 20: 1.5, 2 << 20: 1.0, 4096: 1.0}
    runs = [
        _run(cache, case, repeat, speeds[case.size] * (repeat + 1) * (0.5 if cache == "ours" else 1.0))
        for repeat in range(2)
        for case in plan.cases()
        for cache in plan.caches
    ]
    claim = least(runs, "get", 32, "ours", "loopback", 0.8)
    assert (claim.measured, claim.holds) == (0.5, False)
    assert claim.what == "get x32, ours / loopback, least of 1 MiB, 2 MiB"
    made = report("peers", plan, runs, [claim])
    first = next(row for row in made.rows if row.labels["cache"] == "ours")
    assert (first.case, first.values) == ("put 1024 KiB x1, ours", [0.75, 1.5])
    assert made.claims[-1].what == "wrong blocks"
    assert made.claims[-1].holds


@pytest.mark.parametrize(
    ("figure", "caches", "batches", "measured"),
    [
        (
            path,
            ["loopback", "ours-region"],
            [32],
            {"put x32, ours-region / loopback", "get x32, ours-region / loopback"},
        ),
        (path, ["loopback", "ours-region"], [1], set()),
        (
            peers,
            ["redis-py", "ours-arena"],
            [1],
            {"put x1, ours-arena / redis-py", "get x1, ours-arena / redis-py"},
        ),
    ],
)
def test_claims_that_a_run_leaves_out_are_told_as_not_measured(
    figure: ModuleType,
    caches: list[str],
    batches: list[int],
    measured: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def run(plan: Plan, *_: Path) -> list[Run]:
        return [_run(cache, case, 0, 1.0) for case in plan.cases() for cache in plan.caches]

    monkeypatch.setattr(figure, "run_caches", run)
    full = figure.measure(figure_options(tmp_path))
    some = figure.measure(figure_options(tmp_path, caches=caches, batches=batches))
    assert all(claim.measured is not None for claim in full.claims)
    assert len(some.claims) == len(full.claims)
    told = [claim for claim in some.claims if claim.measured is not None]
    assert {claim.what.partition(", least")[0] for claim in told} == measured | {"wrong blocks"}
    missing = next(claim for claim in some.claims if claim.measured is None)
    assert (missing.holds, missing.record()["holds"]) == (None, None)
    machine = {"cores": 2, "cpu": "", "commit": "", "kernel": "", "began": "", "load_before": 0.1}
    assert f"| {missing.what} | at least {missing.limit:g} | not measured |" in tables(
        some.record([], machine)
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(some.table())
    assert f"{missing.what}: not measured, wanted at least" in captured.get()


@pytest.mark.parametrize("with_spdk", [True, False])
def test_the_initiator_and_spdks_have_their_turns_in_another_order_each_time(
    with_spdk: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = []

    def ours(settings: object, case: InitiatorCase) -> dict[str, Any]:
        order.append(case.waiting)
        return {"gb_per_s": 2.0, "cpu_cores": 1.0, "p99_us": 1.0}

    def theirs(*_: object) -> float:
        order.append("spdk")
        return 1.0

    @contextmanager
    def target(options: Options) -> Iterator[initiator.Target]:
        yield initiator.Target(1, "nqn")

    monkeypatch.setattr(initiator, "run_case", ours)
    monkeypatch.setattr(spdk, "perf", theirs)
    monkeypatch.setattr(initiator, "_target", target)
    monkeypatch.setattr(initiator, "INITIATOR_CORE", min(os.sched_getaffinity(0)))
    report = initiator.measure(figure_options(tmp_path, repeats=2, spdk=tmp_path if with_spdk else None))
    names = [*initiator.WAYS, *(["spdk"] if with_spdk else [])]
    rounds = [order[start : start + len(names)] for start in range(0, len(order), len(names))]
    assert len(rounds) == 2 * 2 * len(initiator.SIZES) * len(initiator.DEPTHS)
    assert all(sorted(turns) == sorted(names) for turns in rounds)
    assert {turns[0] for turns in rounds} == {turns[-1] for turns in rounds} == set(names)
    assert [claim.measured for claim in report.claims] == [2.0 if with_spdk else None] * 4


def test_the_speed_of_hot_blocks_is_that_of_the_slower_place() -> None:
    figures = {case: hot.Figures([1.0], [4.0 if case.place == "arena" else 5.0], [0.1]) for case in hot.CASES}
    loans = {case: hot.Loans([2e6], [2e6], [2e6]) for case in hot.BORROWED}
    claim = hot._report(figures, loans, [5.0], 1).claims[-1]
    assert (claim.what, claim.measured) == ("GB/s at 2 MiB x32, the slower of arena and region", 4.0)


def test_a_run_moves_what_it_is_told_to() -> None:
    plan = Plan(("ours",), 1, [1 << 20], [32], 64 << 20, exists=True)
    assert [(str(case), plan.rounds(case)) for case in plan.cases()] == [
        ("put 1024 KiB x32", 2),
        ("get 1024 KiB x32", 2),
        ("exists 4 KiB x4096", 4),
    ]


def test_an_lru_drops_what_was_longest_not_used() -> None:
    cache = LruCache(3)
    served = [
        cache.serve(Request(list(keys), 0, 0)) for keys in ([b"a", b"b"], [b"a", b"c"], [b"d"], [b"a", b"b"])
    ]
    # The last one finds a, which was read after b; b was dropped when d came.
    assert served == [0, 1, 0, 1]


def test_the_speed_of_spdk_is_read_from_its_total() -> None:
    lines = [
        "TCP (addr:127.0.0.1 subnqn:x) NSID 1 from core  1:  1200.00  2400.00  833.10  400.1  9000.2",
        "=====",
        "Total                                            :  1200.00  2400.50  833.10  400.1  9000.2",
    ]
    assert total_mib_per_s("\n".join(lines)) == 2400.5
    assert total_mib_per_s("Total latency: unknown\n") is None


def test_the_page_gets_the_tables_of_the_figures_that_were_taken() -> None:
    when = {"began": "2026-01-31T10:20:30+00:00", "load_before": 0.1}
    machine = {"cores": 2, "cpu": "Example", "commit": "abc", "kernel": "6"} | when
    labels: dict[str, str | int] = {"cache": "ours", "op": "get", "size": 2 << 20, "batch": 32}
    row = Row("", "GB/s", [1.0, 2.0, 1.5], labels | {"field": "gb_per_s"})
    taken = Report("path", [row], REPORT.claims, {"cards": 1})
    records = {"path": taken.record(["make"], machine)}
    kept = "b\n<!-- figure hot -->\nkept\n<!-- end hot -->\n"
    page = f"a\n<!-- figure path -->\noutdated\n<!-- end path -->\n{kept}"
    text = rewritten(page, records)
    assert "| get 2 MiB x32 | 1.5 (1 to 2) |" in text
    assert "| against TCP | at least 0.8 | 0.75 | **short** |" in text
    assert "2026-01-31 10:20 UTC, commit abc: 2 cores, Example" in text
    assert "](plots/path.svg)" in text
    assert "outdated" not in text
    assert text.endswith(kept)
    assert rewritten(text, records) == text
    plain = Report("idle", [Row("asleep", "%", [1.0, 4.0, 2.0])], [], {})
    made = tables(plain.record(["make"], machine))
    assert "| asleep | 2 (1 to 4) | % |" in made


def test_a_small_trial_does_not_get_into_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figure example -->\nkept\n<!-- end example -->\n")
    trial = REPORT.record(["python", "example", "--quick"], {"cores": 2})
    (tmp_path / "example.json").write_text(json.dumps(trial))
    monkeypatch.setattr(sys, "argv", ["page", str(tmp_path), str(page)])
    assert page_program() == 0
    assert "kept" in page.read_text()
    assert "small trials: example" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--repeats=0", "--requests=-1", "--sizes=64K,0", "--batches=x"])
def test_numbers_that_measure_nothing_are_refused(
    flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.figures", "path", flag])
    with pytest.raises(SystemExit) as ended:
        figures_program()
    assert ended.value.code == 2
    assert flag.partition("=")[0] in capsys.readouterr().err


def test_lines_that_a_process_says_at_once_are_told_one_by_one_and_half_a_line_is_not_waited_for(
    tmp_path: Path,
) -> None:
    script = "print('one\\ntwo\\nhal', end='', flush=True); input(); print('f')"
    with child([sys.executable, "-c", script], tmp_path / "log") as process:
        assert process.line(30.0) == "one"
        assert process.line(30.0) == "two"
        with pytest.raises(ProcessError, match=r"said nothing for 0\.1 s"):
            process.line(0.1)
        process.tell("")
        assert process.line(30.0) == "half"
        with pytest.raises(ProcessError, match="ended with code"):
            process.line(30.0)


def test_a_program_of_spdk_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "build/bin/spdk_nvme_perf"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(spdk, "_START_SECONDS", 0.1)
    with pytest.raises(ProcessError, match="did not end within 0 s"):
        spdk.perf(tmp_path, 1, InitiatorCase("read", "4096", 1), 0, 0)


def test_a_figures_command_is_told_without_paths_of_this_machine() -> None:
    given = ["peers", "--peers", "/here/peers", "--sizes", "2M", "--trace"]
    assert without_paths(given) == ["peers", "--peers", "DIR", "--sizes", "2M", "--trace"]
