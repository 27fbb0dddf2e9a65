"""What a heartbeat has to say: the difference between what the leader was told and what is so now. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from akv.v1 import agent_pb2

# Free space moves all the time; a change is told when it is one for an operator.
STORAGE_STEP_BYTES = 256 << 20
STORAGE_STEP_PART = 1000


def heartbeat_of(
    told: agent_pb2.Register, now: agent_pb2.Register, load: agent_pb2.NodeLoad, *, ports_moved: bool = False
) -> agent_pb2.Heartbeat:
    """A heartbeat with what changed since `told`, and with the load.

    `ports_moved`: the ports' counters changed by the last heartbeat. They are told once more then, since only
    two equal readings say that the traffic is over.
    """
    beat = agent_pb2.Heartbeat(load=load)
    if [gpu.memory_used_bytes for gpu in told.gpus] != [gpu.memory_used_bytes for gpu in now.gpus]:
        beat.gpu_memory.gpus.extend(
            agent_pb2.GpuMemory(index=gpu.index, used_bytes=gpu.memory_used_bytes) for gpu in now.gpus
        )
    known = _problems(told)
    beat.new_problems.extend(_problem(*found) for found in sorted(_problems(now) - known, key=str))
    if storage_moved(told.storage.file_systems, now.storage.file_systems):
        beat.storage.CopyFrom(now.storage)
    if told.memory_total_bytes != now.memory_total_bytes:
        beat.memory_total_bytes = now.memory_total_bytes
    if [gpu.fabric for gpu in told.gpus] != [gpu.fabric for gpu in now.gpus]:
        beat.gpu_fabric.gpus.extend(gpu.fabric for gpu in now.gpus)
    for name in ("weights", "engines", "provision", "ib_ports", "fabrics", "imex"):
        if getattr(told, name) != getattr(now, name):
            getattr(beat, name).CopyFrom(getattr(now, name))
    if ports_moved:
        beat.ib_ports.CopyFrom(now.ib_ports)
    return beat


def must_register(told: agent_pb2.Register, now: agent_pb2.Register) -> bool:
    """Whether the change is one that no heartbeat can tell: other hardware, or a problem that is over."""
    return _hardware(told) != _hardware(now) or bool(_problems(told) - _problems(now))


def after(told: agent_pb2.Register, now: agent_pb2.Register, beat: agent_pb2.Heartbeat) -> agent_pb2.Register:
    """What the leader knows once it has had `beat`: `now`, but for storage that the beat left out."""
    known = agent_pb2.Register()
    known.CopyFrom(now)
    if not beat.HasField("storage"):
        known.storage.CopyFrom(told.storage)
    return known


def storage_moved(told: Iterable[agent_pb2.Storage], now: Iterable[agent_pb2.Storage]) -> bool:
    """Whether a file system came, went, changed its size, or has noticeably more or less space."""
    before, present = _by_path(told), _by_path(now)
    if before.keys() != present.keys():
        return True
    for path, entry in present.items():
        old = before[path]
        step = max(STORAGE_STEP_BYTES, entry.total_bytes // STORAGE_STEP_PART)
        if (old.total_bytes, old.shared) != (entry.total_bytes, entry.shared):
            return True
        if abs(old.free_bytes - entry.free_bytes) >= step:
            return True
    return False


def _by_path(entries: Iterable[agent_pb2.Storage]) -> Mapping[str, agent_pb2.Storage]:
    return {entry.path: entry for entry in entries}


def _problems(register: agent_pb2.Register) -> set[tuple[str, int | None]]:
    """Every problem with its GPU's index, None for the node's own."""
    found: set[tuple[str, int | None]] = {(problem.text, None) for problem in register.problems}
    return found | {(text, gpu.index) for gpu in register.gpus for text in gpu.problems}


def _problem(text: str, gpu_index: int | None) -> agent_pb2.Problem:
    return agent_pb2.Problem(text=text, gpu_index=gpu_index)


def _hardware(register: agent_pb2.Register) -> object:
    gpus = [
        (gpu.index, gpu.uuid, gpu.model, gpu.memory_total_bytes, gpu.driver_version) for gpu in register.gpus
    ]
    return (gpus, register.cpu, register.address)
