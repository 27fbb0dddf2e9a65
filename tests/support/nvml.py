"""NVIDIA's driver as it answers through NVML, for cards that this machine has not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml


class Driver:
    """Answers as NVML does, through its Python module's names; `cards` are what it has."""

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = list(cards)
        self.dead = False
        self.opened = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML", "c_nvml")):
            return getattr(pynvml, name)
        return lambda *arguments: self._answer(name, *arguments)

    def nvmlInit(self) -> None:
        self.opened += 1
        if self.dead:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    def nvmlDeviceGetGpuFabricInfoV(self, card: dict[str, Any], info: Any) -> None:
        fabric = card.get("fabric")
        if fabric is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        for name, value in fabric.items():
            setattr(info, name, value)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if self.dead:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        common = {
            "nvmlDeviceGetCount": lambda: len(self.cards),
            "nvmlSystemGetDriverVersion": lambda: "570.86",
            "nvmlDeviceGetHandleByIndex": lambda index: self.cards[index],
            "nvmlShutdown": lambda: None,
        }
        if name in common:
            return common[name](*arguments)  # type: ignore[operator]
        found = arguments[0].get(name, pynvml.NVML_ERROR_NOT_SUPPORTED)
        if isinstance(found, int) and name != "nvmlDeviceGetTotalEccErrors":
            raise pynvml.NVMLError(found)
        return found


def card(number: int, **more: Any) -> dict[str, Any]:
    return {
        "nvmlDeviceGetUUID": f"GPU-{number}",
        "nvmlDeviceGetName": b"NVIDIA H100",
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId=f"00000000:{number:02X}:00.0"),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30, used=number << 30),
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
        "nvmlDeviceGetComputeRunningProcesses": [],
        **more,
    }
