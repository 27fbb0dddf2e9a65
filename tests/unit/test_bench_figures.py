"""What the figures of docs/performance.md are made of."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from bench.figures.record import Claim, Report, Row, ratios
from bench.pod import dialogs_of
from controlplane.model.routing import slot_for_dialog
from controlplane.model.slots import match_slots

REPORT = Report(
    "example",
    [Row("get 2 MiB", "GB/s", [1.0, 4.0, 2.0], {"size": 2 << 20})],
    [Claim("against TCP", 0.75, 0.8), Claim("ratio of p99", 1.1, 1.2, at_most=True)],
    {"cards": 1},
)


def test_a_record_has_every_value_and_what_was_wanted() -> None:
    record = json.loads(json.dumps(REPORT.record(["python", "x"], {"cores": 2})))
    [row] = record["rows"]
    assert (row["median"], row["least"], row["greatest"], row["values"]) == (2.0, 1.0, 4.0, [1.0, 4.0, 2.0])
    assert row["size"] == 2 << 20
    assert [(claim["wanted"], claim["holds"]) for claim in record["claims"]] == [
        ("at least 0.8", False),
        ("at most 1.2", True),
    ]
    assert record["command"] == ["python", "x"]
    assert record["machine"] == {"cores": 2}


def test_the_table_names_what_falls_short() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(REPORT.table())
    text = captured.get()
    assert "get 2 MiB" in text
    assert "against TCP: 0.75, wanted at least 0.8: FALLS SHORT" in text
    assert "ratio of p99: 1.1, wanted at most 1.2: holds" in text


def test_ratios_are_of_the_same_repeat() -> None:
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    with pytest.raises(ValueError, match="longer"):
        ratios([1.0], [1.0, 2.0])


def test_dialogs_go_to_their_card() -> None:
    serials = ["B0P0", "B1P0", "B2P0", "B3P0"]
    slots = match_slots(serials)
    for serial in serials:
        dialogs = dialogs_of(serial, serials, 20)
        assert len(set(dialogs)) == 20
        assert {slots[slot_for_dialog(dialog, slots) or 0] for dialog in dialogs} == {serial}
