"""Engines are installed by pip from wheels of the test's own: whole, broken off, damaged, wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from controlplane.agent.engines import provisioner as provisioner_module
from controlplane.agent.engines.catalog import EngineKind, Variant
from controlplane.agent.engines.environment import BrokenError, Environment, Wanted, verify
from controlplane.agent.engines.provisioner import DETAIL_CHARACTERS, Provisioner
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
    # pip warns of each of these first, and says why it fails last.
    nowhere = [word for n in range(5) for word in ("--find-links", f"/nowhere/{n}{'x' * 200}")]
    engine = kind(wheels, pip_arguments=("--no-index", "--find-links", str(wheels), *nowhere))
    async with provisioner(root, engine, in_use=lambda: [("tiny", "1.0")], kept_versions=1) as made:
        made.want([Wanted("tiny", "9.0")])
        said = await reached(made, "failed")
        assert said.startswith("python pip ended with code 1: ")
        assert said.endswith("ERROR: No matching distribution found for tiny-engine==9.0")
        assert len(said) == DETAIL_CHARACTERS
        assert made.versions() == {"tiny": "5.0"}
        make_wheel(wheels, "9.0")
        await reached(made, "installed")
        assert set(made.homes["tiny"]) == {"1.0", "5.0", "9.0"}
        found = {path.name for path in (root / "tiny").iterdir() if path.is_dir()}
        assert found == {"1.0", "5.0", "9.0"}, "what was set aside is removed"


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


def test_damaged_downloads_are_thrown_away_whatever_is_damaged_in_them(tmp_path: Path) -> None:
    """A power cut leaves blocks of zeros, a disk changes bytes: how zipfile fails depends on where."""
    whole = tmp_path / "whole"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"file-{number}.py", "".join(f"{n} = {n * number}\n" for n in range(500)))
    data = whole.read_bytes()
    random = Random(1)
    for _ in range(400):
        damaged, begin = bytearray(data), random.randrange(len(data))
        end = min(len(data), begin + random.choice((1, 4, 64, 512)))
        filling = b"\0" * (end - begin) if random.random() < 0.3 else random.randbytes(end - begin)
        damaged[begin:end] = filling
        (tmp_path / "wheels").mkdir(exist_ok=True)
        (tmp_path / "wheels" / "a.whl").write_bytes(damaged)
        provisioner_module._drop_damaged(tmp_path / "wheels")
    (tmp_path / "wheels" / "a.whl").write_bytes(data[:-100])
    (tmp_path / "wheels" / "b.whl").write_bytes(data)
    hole = bytearray(data)
    hole[100:600] = bytes(500)
    (tmp_path / "wheels" / "c.whl").write_bytes(hole)
    provisioner_module._drop_damaged(tmp_path / "wheels")
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == ["b.whl"]


@pytest.mark.parametrize("record", [b"\xff,sha256=x,1\n", b"x" * 200_000 + b",sha256=x,1\n"])
def test_a_list_of_files_that_can_not_be_read_is_no_installation(tmp_path: Path, record: bytes) -> None:
    environment = Environment(tmp_path, Wanted("tiny", "1.0"))
    info = environment.path / "lib/python3.11/site-packages/tiny_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_bytes(record)
    with pytest.raises(BrokenError, match=r"the RECORD of tiny_engine-1\.0\.dist-info can't be read"):
        verify(environment, "tiny-engine")


_KILLED = """
import asyncio, sys
from pathlib import Path
from controlplane.agent.engines import provisioner
from tests.integration.test_agent_engines import Wanted, kind
provisioner._make_venv = lambda: ("/bin/sh", "-c", "echo $$ > {pid}; exec sleep 600", "sh")
async def main():
    made = provisioner.Provisioner(Path("{root}"), {{"tiny": kind(Path("{wheels}"))}}, lambda: None)
    made.want([Wanted("tiny", "1.0")])
    await made.run()
asyncio.run(main())
"""


async def test_what_a_killed_agent_began_to_install_is_not_joined_in(tmp_path: Path) -> None:
    wheels, root, pid = tmp_path / "wheels", tmp_path / "engines", tmp_path / "pid"
    wheels.mkdir()
    script = _KILLED.format(pid=pid, root=root, wheels=wheels)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=Path(__file__).parents[2])
    try:
        await eventually(lambda: pid.exists() and pid.read_text().strip() != "", "it installs", SECONDS)
    finally:
        killed.kill()
        await killed.wait()
    left = int(pid.read_text())
    try:
        async with provisioner(root, kind(wheels)) as made:
            made.want([Wanted("tiny", "1.0")])
            await reached(made, "failed", "what another agent, or an earlier one, began is at work on it")
            os.kill(left, signal.SIGKILL)
            await reached(made, "failed", "tiny-engine==1.0")
    finally:
        with suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)
