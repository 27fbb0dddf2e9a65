"""A card cluster with one gateway pod, for as long as a command runs or until Ctrl-C."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence

from controlplane.apps.demo.errors import DemoError
from controlplane.apps.demo.settings import DemoSettings, choose_layout
from controlplane.apps.demo.stage import Stage
from controlplane.apps.demo.story import Say, demo_directory, set_up, wait_for_cards

# Where akv-bench and the command find the gateway.
SOCKET_VARIABLE = "AKV_GATEWAY_SOCKET"
_CHECK_SECONDS = 1.0


def run_in_pod(command: Sequence[str], settings: DemoSettings, card_bytes: int, say: Say) -> int:
    """Start the cluster, run `command` with AKV_GATEWAY_SOCKET set, end everything; the command's exit code.

    Without a command it serves until a signal. Raises DemoError where a process of the cluster fails.
    """
    if command and shutil.which(command[0]) is None:
        raise DemoError(f"there is no program {command[0]!r}: give its path, or a name on PATH")
    with demo_directory(settings.keep, say) as directory:
        layout = choose_layout(directory)
        with Stage(layout, settings, card_bytes) as stage:
            set_up(stage, say)
            wait_for_cards(stage)
            say(f"gateway serves on {stage.client_socket}")
            say(f"cluster API on {layout.address(1)}:{layout.ports.api}")
            if command:
                return _run(command, stage)
            say("Ctrl-C ends it")
            while True:
                stage.check_alive()
                time.sleep(_CHECK_SECONDS)


def _run(command: Sequence[str], stage: Stage) -> int:
    environment = {**os.environ, SOCKET_VARIABLE: str(stage.client_socket)}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise DemoError(
            f"{command[0]} can't be run: {error.strerror}; give a program and its options"
        ) from None
    try:
        while True:
            try:
                return process.wait(_CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                stage.check_alive()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
