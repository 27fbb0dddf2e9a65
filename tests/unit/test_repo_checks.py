"""Those checks of tools/lint that are programs of others find what they are there for, by our settings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def run(directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / program), *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    """A copy of buf's settings and of the protos."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    return tmp_path


def change(proto: Path, old: str, new: str) -> None:
    text = proto.read_text()
    assert text.count(old) == 1
    proto.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("uint64 sequence = 2;", "", "was deleted"),
        ("uint64 sequence = 2;", "string sequence = 2;", "changed type"),
        ("uint64 sequence = 2;", "uint64 sequence = 99;", "was deleted"),
    ],
)
def test_a_change_that_breaks_older_programs_is_refused(
    protos: Path, old: str, new: str, complaint: str
) -> None:
    against = ("breaking", "--against", "protos/baseline.json")
    assert run(protos, "buf", *against).returncode == 0
    change(protos / "protos/akv/v1/plan.proto", old, new)
    done = run(protos, "buf", *against)
    assert done.returncode != 0
    assert complaint in done.stdout


def test_protos_out_of_style_are_refused(protos: Path) -> None:
    assert run(protos, "buf", "lint").returncode == 0
    change(protos / "protos/akv/v1/plan.proto", "uint64 sequence = 2;", "uint64 Sequence = 2;")
    done = run(protos, "buf", "lint")
    assert done.returncode != 0
    assert "lower_snake_case" in done.stdout


@pytest.mark.parametrize(
    ("text", "code"), [("int one() {\n  return 1;\n}\n", 0), ("int one()\n{\n  return 1;\n}\n", 1)]
)
def test_sources_out_of_format_are_refused(tmp_path: Path, text: str, code: int) -> None:
    shutil.copy(ROOT / ".clang-format", tmp_path)
    (tmp_path / "one.cpp").write_text(text)
    assert run(tmp_path, "clang-format", "--dry-run", "--Werror", "one.cpp").returncode == code
