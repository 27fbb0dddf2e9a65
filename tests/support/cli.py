"""clustercli in the test's own process, with the same exit codes and texts, or as a program."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from dataclasses import dataclass
from unittest import mock

from clustercli.main import main
from tests.support.procs import ROOT, python_environment, python_module


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    returncode: int
    stdout: str
    stderr: str


def run_cli(*arguments: str) -> Outcome:
    """Run clustercli once. What other threads write to stdout meanwhile is in its output."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["clustercli", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Outcome(code, out.getvalue(), err.getvalue())


def run_program(*arguments: str, seconds: float = 60.0) -> Outcome:
    """Run clustercli once as the program that it is."""
    done = subprocess.run(
        python_module("clustercli.main", *arguments),
        capture_output=True,
        text=True,
        env=python_environment(),
        cwd=ROOT,
        timeout=seconds,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
