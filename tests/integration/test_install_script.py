"""deploy/install-awide-cluster.sh into a directory: twice, dry, changed, for a witness, and taken off."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from controlplane.agent.settings import AgentConfig
from tests.support.procs import ROOT

SCRIPT = ROOT / "deploy" / "install-awide-cluster.sh"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
CONFIG = "etc/adp/awide-cluster"
# A dataplane pins, maps hugepages and uses devices; an agent's engines do that too, and run as root.
THRESHOLDS = {"akv-dataplane@": "70", "akv-agent": "70", "akv-shards": "45"}
# The virtual environment of the tests: it has all programs.
VENV = Path(sys.prefix)

pytestmark = pytest.mark.slow


def run(*arguments: str | Path, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    command = [str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def install(root: Path, *arguments: str, script: Path = SCRIPT) -> list[str]:
    """Install below `root`; the script's lines."""
    done = run("--root", root, "--venv", VENV, "--insecure-loopback", *arguments, script=script)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def files(root: Path) -> set[str]:
    """All files and links below `root`."""
    return {
        str((Path(folder) / name).relative_to(root)) for folder, _, names in os.walk(root) for name in names
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_a_dry_run_tells_all_and_changes_nothing(root: Path) -> None:
    lines = install(root, "--dry-run")
    assert not root.exists()
    told = {line.split()[2] for line in lines if line.startswith("would ")}
    install(root)
    assert {f"/{name}" for name in files(root)} <= told


def test_what_is_installed_works_and_a_second_run_does_nothing(root: Path) -> None:
    install(root, "--host", "storage-1")
    before = {name: (root / name).lstat().st_mtime_ns for name in files(root)}
    checked = subprocess.run(
        [root / "usr/local/bin/awide-cluster", "--config-dir", root / CONFIG, "--validate-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.stdout == "awide-cluster: the settings of host storage-1 are valid\n", checked.stderr
    assert (root / CONFIG / "awide-cluster.env").stat().st_mode & 0o777 == 0o640
    assert completed(root, "get_") == ["get_cluster", "get_members"]
    assert "--forget-cards" in completed(root, "remove_node", "--")

    assert install(root, "--host", "storage-1")[-1] == "nothing to do: the installation is complete"
    assert {name: (root / name).lstat().st_mtime_ns for name in files(root)} == before


def completed(root: Path, *words: str) -> list[str]:
    """What bash offers for these words behind `clustercli`, by the completion that was installed."""
    script = root / "usr/share/bash-completion/completions/clustercli"
    ask = (
        f'. {script}; COMP_WORDS=(clustercli "$@"); COMP_CWORD=$#; '
        "$(complete -p clustercli | sed 's/.* -F \\([^ ]*\\) .*/\\1/') clustercli; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    environment = {**os.environ, "PATH": f"{root / 'usr/local/bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ask, "bash", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_settings_are_the_operators_and_units_are_ours(root: Path) -> None:
    install(root)
    settings, unit = root / CONFIG / "awide-cluster.env", root / "etc/systemd/system/awide-cluster.service"
    settings.write_text("AWC_HOST=mine\n")
    unit.write_text("[Service]\n")
    lines = install(root)
    assert settings.read_text() == "AWC_HOST=mine\n"
    assert "update /etc/systemd/system/awide-cluster.service" in lines
    assert "kept /etc/adp/awide-cluster/awide-cluster.env" in lines
    assert "User=awide" in unit.read_text()


def test_the_agents_settings_are_filled_in_and_kept(root: Path) -> None:
    install(root, "--host", "storage-1")
    settings = root / "etc/akv/agent.yaml"
    config = AgentConfig.model_validate(yaml.safe_load(settings.read_text()))
    assert (config.node_id, config.address) == ("storage-1", "127.0.0.1")
    settings.write_text("node_id: mine\n")
    install(root, "--host", "storage-1")
    assert settings.read_text() == "node_id: mine\n"
    assert (root / "usr/local/bin/akv-agent").is_symlink()


def test_a_witness_and_an_address_beyond_loopback(root: Path) -> None:
    done = run("--root", root, "--venv", VENV, "--witness", "--address", "192.0.2.12")
    assert done.returncode == 0, done.stderr
    settings = (root / CONFIG / "awide-cluster.env").read_text().splitlines()
    assert {"AWC_WITNESS=1", "AWC_ADDRESS=192.0.2.12"} <= set(settings)
    assert not any(line.startswith("AWC_SECURITY") for line in settings)
    assert "AWC_EXPORTER_TLS=1" in settings
    flags = (root / CONFIG / "exporters.env").read_text()
    assert "AWC_EXPORTER_FLAGS=--tls-dir /var/lib/awide-cluster/pki" in flags


def test_uninstall_keeps_settings_and_data_unless_it_is_to_purge(root: Path) -> None:
    install(root)
    (root / "var/lib/etcd/member").mkdir()
    (root / "var/lib/etcd/member/db").write_text("data")
    weights = root / "var/lib/akv/weights/model"
    weights.mkdir(parents=True)
    (weights / "a.safetensors").write_text("weights")
    (root / "var/lib/akv/agent").mkdir()
    (root / "var/lib/akv/agent/incarnation").write_text("1")
    stranger = root / "usr/local/bin/other"
    stranger.write_text("")
    assert run("uninstall", "--root", root, "--dry-run").returncode == 0
    done = run("uninstall", "--root", root)
    assert done.returncode == 0, done.stderr
    left = files(root)
    assert {f"{CONFIG}/awide-cluster.env", "var/lib/etcd/member/db", "usr/local/bin/other"} <= left
    assert not any("systemd" in name or name.startswith("usr/share") for name in left)

    assert run("uninstall", "--root", root, "--purge").returncode == 0
    assert files(root) == {"usr/local/bin/other", "var/lib/akv/weights/model/a.safetensors"}
    assert run("uninstall", "--root", root).stdout == "nothing to do: it is not installed\n"


# Runs the installer as on a machine with systemd: its directories are copies, in a mount namespace of its
# own.
PLAYED = r"""
set -eu
for place in /etc /opt /usr/local/bin /usr/lib/sysusers.d /usr/share/bash-completion /var/lib /var/log /srv \
  /run; do
  [ -d "$place" ] || continue
  mkdir -p "$1$place"
  if [ "$place" = /etc ] && [ ! -e "$1/etc/passwd" ]; then cp -a /etc/. "$1/etc/"; fi
  mount --bind "$1$place" "$place"
done
mkdir -p /run/systemd/system
work=$1 script=$2
shift 2
PATH=$work/bin:$PATH "$script" "$@"
"""
SYSTEMCTL = r"""#!/bin/bash
# is-enabled and is-active answer from the list of enabled units; the rest is noted.
state=$0.enabled
touch "$state"
args=()
for word in "$@"; do [[ $word == --* ]] || args+=("$word"); done
case ${args[0]} in
  is-enabled | is-active) exec grep -qxF "${args[1]}" "$state" ;;
  enable) echo "${args[1]}" >>"$state" ;;
  disable) sed -i "/^${args[1]}$/d" "$state" ;;
esac
echo "$*" >>"$0.calls"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The directories of a machine with a systemctl that is played."""
    work = tmp_path / "machine"
    (work / "bin").mkdir(parents=True)
    program = work / "bin" / "systemctl"
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    return work


def on_machine(machine: Path, *arguments: str) -> tuple[list[str], list[str]]:
    """The script's lines, and what it asked of systemctl."""
    calls = machine / "bin" / "systemctl.calls"
    calls.unlink(missing_ok=True)
    command = ["unshare", "--mount", "bash", "-c", PLAYED, "played", str(machine), str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), calls.read_text().splitlines() if calls.exists() else []


def enabled(machine: Path) -> set[str]:
    return set((machine / "bin" / "systemctl.enabled").read_text().split())


@pytest.mark.root
def test_a_witness_stays_one_when_the_installer_is_run_again(machine: Path) -> None:
    """Without --witness too: both exporters want the same port."""
    always = {"awide-cluster.service", "akv-ping-exporter.service"}
    venv = ("--venv", str(VENV))
    on_machine(machine, *venv, "--witness")
    assert enabled(machine) == always | {"akv-witness-exporter.service"}
    lines, calls = on_machine(machine, *venv)
    assert lines[-1] == "nothing to do: the installation is complete"
    assert calls == []

    settings = machine / CONFIG / "awide-cluster.env"
    settings.write_text(settings.read_text().replace("AWC_WITNESS=1", 'AWC_WITNESS="0"'))
    lines, _ = on_machine(machine, *venv, "--witness")
    assert any("set it to 1 there" in line for line in lines)
    assert enabled(machine) == always | {"akv-card-exporter.service"}


@pytest.mark.root
def test_uninstall_stops_all_units_and_every_instance_of_a_template(machine: Path) -> None:
    on_machine(machine, "--venv", str(VENV))
    _, calls = on_machine(machine, "uninstall")
    stopped = [call.removeprefix("stop ") for call in calls if call.startswith("stop ")]
    assert stopped == [unit.name.replace("@", "@*") for unit in UNITS]
    assert [call for call in calls if call.startswith("disable")] == [
        f"disable --quiet {unit.name}" for unit in UNITS
    ]
    assert enabled(machine) == set()
    assert not list((machine / "etc/systemd/system").glob("akv-*"))


def test_a_program_of_someone_else_is_not_replaced(root: Path) -> None:
    other = root / "usr/local/bin/clustercli"
    other.parent.mkdir(parents=True)
    other.write_text("theirs")
    done = run("--root", root, "--venv", VENV, "--insecure-loopback")
    assert done.returncode == 1
    assert "move it away first" in done.stderr
    assert other.read_text() == "theirs"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--frobnicate"], 2, "is not an option"),
        (["--root"], 2, "needs a value"),
        (["--root", "relative"], 2, "not an absolute path"),
        (["--root", "/tmp/x"], 2, "--venv too"),
        (["--root", "/tmp/x", "--venv", "/nowhere"], 1, "has no program awide-cluster"),
        (["--address", "storage-1"], 2, "not a literal"),
        (["--address", "192.0.2.1", "--insecure-loopback"], 2, "loopback addresses only"),
        (["--host", "a/b"], 2, "not a host name"),
        (["--purge"], 2, "uninstall only"),
        (["--venv", "/v", "--from", "/f"], 2, "one of them"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], code: int, words: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_well_formed_and_hardened(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False
    )
    # Only that the programs are not installed on this machine may be said.
    others = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert others == []
    threshold = THRESHOLDS.get(unit.stem, "25")
    hardened = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={threshold}", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert hardened.returncode == 0, hardened.stdout.splitlines()[-1:]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
def test_the_script_is_clean() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
