"""deploy/Containerfile says what the repository has: sources, packages, programs, etcd's version, mounts.

That its sources are all that a build needs is tested where a wheel is built from them (test_packaging).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from controlplane.cluster.etcd_binary import OLDEST
from controlplane.cluster.settings import load_settings
from tests.support.containerfile import PATH, copies, instructions
from tests.support.procs import ROOT

LINES = PATH.read_text(encoding="utf-8").splitlines()
HEAD = "\n".join(line.removeprefix("#").strip() for line in LINES if line.startswith("#"))
# The mounts that the operator's manual gives; Docker's socket is for those who let Docker run etcd.
MOUNTS = {"/etc/adp", "/var/lib/etcd", "/var/log/adp", "/srv/docker/awide/monitoring"}


def packages(marked: str) -> set[str]:
    """Debian packages of tools/apt-packages.txt with this mark."""
    lines = (ROOT / "tools" / "apt-packages.txt").read_text(encoding="utf-8").splitlines()
    return {line.split()[0] for line in lines if line.split()[-1:] == [marked] and line[0] != "#"}


def test_it_copies_what_is_there_and_what_the_build_reads() -> None:
    sources = {source for group, _ in copies() for source in group}
    assert [source for source in sources if not (ROOT / source).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == sources
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["scikit-build"]["wheel"]["packages"]) < sources


def test_it_installs_the_packages_that_a_build_needs() -> None:
    (build, *_) = (rest for word, rest in instructions() if word == "RUN" and "g++" in rest)
    assert packages("build") - {"ccache"} <= set(build.split())


def test_its_programs_are_ours_and_its_settings_are_the_hosts() -> None:
    found = dict(instructions())
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert json.loads(found["ENTRYPOINT"]) == ["awide-cluster"]
    assert {"awide-cluster", *re.findall(r"akv-\w+-exporter", HEAD), "clustercli"} <= set(programs)
    assert json.loads(found["CMD"]) == ["--config-dir", "/etc/adp/awide-cluster"]
    assert "--config-dir" in (ROOT / "deploy/systemd/awide-cluster.service").read_text(encoding="utf-8")


def test_its_etcd_is_the_one_of_the_docker_runner_and_not_too_old(tmp_path: Path) -> None:
    (image,) = (rest.split()[0] for word, rest in instructions() if word == "FROM" and "AS etcd" in rest)
    assert image == load_settings(tmp_path, {"AWC_HOST": "storage-1"}).etcd_image
    version = image.rpartition(":v")[2]
    assert tuple(map(int, version.split("."))) >= OLDEST


@pytest.mark.parametrize("option", ["--network host", "--read-only", "--cap-drop ALL", "no-new-privileges"])
def test_the_command_at_its_head_mounts_what_the_manual_mounts_and_gives_no_rights(option: str) -> None:
    command = HEAD[HEAD.index("docker run -d") : HEAD.index("docker exec")]
    mounts = [mount.split(":") for mount in re.findall(r"-v (\S+)", command)]
    assert {inside for _, inside in mounts} == MOUNTS
    assert all(outside == inside for outside, inside in mounts)
    assert option in command
