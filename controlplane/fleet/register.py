"""What a Register must be before anything of it is believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from akv.v1 import agent_pb2 as pb

from controlplane.base.request_errors import InvalidRequest
from controlplane.model.catalogue import CatalogueError, check_node_name

MAX_GPUS = 256
MAX_SHARDS = 4096


def first_register(message: pb.AgentMessage) -> pb.Register:
    """The Register in a stream's first message. Raises InvalidRequest."""
    if message.WhichOneof("message") != "register":
        raise InvalidRequest("the first message of an agent's stream must be a Register")
    check_register(message.register)
    if message.sequence == 0:
        raise InvalidRequest("messages are numbered from 1: sequence is 0")
    return message.register


def check_register(register: pb.Register) -> None:
    """Refuse a node that can't be. Raises InvalidRequest."""
    if not register.node_id:
        raise InvalidRequest("node_id is required: the node's name, as in the agent's certificate")
    try:
        check_node_name(register.node_id)
    except CatalogueError as error:
        raise InvalidRequest(str(error)) from None
    if register.incarnation == 0:
        raise InvalidRequest("incarnation is required: a number that grows with each start of the agent")
    if len(register.gpus) > MAX_GPUS or len(register.running_shards) > MAX_SHARDS:
        raise InvalidRequest(f"more than {MAX_GPUS} GPUs or {MAX_SHARDS} shards on one node")
    _once("GPU uuid", (gpu.uuid for gpu in register.gpus))
    _once("GPU index", (str(gpu.index) for gpu in register.gpus))
    _once("shard", (shard.shard_id for shard in register.running_shards))


def _once(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if not name or count > 1:
            raise InvalidRequest(f"{what} {name[:80]!r} is empty or there more than once")
