"""Run by `make lab`: our initiator against Linux nvmet in a virtual machine; writes the table of results.

A target that runs elsewhere is used when AKV_LAB_TRADDR, AKV_LAB_TRSVCID, AKV_LAB_NQN and AKV_LAB_SERIAL name
it; then only the cases that need no hand on the target are run, and no table is written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.guest_image import LabError
from tests.conformance.nvmet_guest import NvmetGuest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "asan" / "tests" / "native" / "lab_tests"
TABLE = Path(__file__).with_name("linux-nvmet.md")
ELSEWHERE = ("AKV_LAB_TRADDR", "AKV_LAB_TRSVCID", "AKV_LAB_NQN", "AKV_LAB_SERIAL")
NEEDS_THE_GUEST = "-BlockRestart.*:Namespace.*:Hung.*:ConnectRefused.AHost*:CardLab.*"
RUN_SECONDS = 1800


@dataclass(frozen=True)
class Row:
    """One case and what was seen."""

    group: str
    case: str
    seen: str
    failed: bool

    def line(self) -> str:
        """As a line of a Markdown table."""
        cells = (self.group, self.case, f"FAILED: {self.seen}" if self.failed else self.seen)
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def main(arguments: list[str]) -> int:
    """Exit code 0 when every case holds; 2 when the lab can't run here."""
    try:
        if all(os.environ.get(name) for name in ELSEWHERE):
            return run_tests({}, [f"--gtest_filter={NEEDS_THE_GUEST}", *arguments])
        return with_guest(arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2


def with_guest(arguments: list[str]) -> int:
    """Boot, test, and write the table when all cases were run."""
    with tempfile.TemporaryDirectory(prefix="akv-lab-") as folder:
        results = Path(folder) / "results.json"
        guest = NvmetGuest(ROOT / "build" / "lab", Path(folder))
        print(f"lab: booting Linux {guest.image.release}", flush=True)
        with guest:
            code = run_tests(guest.environment(), [f"--gtest_output=json:{results}", *arguments])
        if not results.exists():
            raise LabError(
                f"the tests ended without a report (exit code {code}); what they said last is above"
            )
        rows = list(read_rows(json.loads(results.read_text())))
    if not arguments:
        TABLE.write_text(table(rows, short_release(guest.image.release)))
        print(f"lab: {len(rows)} cases in {TABLE.relative_to(ROOT)}")
    return code


def run_tests(environment: dict[str, str], arguments: list[str]) -> int:
    """The native tests' exit code."""
    command = [str(PROGRAM), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, timeout=RUN_SECONDS, check=False
    ).returncode


def read_rows(report: dict[str, Any]) -> Iterator[Row]:
    """The tests that say which case they are, in the order in which they ran."""
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            if "case" in test:
                failed = bool(test.get("failures"))
                yield Row(group_of(suite["name"]), test["case"], test.get("seen", "no result"), failed)


def group_of(suite: str) -> str:
    """`Cut/Wire` and `BlockIo` in words: the folder of parameters says more than the test's class."""
    name = suite.split("/", maxsplit=1)[0]
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def short_release(release: str) -> str:
    """`6.1.0-57-amd64` is Linux 6.1 to a reader."""
    return ".".join(release.split(".")[:2])


def table(rows: list[Row], release: str) -> str:
    """The whole page."""
    head = f"""# The initiator against Linux {release} nvmet

Written by `make lab`: Debian's kernel in a virtual machine, our initiator under AddressSanitizer.
Statuses are the target's.

| group | case | result |
| --- | --- | --- |
"""
    return head + "".join(f"{row.line()}\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
