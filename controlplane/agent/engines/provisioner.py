"""Installs what the leader wants, one engine after the other, and says how far it is.

Every step can be cut off: downloads stay for the next try, and an environment without its record, which is
written last, is made anew.
"""

from __future__ import annotations

import asyncio
import fcntl
import lzma
import os
import shutil
import sys
import time
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.engines.catalog import EngineKind, Variant
from controlplane.agent.engines.environment import BrokenError, Environment, Wanted, installed, verify
from controlplane.agent.shards.orders import EngineHome, version_key
from controlplane.agent.step import StepError, run_step
from controlplane.base.backoff import Backoff
from controlplane.base.logging import get_logger

STEP_SECONDS = 4 * 3600.0
PROBE_SECONDS = 600.0
FIRST_RETRY, LONGEST_RETRY = 60.0, 3600.0
DETAIL_CHARACTERS, BEGIN_CHARACTERS = 400, 60
_SET_ASIDE = ".removed-"

RunStep = Callable[..., Awaitable[list[str]]]

# What zipfile raises for archives with blocks that were lost or changed. Each was seen in the test.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError)

log = get_logger("engines")


class Provisioner:
    """Keeps `states` on the way to what is wanted. `changed` is called after each change of them."""

    def __init__(
        self,
        root: Path,
        kinds: dict[str, EngineKind],
        changed: Callable[[], None],
        in_use: Callable[[], Iterable[tuple[str, str]]] = tuple,
        *,
        has_cuda: Callable[[], bool] = lambda: False,
        retry: Backoff | None = None,
        kept_versions: int = 2,
    ) -> None:
        self._root = root
        self._kinds = kinds
        self._changed = changed
        self._in_use = in_use
        self._has_cuda = has_cuda
        self._retry = retry or Backoff(FIRST_RETRY, LONGEST_RETRY)
        self._kept_versions = kept_versions
        self._wanted: dict[str, Wanted] = {}
        self._states: dict[str, agent_pb2.EngineInstall] = {}
        self._wake = asyncio.Event()
        self.homes: dict[str, dict[str, EngineHome]] = {}

    @property
    def states(self) -> list[agent_pb2.EngineInstall]:
        """How far each wanted engine is, by name."""
        return [self._states[name] for name in sorted(self._states)]

    def versions(self) -> dict[str, str]:
        """Installed engines with the version that a shard gets: the wanted one, else the newest."""
        found = {}
        for name, versions in self.homes.items():
            wanted = self._wanted.get(name)
            found[name] = (
                wanted.version if wanted and wanted.version in versions else max(versions, key=version_key)
            )
        return found

    def want(self, engines: Iterable[Wanted]) -> None:
        """Take the leader's list. What is on it no more stays if it is installed, else it is given up."""
        listed = {wanted.engine: wanted for wanted in engines}
        for name in [name for name, said in self._states.items() if said.state != "installed"]:
            if name not in listed:
                del self._wanted[name], self._states[name]
                self._changed()
        for wanted in listed.values():
            if self._wanted.get(wanted.engine) != wanted:
                self._wanted[wanted.engine] = wanted
                self._say(wanted, "wanted")
        self._retry.reset()
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; failures are tried again, ever more rarely, and at once when asked anew."""
        self._look()
        while True:
            self._wake.clear()
            failed = [wanted for wanted in list(self._wanted.values()) if not await self._one(wanted)]
            with suppress(TimeoutError):
                async with asyncio.timeout(self._retry.next() if failed else None):
                    await self._wake.wait()

    async def _one(self, wanted: Wanted) -> bool:
        """Bring one engine to its end; False when it is to be tried again."""
        kind = self._kinds.get(wanted.engine)
        variant = kind.choose(wanted.variant, has_cuda=self._has_cuda()) if kind is not None else ""
        problem = wanted.problem() or _unknown(kind, wanted, variant)
        if kind is None or variant is None or problem:
            self._say(wanted, "unsupported", problem)
            return True
        wanted = replace(wanted, variant=variant)
        environment = Environment(self._root, wanted)
        try:
            if not environment.is_whole():
                await self._install(kind, environment)
        except (StepError, BrokenError, OSError) as error:
            self._say(wanted, "failed", str(error))
            return False
        self._set_old_aside(wanted.engine)
        self._look()
        await asyncio.to_thread(_remove_set_aside, environment.path.parent)
        self._say(wanted, "installed")
        return True

    async def _install(self, kind: EngineKind, environment: Environment) -> None:
        environment.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(environment.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # pip has the lock too: should this agent be killed, what it began goes on and must be alone.
            await self._steps(kind, environment, partial(run_step, inherit=(lock,)))
        except BlockingIOError:
            raise StepError("what another agent, or an earlier one, began is at work on it") from None
        finally:
            os.close(lock)

    async def _steps(self, kind: EngineKind, environment: Environment, run: RunStep) -> None:
        wanted, pip = environment.wanted, _pip_for(environment)
        what = self._requirement(kind, environment)
        variant = kind.variants.get(wanted.variant, Variant())
        self._say(wanted, "downloading", "making the environment")
        await run((*_make_venv(), "--clear", environment.path), seconds=PROBE_SECONDS)
        await asyncio.to_thread(_drop_damaged, environment.wheels)
        more = (*kind.pip_arguments, *variant.pip_arguments)
        local = ("--find-links", environment.wheels)
        # `wheel` and not `download`: what has no wheel is built here, with what its build needs.
        await run(
            (*pip, "wheel", "--wheel-dir", environment.wheels, *local, *more, *what),
            seconds=STEP_SECONDS,
            progress=lambda line: self._say(wanted, "downloading", line),
            environment=variant.environment,
        )
        self._say(wanted, "installing")
        await run(
            (*pip, "install", "--no-index", *local, *what),
            seconds=STEP_SECONDS,
            progress=lambda line: self._say(wanted, "installing", line),
        )
        self._say(wanted, "verifying")
        packages = await asyncio.to_thread(verify, environment, kind.package)
        await run(kind.filled(kind.probe, wanted.version, environment.path), seconds=PROBE_SECONDS)
        environment.finish(packages)
        await asyncio.to_thread(shutil.rmtree, environment.wheels, ignore_errors=True)

    def _requirement(self, kind: EngineKind, environment: Environment) -> tuple[str, ...]:
        if kind.requirements:
            file = kind.filled((kind.requirements,), environment.wanted.version, environment.path)[0]
            return ("--require-hashes", "--only-binary", ":all:", "--requirement", file)
        return kind.filled((kind.requirement,), environment.wanted.version, environment.path)

    def _set_old_aside(self, engine: str) -> None:
        """Take away old versions that no shard runs and that are not among the newest."""
        keep = {wanted.folder for wanted in self._wanted.values() if wanted.engine == engine}
        keep |= {version for name, version in self._in_use() if name == engine}
        others = [
            path
            for path in (self._root / engine).iterdir()
            if path.is_dir() and not path.name.startswith(".") and path.name.partition("~")[0] not in keep
        ]
        others = [path for path in others if path.name not in keep]
        others.sort(key=lambda path: path.stat().st_mtime)
        for path in others[: max(0, len(others) - self._kept_versions)]:
            log.info("Old engine removed", engine=engine, version=path.name)
            os.rename(path, path.with_name(f"{_SET_ASIDE}{time.time_ns()}-{path.name}"))

    def _look(self) -> None:
        found = installed(self._root, self._kinds)
        if found != self.homes:
            self.homes = found
            self._changed()

    def _say(self, wanted: Wanted, state: str, detail: str = "") -> None:
        said = agent_pb2.EngineInstall(
            engine=wanted.engine,
            version=wanted.version,
            variant=wanted.variant,
            state=state,
            detail=shortened(detail),
        )
        old = self._states.get(wanted.engine)
        if said == old or wanted.engine not in self._wanted:
            return
        if old is None or old.state != state:
            log.info("Engine", engine=wanted.engine, version=wanted.version, state=state, detail=said.detail)
        self._states[wanted.engine] = said
        self._changed()


def shortened(detail: str) -> str:
    """A detail as long as it may be: what pip said last is why it failed, and what was run stands first."""
    if len(detail) <= DETAIL_CHARACTERS:
        return detail
    begin = detail[:BEGIN_CHARACTERS]
    return f"{begin} … {detail[len(begin) + 3 - DETAIL_CHARACTERS :]}"


def _remove_set_aside(folder: Path) -> None:
    """Remove what was set aside, now or earlier. It has many thousand files: not for the event loop."""
    for path in folder.glob(f"{_SET_ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def _make_venv() -> tuple[str, ...]:
    """Without a pip of its own where ours can do it: that takes most of the time of an environment."""
    return (sys.executable, "-m", "venv", *(["--without-pip"] if find_spec("pip") else []))


def _pip_for(environment: Environment) -> tuple[str | Path, ...]:
    if find_spec("pip"):
        return (sys.executable, "-m", "pip", "--python", environment.python)
    return (environment.python, "-m", "pip")


def _unknown(kind: EngineKind | None, wanted: Wanted, variant: str | None) -> str:
    if kind is None:
        return "this agent does not know how to install it"
    if variant is None:
        have = ", ".join(sorted(kind.variants))
        return f"it can't be installed here as {wanted.variant or 'cpu'}, only as {have}"
    return ""


def _drop_damaged(wheels: Path) -> None:
    """Downloads of an earlier try are used again, but not what a power cut left of them."""
    wheels.mkdir(exist_ok=True)
    for path in wheels.iterdir():
        if not _is_whole(path):
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Whether an archive can be read to its end; what is damaged in it decides how that fails."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except _DAMAGE:
        return False
