"""clustercli in the test's own process, with the same exit codes and texts, or as a program."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import structlog

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
    return run_main(main, "clustercli", *arguments)


def run_main(entry: Callable[[], object], program: str, *arguments: str) -> Outcome:
    """Run a program's entry point in this process, for programs that end by themselves, as by a refusal."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        _logging_as_before(),
        mock.patch.object(sys, "argv", [program, *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            entry()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return Outcome(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _logging_as_before() -> Iterator[None]:
    """A program sets up logging of its whole process, which is ours."""
    root, structured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        structlog.configure(**structured)
        root.handlers[:], root.level = handlers, level


def run_program(*arguments: str) -> Outcome:
    """Run clustercli once as the program that it is."""
    done = subprocess.run(
        python_module("clustercli.main", *arguments),
        capture_output=True,
        text=True,
        env=python_environment(),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
