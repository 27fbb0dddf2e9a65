"""`akv-bench replay`: one run from the first row to the summary."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.dialogs import Request, request_of
from bench.replay import WINDOW, Outcome, Replayer, outcome_record
from bench.report import Summary
from bench.simulate import UnlimitedCards
from bench.stop import Stop
from bench.trace import read_trace
from integration.client import ClientConfig, GatewayUnavailableError, connect

_PROGRESS_S = 2.0
# Without a gateway every call ends at once: a row then waits for a session, so that a loop does not spin.
_AWAY_S = 0.2


@dataclass(frozen=True)
class ReplaySettings:
    """What to replay. Rows `start` to `start + requests` of `trace` (None: to its end).

    `loop`: again and again until a signal. At most `rate` requests a second (None: as fast as it goes).
    """

    trace: Path
    requests: int | None
    start: int
    loop: bool
    block_bytes: int
    block_tokens: int
    affinity_blocks: int | None
    slots: tuple[int, ...]
    json_lines: bool
    rate: float | None = None


class Run:
    """Replays rows until they, or the patience of who started it, end."""

    def __init__(self, settings: ReplaySettings, config: ClientConfig) -> None:
        self._settings = settings
        self._config = config
        self._cards = UnlimitedCards(settings.slots)
        self._summary = Summary(settings.block_bytes)
        self._stop = Stop()
        self._shown = time.monotonic()
        self._next = self._shown

    def execute(self) -> dict[str, Any]:
        """Replay; the summary's record. Raises TraceError, OSError, GatewayUnavailableError."""
        with connect(wait=5.0, **_fields(self._config)) as client, self._stop:
            if not client.connected:
                raise client.last_error or GatewayUnavailableError("no answer from the gateway")
            began = time.monotonic()
            replayer = Replayer(client, self._settings.block_bytes)
            replayer.prepare()
            self._emit({"event": "started", "shared_memory": client.shared_memory})
            while not self._stop.came:
                self._summary.passes += self._pass(replayer)
                if not self._settings.loop:
                    break
            replayer.close()
        record = self._summary.record(time.monotonic() - began)
        self._emit({"event": "summary", **record})
        return record

    def _pass(self, replayer: Replayer) -> bool:
        """Replay the rows once; True when no signal cut it short."""
        settings, number = self._settings, self._summary.passes + 1
        rows = read_trace(
            settings.trace, start=settings.start, limit=settings.requests, block_tokens=settings.block_tokens
        )
        index = -1
        for index, row in enumerate(rows):
            if self._wait_turn():
                return False
            replayer.wait_for_gateway(_AWAY_S)
            request = request_of(row, settings.block_tokens, settings.affinity_blocks)
            self._one(replayer, request, number, settings.start + index)
        if index < 0:
            raise ValueError(f"{settings.trace} has no rows from {settings.start} on")
        return True

    def _wait_turn(self) -> bool:
        """Wait until the next request may begin; True when a signal ends the run. Lost time stays lost."""
        now = time.monotonic()
        wait = 0.0 if self._settings.rate is None else max(0.0, self._next - now)
        if self._settings.rate is not None:
            self._next = now + wait + 1 / self._settings.rate
        return self._stop.wait(wait)

    def _one(self, replayer: Replayer, request: Request, number: int, index: int) -> None:
        expected, slot = self._cards.serve(request), self._cards.slot(request.dialog)
        began = time.monotonic()
        outcome = replayer.run(request)
        blocks = len(request.keys)
        self._summary.add(outcome, number=number, blocks=blocks, expected=expected, slot=slot)
        if self._settings.json_lines:
            self._emit(_line(request, outcome, number=number, index=index, expected=expected, began=began))
        else:
            self._progress(number, index)

    def _progress(self, number: int, index: int) -> None:
        if time.monotonic() - self._shown >= _PROGRESS_S:
            self._shown = time.monotonic()
            hits = self._summary.all_passes
            ratio = hits.matched / max(hits.blocks, 1)
            print(f"pass {number}, row {index}: hit ratio {ratio:.4f}", file=sys.stderr)

    def _emit(self, record: dict[str, Any]) -> None:
        if self._settings.json_lines:
            print(json.dumps(record), flush=True)


def _line(
    request: Request, outcome: Outcome, *, number: int, index: int, expected: int, began: float
) -> dict[str, Any]:
    return {
        "event": "request",
        "pass": number,
        "index": index,
        "dialog": f"{request.dialog:016x}",
        "affinity": request.affinity,
        "blocks": len(request.keys),
        "expected": expected,
        **outcome_record(outcome),
        # CLOCK_MONOTONIC, which all processes of a machine share.
        "began": round(began, 6),
        "ended": round(time.monotonic(), 6),
    }


def _fields(config: ClientConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in ClientConfig.__slots__}


def arena_bytes(block_bytes: int) -> int:
    """Shared memory for two windows: one may be waiting for late replies."""
    aligned = -(-block_bytes // 4096) * 4096
    return 2 * WINDOW * aligned
