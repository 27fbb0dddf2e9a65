"""The search for an etcd server: order, refusal of old versions, one unpacking for parallel callers."""

import fcntl
import stat
import threading
from pathlib import Path

import pytest

from controlplane.cluster.etcd_binary import EtcdBinaryError, find_etcd, require_version
from tests.support.procs import wait_until


def program(directory: Path, version: str, name: str = "etcd") -> Path:
    """An executable that says it is etcd of that version."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\necho 'Git SHA: x'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("version", ["3.5.28", "3.5.30", "3.6.0", "3.10.1"])
def test_new_enough(tmp_path: Path, version: str) -> None:
    found = find_etcd(program(tmp_path, version))
    assert found.version_text == version


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("3.4.23", "membership"),
        ("3.5.0", "corrupt"),
        ("3.5.1", "corrupt"),
        ("3.5.17", "fixes"),
        ("3.5.27", "fixes"),
        ("2.3.8", "membership"),
    ],
)
def test_too_old_is_refused_with_a_way_out(tmp_path: Path, version: str, why: str) -> None:
    with pytest.raises(EtcdBinaryError, match=f"etcd {version}, which is too old.*{why}.*use 3.5.28"):
        find_etcd(program(tmp_path, version))


def test_a_configured_path_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin", "3.5.30").parent))
    with pytest.raises(EtcdBinaryError, match="cannot run"):
        find_etcd(tmp_path / "missing")


def test_not_etcd(tmp_path: Path) -> None:
    with pytest.raises(EtcdBinaryError, match="is not an etcd server"):
        require_version(program(tmp_path, "unknown"))
    broken = program(tmp_path, "3.5.30", "broken")
    broken.write_text("#!/bin/sh\necho no >&2\nexit 3\n")
    with pytest.raises(EtcdBinaryError, match="failed: no"):
        require_version(broken)


def test_path_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = program(tmp_path / "cache/current/usr/bin", "3.5.29")
    on_path = program(tmp_path / "bin", "3.5.28")
    monkeypatch.setenv("PATH", f"{on_path.parent}:/bin:/usr/bin")
    assert find_etcd(cache_dir=tmp_path / "cache").path == on_path
    program(tmp_path / "bin", "3.4.23")
    assert find_etcd(cache_dir=tmp_path / "cache").path == cached


def test_a_caller_waits_for_the_one_that_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    cache = tmp_path / "cache"
    cache.mkdir()
    found: list[Path] = []
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiter = threading.Thread(target=lambda: found.append(find_etcd(cache_dir=cache).path))
        waiter.start()
        wait_until(waiter.is_alive, "the second caller runs")
        installed = program(cache / "current/usr/bin", "3.5.30")
    waiter.join(30)
    assert found == [installed]


def test_a_stuck_lock_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EtcdBinaryError, match="too long"):
            find_etcd(cache_dir=tmp_path, seconds=0.1)


def test_no_package_tools_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EtcdBinaryError, match=r"apt-get is missing.*AWC_ETCD_BINARY"):
        find_etcd(cache_dir=tmp_path / "cache")
