"""InfiniBand and RoCE adapters from /sys/class/infiniband, and the fabrics that their ports are on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from akv.v1 import agent_pb2

from controlplane.agent.discovery.sysfs import entries, read_number, read_text

ETHERNET = "Ethernet"
# The kernel counts these two in words of four bytes, as InfiniBand does.
_IN_WORDS = {"port_xmit_data", "port_rcv_data"}
_RATE = re.compile(r"([0-9.]+) Gb/sec")
_UNSET_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def read_ports(sys_root: Path) -> list[agent_pb2.IbPort]:
    """Every port of every adapter, by name."""
    found = []
    for hca in entries(sys_root / "class" / "infiniband"):
        ports = [path for path in entries(hca / "ports") if path.name.isdecimal()]
        found += [_port(hca, path) for path in sorted(ports, key=lambda path: int(path.name))]
    return found


def _port(hca: Path, port: Path) -> agent_pb2.IbPort:
    link_layer = read_text(port / "link_layer")
    gid = read_text(port / "gids" / "0")
    rate = _RATE.match(read_text(port / "rate"))
    return agent_pb2.IbPort(
        hca=hca.name,
        port=int(port.name),
        state=_word(read_text(port / "state")),
        physical_state=_word(read_text(port / "phys_state")),
        rate_gbps=round(float(rate[1])) if rate else 0,
        link_layer=link_layer,
        counters=_counters(port),
        node_guid=_hex(read_text(hca / "node_guid")),
        port_guid=_hex(gid[20:]) if gid != _UNSET_GID else "",
        gid_prefix=_hex(gid[:19]) if gid != _UNSET_GID else "",
        sm_lid=read_number(port / "sm_lid"),
        network=read_text(port / "gid_attrs" / "ndevs" / "0") if link_layer == ETHERNET else "",
    )


def _word(text: str) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    return text.rpartition(":")[2].strip()


def _hex(text: str) -> str:
    return text.replace(":", "").lower()


def _counters(port: Path) -> dict[str, int]:
    counters: dict[str, int] = {}
    for directory in ("hw_counters", "counters"):
        for path in entries(port / directory):
            value = read_number(path, -1)
            if value >= 0:
                counters[path.name] = (value * 4 if path.name in _IN_WORDS else value) % 2**64
    return counters


def roce_v2_gid(sys_root: Path, hca: str, port: int) -> int | None:
    """Index of the GID to use over RoCE v2: the first IPv4-mapped one, else the first that is routable."""
    base = sys_root / "class" / "infiniband" / hca / "ports" / str(port)
    choices = []
    for path in entries(base / "gid_attrs" / "types"):
        gid = read_text(base / "gids" / path.name)
        if read_text(path) == "RoCE v2" and gid and gid != _UNSET_GID:
            link_local = gid.startswith("fe80:")
            mapped = gid.startswith("0000:0000:0000:0000:0000:ffff:")
            choices.append((not mapped, link_local, int(path.name)))
    return min(choices)[2] if choices else None


def fabrics_of(
    ports: Iterable[agent_pb2.IbPort], named: Mapping[str, Sequence[str]]
) -> list[agent_pb2.FabricAttachment]:
    """The fabrics that active ports give; `named` are the operator's: name to adapters.

    Other InfiniBand ports are on `ib-<subnet prefix>` and other RoCE ports on `roce`, which is right where a
    site has one network of each kind. The rate is that of the slowest port.
    """
    owner = {hca: name for name, hcas in named.items() for hca in hcas}
    found: dict[str, list[agent_pb2.IbPort]] = {}
    for port in ports:
        if port.state == "ACTIVE":
            usual = "roce" if port.link_layer == ETHERNET else f"ib-{port.gid_prefix}"
            found.setdefault(owner.get(port.hca, usual), []).append(port)
    return [
        agent_pb2.FabricAttachment(
            fabric=name,
            hcas=sorted({port.hca for port in members}),
            rate_gbps=min(port.rate_gbps for port in members),
        )
        for name, members in sorted(found.items())
    ]
