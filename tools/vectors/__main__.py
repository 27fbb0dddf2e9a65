"""Write the vectors that Python and C++ both read: tests/vectors/{routing,envelope,protocol}.json.

Usage: python -m tools.vectors [DIRECTORY]

The routing vectors are computed by the Python model. Envelopes and frames are written from docs/protocol.md
alone, with the standard library: they share no code with the gateway or its client.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.vectors.conversations import protocol_vectors
from tools.vectors.envelope import envelope_vectors
from tools.vectors.routing import routing_vectors


def main() -> None:
    """Write the three files."""
    default = Path(__file__).resolve().parents[2] / "tests/vectors"
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    for name, content in (
        ("routing", routing_vectors()),
        ("envelope", envelope_vectors()),
        ("protocol", protocol_vectors()),
    ):
        text = json.dumps(content, indent=1, ensure_ascii=False)
        (target / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
