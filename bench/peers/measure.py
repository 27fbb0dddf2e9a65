"""Every case of every cache in turn, repeated: GB/s and CPU seconds for each GB (10^9 bytes)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.order import in_turn
from bench.peers.install import install
from bench.peers.stages import Settings, Stage, opened

# A cache may keep what was removed for a while (Mooncake's leases): it has room for several runs.
CAPACITY_RUNS = 8
KEYS_OF_EXISTS = 4096
VALUE_OF_EXISTS = 4096
ROUNDS_OF_EXISTS = 50
RUN_SECONDS = 300.0
# Until ours no longer asks Linux for cores that wake up soon: that is for all processes of the machine.
CALM_SECONDS = 0.6


@dataclass(frozen=True)
class Case:
    """What is asked for: batches of `batch` blocks of `size` bytes."""

    op: str
    size: int
    batch: int

    def __str__(self) -> str:
        return f"{self.op} {self.size >> 10} KiB x{self.batch}"


@dataclass(frozen=True)
class Plan:
    """`moved` bytes in each run of a case. `caches` are names of OPENERS."""

    caches: Sequence[str]
    repeats: int
    sizes: Sequence[int]
    batches: Sequence[int]
    moved: int
    exists: bool

    def cases(self) -> list[Case]:
        """In the order of measuring."""
        blocks = [
            Case(op, size, batch) for size in self.sizes for batch in self.batches for op in ("put", "get")
        ]
        return [*blocks, Case("exists", VALUE_OF_EXISTS, KEYS_OF_EXISTS)] if self.exists else blocks

    def rounds(self, case: Case) -> int:
        """Batches in a run."""
        fitting = max(1, self.moved // (case.size * case.batch))
        return min(fitting, ROUNDS_OF_EXISTS) if case.op == "exists" else fitting


@dataclass(frozen=True)
class Run:
    """One run of one case. CPU is user and system time in seconds for each GB of values.

    `servers_cpu` is that of all servers, of which `gateway_cpu` is our dataplane's (0 for other caches).
    """

    cache: str
    case: Case
    repeat: int
    gb_per_s: float
    keys_per_s: float
    client_cpu: float
    gateway_cpu: float
    servers_cpu: float
    wrong: int


def measure(plan: Plan, peers: Path, directory: Path) -> Iterator[Run]:
    """Install what the caches need into `peers`, start all, and run. Raises InstallError, ProcessError."""
    place = install(peers, plan.caches)
    sizes = [case.size * case.batch for case in plan.cases()]
    with ExitStack() as stack:
        stages = {}
        for name in plan.caches:
            own = directory / name
            own.mkdir()
            settings = Settings(place, own, max(sizes), CAPACITY_RUNS * max(plan.moved, *sizes))
            stages[name] = stack.enter_context(opened(name, settings))
        for repeat in range(plan.repeats):
            for case in plan.cases():
                for name, stage in in_turn(stages.items(), repeat, case):
                    yield _one(name, stage, case, plan.rounds(case), repeat)
            print(f"repeat {repeat + 1} of {plan.repeats} done", file=sys.stderr)


def _one(name: str, stage: Stage, case: Case, rounds: int, repeat: int) -> Run:
    size, batch = case.size, case.batch
    _ask(stage, {"do": "prepare", "op": case.op, "size": size, "batch": batch, "rounds": rounds})
    before = _cpu(stage)
    ran = _ask(stage, {"do": "run"})
    servers, gateway = (after - began for after, began in zip(_cpu(stage), before, strict=True))
    checked = _ask(stage, {"do": "finish"})
    if stage.gateway is not None:
        time.sleep(CALM_SECONDS)
    moved = ran["blocks"] * case.size / 1e9
    return Run(
        cache=name,
        case=case,
        repeat=repeat,
        gb_per_s=moved / ran["seconds"],
        keys_per_s=ran["blocks"] / ran["seconds"],
        client_cpu=ran["cpu_seconds"] / moved,
        gateway_cpu=gateway / moved,
        servers_cpu=servers / moved,
        # Bare TCP stores nothing that could be compared.
        wrong=0 if name.startswith("loopback") else int(checked["wrong"]),
    )


def _cpu(stage: Stage) -> tuple[float, float]:
    gateway = 0.0 if stage.gateway is None else stage.gateway.cpu_seconds
    return sum(server.cpu_seconds for server in stage.servers), gateway


def _ask(stage: Stage, order: dict[str, str | int]) -> dict[str, float]:
    stage.worker.tell(json.dumps(order))
    answer: dict[str, float] = json.loads(stage.worker.line(RUN_SECONDS))
    return answer
