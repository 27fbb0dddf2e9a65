"""The agent's unit files, and the settings that ship with them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from controlplane.agent.settings import AgentConfig

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", ["akv-agent.service", "akv-shards.service"])
def test_units_are_well_formed(name: str) -> None:
    command = ["systemd-analyze", "verify", str(DEPLOY / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in done.stderr.splitlines() if "is not executable" not in line] == []


def test_a_restart_of_the_agent_leaves_its_shards() -> None:
    lines = (DEPLOY / "akv-agent.service").read_text().splitlines()
    assert "KillMode=process" in lines
    assert not [line for line in lines if line.startswith(("BindsTo", "PartOf"))]


def test_the_settings_that_ship_are_valid() -> None:
    config = AgentConfig.model_validate(yaml.safe_load((DEPLOY / "settings" / "agent.yaml").read_text()))
    assert config.credentials() is not None
    assert str(config.hosts()[0]) == "storage-1:5000"
