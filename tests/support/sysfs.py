"""Trees of /sys for nodes with adapters that this machine has not."""

from __future__ import annotations

from pathlib import Path


def lay(root: Path, files: dict[str, str]) -> Path:
    """A tree of small files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def infiniband(root: Path, hca: str, port: int = 1, **changes: str) -> None:
    """A ConnectX port on InfiniBand, by the files that mlx5 has."""
    base = f"class/infiniband/{hca}"
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "sm_lid": "0x11",
        "gids/0": "fe80:0000:0000:0000:b8ce:f603:00d5:6e2a",
        "counters/port_xmit_data": "1000",
        "counters/port_rcv_data": "18446744073709551615",
        "counters/symbol_error": "3",
        **changes,
    }
    lay(root, {f"{base}/node_guid": "b8ce:f603:00d5:6e2a\n"})
    lay(root, {f"{base}/ports/{port}/{name}": f"{text}\n" for name, text in files.items()})
