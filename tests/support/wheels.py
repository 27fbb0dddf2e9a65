"""Small wheels that tests make themselves, so that pip has something to install without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

_PROGRAM = '''"""A program that is installed by pip."""
import sys
def main():
    print("tiny engine {version}", *sys.argv[1:], flush=True)
'''


def make_wheel(
    folder: Path, version: str, name: str = "tiny-engine", *, requires: str = "", lie: bool = False
) -> Path:
    """A wheel with one module and one program; with `lie` its RECORD names another hash of the module."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module}.py": _PROGRAM.format(version=version),
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:main\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    if lie:
        rows[0] = f"{module}.py,sha256={_digest('something else')},1"
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, text in files.items():
            archive.writestr(entry, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
