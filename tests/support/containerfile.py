"""What deploy/Containerfile says: its instructions, and the sources that it builds from."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.procs import ROOT

PATH = ROOT / "deploy" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """Each instruction and its arguments, with continued lines joined."""
    text = PATH.read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    lines = body.replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def copies() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY out of this tree."""
    found = [rest.split() for word, rest in instructions() if word == "COPY" and "--from" not in rest]
    return [(words[:-1], words[-1]) for words in found]


def copy_sources(target: Path) -> None:
    """Do to `target` what the COPY instructions do to the folder that the image is built in."""
    for sources, name in copies():
        for source in sources:
            place = target / name
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
