"""One engine's virtual environment: where it lies, whether it is whole, and its record.

<root>/<engine>/<version>[~<variant>]/            the environment
<root>/<engine>/<version>[~<variant>]/engine.json written last: without it the environment is not whole
<root>/<engine>/.wheels-<version>[~<variant>]/    what pip downloaded, kept until the environment is whole
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.agent.engines.catalog import EngineKind
from controlplane.agent.files import DocumentError, read_document, write_document
from controlplane.agent.shards.orders import EngineHome
from controlplane.model.catalogue import engine_problem

MANIFEST = "engine.json"
_SEPARATOR = "~"


class BrokenError(Exception):
    """An environment that is not what its record says; the message names the first difference."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One engine that is to be installed."""

    engine: str
    version: str
    variant: str = ""

    @property
    def folder(self) -> str:
        """Its folder's name."""
        return self.version + (f"{_SEPARATOR}{self.variant}" if self.variant else "")

    def problem(self) -> str:
        """Why it can't be a folder or a requirement; empty when it can."""
        return engine_problem(self.engine, self.version, self.variant)


@dataclass(frozen=True, slots=True)
class Environment:
    """The paths of one wanted engine."""

    root: Path
    wanted: Wanted

    @property
    def path(self) -> Path:
        """The virtual environment."""
        return self.root / self.wanted.engine / self.wanted.folder

    @property
    def wheels(self) -> Path:
        """What was downloaded for it."""
        return self.root / self.wanted.engine / f".wheels-{self.wanted.folder}"

    @property
    def lock(self) -> Path:
        """Locked while an agent works on it."""
        return self.root / self.wanted.engine / f".lock-{self.wanted.folder}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"

    def is_whole(self) -> bool:
        """Whether it was finished and its interpreter is still there."""
        try:
            record = read_document(self.path / MANIFEST)
        except DocumentError:
            return False
        return record is not None and record.get("version") == self.wanted.version and self.python.exists()

    def finish(self, packages: Mapping[str, str]) -> None:
        """Write the record that makes it whole. Raises OSError."""
        wanted = self.wanted
        document = {
            "engine": wanted.engine,
            "version": wanted.version,
            "variant": wanted.variant,
            "packages": dict(packages),
        }
        write_document(self.path / MANIFEST, document)


def verify(environment: Environment, package: str) -> dict[str, str]:
    """Check every installed file against the hash that its package lists. Raises BrokenError.

    The engine's own package must be there in the wanted version. Returns all packages with their versions.
    """
    versions: dict[str, str] = {}
    for site in environment.path.glob("lib/python*/site-packages"):
        for info in sorted(site.glob("*.dist-info")):
            name, _, version = info.name.removesuffix(".dist-info").partition("-")
            versions[_normal(name)] = version
            for relative, digest in _listed(info):
                _check_file(site / relative, digest)
    have = versions.get(_normal(package))
    if have is None:
        raise BrokenError(f"{package} was not installed")
    if _normal(have) != _normal(environment.wanted.version):
        raise BrokenError(f"{package} is there in version {have}, not {environment.wanted.version}")
    return versions


def _listed(info: Path) -> Iterator[tuple[str, str]]:
    """Files of a package's RECORD with their digests; the few without one are left out."""
    try:
        text = (info / "RECORD").read_text(encoding="utf-8")
        rows = list(csv.reader(text.splitlines()))
    except OSError as error:
        raise BrokenError(f"{info.name} has no RECORD: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BrokenError(f"the RECORD of {info.name} can't be read: {error}") from error
    for row in rows:
        if len(row) == 3 and row[1].startswith("sha256="):
            yield row[0], row[1].removeprefix("sha256=")


def _check_file(path: Path, digest: str) -> None:
    sha = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                sha.update(block)
    except OSError as error:
        raise BrokenError(f"{path} can't be read: {error.strerror}") from error
    if base64.urlsafe_b64encode(sha.digest()).rstrip(b"=").decode() != digest:
        raise BrokenError(f"{path} is not what its package lists")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(root: Path, kinds: dict[str, EngineKind]) -> dict[str, dict[str, EngineHome]]:
    """Whole environments below `root`: engine to version to how it is run."""
    found: dict[str, dict[str, EngineHome]] = {}
    for name, kind in kinds.items():
        folder = root / name
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            version, _, variant = path.name.partition(_SEPARATOR)
            environment = Environment(root, Wanted(name, version, variant))
            if not path.name.startswith(".") and environment.is_whole():
                command = kind.filled(kind.command, version, path)
                found.setdefault(name, {})[version] = EngineHome(version, command)
    return found
