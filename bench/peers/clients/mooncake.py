"""Mooncake Store: a client without a segment of its own, values on a storage process, TCP between them."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence

from mooncake.store import MooncakeDistributedStore

from bench.peers.clients.base import Cache

LOCAL_BUFFER = 64 << 20


def open_store(host: str, metadata: str, master: str, segment: int) -> MooncakeDistributedStore:
    """A store of this process that gives `segment` bytes to the cluster."""
    store = MooncakeDistributedStore()
    code = store.setup(host, metadata, segment, LOCAL_BUFFER, "tcp", "", master)
    if code != 0:
        raise OSError(f"Mooncake's setup at {host} answered {code}")
    return store


class Mooncake(Cache):
    """Batches by put_from and get_into on registered memory."""

    def __init__(self, memory: mmap.mmap, host: str, metadata: str, master: str) -> None:
        super().__init__(memory)
        self._store = open_store(host, metadata, master, 0)
        self._view = (ctypes.c_char * len(memory)).from_buffer(memory)
        self._base = ctypes.addressof(self._view)
        if self._store.register_buffer(self._base, len(memory)) != 0:
            raise OSError("Mooncake did not register the memory")

    def put(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        addresses = [self._base + offset for offset in offsets]
        codes = self._store.batch_put_from(list(keys), addresses, [size] * len(addresses))
        if any(codes):
            raise OSError(f"Mooncake's put answered {sorted(set(codes))}")

    def get(self, keys: Sequence[str], offsets: Sequence[int], size: int) -> None:
        addresses = [self._base + offset for offset in offsets]
        lengths = self._store.batch_get_into(list(keys), addresses, [size] * len(addresses))
        if any(length != size for length in lengths):
            raise LookupError(f"Mooncake's get answered {sorted(set(lengths))}")

    def exists(self, keys: Sequence[str]) -> int:
        return sum(code == 1 for code in self._store.batch_is_exist(list(keys)))

    def clear(self, keys: Sequence[str]) -> None:
        self._store.remove_all()

    def close(self) -> None:
        self._store.unregister_buffer(self._base)
        self._store.close()
        del self._view


def main() -> None:
    """The storage process: gives its segment to the cluster until its input ends."""
    host, metadata, master, segment = sys.argv[1:]
    store = open_store(host, metadata, master, int(segment))
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


if __name__ == "__main__":
    main()
