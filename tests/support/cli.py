"""clustercli in the test's own process: same arguments, exit codes and texts, no start of a Python."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from clustercli.main import main


@dataclass(frozen=True)
class Outcome:
    """How one run ended."""

    returncode: int
    stdout: str
    stderr: str


def run_cli(*arguments: str) -> Outcome:
    """Run clustercli once."""
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
