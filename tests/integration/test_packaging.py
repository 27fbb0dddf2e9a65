"""A wheel of this tree, installed by pip into a fresh virtual environment, gives working commands."""

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.support.containerfile import copy_sources

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
COMMANDS = [*sorted(PROJECT["scripts"]), "akv-softcard", "akv-nvme", "akv-initiator"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def clean_environment() -> dict[str, str]:
    """The environment without anything that could lead to this tree or to its virtual environment."""
    dropped = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = [part for part in kept["PATH"].split(os.pathsep) if not Path(part).is_relative_to(ROOT)]
    # A build folder of the same depth and the same warnings as the editable build's: ccache has the objects.
    same_build = {"SKBUILD_BUILD_DIR": "build/wheel", "SKBUILD_CMAKE_DEFINE": "AKV_WERROR=ON"}
    return {**kept, **same_build, "PATH": os.pathsep.join(path)}


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=840, check=False
    )


def pip(environment: Path, folder: Path, *arguments: str | Path) -> None:
    """Run pip for the programs of a virtual environment that has none of its own."""
    command: list[str | Path] = [sys.executable, "-m", "pip", "--python", environment / "bin/python"]
    result = run([*command, "--disable-pip-version-check", *arguments], folder)
    assert result.returncode == 0, result.stdout + result.stderr


def wheel_of(sources: Path) -> Path:
    """A wheel, made as `pip install .` makes it: with just what [build-system] names, in a place of its own.

    Not in pip's place for it, whose name is another each time: the compiler's cache knows nanobind where
    tools/setup has it.
    """
    builder, made = sources / ".venv", sources / "build/dist"
    venv.create(builder)
    pip(builder, sources, "install", "-q", *PYPROJECT["build-system"]["requires"])
    pip(builder, sources, "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", made, ".")
    [wheel] = made.iterdir()
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a virtual environment that pip filled from what deploy/Containerfile copies."""
    home = tmp_path_factory.mktemp("install")
    sources = home / "sources"
    copy_sources(sources)
    venv.create(home / "venv")
    # Only what the commands import is compiled, and by them.
    pip(home / "venv", home, "install", "-q", "--no-compile", wheel_of(sources))
    shutil.rmtree(sources)
    return home / "venv/bin"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_helps_and_tells_its_version(installed: Path, name: str) -> None:
    shown = run([installed / name, "--help"], installed.parent)
    assert shown.returncode == 0, shown.stderr
    assert "usage" in shown.stdout.lower()
    assert len(shown.stdout.splitlines()) > 3
    version = run([installed / name, "--version"], installed.parent)
    assert version.returncode == 0, version.stderr
    assert PROJECT["version"] in version.stdout


def test_the_installed_distribution_brings_its_native_module_and_protos(installed: Path) -> None:
    script = "import dataplane._native, akv.v1.plan_pb2, akv.etcd.etcd_pb2; print(dataplane._native.__file__)"
    result = run([installed / "python", "-c", script], installed.parent)
    assert result.returncode == 0, result.stderr
    assert str(installed.parent) in result.stdout


def test_the_client_imports_without_the_other_programs_libraries(installed: Path) -> None:
    """What an engine's environment gets with `pip install --no-deps`: nothing else may be loaded."""
    script = "import sys, integration.client; print(*sys.modules)"
    result = run([installed / "python", "-c", script], installed.parent)
    assert (result.returncode, result.stderr) == (0, "")
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert (
        loaded & {"akv", "aiohttp", "controlplane", "google", "grpc", "numpy", "pydantic", "torch"} == set()
    )


def test_nothing_but_the_packages_is_installed(installed: Path) -> None:
    script = "import importlib.metadata as m; print(*(f for f in m.files('akv') if '..' not in f.parts))"
    result = run([installed / "python", "-c", script], installed.parent)
    folders = {Path(name).parts[0] for name in result.stdout.split() if ".dist-info" not in name}
    assert folders == {"akv", "bench", "clustercli", "controlplane", "dataplane", "integration"}
