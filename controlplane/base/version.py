"""The version that programs show with --version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTION = "akv"


def program_version(program: str) -> str:
    """`PROGRAM VERSION`; run from a source tree without an installation, it says so."""
    try:
        return f"{program} {version(DISTRIBUTION)}"
    except PackageNotFoundError:
        return f"{program} (source tree, not installed)"
