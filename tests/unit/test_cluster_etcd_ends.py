"""Why etcd ended: words without times out of its log, and which kind of fault they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.cluster.etcd_ends import LOW_DISK_BYTES, EndKind, judge_end, last_words, log_size
from controlplane.cluster.etcd_runner import EtcdExit, EtcdStart, etcd_arguments

PLENTY = 1 << 40


def entry(level: str, message: str, error: str = "", time: str = "12:00") -> str:
    return (
        json.dumps({"level": level, "ts": time, "msg": message, "error": error, "stacktrace": "0x1"}) + "\n"
    )


def words(tmp_path: Path, log: str, output: str = "", since: int = 0) -> str:
    (tmp_path / "etcd.log").write_text(log)
    (tmp_path / "etcd.out").write_text(output)
    return last_words(tmp_path / "etcd.log", since, tmp_path / "etcd.out")


def test_the_last_fatal_entry_is_told_without_times(tmp_path: Path) -> None:
    log = (
        entry("fatal", "old", "x")
        + entry("warn", "slow")
        + entry("fatal", "discovery failed", "walpb: crc mismatch")
    )
    assert words(tmp_path, log) == "discovery failed: walpb: crc mismatch"
    assert words(tmp_path, log.replace("12:00", "13:00")) == "discovery failed: walpb: crc mismatch"


def test_what_was_written_before_this_start_is_not_told(tmp_path: Path) -> None:
    before = entry("fatal", "old")
    (tmp_path / "etcd.log").write_text(before)
    since = log_size(tmp_path / "etcd.log")
    assert words(tmp_path, before, since=since) == ""
    assert words(tmp_path, before + entry("fatal", "new"), since=since) == "new"
    assert words(tmp_path, entry("fatal", "n"), since=since) == "n", "a rotated log is shorter"


def test_a_panic_is_told_by_its_own_line_with_addresses_blanked(tmp_path: Path) -> None:
    output = "panic: cannot use 0x1314951689c8 as id\n\ngoroutine 1 [running]:\nraft.newRaft(0x131)\n"
    assert words(tmp_path, "", output) == "panic: cannot use 0x… as id"
    assert words(tmp_path, "", "flag provided but not defined: -x\n") == "flag provided but not defined: -x"
    assert words(tmp_path, "not json\n", "") == ""
    assert words(tmp_path, entry("panic", "tocommit(7) is bad")) == "panic: tocommit(7) is bad"


def test_memory_that_can_not_be_read_is_told_with_its_fault(tmp_path: Path) -> None:
    """As Go prints it for a database that is shorter than it says: the word `fault` alone tells nothing."""
    output = (
        "unexpected fault address 0x7fedf0090000\nfatal error: fault\n"
        "[signal SIGBUS: bus error code=0x2 addr=0x7fedf0090000 pc=0xa500ca]\n\ngoroutine 132 [running]:\n"
    )
    assert words(tmp_path, "", output) == "fatal error: fault (unexpected fault address 0x…)"
    assert words(tmp_path, "", "fatal error: out of memory\n") == "fatal error: out of memory"
    assert words(tmp_path, "", f"fatal error: before\n{output}").startswith("fatal error: fault (")
    assert words(tmp_path, "", f"{output}panic: later\n") == "panic: later"


def test_of_several_panics_the_last_is_told_and_the_log_comes_before_the_output(tmp_path: Path) -> None:
    output = "{a log line}\npanic: first\n  panic: second \n\ngoroutine 1\n"
    assert words(tmp_path, "", output) == "panic: second"
    assert words(tmp_path, entry("fatal", "from the log"), output) == "from the log"
    assert words(tmp_path, entry("error", "no end"), output) == "panic: second"
    assert words(tmp_path, entry("dpanic", "raft", "bad")) == "panic: raft: bad"
    assert words(tmp_path, '["fatal"]\n"fatal"\n') == ""
    assert words(tmp_path, "", '{"level":"info"}\n') == ""


def test_of_a_long_log_only_the_end_is_read_and_of_long_words_only_the_beginning(tmp_path: Path) -> None:
    far = entry("fatal", "far back") + "x" * (256 << 10)
    assert words(tmp_path, far) == ""
    assert words(tmp_path, "x" * (1 << 20) + "\n" + entry("fatal", "near")) == "near"
    assert words(tmp_path, entry("fatal", "w" * 1000)) == "w" * 400
    (tmp_path / "etcd.log").write_bytes(b"\xff\xfe\n" + entry("fatal", "read all the same").encode())
    assert last_words(tmp_path / "etcd.log", 0, tmp_path / "none") == "read all the same"


def test_no_files_tell_nothing(tmp_path: Path) -> None:
    assert last_words(tmp_path / "no", 7, tmp_path / "none") == ""
    assert log_size(tmp_path / "no") == 0


@pytest.mark.parametrize(
    ("code", "said", "free", "kind"),
    [
        (
            1,
            "failed to commit tx: write /d/member/snap/db: no space left on device",
            PLENTY,
            EndKind.DISK_FULL,
        ),
        (2, "panic: something", 1000, EndKind.DISK_FULL),
        (1, "discovery failed: walpb: crc mismatch", PLENTY, EndKind.BAD_DATA),
        (
            2,
            "panic: tocommit(7) is out of range [lastIndex(3)]. Was the raft log corrupted?",
            PLENTY,
            EndKind.BAD_DATA,
        ),
        (2, "panic: cannot use none as id", PLENTY, EndKind.BAD_DATA),
        (1, "start failed: wal: file not found", PLENTY, EndKind.BAD_DATA),
        (1, "discovery failed: snap: no available snapshot", PLENTY, EndKind.BAD_DATA),
        (1, "Failed to recover the v3 backend", PLENTY, EndKind.BAD_DATA),
        (1, "failed to load db", PLENTY, EndKind.BAD_DATA),
        (1, "failed to open WAL", PLENTY, EndKind.BAD_DATA),
        (1, "failed to read WAL, cannot be repaired", PLENTY, EndKind.BAD_DATA),
        (1, "failed to find database snapshot file", PLENTY, EndKind.BAD_DATA),
        (1, "failed to open /tmp/notwal", PLENTY, EndKind.OTHER),
        (2, "fatal error: fault (unexpected fault address 0x…)", PLENTY, EndKind.BAD_DATA),
        (1, "write /d/wal/0.tmp: Disk quota exceeded", PLENTY, EndKind.DISK_FULL),
        (1, "discovery failed: walpb: crc mismatch", LOW_DISK_BYTES, EndKind.BAD_DATA),
        (1, "discovery failed: walpb: crc mismatch", LOW_DISK_BYTES - 1, EndKind.DISK_FULL),
        (0, "panic: no", PLENTY, EndKind.OTHER),
        (-9, "panic: no", PLENTY, EndKind.OTHER),
        (0, "walpb: crc mismatch", PLENTY, EndKind.OTHER),
        (1, "failed to find a listener: swallowed", PLENTY, EndKind.OTHER),
        (2, "flag provided but not defined: -x", PLENTY, EndKind.OTHER),
        (2, "fatal error: runtime: out of memory", PLENTY, EndKind.OTHER),
        (2, "", PLENTY, EndKind.OTHER),
        (
            1,
            "discovery failed: listen tcp 127.0.0.1:2380: bind: address already in use",
            PLENTY,
            EndKind.OTHER,
        ),
        (-9, "", 0, EndKind.OTHER),
        (0, "", 0, EndKind.OTHER),
    ],
)
def test_an_end_is_sorted(code: int, said: str, free: int, kind: EndKind) -> None:
    assert judge_end(EtcdExit(code, said), free) is kind


def test_the_command_line_bounds_the_log_and_lets_flags_be_added(tmp_path: Path) -> None:
    start = EtcdStart(
        "h1",
        "http://127.0.0.1:2379",
        "http://127.0.0.1:2380",
        tmp_path,
        tmp_path,
        "h1=x",
        "new",
        "t",
        quota_bytes=1 << 21,
        flags={"client-cert-auth": "true", "listen-client-urls": "https://127.0.0.1:2379"},
    )
    arguments = etcd_arguments(start)
    assert f"--quota-backend-bytes={1 << 21}" in arguments
    assert "--client-cert-auth=true" in arguments
    assert "--listen-client-urls=https://127.0.0.1:2379" in arguments
    (rotation,) = [a.partition("=")[2] for a in arguments if a.startswith("--log-rotation-config-json=")]
    assert json.loads(rotation) == {
        "maxsize": 16,
        "maxage": 0,
        "maxbackups": 4,
        "compress": False,
        "localtime": False,
    }
    assert len({argument.partition("=")[0] for argument in arguments}) == len(arguments)
