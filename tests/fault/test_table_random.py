"""Random faults with a fixed seed; `make soak` runs more of them, with a seed of its own.

AKV_FAULTS and AKV_FAULT_SEED choose number and seed; AKV_FAULT_FULL=1 adds a Prometheus and a ping exporter
to each host, and certificates to every connection of the control path. A failure names seed and faults.
"""

from __future__ import annotations

import os

import pytest

from tests.support.scene.marks import NEEDS_HOSTS
from tests.support.scene.random_run import RandomRun
from tests.support.scene.scene import Scene

FAULTS = int(os.environ.get("AKV_FAULTS", "20"))
SEED = int(os.environ.get("AKV_FAULT_SEED", "4"))

MONITORED = SECURE = os.environ.get("AKV_FAULT_FULL") == "1"

pytestmark = [*NEEDS_HOSTS, pytest.mark.timeout(120 + 30 * FAULTS)]


def test_no_fault_takes_a_healthy_card_away(scene: Scene) -> None:
    with scene.traffic() as traffic:
        print(f"seed {SEED}, {FAULTS} faults", flush=True)
        RandomRun(scene, traffic, SEED).run(FAULTS)
