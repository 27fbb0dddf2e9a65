"""A virtual machine whose unmodified Debian kernel runs an NVMe/TCP target (nvmet) on a loopback port."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.conformance.guest_image import LabError, make_image

NQN = "nqn.2014-08.org.example:akv-lab"
SERIAL = "AKVLAB01"
DISK_MEGABYTES = 64
MEMORY_MEGABYTES = 1024
BOOT_SECONDS = 300.0
# In the order of loading; what they depend on comes by itself.
MODULES = (
    "virtio_pci",
    "virtio_net",
    "configfs",
    "crc32c_generic",
    "crct10dif_generic",
    "nvmet",
    "nvmet_tcp",
    "null_blk",
)


class NvmetGuest:
    """A context manager: inside it the target serves; at its end the machine is gone."""

    def __init__(self, cache: Path, run_dir: Path) -> None:
        if shutil.which("qemu-system-x86_64") is None:
            raise LabError("there is no qemu-system-x86_64: install the Debian package qemu-system-x86")
        init = Path(__file__).with_name("nvmet_init.sh").read_text()
        self.image = make_image(cache, MODULES, init)
        self.port = _free_port()
        self.control = run_dir / "control.sock"
        self._console = run_dir / "console.log"
        self._errors = run_dir / "qemu.log"
        self._machine: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the machine: it can be suspended."""
        if self._machine is None:
            raise LabError("the guest is not running")
        return self._machine.pid

    def environment(self) -> dict[str, str]:
        """How the native tests find target and guest."""
        return {
            "AKV_LAB_TRADDR": "127.0.0.1",
            "AKV_LAB_TRSVCID": str(self.port),
            "AKV_LAB_NQN": NQN,
            "AKV_LAB_SERIAL": SERIAL,
            "AKV_LAB_CONTROL": str(self.control),
            "AKV_LAB_PID": str(self.pid),
        }

    def __enter__(self) -> NvmetGuest:
        with self._errors.open("wb") as errors:
            self._machine = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _command(self) -> list[str]:
        settings = f"lab.nqn={NQN} lab.serial={SERIAL} lab.megabytes={DISK_MEGABYTES}"
        # QEMU emulates "rep movsb" byte by byte, so the guest is not told that it is fast.
        return [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm",
            "-m", str(MEMORY_MEGABYTES), "-smp", "1", "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", str(self.image.kernel), "-initrd", str(self.image.initrd),
            "-append", f"console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on nokaslr {settings}",
            "-serial", f"file:{self._console}",
            "-serial", f"unix:{self.control},server=on,wait=off",
            "-netdev", f"user,id=lab,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:4420",
            "-device", "virtio-net-pci,netdev=lab,romfile=",
        ]  # fmt: skip

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + BOOT_SECONDS
        while "GUEST READY" not in self._console_text():
            failed = self._machine is None or self._machine.poll() is not None
            if failed or "GUEST FAILED" in self._console_text():
                raise LabError(f"the guest did not start: {self._last_words()}")
            if time.monotonic() > end:
                raise LabError(f"the guest was not ready within {BOOT_SECONDS:.0f} s: {self._last_words()}")
            time.sleep(0.1)

    def _console_text(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self._console.read_text(errors="replace")
        return ""

    def _last_words(self) -> str:
        text = self._errors.read_text(errors="replace") + self._console_text()
        return " | ".join(text.split("\n")[-6:]) or "it said nothing"

    def _end(self) -> None:
        if self._machine is None or self._machine.poll() is not None:
            return
        os.kill(self._machine.pid, signal.SIGCONT)  # a test may have suspended it
        self._machine.kill()
        self._machine.wait(timeout=30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
