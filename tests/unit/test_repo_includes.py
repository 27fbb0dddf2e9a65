"""The check of #include directions catches what it is there to catch."""

from pathlib import Path

import pytest

from tools.check_includes import ALLOWED, violations

ROOT = Path(__file__).resolve().parents[2]


def found_in(tree: Path, part: str, line: str) -> list[str]:
    """Violations of a tree whose one file, in folder `part`, is this line."""
    folder = tree / part
    folder.mkdir()
    (folder / "x.cpp").write_text(f"#pragma once\n{line}\n")
    return list(violations(tree))


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("nvme", '#include "fabric/tcp.hpp"'),
        ("kv", '#include "gateway/server.hpp"'),
        ("base", "#include <nvme/pdu.hpp>"),
        ("softcard", '#include "fabric/tcp.hpp"'),
        ("softcard", '  #  include "card/io.hpp"'),
        ("gateway", '#include "softcard/store.hpp"'),
        ("python", '#include "softcard/store.hpp"'),
        ("kv", '#include "../card/io.hpp"'),
        ("kv", '#include "dataplane/core/card/io.hpp"'),
    ],
)
def test_a_wrong_direction_is_named_with_its_line(tmp_path: Path, part: str, line: str) -> None:
    found = found_in(tmp_path, part, line)
    assert len(found) == 1
    assert "x.cpp:2: " in found[0]


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("gateway", '#include "kv/keys.hpp"'),
        ("softcard", '#include "nvme/pdu.hpp"'),
        ("card", '#include "card/io.hpp"'),
        ("card", '#include "io.hpp"'),
        ("base", "#include <sys/uio.h>"),
        ("base", '// #include "gateway/server.hpp"'),
    ],
)
def test_an_allowed_include_is_no_violation(tmp_path: Path, part: str, line: str) -> None:
    assert found_in(tmp_path, part, line) == []


def test_a_new_folder_needs_a_row(tmp_path: Path) -> None:
    found = found_in(tmp_path, "novel", "#include <vector>")
    assert len(found) == 1
    assert "novel/" in found[0]


def test_this_tree_keeps_its_directions() -> None:
    assert list(violations(ROOT / "dataplane/core")) == []


def test_only_programs_and_the_python_modules_are_leaves() -> None:
    used = {other for part, allowed in ALLOWED.items() for other in allowed - {part}}
    assert set(ALLOWED) - used == {"softcard", "probe", "python", "client"}
