"""Run a program that dies with the process that started it: `child_guard.py PARENT_PID PROGRAM ARGUMENT...`.

Executed as a file by a bare interpreter, so it imports the standard library only. The kernel sends
SIGKILL when the parent ends in whatever way; etcd is made to survive that. The setting outlives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Bind this process's life to the parent's, then become the program."""
    parent, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        return  # the parent ended before the kernel was told: nobody would end the program
    os.execv(program[0], program)  # noqa: S606 - becoming the program is the point


if __name__ == "__main__":
    main(sys.argv[1:])
