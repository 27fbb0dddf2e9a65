"""Reads of the last two cards, for the figure `faults`, until its input ends: others DIRECTORY RATE SERIAL…

A thread and a client for each card, so that the one that hangs holds up no reads of the other.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from bench.pod import dialogs_of
from integration.client import Client, connect

BLOCK_BYTES = 65536
DIALOGS = 256
_SECONDS = 1.0


def read(client: Client, entries: list[tuple[bytes, int]], rate: float) -> None:
    """Read the blocks in turn, `rate` a second, whatever comes of it; until the process ends."""
    number = 0
    while True:
        blocks = client.alloc(1, BLOCK_BYTES)
        if not blocks:
            time.sleep(1 / rate)
        while blocks and blocks[0].valid and not blocks[0].busy:
            key, dialog = entries[number % len(entries)]
            began = time.monotonic()
            client.get([key], blocks, dialog)
            number += 1
            time.sleep(max(0.0, began + 1 / rate - time.monotonic()))
        client.free(blocks)


def main() -> None:
    """Store, tell that reading begins, and read."""
    directory, rate, *serials = sys.argv[1:]
    for serial in serials[-2:]:
        client = connect(socket=f"{directory}/gateway.sock", wait=5.0, timeout=_SECONDS)
        entries = [(os.urandom(32), dialog) for dialog in dialogs_of(serial, serials, DIALOGS)]
        [block] = client.alloc(1, BLOCK_BYTES)
        for key, dialog in entries:
            client.put([key], [block], dialog)
        client.free([block])
        threading.Thread(target=read, args=(client, entries, float(rate)), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
