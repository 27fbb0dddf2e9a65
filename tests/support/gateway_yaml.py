"""`gateway.yaml` as the manual has it, and with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from controlplane.base.gateway_config import GatewayConfig, load_gateway_config

MANUAL = """\
# gateway.yaml: cluster mode
storage_backend: kv-nvme
cluster_hostname: storage-1,storage-2,witness-1   # asked in this order
cluster_etcd_timeout_ms: 500
cluster_sick_polls: 3
cluster_absent_polls: 3
shared_storage: true
start_clean: 0
num_dbs: 128              # the same on every gateway
io_timeout_ms: 5000       # the deadline of one I/O command
io_timeout_strikes: 3     # commands in a row past it before the card leaves service
port: 5557                # unique on each GPU server
bind_address: 127.0.0.1
shared_memory_size: 10737418240   # 10 GiB, in bytes: a unit is not read in YAML
thread_pool_size: 4
core_list: "100-104"      # thread_pool_size + 1 cores
status_file: /run/akv/status.prom
"""
DEVICE = {"serial": "L0P0", "nqn": "nqn.2024-01.test:a", "traddr": "127.0.0.9", "trsvcid": 4420}


def load(directory: Path, text: str) -> GatewayConfig:
    path = directory / "gateway.yaml"
    path.write_text(text)
    return load_gateway_config(path)


def changed(**changes: Any) -> str:
    """The manual's file with other values; None takes a key out."""
    values = {**yaml.safe_load(MANUAL), **changes}
    return yaml.safe_dump({key: value for key, value in values.items() if value is not None})
