"""Find an etcd server that is new enough, and unpack Debian's newer package privately when none is installed.

Order (DESIGN.md, "The etcd server"): a configured path, `etcd` on PATH, a private unpacking in a cache
directory (debian_package). Blocking: call it before the event loop or in a thread.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from controlplane.base.backoff import Deadline
from controlplane.base.logging import get_logger
from controlplane.cluster.debian_package import DebianPackages, UnpackError, default_cache_dir, run, unpacked

OLDEST = (3, 5, 28)
_SERVER = Path("usr/bin/etcd")
_VERSION = re.compile(r"^etcd Version:\s*(\d+)\.(\d+)\.(\d+)", re.MULTILINE)

log = get_logger("etcd-binary")


class EtcdBinaryError(UnpackError):
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
    return _cached(cache_dir if cache_dir is not None else default_cache_dir("etcd"), Deadline(seconds))


def require_version(path: Path) -> EtcdBinary:
    """`path` as an EtcdBinary when it runs and is 3.5.28 or newer. Raises EtcdBinaryError."""
    try:
        output = run([str(path), "--version"], Deadline(20.0))
    except UnpackError as error:
        raise EtcdBinaryError(str(error)) from error
    return EtcdBinary(path, require_new_enough(str(path), output))


def require_new_enough(what: str, output: str) -> tuple[int, int, int]:
    """The version that `etcd --version` of a program or an image tells. Raises EtcdBinaryError."""
    match = _VERSION.search(output)
    if match is None:
        raise EtcdBinaryError(f"{what} is not an etcd server: `--version` says {output[:80]!r}")
    major, minor, patch = (int(part) for part in match.groups())
    version = (major, minor, patch)
    if version < OLDEST:
        raise EtcdBinaryError(
            f"{what} is etcd {major}.{minor}.{patch}, which is too old ({_why_old(version)}): "
            "use 3.5.28 or newer; a process finds or unpacks one by itself when AWC_ETCD_BINARY is not set"
        )
    return version


def _why_old(version: tuple[int, int, int]) -> str:
    if version < (3, 5, 0):
        return "its membership rules differ and it gets no fixes"
    if version < (3, 5, 3):
        return "3.5.0 to 3.5.2 can corrupt data"
    return "fixes of membership and learner promotion up to 3.5.28 are missing"


def _cached(cache: Path, deadline: Deadline) -> EtcdBinary:
    """The binary of the cache; unpacked first when it is not there."""
    wanted = DebianPackages(
        name="etcd",
        packages=("etcd-server", "etcd-client"),
        suites=("forky", "trixie"),
        check=lambda root: require_version(root / _SERVER),
    )
    try:
        return require_version(unpacked(wanted, cache, deadline) / _SERVER)
    except EtcdBinaryError:
        raise
    except UnpackError as error:
        raise EtcdBinaryError(
            f"no etcd 3.5.28 or newer on PATH, and no private copy: {error}; install etcd, or set "
            "AWC_ETCD_BINARY to its path"
        ) from error
