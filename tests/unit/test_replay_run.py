"""`akv-bench` as a program, against a small gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import GET, PUT, Limits, ReferenceGateway
from tests.support.procs import ROOT, python_environment

ROWS = [
    [0, 1, 2, 3],
    [0, 1, 2, 4, 5],
    [0, 6],
    [0, 1, 2, 4, 5, 7],
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    records = [
        {"timestamp": i, "input_length": len(ids) * 512, "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate(ROWS)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[ReferenceGateway]:
    with ReferenceGateway(tmp_path / "gateway.sock") as running:
        yield running


def _bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.main", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=python_environment(), capture_output=True, text=True, timeout=60, check=False
    )


def _replay(trace: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    socket = tmp_path / "gateway.sock"
    return _bench(
        "replay", "--trace", trace, "--socket", socket, "--block-bytes", "4096", "--json", *arguments
    )


def _lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_replay_matches_the_simulation(gateway: ReferenceGateway, trace: Path, tmp_path: Path) -> None:
    done = _replay(trace, tmp_path)
    assert done.returncode == 0, done.stderr
    started, *requests, summary = _lines(done)
    assert started == {"event": "started", "shared_memory": True}
    assert [line["matched"] for line in requests] == [line["expected"] for line in requests] == [0, 3, 1, 5]
    assert [line["got"] for line in requests] == [0, 3, 1, 5]
    assert [(line["put"], line["put_ok"]) for line in requests] == [(4, 4), (2, 2), (1, 1), (1, 1)]
    assert [line["affinity"] for line in requests] == [1, 1, 1, 1]
    assert summary["measured_hit_ratio"] == summary["expected_hit_ratio"] == 9 / 17
    assert summary["wrong_blocks"] == summary["errors"] == 0
    assert summary["get_block_us"]["p50"] > 0
    assert gateway.batches(GET) == [3, 1, 5]
    assert gateway.batches(PUT) == [4, 2, 1, 1]


def test_tcp_start_and_limit(trace: Path, tmp_path: Path) -> None:
    with ReferenceGateway() as gateway:
        where = ["--host", "127.0.0.1", "--port", str(gateway.port)]
        done = _bench("replay", "--trace", trace, *where, "--json", "--start", "1", "--requests", "2")
    assert done.returncode == 0, done.stderr
    assert [line["index"] for line in _lines(done) if line["event"] == "request"] == [1, 2]


def test_a_wrong_block_is_found_and_fails_the_run(
    gateway: ReferenceGateway, trace: Path, tmp_path: Path
) -> None:
    assert _replay(trace, tmp_path).returncode == 0
    for name, data in list(gateway.store.items()):
        gateway.store[name] = data[:-1] + bytes([data[-1] ^ 1])
    done = _replay(trace, tmp_path, "--requests", "1")
    assert done.returncode == 1
    *_, request, summary = _lines(done)
    assert (request["got"], request["wrong"]) == (0, 4)
    assert summary["wrong_blocks"] == 4


def test_a_loop_ends_with_a_summary_at_sigterm(
    gateway: ReferenceGateway, trace: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "bench.main", "replay", "--trace", str(trace), "--loop", "--json"]
    command += ["--socket", str(tmp_path / "gateway.sock"), "--block-bytes", "4096"]
    with subprocess.Popen(
        command, cwd=ROOT, env=python_environment(), stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            record = json.loads(line)
            if record.get("pass") == 3:
                child.terminate()
                break
        last = json.loads(child.stdout.read().splitlines()[-1])
        assert child.wait(60) == 0
    assert last["event"] == "summary"
    assert last["passes"] >= 2
    assert last["measured_hit_ratio"] == 9 / 17


def test_lost_puts_are_told(gateway: ReferenceGateway, trace: Path, tmp_path: Path) -> None:
    gateway.faults.rewrite = lambda opcode, frame: (
        frame[:32] + b"\x02\0\0\0" * ((len(frame) - 32) // 4) if opcode == PUT else frame
    )
    done = _replay(trace, tmp_path)
    summary = _lines(done)[-1]
    assert (summary["put_ok_blocks"], summary["measured_hit_ratio"]) == (0, 9 / 17)
    assert done.returncode == 3
    assert "none of 8 blocks was stored" in done.stderr


def test_a_gateway_that_goes_away_fails_the_run_without_a_spin(trace: Path, tmp_path: Path) -> None:
    with ReferenceGateway(tmp_path / "gateway.sock") as gateway:
        command = [sys.executable, "-m", "bench.main", "replay", "--trace", str(trace), "--loop", "--json"]
        command += ["--socket", str(tmp_path / "gateway.sock"), "--block-bytes", "4096"]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env=python_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            for line in child.stdout:
                if json.loads(line).get("pass") == 2:
                    gateway.close()
                    break
            first = next(row["began"] for row in map(json.loads, child.stdout) if row.get("errors"))
            rows = []
            for line in child.stdout:
                rows.append(json.loads(line))
                if rows[-1]["began"] > first + 1.0:
                    child.terminate()
                    break
            assert len(rows) < 20, "a row waits for a session, so that a loop does not spin"
            child.stdout.read()
            assert child.wait(60) == 3
            assert "calls failed" in child.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("replay", "--trace", "/none.jsonl", "--socket", "{socket}"), "/none.jsonl"),
        (("replay", "--trace", "{trace}", "--socket", "{socket}", "--start", "9"), "no rows from 9 on"),
        (("replay", "--trace", "{trace}", "--socket", "{socket}", "--block-bytes", "10"), "at least 64"),
        (("replay", "--trace", "{trace}", "--socket", "{socket}", "--block-bytes", "9" * 11), "at most 107"),
        (
            ("replay", "--trace", "{trace}", "--socket", "{socket}", "--secret-file", "{trace}"),
            "trace.jsonl does not hold a secret",
        ),
        (("replay", "--trace", "{trace}", "--socket", "{socket}", "--slots", "1,x"), "no list of slots"),
        (("simulate", "--trace", "{trace}", "--slots", "9"), "slots"),
        (("stats", "--socket", "/none.sock"), "/none.sock"),
    ],
)
def test_what_can_not_run_says_why(
    gateway: ReferenceGateway, trace: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    filled = [text.format(socket=tmp_path / "gateway.sock", trace=trace) for text in arguments]
    done = _bench(*filled)
    assert done.returncode == 2
    assert message in done.stderr


def test_blocks_that_no_lease_has_room_for_are_refused(trace: Path, tmp_path: Path) -> None:
    with ReferenceGateway(tmp_path / "gateway.sock", limits=Limits(max_arena=63 * 4096)):
        done = _replay(trace, tmp_path)
    assert done.returncode == 2
    assert "block_bytes is 4096: the gateway leases no 64 such blocks" in done.stderr


def test_the_other_commands(gateway: ReferenceGateway, trace: Path, tmp_path: Path) -> None:
    simulated = json.loads(_bench("simulate", "--trace", trace, "--slots", "0,2").stdout)
    assert simulated["blocks"] == 17
    assert json.loads(_bench("measure-trace", "--trace", trace).stdout)["distinct_blocks"] == 8
    assert json.loads(_bench("stats", "--socket", tmp_path / "gateway.sock").stdout)["leased_bytes"] == 0
    made = tmp_path / "made.jsonl"
    assert _bench("generate-trace", "--requests", "5", "--seed", "3", "--output", made).returncode == 0
    assert len(made.read_text().splitlines()) == 5
    located = json.loads(_bench("locate-trace", "--else-generate", tmp_path / "x.jsonl").stdout)
    assert Path(located["path"]).is_file()
    assert _bench("--version").stdout.startswith("akv-bench ")
    assert "replay" in _bench("--help").stdout


def test_a_rate_spreads_the_requests(gateway: ReferenceGateway, trace: Path, tmp_path: Path) -> None:
    """Four requests at two a second take 1.5 s, less what the first was late; else milliseconds."""
    lines = _lines(_replay(trace, tmp_path, "--rate", "2"))
    starts = [line["began"] for line in lines if line["event"] == "request"]
    assert len(starts) == len(ROWS)
    assert starts[-1] - starts[0] >= 0.5


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "fast"])
def test_a_rate_that_is_none_is_refused(trace: Path, tmp_path: Path, rate: str) -> None:
    refused = _replay(trace, tmp_path, "--rate", rate)
    assert refused.returncode == 2
    assert "--rate" in refused.stderr
