"""Vectors of hashes, routes, plans and keys, from the Python model; the C++ tests compute their own.

64-bit numbers are hexadecimal strings, bytes are hexadecimal.
"""

from __future__ import annotations

import random
from typing import Any

from controlplane.model.cards import RegistryEntry
from controlplane.model.hashing import LAYOUT_VERSION, SLOTS, fmix, mix64, slot_weight
from controlplane.model.keys import card_key, db_index
from controlplane.model.routing import affinity_index, dialog_id, slot_for_dialog
from controlplane.model.slots import fingerprint, plan_slots

SERIALS = ("L0P0", "L0P1", "L1P0", "L1P1", "S3CR3T-0042", "card_7.x", "a", "x" * 20, "L2P0", "L2P1")


def _u64(value: int) -> str:
    return f"0x{value:016x}"


def _hashes(rng: random.Random) -> dict[str, Any]:
    numbers = [0, 1, 2, (1 << 63), (1 << 64) - 1, *(rng.getrandbits(64) for _ in range(8))]
    return {
        "fmix": [{"x": _u64(x), "value": _u64(fmix(x))} for x in numbers],
        "mix64": [
            {"dialog": _u64(x), "slot": slot, "value": _u64(mix64(x, slot))}
            for x in numbers[:6]
            for slot in range(SLOTS)
        ],
        "slot_weight": [
            {"serial": serial, "slot": slot, "value": _u64(slot_weight(serial, slot))}
            for serial in SERIALS
            for slot in range(SLOTS)
        ],
    }


def _routes(rng: random.Random) -> list[dict[str, Any]]:
    sets = [[], [3], [0, 1], [0, 2, 5, 7], [1, 2, 3, 4, 5, 6], list(range(SLOTS))]
    dialogs = [0, (1 << 64) - 1, *(rng.getrandbits(64) for _ in range(14))]
    return [
        {"dialog": _u64(dialog), "routable": routable, "slot": slot_for_dialog(dialog, routable)}
        for routable in sets
        for dialog in dialogs
    ]


def _plan(serials: tuple[str, ...], join_seqs: list[int], num_dbs: int) -> dict[str, Any]:
    registry = [RegistryEntry(s, f"nqn.{s}", "", seq) for s, seq in zip(serials, join_seqs, strict=True)]
    plan = plan_slots(registry)
    return {
        "registry": [{"serial": entry.serial, "join_seq": entry.join_seq} for entry in registry],
        "num_dbs": num_dbs,
        "slots": [{"slot": slot, "serial": serial} for slot, serial in plan.slots.items()],
        "surplus": list(plan.surplus),
        "fingerprint": fingerprint(LAYOUT_VERSION, num_dbs, plan.slots),
    }


def _plans(rng: random.Random) -> list[dict[str, Any]]:
    plans = [_plan(SERIALS[:count], list(range(count)), 128) for count in range(len(SERIALS) + 1)]
    for num_dbs in (1, 128, 65536):
        order = list(range(len(SERIALS)))
        rng.shuffle(order)
        plans.append(_plan(SERIALS, order, num_dbs))
    return plans


def _keys(rng: random.Random) -> dict[str, Any]:
    engine_keys = [bytes(32), bytes(range(32)), *(rng.randbytes(32) for _ in range(4))]
    secret = bytes(range(100, 132))
    card_keys = [
        {
            "namespace": namespace,
            "secret": key.hex(),
            "num_dbs": num_dbs,
            "engine_key": engine_key.hex(),
            "db": db_index(engine_key, num_dbs),
            "card_key": card_key(namespace, engine_key, num_dbs, key).hex(),
        }
        for namespace in ("default", "modèle-7b")
        for key in (bytes(32), secret)
        for num_dbs in (1, 128)
        for engine_key in engine_keys
    ]
    return {
        "card_keys": card_keys,
        "dialog_ids": [{"block_key": key.hex(), "dialog": _u64(dialog_id(key))} for key in engine_keys],
        "affinity_index": [
            {"block_tokens": tokens, "index": affinity_index(tokens)}
            for tokens in (1, 16, 32, 64, 256, 512, 1024, 2048)
        ],
    }


def routing_vectors() -> dict[str, Any]:
    """Build the whole vector file; the same on every run."""
    rng = random.Random(20240607)
    return {
        "layout_version": LAYOUT_VERSION,
        **_hashes(rng),
        "routes": _routes(rng),
        "plans": _plans(rng),
        **_keys(rng),
    }
