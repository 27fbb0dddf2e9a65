"""Find an etcd server that is new enough, and unpack Debian's newer package privately when none is installed.

Order (DESIGN.md, "The etcd server"): a configured path, `etcd` on PATH, a private unpacking in a cache
directory. Nothing is installed and no service is started. Blocking: call it before the event loop or in a
thread.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from controlplane.base.backoff import Deadline
from controlplane.base.logging import get_logger

OLDEST = (3, 5, 28)
SUITES = ("forky", "trixie")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_VERSION = re.compile(r"^etcd Version:\s*(\d+)\.(\d+)\.(\d+)", re.MULTILINE)
_LOCK_POLL_SECONDS = 0.2

log = get_logger("etcd-binary")


class EtcdBinaryError(RuntimeError):
    """No usable etcd server; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd server program and its version."""

    path: Path
    version: tuple[int, int, int]

    @property
    def version_text(self) -> str:
        """Version as `3.5.30`."""
        return ".".join(map(str, self.version))


def find_etcd(
    configured: Path | None = None, *, cache_dir: Path | None = None, seconds: float = 300.0
) -> EtcdBinary:
    """The etcd server to run; may download one (about 10 s). Raises EtcdBinaryError.

    A configured path that is too old is refused, never replaced; one on PATH that is too old is passed over.
    """
    if configured is not None:
        return require_version(configured)
    on_path = shutil.which("etcd")
    if on_path is not None:
        try:
            return require_version(Path(on_path))
        except EtcdBinaryError as error:
            log.warning("etcd on PATH passed over", path=on_path, reason=str(error))
    return _cached(cache_dir if cache_dir is not None else default_cache_dir(), Deadline(seconds))


def default_cache_dir() -> Path:
    """Where the private unpacking is kept: /var/cache/akv/etcd for root, else in the user's cache."""
    if os.geteuid() == 0:
        return Path("/var/cache/akv/etcd")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "akv" / "etcd"


def require_version(path: Path) -> EtcdBinary:
    """`path` as an EtcdBinary when it runs and is 3.5.28 or newer. Raises EtcdBinaryError."""
    output = _run([str(path), "--version"], Deadline(20.0))
    match = _VERSION.search(output)
    if match is None:
        raise EtcdBinaryError(f"{path} is not an etcd server: `--version` says {output[:80]!r}")
    major, minor, patch = (int(part) for part in match.groups())
    binary = EtcdBinary(path, (major, minor, patch))
    if binary.version < OLDEST:
        raise EtcdBinaryError(
            f"{path} is etcd {binary.version_text}, which is too old ({_why_old(binary.version)}): "
            "install 3.5.28 or newer, or leave the path unset to use a private copy"
        )
    return binary


def _why_old(version: tuple[int, int, int]) -> str:
    if version < (3, 5, 0):
        return "its membership rules differ and it gets no fixes"
    if version < (3, 5, 3):
        return "3.5.0 to 3.5.2 can corrupt data"
    return "fixes of membership and learner promotion up to 3.5.28 are missing"


def _cached(cache: Path, deadline: Deadline) -> EtcdBinary:
    """The binary of the cache; unpacked first when it is not there. Parallel callers unpack once."""
    installed = cache / "current" / "usr" / "bin" / "etcd"
    if installed.exists():
        return require_version(installed)
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EtcdBinaryError(f"cannot create {cache} for a private etcd: {error}") from error
    with _locked(cache / "lock", deadline):
        if not installed.exists():
            _unpack(cache, deadline)
        return require_version(installed)


@contextmanager
def _locked(path: Path, deadline: Deadline) -> Iterator[None]:
    """Hold an exclusive file lock, which the kernel gives back when a holder dies."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.expired:
                    raise EtcdBinaryError(f"another process holds {path} too long: is it stuck?") from None
                sleep(min(_LOCK_POLL_SECONDS, deadline.remaining()))
        yield


def _unpack(cache: Path, deadline: Deadline) -> None:
    """Download and unpack into `cache`/current; the rename at the end makes it all or nothing."""
    log.info("etcd unpacking", directory=str(cache), reason="no etcd 3.5.28 or newer on PATH")
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=cache) as scratch:
        work = Path(scratch)
        environment = _private_apt(work)
        log.info("etcd package lists", step="1/3")
        _run(["apt-get", "-qq", "update"], deadline, environment, work)
        log.info("etcd package download", step="2/3")
        _run(["apt-get", "-qq", "download", "etcd-server", "etcd-client"], deadline, environment, work)
        root = work / "root"
        for package in sorted(work.glob("etcd-*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(root)], deadline)
        found = require_version(root / "usr" / "bin" / "etcd")
        root.rename(cache / "current")
    log.info("etcd unpacked", step="3/3", version=found.version_text, directory=str(cache / "current"))


def _private_apt(work: Path) -> dict[str, str]:
    """An apt configuration below `work` that touches nothing of the system; returns its environment."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise EtcdBinaryError(
                f"no etcd 3.5.28 or newer on PATH, and {tool} is missing to unpack one: install etcd, "
                "or set AWC_ETCD_BINARY to its path"
            )
    for directory in ("lists/partial", "cache/archives/partial", "root"):
        (work / directory).mkdir(parents=True)
    mirror = _debian_mirror()
    sources = work / "sources.list"
    sources.write_text("".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in SUITES))
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
    }
    config = work / "apt.conf"
    config.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    return {**os.environ, "APT_CONFIG": str(config), "LC_ALL": "C"}


def _debian_mirror() -> str:
    """The package mirror that this machine's apt is configured with."""
    targets = _run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)"], Deadline(20.0))
    for line in targets.splitlines():
        uri, _, component = line.partition(" ")
        if component == "main" and "security" not in uri:
            return uri
    raise EtcdBinaryError("apt has no package lists to take etcd from: run `apt-get update` first")


def _run(
    command: list[str], deadline: Deadline, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Standard output of a command that must succeed before the deadline; its whole group ends with it."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise EtcdBinaryError(f"cannot run {command[0]}: {error}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=deadline.remaining())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise EtcdBinaryError(f"`{' '.join(command[:3])}` took too long and was ended") from None
    if process.returncode != 0:
        why = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise EtcdBinaryError(f"`{' '.join(command[:3])}` failed: {why[0]}")
    return output
