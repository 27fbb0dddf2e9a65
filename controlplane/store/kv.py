"""Building blocks of etcd transactions: ranges, compares and operations."""

from __future__ import annotations

from akv.etcd import etcd_pb2 as pb


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`; for an empty prefix the mark for "all keys"."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return b"\0"
    return stripped[:-1] + bytes([stripped[-1] + 1])


def get(key: bytes) -> pb.RequestOp:
    """Read one key."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def get_prefix(prefix: bytes) -> pb.RequestOp:
    """Read all keys that begin with `prefix`, in their order."""
    return pb.RequestOp(request_range=pb.RangeRequest(key=prefix, range_end=prefix_end(prefix)))


def put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    """Write one key; with a lease it disappears with the lease."""
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> pb.RequestOp:
    """Delete one key."""
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def absent(key: bytes) -> pb.Compare:
    """True while the key does not exist."""
    return created_at(key, 0)


def present(key: bytes) -> pb.Compare:
    """True while the key exists."""
    return pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.CREATE, key=key, create_revision=0)


def created_at(key: bytes, revision: int) -> pb.Compare:
    """True while the key is the one that was created at `revision` (0: it does not exist)."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=key, create_revision=revision)


def unchanged(key: bytes, mod_revision: int) -> pb.Compare:
    """True while the key was last written at `mod_revision` (0: it does not exist)."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=mod_revision)


def not_newer(key: bytes, revision: int) -> pb.Compare:
    """True while the key was not written after `revision`."""
    return pb.Compare(result=pb.Compare.LESS, target=pb.Compare.MOD, key=key, mod_revision=revision + 1)


def has_lease(key: bytes, lease: int) -> pb.Compare:
    """True while the key hangs on this lease."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.LEASE, key=key, lease=lease)


def prefix_not_newer(prefix: bytes, revision: int) -> pb.Compare:
    """True while no key below `prefix` was written after `revision`."""
    return pb.Compare(
        result=pb.Compare.LESS,
        target=pb.Compare.MOD,
        key=prefix,
        range_end=prefix_end(prefix),
        mod_revision=revision + 1,
    )
