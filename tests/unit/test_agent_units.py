"""The agent's unit files, and the settings that ship with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from controlplane.agent.settings import AgentConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = DEPLOY / "systemd"
# Each of these closes the unit's cgroup to all devices that are not listed (ProtectClock by its DeviceAllow).
CLOSING_DEVICES = ("PrivateDevices", "DeviceAllow", "DevicePolicy", "ProtectClock")


@pytest.mark.parametrize("name", ["akv-agent.service", "akv-shards.service", "akv-dataplane@.service"])
def test_engines_and_dataplanes_may_use_devices(name: str) -> None:
    lines = (UNITS / name).read_text().splitlines()
    assert [line for line in lines if line.startswith(CLOSING_DEVICES)] == []


def test_a_restart_of_the_agent_leaves_its_shards() -> None:
    lines = (UNITS / "akv-agent.service").read_text().splitlines()
    assert "KillMode=process" in lines
    assert not [line for line in lines if line.startswith(("BindsTo", "PartOf"))]


def test_the_settings_that_ship_are_valid() -> None:
    config = AgentConfig.model_validate(yaml.safe_load((DEPLOY / "settings" / "agent.yaml").read_text()))
    assert config.credentials() is not None
    assert str(config.hosts()[0]) == "storage-1:5000"
