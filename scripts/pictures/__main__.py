"""Draws the ladders and the packets of the documentation, docs/pictures/{ladder,packet}-*.svg.

scripts/pictures [--check]

The ladders are in ladders.py; the packets come from the tables of docs/wire-format.md. --check compares the committed
drawings instead of writing them, and ends with 1 if one is not what the script draws. Needs only Python.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ladder
import packet
from ladders import LADDERS

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def drawings() -> dict[str, str]:
    """Every drawing, by the name of its file."""
    found = {f"ladder-{name}.svg": ladder.draw(item) for name, item in LADDERS.items()}
    page = (DOCS / "wire-format.md").read_text()
    option = packet.Part("TCP option", packet.table(page, "The option (8 bytes)"))
    switch = packet.table(page, "Request, the part a switch reads")
    block = next(place for place, field in enumerate(switch) if field.name == "range_count")
    bytes_of_block = sum(field.bits for field in switch[:block]) // 8
    found["packet-request.svg"] = packet.draw(
        "A request: option, the part that a switch reads, and the part that only hosts read",
        [
            option,
            packet.Part("payload: ToR block, written by the ToR", switch[:block]),
            packet.Part("proof and sealed head", switch[block:], bytes_of_block),
            packet.Part(
                "behind the entries: sealed tail, and what follows", packet.table(page, "Request, the part hosts read")
            ),
        ],
    )
    parts = packet.Field("parts that content names, then data", 0)
    found["packet-response.svg"] = packet.draw(
        "A response: option and the first bytes of the payload",
        [option, packet.Part("payload", [*packet.table(page, "Response"), parts])],
    )
    found["packet-heartbeat.svg"] = packet.draw(
        "A heartbeat, and the ToR's answer to it",
        [
            packet.Part("heartbeat", packet.table(page, "Heartbeat")),
            packet.Part("answer of the ToR", packet.table(page, "Heartbeat", 1)),
        ],
    )
    return found


def main() -> int:
    folder, wrong = DOCS / "pictures", []
    for name, drawing in drawings().items():
        path = folder / name
        if sys.argv[1:] != ["--check"]:
            path.write_text(drawing)
        elif not path.exists() or path.read_text() != drawing:
            wrong.append(name)
    for name in wrong:
        print(f"pictures: docs/pictures/{name} differs: run python3 scripts/pictures", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
