"""Check the direction of #include between the folders of dataplane/core.

Usage: check_includes.py [CORE_DIR]

Each folder may include itself and the folders before it in ORDER; softcard is a program of its own that
shares nothing with the gateway's side but the protocol, so it may include base and nvme alone, and nobody
includes softcard. probe, which measures the initiator alone, may include that and what it stands on. client
is built into the engines' environment and includes base alone.
Prints one line per violation; exit code 1 when there is any.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ORDER = ("base", "nvme", "fabric", "card", "kv", "arena", "gateway", "python")
ALLOWED: dict[str, frozenset[str]] = {
    **{part: frozenset(ORDER[: index + 1]) for index, part in enumerate(ORDER)},
    "softcard": frozenset({"softcard", "base", "nvme"}),
    "probe": frozenset({"probe", "base", "nvme", "fabric"}),
    "client": frozenset({"client", "base"}),
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
SUFFIXES = {".hpp", ".cpp", ".h", ".cc", ".ipp"}


def included_parts(text: str) -> Iterator[tuple[int, str, str]]:
    """(line number, path as written, part) of every include that names a path of this tree."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = INCLUDE.match(line)
        if match is None:
            continue
        quote, path = match.groups()
        part, separator, _ = path.partition("/")
        if separator and (quote == '"' or part in ALLOWED):
            yield number, path, part


def violations_in(path: Path, part: str) -> Iterator[str]:
    """One sentence for each include of `path` that `part` may not have."""
    for number, included, other in included_parts(path.read_text(encoding="utf-8")):
        if other not in ALLOWED:
            yield f'{path}:{number}: "{included}" does not begin with a folder of dataplane/core'
        elif other not in ALLOWED[part]:
            may = ", ".join(sorted(ALLOWED[part]))
            yield f'{path}:{number}: {part}/ includes "{included}", but may include only {may}'


def violations(core: Path) -> Iterator[str]:
    """Every violation below `core`, folders that this table does not know included."""
    for path in sorted(core.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        part = path.relative_to(core).parts[0]
        if part in ALLOWED:
            yield from violations_in(path, part)
        else:
            yield f"{path}: add {part}/ to the table in tools/check_includes.py"


def main() -> int:
    """Check the tree that the command line names, this project's by default."""
    default = Path(__file__).resolve().parent.parent / "dataplane/core"
    core = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    found = list(violations(core))
    print("\n".join(found) if found else f"C++ includes: every folder of {core.name}/ keeps its direction")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
