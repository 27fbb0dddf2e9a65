"""What four cards would be asked for: `python -m bench.rows > rows.txt`.

One line a request of the trace: the number of its card under the same routing, then the ids of its
blocks. The native test `Policy` replays such a file against the software card's own store when
AKV_POLICY_ROWS names it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.dialogs import request_of
from bench.trace import locate_trace, read_trace
from controlplane.model.routing import slot_for_dialog


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench.rows", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--trace", type=Path, help="default: the published trace beside the repository")
    parser.add_argument("--slots", default="0,1,2,3", help="the cards' slots (%(default)s)")
    options = parser.parse_args()
    trace = options.trace or locate_trace()
    if trace is None:
        parser.error("no trace: give --trace FILE, or make one with akv-bench generate-trace")
    slots = [int(slot) for slot in options.slots.split(",")]
    for row in read_trace(trace):
        request = request_of(row)
        slot = slot_for_dialog(request.dialog, slots)
        assert slot is not None, "there is at least one card"
        print(slots.index(slot), *row.hash_ids[: len(request.keys)])


if __name__ == "__main__":
    main()
