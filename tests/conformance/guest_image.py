"""A Linux kernel and a first file system for a guest, from Debian packages that are unpacked, not installed.

Everything lands in one cache folder and is made again only when a part of it changed.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

XZ_MAGIC = b"\xfd7zXZ\x00"
ELF_MAGIC = b"\x7fELF"
DOWNLOAD_SECONDS = 600
DIRECTORY, REGULAR = 0o040755, 0o100755


class LabError(Exception):
    """The lab can't run here; the text says what is missing and what to do."""


@dataclass(frozen=True)
class GuestImage:
    """What QEMU boots."""

    release: str  # the kernel's, as `uname -r`
    kernel: Path
    initrd: Path


def make_image(cache: Path, modules: Iterable[str], init: str) -> GuestImage:
    """A kernel and an initrd that loads `modules` in order and runs `init` (a busybox shell script)."""
    cache.mkdir(parents=True, exist_ok=True)
    kernel_root = _unpacked(cache, _kernel_package())
    busybox = _find(_unpacked(cache, "busybox-static"), "busybox")
    release = next((path.name for path in _modules_root(kernel_root).iterdir()), "")
    kernel = _boot_file(cache, kernel_root / "boot" / f"vmlinuz-{release}")
    files = {"bin/busybox": busybox.read_bytes(), "init": init.encode()}
    order = []
    for name, content in _with_dependencies(_modules_root(kernel_root) / release, modules):
        files[f"modules/{name}.ko"] = content
        order.append(f"/modules/{name}.ko\n")
    files["modules/order"] = "".join(order).encode()
    archive = _cpio(files)
    initrd = cache / f"initrd-{hashlib.sha256(archive).hexdigest()[:16]}.gz"
    if not initrd.exists():
        _write(initrd, gzip.compress(archive, 1))
    return GuestImage(release, kernel, initrd)


def _run(command: list[str], cwd: Path | None = None) -> str:
    """Standard output of a command, or a LabError with its last words."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
        )
    except FileNotFoundError as missing:
        raise LabError(f"there is no {command[0]}: the lab needs Debian's package tools") from missing
    except subprocess.TimeoutExpired as late:
        raise LabError(f"{' '.join(command)} took longer than {DOWNLOAD_SECONDS} s") from late
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def _kernel_package() -> str:
    """The package that Debian's linux-image-amd64 stands for."""
    listing = _run(["apt-cache", "depends", "linux-image-amd64"])
    found = re.search(r"Depends: (linux-image-\d\S*)", listing)
    if found is None:
        raise LabError("apt knows no linux-image-amd64: run apt-get update (as root) and try again")
    return found.group(1)


def _unpacked(cache: Path, package: str) -> Path:
    """The files of a Debian package, downloaded once."""
    root = cache / package
    if root.exists():
        return root
    print(f"lab: downloading {package}", flush=True)
    new = cache / f"{package}.new"
    shutil.rmtree(new, ignore_errors=True)
    (new / "deb").mkdir(parents=True)
    # As root, apt downloads as another user, who may not write here: it says so and goes on as root.
    _run(["apt-get", "download", package], cwd=new / "deb")
    for archive in (new / "deb").glob("*.deb"):
        _run(["dpkg-deb", "-x", str(archive), str(new)])
    shutil.rmtree(new / "deb")
    new.rename(root)
    return root


def _find(root: Path, name: str) -> Path:
    for path in root.rglob(name):
        if path.is_file() and not path.is_symlink() and os.access(path, os.X_OK):
            return path
    raise LabError(f"there is no {name} in {root}: delete that folder and try again")


def _modules_root(kernel_root: Path) -> Path:
    for place in ("lib/modules", "usr/lib/modules"):
        if (kernel_root / place).is_dir():
            return kernel_root / place
    raise LabError(f"there are no modules in {kernel_root}: delete that folder and try again")


def _boot_file(cache: Path, packed: Path) -> Path:
    """The bare kernel out of the packed one: an emulated machine takes long to unpack it by itself."""
    bare = cache / f"{packed.name}.elf"
    if bare.exists():
        return bare
    content = packed.read_bytes()
    at = content.find(XZ_MAGIC)
    while at >= 0:
        try:
            kernel = lzma.LZMADecompressor().decompress(content[at:])
        except lzma.LZMAError:
            kernel = b""
        if kernel.startswith(ELF_MAGIC):
            _write(bare, kernel)
            return bare
        at = content.find(XZ_MAGIC, at + 1)
    return packed


def _with_dependencies(tree: Path, wanted: Iterable[str]) -> list[tuple[str, bytes]]:
    """Module files in the order in which they can be loaded."""
    paths = {_module_name(path): path for path in tree.rglob("*.ko*")}
    order: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in order:
            return
        if name not in paths:
            raise LabError(f"kernel {tree.name} has no module {name}")
        content = _module_bytes(paths[name])
        found = re.search(rb"\0depends=([^\0]*)\0", content)
        for dependency in (found.group(1).decode() if found else "").split(","):
            if dependency:
                add(dependency.replace("-", "_"))
        order[name] = content

    for name in wanted:
        add(name)
    return list(order.items())


def _module_name(path: Path) -> str:
    return path.name.split(".ko")[0].replace("-", "_")


def _module_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def _cpio(files: dict[str, bytes]) -> bytes:
    """An archive of the kernel's "newc" form, with the folders that `files` lie in."""
    folders = sorted({str(parent) for name in files for parent in Path(name).parents} - {"."})
    entries = [(folder, DIRECTORY, b"") for folder in folders]
    entries += [(name, REGULAR, content) for name, content in files.items()]
    parts = []
    for inode, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        parts += [_padded(b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0")]
        parts += [_padded(content)]
    return b"".join(parts)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: an interrupted run leaves nothing that looks finished."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)
