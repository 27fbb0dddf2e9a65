"""The master subnet manager of an InfiniBand port, as `sminfo` tells it."""

from __future__ import annotations

import re
import shutil
import subprocess

from akv.v1 import agent_pb2

from controlplane.agent.discovery.infiniband import ETHERNET

ASK_SECONDS = 3.0
_LINE = re.compile(
    r"sm lid (?P<lid>\d+) sm guid 0x(?P<guid>[0-9a-f]+), activity count \d+ "
    r"priority (?P<priority>\d+) state \d+ (?:SMINFO_)?(?P<state>\w+)"
)


def add_subnet_manager(port: agent_pb2.IbPort) -> None:
    """Fill in the port's sm_ fields; a port without a subnet manager (RoCE, down) is left as it is."""
    if port.link_layer == ETHERNET or port.state != "ACTIVE":
        return
    program = shutil.which("sminfo")
    if program is None:
        port.sm_error = "sminfo is not installed; install infiniband-diags"
        return
    try:
        done = subprocess.run(
            [program, "-C", port.hca, "-P", str(port.port)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        port.sm_error = f"sminfo: {error}"
        return
    parse_sminfo(port, done.stdout, done.stderr)


def parse_sminfo(port: agent_pb2.IbPort, output: str, errors: str = "") -> None:
    """Fill in what `sminfo` wrote, or that it can't be read."""
    found = _LINE.search(output)
    if found is None:
        port.sm_error = f"sminfo: {(errors or output).strip()[:200] or 'no answer'}"
        return
    port.sm_lid = int(found["lid"])
    port.sm_guid = found["guid"].rjust(16, "0")
    port.sm_priority = int(found["priority"])
    port.sm_state = found["state"].lower()
