"""tools/setup says what is missing and changes nothing unless it may; the lock covers pyproject.toml."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


class Clone:
    """A folder with tools/setup alone; its `id`, `dpkg-query` and `apt-get` are scripts of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tools").mkdir()
        (root / "bin").mkdir()
        shutil.copy(ROOT / "tools/setup", root / "tools/setup")
        (root / "tools/apt-packages.txt").write_text(
            "# comment\nlibone-dev  build\nlibtwo-dev  test\ntidy-tool  check\n"
        )
        self.program("dpkg", 'echo "dpkg $*" >>"$ROOT/apt.log"')
        self.program("dpkg-query", 'grep -qx "${@: -1}" "$ROOT/installed" && printf installed')
        self.program(
            "apt-get",
            'echo "$*" >>"$ROOT/apt.log"\n'
            '[[ $* != *install* ]] || printf "%s\\n" $BRINGS >>"$ROOT/installed"',
        )
        (root / "installed").touch()

    def program(self, name: str, body: str) -> None:
        """Put a bash script of this body on PATH."""
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def setup(self, *arguments: str, uid: int, brings: str = "") -> subprocess.CompletedProcess[str]:
        """Run tools/setup as this user id; apt-get will install the packages `brings`."""
        self.program("id", f"echo {uid}")
        environment = {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "ROOT": str(self.root),
            "BRINGS": brings,
            "AKV_PYTHON": sys.executable,
        }
        command = ["bash", str(self.root / "tools/setup"), *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def apt_calls(self) -> str:
        """What apt-get was asked for."""
        log = self.root / "apt.log"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_without_root_the_missing_packages_are_named_and_nothing_is_changed(clone: Clone) -> None:
    (clone.root / "installed").write_text("libone-dev\n")
    before = sorted(clone.root.rglob("*"))
    result = clone.setup(uid=1000)
    assert result.returncode == 1
    assert "missing: libtwo-dev" in result.stderr
    assert "apt-get install --no-install-recommends libtwo-dev" in result.stderr
    assert clone.apt_calls() == ""
    assert sorted(set(clone.root.rglob("*")) - {clone.root / "bin/id"}) == before


def test_the_packages_of_make_check_are_asked_for_by_name(clone: Clone) -> None:
    (clone.root / "installed").write_text("libone-dev\nlibtwo-dev\n")
    result = clone.setup("check", uid=1000)
    assert result.returncode == 1
    assert "missing: tidy-tool" in result.stderr


def test_as_root_only_the_missing_packages_are_installed(clone: Clone) -> None:
    (clone.root / "installed").write_text("libtwo-dev\n")
    # An environment that is content with everything: what comes after the packages is not the subject.
    (clone.root / ".venv/bin").mkdir(parents=True)
    clone.program("../.venv/bin/python", "exit 0")
    result = clone.setup(uid=0, brings="libone-dev")
    assert "installing system packages: libone-dev" in result.stdout
    configure, update, install = clone.apt_calls().splitlines()
    assert configure == "dpkg --configure -a"
    assert update.endswith("update -q")
    assert install.endswith("--no-install-recommends libone-dev")


def test_a_package_that_apt_does_not_bring_is_an_error(clone: Clone) -> None:
    result = clone.setup(uid=0, brings="libone-dev")
    assert result.returncode == 1
    assert "apt-get did not bring: libtwo-dev" in result.stderr


def test_a_failing_apt_shows_its_output(clone: Clone) -> None:
    clone.program("apt-get", "echo no such mirror; exit 100")
    result = clone.setup(uid=0)
    assert result.returncode == 1
    assert "no such mirror" in result.stderr
    assert "apt-get update failed" in result.stderr


def test_a_machine_without_dpkg_is_told_what_to_install(clone: Clone) -> None:
    commands = ("bash", "awk", "dirname", "xargs", "echo")
    for command in commands:
        (clone.root / "bin" / command).symlink_to(
            shutil.which(command) or pytest.fail(f"{command} is needed")
        )
    (clone.root / "bin/dpkg-query").unlink()
    environment = {"PATH": str(clone.root / "bin"), "AKV_PYTHON": sys.executable}
    result = subprocess.run(
        ["bash", str(clone.root / "tools/setup")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "install the equivalents of: libone-dev libtwo-dev" in result.stderr


def test_an_unfit_python_and_an_unknown_argument_are_refused(clone: Clone) -> None:
    clone.program("oldpython", "exit 1")
    environment = {**os.environ, "AKV_PYTHON": str(clone.root / "bin/oldpython")}
    command = ["bash", str(clone.root / "tools/setup")]
    old = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (old.returncode, "is not a Python of 3.11 or newer" in old.stderr) == (1, True)
    unknown = subprocess.run(
        [*command, "everything"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (unknown.returncode, "unknown argument 'everything'" in unknown.stderr) == (2, True)


def project() -> dict[str, list[str]]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requirements = config["project"]["dependencies"] + config["project"]["optional-dependencies"]["dev"]
    return {
        "wanted": requirements,
        "build": config["build-system"]["requires"],
        "plots": config["dependency-groups"]["plots"],
    }


def pins(lock: str) -> dict[str, str]:
    """Version by package."""
    found = PINNED.findall((ROOT / lock).read_text())
    return {canonicalize_name(name): version for name, version in found}


@pytest.mark.parametrize(
    ("lock", "parts"), [("requirements.lock", ("wanted", "build")), ("requirements-plots.lock", ("plots",))]
)
def test_a_lock_pins_everything_that_the_project_asks_for(lock: str, parts: tuple[str, ...]) -> None:
    pinned = pins(lock)
    wanted = [Requirement(text) for part in parts for text in project()[part]]
    missing = [
        str(need) for need in wanted if pinned.get(canonicalize_name(need.name), "") not in need.specifier
    ]
    assert missing == []


def test_the_locks_agree_and_only_one_has_what_draws() -> None:
    always, plots = pins("requirements.lock"), pins("requirements-plots.lock")
    both = always.keys() & plots.keys()
    assert {name: always[name] for name in both} == {name: plots[name] for name in both}
    assert "matplotlib" not in always


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-plots.lock"])
def test_every_pin_has_a_hash_and_no_address(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    entries = re.split(r"\n(?=\S)", text.strip())
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_build_uses_the_versions_of_the_lock() -> None:
    assert set(project()["build"]) <= set(project()["wanted"])
