"""Puts the peers' programs and clients into a folder of their own: wheels, and Debian packages unpacked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# `mooncake-transfer-engine` itself links CUDA's driver, which is not here; its twin without links one
# library of the CUDA runtime all the same.
WHEELS = {
    "mooncake": ("mooncake-transfer-engine-non-cuda==0.3.13", "nvidia-cuda-runtime-cu12", "requests"),
    "lmcache-resp": ("torch==2.13.0", "numpy"),
    "redis-py": ("redis==8.1.0", "hiredis==3.5.0"),
}
# Without its dependencies: its native client needs torch alone.
LMCACHE = "lmcache==0.5.6"
REDIS_PACKAGES = (
    "redis-server",
    "redis-tools",
    "libjemalloc2",
    "liblua5.1-0",
    "liblzf1",
    "lua-bitop",
    "lua-cjson",
)
_SECONDS = 1800.0


class InstallError(Exception):
    """A peer could not be installed; the text is what the installing program said."""


@dataclass(frozen=True)
class Place:
    """Where the peers are."""

    directory: Path

    @property
    def python(self) -> Path:
        """The interpreter of the virtual environment."""
        return self.directory / "venv/bin/python"

    @property
    def cuda_runtime(self) -> Path:
        """The folder of libcudart."""
        [folder] = (self.directory / "venv/lib").glob("python3*/site-packages/nvidia/cuda_runtime/lib")
        return folder

    @property
    def debian(self) -> Path:
        """The root of the unpacked packages."""
        return self.directory / "debian"


def install(directory: Path, peers: Sequence[str]) -> Place:
    """Install what `peers` need; a second call finds it there. Raises InstallError."""
    place = Place(directory.resolve())
    place.directory.mkdir(parents=True, exist_ok=True)
    if not place.python.exists():
        _run(sys.executable, "-m", "venv", str(place.directory / "venv"))
    wheels = [wheel for peer in peers for wheel in WHEELS.get(peer, ())]
    if wheels:
        _run(str(place.python), "-m", "pip", "install", "-q", *wheels)
    if "lmcache-resp" in peers:
        _run(str(place.python), "-m", "pip", "install", "-q", "--no-deps", LMCACHE)
    if {"lmcache-resp", "redis-py"} & set(peers):
        _unpack(place, REDIS_PACKAGES)
    return place


def _unpack(place: Place, packages: Sequence[str]) -> None:
    """Unpack without installing, so that no service is started. apt-get checks what it downloads."""
    if (place.debian / "usr/bin/redis-server").exists():
        return
    downloads = place.directory / "packages"
    downloads.mkdir(exist_ok=True)
    _run("apt-get", "download", "-q", *packages, directory=downloads)
    for package in downloads.glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(place.debian))


def _run(*command: str, directory: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{' '.join(command)}: not done within {_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
