"""Makes traces with the statistics of the published conversation trace (docs/demo.md compares the two).

The model: conversations of several turns. A turn's prompt is the whole earlier prompt, the answer to it, and
what the user adds; so all blocks of the earlier prompt but its last, partly filled one come again. Every
prompt begins with one shared block. Now and then a conversation begins with a document that others began with
too. Requests arrive in bursts every three seconds.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

from bench.trace import BLOCK_TOKENS, TraceRow

BURST_MS = 3000
# New conversations in one burst; with their later turns about ten requests arrive in one.
NEW_PER_BURST = 6.9
# Chance that a conversation goes on after its n-th turn: those that went on before go on more often.
FIRST_CONTINUATION = 0.30
CONTINUATION_STEP = 0.06
MOST_CONTINUATION = 0.64
# Seconds until the next turn.
GAP_MEDIAN_S = 123.0
GAP_SIGMA = 1.05
LEAST_INPUT = 891
MOST_INPUT = 126_195
SHORT_PROMPTS = 0.27
SHORT_MOST = 1536
LONG_MEDIAN = 8400.0
LONG_SIGMA = 1.0
USER_MEDIAN = 640.0
USER_SIGMA = 1.85
ANSWER_MEAN = 345.0
ANSWER_SIGMA = 190.0
MOST_ANSWER = 2000
# Conversations about a document that others had before.
DOCUMENT_CHANCE = 0.05
DOCUMENTS = 24
DOCUMENT_BLOCKS = (10, 28)


@dataclass(order=True)
class _Conversation:
    """One that will have another turn at `due_ms`. `blocks` are those of its last prompt."""

    due_ms: int
    order: int
    input_length: int = field(compare=False)
    blocks: list[int] = field(compare=False)
    turns: int = field(compare=False)


class TraceGenerator:
    """Yields rows for ever, in the order of time; the same for the same seed. Holds only live
    conversations."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next_block = 1
        self._order = 0
        self._live: list[_Conversation] = []
        self._documents: list[list[int]] = []

    def rows(self) -> Iterator[TraceRow]:
        """Yield row after row."""
        now = 0
        while True:
            burst = self._due(now)
            burst += [self._begin(now) for _ in range(self._poisson(NEW_PER_BURST))]
            self._random.shuffle(burst)
            for conversation in burst:
                yield self._turn(now, conversation)
            now += BURST_MS

    def _due(self, now: int) -> list[_Conversation]:
        due = []
        while self._live and self._live[0].due_ms <= now:
            due.append(heapq.heappop(self._live))
        return due

    def _begin(self, now: int) -> _Conversation:
        rng = self._random
        if rng.random() < SHORT_PROMPTS:
            length = rng.randint(LEAST_INPUT, SHORT_MOST)
        else:
            length = self._lognormal(LONG_MEDIAN, LONG_SIGMA, LEAST_INPUT, MOST_INPUT)
        head = [0]
        if rng.random() < DOCUMENT_CHANCE:
            head += self._document()
            length = max(length, len(head) * BLOCK_TOKENS + rng.randint(1, 4 * BLOCK_TOKENS))
        self._order += 1
        return _Conversation(now, self._order, length, self._grow(head, length), 0)

    def _document(self) -> list[int]:
        if len(self._documents) < DOCUMENTS:
            size = self._random.randint(*DOCUMENT_BLOCKS)
            self._documents.append(self._grow([], size * BLOCK_TOKENS))
            return self._documents[-1]
        return self._random.choice(self._documents)

    def _grow(self, head: list[int], length: int) -> list[int]:
        """`head` and new blocks up to `length` tokens."""
        new = -(-length // BLOCK_TOKENS) - len(head)
        first, self._next_block = self._next_block, self._next_block + new
        return [*head, *range(first, first + new)]

    def _turn(self, now: int, conversation: _Conversation) -> TraceRow:
        answer = min(max(round(self._random.gauss(ANSWER_MEAN, ANSWER_SIGMA)), 1), MOST_ANSWER)
        row = TraceRow(now, conversation.input_length, answer, tuple(conversation.blocks))
        self._plan_next(now, conversation, answer)
        return row

    def _plan_next(self, now: int, conversation: _Conversation, answer: int) -> None:
        rng = self._random
        chance = min(FIRST_CONTINUATION + CONTINUATION_STEP * conversation.turns, MOST_CONTINUATION)
        user = self._lognormal(USER_MEDIAN, USER_SIGMA, 8, MOST_INPUT)
        length = conversation.input_length + answer + user
        gap_ms = self._lognormal(GAP_MEDIAN_S * 1000, GAP_SIGMA, 15_000, 3_000_000)
        if rng.random() >= chance or length > MOST_INPUT:
            return
        full = conversation.blocks[: conversation.input_length // BLOCK_TOKENS]
        self._order += 1
        following = _Conversation(
            now + gap_ms, self._order, length, self._grow(full, length), conversation.turns + 1
        )
        heapq.heappush(self._live, following)

    def _lognormal(self, median: float, sigma: float, least: int, most: int) -> int:
        return min(max(round(self._random.lognormvariate(math.log(median), sigma)), least), most)

    def _poisson(self, mean: float) -> int:
        limit, product, count = math.exp(-mean), self._random.random(), 0
        while product > limit:
            product *= self._random.random()
            count += 1
        return count


def write_trace(out: TextIO, requests: int, seed: int) -> None:
    """Write `requests` rows as JSON lines."""
    rows = TraceGenerator(seed).rows()
    for _ in range(requests):
        row = next(rows)
        record = {
            "timestamp": row.timestamp,
            "input_length": row.input_length,
            "output_length": row.output_length,
            "hash_ids": row.hash_ids,
        }
        out.write(json.dumps(record) + "\n")
