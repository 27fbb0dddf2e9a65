"""Replays a trace against a gateway: look up the stored prefix, GET and verify it, PUT the rest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.dialogs import Request
from bench.payload import Payloads
from integration.client import Block, Client, Status

# Blocks in one GET or PUT: large enough to fill the cards' queues, small against the arena.
WINDOW = 64
_TROUBLES = ("unavailable", "deadlines", "refused", "protocol_errors")


@dataclass(slots=True)
class Outcome:
    """What one request met. Times in seconds; `errors` are calls that the client could not complete."""

    matched: int
    got: int = 0
    wrong: int = 0
    put: int = 0
    put_ok: int = 0
    lookup_s: float = 0.0
    get_s: float = 0.0
    put_s: float = 0.0
    errors: int = 0

    @property
    def unread(self) -> int:
        """Blocks that were found, and that GET then brought neither right nor wrong: misses, card errors."""
        return self.matched - self.got - self.wrong


class Replayer:
    """Replays request by request through one client, with a window of blocks that it leases once."""

    def __init__(self, client: Client, block_bytes: int) -> None:
        self._client = client
        self._block_bytes = block_bytes
        self._payloads = Payloads(block_bytes)
        self._window: list[Block] = []

    def prepare(self) -> None:
        """Lease the window. Raises ValueError where a gateway that answers has no room for it."""
        if not self._blocks() and self._client.connected:
            raise ValueError(
                f"block_bytes is {self._block_bytes}: the gateway leases no {WINDOW} such blocks; take fewer "
                f"bytes, or give it more shared_memory_size ({self._client.last_error})"
            )

    def wait_for_gateway(self, seconds: float) -> None:
        """Wait for a session where there is none, `seconds` at most."""
        if not self._client.connected:
            self._client.wait_connected(seconds)

    def run(self, request: Request) -> Outcome:
        """Serve one request as an engine would."""
        troubles = self._troubles()
        began = time.perf_counter()
        outcome = Outcome(self._client.match_prefix(request.keys, request.dialog))
        outcome.lookup_s = time.perf_counter() - began
        loaded = self._load(request.keys[: outcome.matched], request.dialog, outcome)
        self._store(request.keys[loaded:], request.dialog, outcome)
        outcome.errors = self._troubles() - troubles
        return outcome

    def close(self) -> None:
        """Give the window back."""
        self._client.free(self._window)

    def _troubles(self) -> int:
        counters = self._client.counters
        return sum(counters.get(name, 0) for name in _TROUBLES)

    def _blocks(self) -> list[Block]:
        """The window; leased anew after a lost session or while a block of it waits for a late reply."""
        if not self._window or any(not block.valid or block.busy for block in self._window):
            self._client.free(self._window)
            self._window = self._client.alloc(WINDOW, self._block_bytes)
        return self._window

    def _load(self, keys: Sequence[bytes], dialog: int, outcome: Outcome) -> int:
        """GET and verify `keys`; how many from the first on arrived right."""
        loaded = 0
        for start in range(0, len(keys), WINDOW):
            part = keys[start : start + WINDOW]
            right = self._get(part, dialog, outcome)
            outcome.got += sum(right)
            if loaded == start:
                loaded += right.index(False) if False in right else len(right)
        return loaded

    def _get(self, keys: Sequence[bytes], dialog: int, outcome: Outcome) -> list[bool]:
        blocks = self._blocks()[: len(keys)]
        if len(blocks) < len(keys):
            return [False] * len(keys)
        began = time.perf_counter()
        replies = self._client.get(keys, blocks, dialog)
        outcome.get_s += time.perf_counter() - began
        right = []
        for key, block, reply in zip(keys, blocks, replies, strict=True):
            ok = reply.status == Status.OK
            same = ok and reply.length == self._block_bytes and self._payloads.matches(key, block.view)
            outcome.wrong += ok and not same
            right.append(same)
        return right

    def _store(self, keys: Sequence[bytes], dialog: int, outcome: Outcome) -> None:
        for start in range(0, len(keys), WINDOW):
            part = keys[start : start + WINDOW]
            blocks = self._blocks()[: len(part)]
            outcome.put += len(part)
            if len(blocks) < len(part):
                continue
            for key, block in zip(part, blocks, strict=True):
                self._payloads.fill(key, block.view)
            began = time.perf_counter()
            statuses = self._client.put(part, blocks, dialog)
            outcome.put_s += time.perf_counter() - began
            outcome.put_ok += statuses.count(Status.OK)


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """The outcome as fields of a JSON line; times in microseconds."""
    return {
        "matched": outcome.matched,
        "got": outcome.got,
        "wrong": outcome.wrong,
        "unread": outcome.unread,
        "put": outcome.put,
        "put_ok": outcome.put_ok,
        "errors": outcome.errors,
        "lookup_us": round(outcome.lookup_s * 1e6),
        "get_us": round(outcome.get_s * 1e6),
        "put_us": round(outcome.put_s * 1e6),
    }
