"""Agents of tests: their settings, and one that runs in the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from controlplane.agent.agent import Agent
from controlplane.agent.incarnation import AgentState
from controlplane.agent.settings import load_agent_config
from controlplane.base.credentials import CredentialFiles
from controlplane.base.pki import Role
from tests.support.pki import run_authority


def key_paths(files: CredentialFiles) -> dict[str, str]:
    """Credentials as agent.yaml names them."""
    return {
        "cluster_ca": str(files.ca),
        "cluster_cert": str(files.certificate),
        "cluster_key": str(files.key),
    }


def write_config(folder: Path, node_id: str, hosts: str, **keys: Any) -> Path:
    """An agent.yaml in `folder`, with every path of the agent below it, and a certificate of the run's CA."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "node_id": node_id,
        "address": "127.0.0.1",
        "cluster_hostname": hosts,
        "state_dir": str(folder / "state"),
        "engines_dir": str(folder / "engines"),
        "heartbeat_ms": 200,
        **keys,
    }
    if "cluster_cert" not in keys:
        document.update(key_paths(run_authority().once(Role.AGENT, node_id)))
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@asynccontextmanager
async def agent(path: Path) -> AsyncIterator[Agent]:
    """An agent that runs; at the end it is stopped, and its shards go on."""
    config = load_agent_config(path, {})
    with AgentState(Path(config.state_dir)) as state:
        running = Agent(config, state)
        task = asyncio.create_task(running.run(), name="agent")
        try:
            yield running
        finally:
            running.stop.set()
            await task
