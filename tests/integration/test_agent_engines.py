"""Engines are installed by pip from wheels of the test's own: whole, broken off, damaged, wrong."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from controlplane.agent.engines.catalog import EngineKind, Variant
from controlplane.agent.engines.environment import BrokenError, Environment, Wanted, verify
from controlplane.agent.engines.provisioner import Provisioner
from controlplane.base.backoff import Backoff
from tests.support.waiting import eventually
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.slow
SECONDS = 90.0


def kind(wheels: Path, **fields: object) -> EngineKind:
    values: dict[str, object] = {
        "name": "tiny",
        "package": "tiny-engine",
        "requirement": "tiny-engine=={version}",
        "command": ("{env}/bin/tiny-engine", "serve"),
        "probe": ("{env}/bin/python", "-c", "import tiny_engine"),
        "pip_arguments": ("--no-index", "--find-links", str(wheels)),
        **fields,
    }
    return EngineKind(**values)  # type: ignore[arg-type]


@asynccontextmanager
async def provisioner(
    root: Path, engine: EngineKind, changed: Callable[[], None] = lambda: None, **fields: object
) -> AsyncIterator[Provisioner]:
    found = Provisioner(
        root,
        {engine.name: engine},
        changed,
        retry=Backoff(0.05, 0.1),
        **fields,  # type: ignore[arg-type]
    )
    task = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def reached(found: Provisioner, state: str, detail: str = "") -> str:
    def right() -> bool:
        return any(entry.state == state and detail in entry.detail for entry in found.states)

    await eventually(right, f"{state} {detail}, it is {found.states}", SECONDS)
    return found.states[0].detail


def have(root: Path, version: str) -> None:
    """An engine that is installed as far as its record says."""
    environment = Environment(root, Wanted("tiny", version))
    (environment.path / "bin").mkdir(parents=True)
    environment.python.touch()
    environment.finish({})


async def test_an_engine_is_installed_verified_and_runs(tmp_path: Path) -> None:
    wheels, root = tmp_path / "wheels", tmp_path / "engines"
    make_wheel(wheels, "1.2.0", requires="helper")
    make_wheel(wheels, "3.0", "helper")
    states: list[str] = []
    found: list[Provisioner] = []

    def changed() -> None:
        states.extend(entry.state for entry in found[0].states if found)

    async with provisioner(root, kind(wheels), lambda: changed() if found else None) as made:
        found.append(made)
        made.want([Wanted("tiny", "1.2.0")])
        await reached(made, "installed")
        assert list(dict.fromkeys(states)) == [
            "wanted",
            "downloading",
            "installing",
            "verifying",
            "installed",
        ]
        assert made.versions() == {"tiny": "1.2.0"}
        home = made.homes["tiny"]["1.2.0"]
    said = await asyncio.to_thread(subprocess.check_output, [*home.command, "x"], text=True)
    assert said == "tiny engine 1.2.0 serve x\n"
    assert not Environment(root, Wanted("tiny", "1.2.0")).wheels.exists()
    # A later life of the agent finds it, and what was changed in it since is seen.
    async with provisioner(root, kind(wheels)) as made:
        await eventually(lambda: made.versions() == {"tiny": "1.2.0"}, "it is found", SECONDS)
    environment = Environment(root, Wanted("tiny", "1.2.0"))
    verify(environment, "tiny-engine")
    module = next(environment.path.glob("lib/*/site-packages/tiny_engine.py"))
    module.write_text("pass\n")
    with pytest.raises(BrokenError, match="not what its package lists"):
        verify(environment, "tiny-engine")


async def test_what_fails_says_why_and_is_tried_again_and_replaces_old_versions_but_none_in_use(
    tmp_path: Path,
) -> None:
    wheels, root = tmp_path / "wheels", tmp_path / "engines"
    wheels.mkdir()
    for number in range(1, 6):
        have(root, f"{number}.0")
    async with provisioner(root, kind(wheels), in_use=lambda: [("tiny", "1.0")], kept_versions=1) as made:
        made.want([Wanted("tiny", "9.0")])
        assert "tiny-engine==9.0" in await reached(made, "failed")
        assert made.versions() == {"tiny": "5.0"}
        make_wheel(wheels, "9.0")
        await reached(made, "installed")
        assert set(made.homes["tiny"]) == {"1.0", "5.0", "9.0"}


async def test_what_is_not_wanted_any_more_stays_if_it_is_installed_and_is_not_tried_again(
    tmp_path: Path,
) -> None:
    wheels, root = tmp_path / "wheels", tmp_path / "engines"
    wheels.mkdir()
    have(root, "1.0")
    async with provisioner(root, kind(wheels)) as made:
        made.want([Wanted("tiny", "9.0")])
        await reached(made, "failed")
        made.want([])
        assert made.states == []
        make_wheel(wheels, "9.0")  # a try that goes on could succeed now
        made.want([Wanted("tiny", "1.0")])
        await reached(made, "installed")
        made.want([])
        assert [(entry.version, entry.state) for entry in made.states] == [("1.0", "installed")]
        assert made.versions() == {"tiny": "1.0"}


async def test_a_package_whose_files_are_not_what_it_lists_is_refused(tmp_path: Path) -> None:
    wheels, root = tmp_path / "wheels", tmp_path / "engines"
    make_wheel(wheels, "1.0", lie=True)
    async with provisioner(root, kind(wheels)) as made:
        made.want([Wanted("tiny", "1.0")])
        await reached(made, "failed", "not what its package lists")
        assert made.versions() == {}


async def test_what_cannot_be_installed_here(tmp_path: Path) -> None:
    engine = kind(tmp_path, variants={"cuda": Variant()})
    wanted = {
        Wanted("unknown", "1"): "does not know how",
        Wanted("tiny", ">=1"): "is not a version",
        Wanted("tiny", "1.0", "cpu"): "only as cuda",
        Wanted("tiny", "../../x"): "is not a version",
        Wanted("tiny", "1.0"): "as cpu, only as cuda",
    }
    for want, reason in wanted.items():
        async with provisioner(tmp_path / "engines", engine) as made:
            made.want([want])
            await reached(made, "unsupported", reason)
    assert not (tmp_path / "engines").exists()
