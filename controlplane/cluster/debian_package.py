"""Unpack programs of Debian packages into a private directory, once for all callers.

Nothing is installed, nothing of the system changes and no service is started: apt gets a configuration,
lists and a cache of its own. Blocking: call it before the event loop or in a thread.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from controlplane.base.backoff import Deadline
from controlplane.base.logging import get_logger

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LOCK_POLL_SECONDS = 0.2

log = get_logger("debian-package")


class UnpackError(RuntimeError):
    """A command failed or took too long, or no package could be unpacked; the message says why."""


@dataclass(frozen=True, slots=True)
class DebianPackages:
    """What to unpack: `packages` of the newest of `suites` that has them, for the program `name`.

    `check` gets the unpacked root and raises an UnpackError when it is not what is wanted.
    """

    name: str
    packages: tuple[str, ...]
    suites: tuple[str, ...]
    check: Callable[[Path], object]


def default_cache_dir(name: str) -> Path:
    """Where a private unpacking is kept: /var/cache/akv/NAME for root, else in the user's cache."""
    if os.geteuid() == 0:
        return Path("/var/cache/akv") / name
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "akv" / name


def unpacked(wanted: DebianPackages, cache: Path, deadline: Deadline) -> Path:
    """The unpacked root below `cache`; downloads first when it is not there. Raises UnpackError.

    Parallel callers, also of other processes, unpack once.
    """
    root = cache / "current"
    if root.exists():
        return root
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnpackError(f"cannot create {cache} for a private {wanted.name}: {error}") from error
    with _locked(cache / "lock", deadline):
        if not root.exists():
            _unpack(wanted, cache, deadline)
    return root


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
                    raise UnpackError(f"another process holds {path} too long: is it stuck?") from None
                sleep(min(_LOCK_POLL_SECONDS, deadline.remaining()))
        yield


def _unpack(wanted: DebianPackages, cache: Path, deadline: Deadline) -> None:
    """Download and unpack into `cache`/current; the rename at the end makes it all or nothing."""
    log.info("unpacking", program=wanted.name, directory=str(cache))
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=cache) as scratch:
        work = Path(scratch)
        environment = _private_apt(work, wanted.suites)
        log.info("package lists", program=wanted.name, step="1/3")
        run(["apt-get", "-qq", "update"], deadline, environment, work)
        log.info("package download", program=wanted.name, step="2/3")
        run(["apt-get", "-qq", "download", *wanted.packages], deadline, environment, work)
        root = work / "root"
        for package in sorted(work.glob("*.deb")):
            run(["dpkg-deb", "-x", str(package), str(root)], deadline)
        wanted.check(root)
        root.rename(cache / "current")
    log.info("unpacked", program=wanted.name, step="3/3", directory=str(cache / "current"))


def _private_apt(work: Path, suites: tuple[str, ...]) -> dict[str, str]:
    """An apt configuration below `work` that touches nothing of the system; returns its environment."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise UnpackError(f"{tool} is missing to unpack a package")
    for directory in ("lists/partial", "cache/archives/partial", "root"):
        (work / directory).mkdir(parents=True)
    mirror = _debian_mirror()
    sources = work / "sources.list"
    sources.write_text("".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in suites))
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
    targets = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)"], Deadline(20.0))
    for line in targets.splitlines():
        uri, _, component = line.partition(" ")
        if component == "main" and "security" not in uri:
            return uri
    raise UnpackError("apt has no package lists: run `apt-get update` first")


def run(
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
        raise UnpackError(f"cannot run {command[0]}: {error}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=deadline.remaining())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise UnpackError(f"`{' '.join(command[:3])}` took too long and was ended") from None
    if process.returncode != 0:
        why = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise UnpackError(f"`{' '.join(command[:3])}` failed: {why[0]}")
    return output
