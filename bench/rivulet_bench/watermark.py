# SPDX-License-Identifier: Apache-2.0
"""Marked pictures beside a server that keeps a marked copy for each client (Trickles paper, section 6.2).

`rivulet serve --watermark` marks each client's picture while it sends it. For comparison, another `rivulet serve` has a
marked copy for each client in its folder. Both serve pictures of the same size to the same clients over Rivulet,
alternating in rounds.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from PIL import Image

from .bars import Bar, judge
from .host_rig import HostRig, Server, host_rig
from .stats import save

Json = dict[str, Any]

FEW, MANY = 8, 250
"""Numbers of clients, each of which has its own address."""
WIDTH, HEIGHT = 1600, 1200
LOAD_S = 4.0
ROUNDS = 3
BYTES_A_CLIENT = 1024.0
"""Most memory that one more client may cost if pictures are marked while they are sent."""
REQUESTS_OF_COPIES = 0.2
"""Bound of the requests a second, relative to the server with copies."""
CPU_OF_COPIES = 6.0
"""Bound of the processor time of a request, relative to the server with copies."""


def picture() -> bytes:
    """A picture with the details of a photograph: soft areas, edges and noise."""
    chance = random.Random(5)
    small = Image.frombytes("RGB", (100, 75), chance.randbytes(100 * 75 * 3))
    soft = small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    noise = Image.frombytes("RGB", (WIDTH // 2, HEIGHT // 2), chance.randbytes(WIDTH * HEIGHT * 3 // 4))
    mixed = Image.blend(soft, noise.resize((WIDTH, HEIGHT)), 0.06)
    out = io.BytesIO()
    mixed.save(out, "JPEG", quality=85)
    return out.getvalue()


def clients(count: int) -> list[str]:
    """Addresses of clients."""
    return [f"10.77.{3 + n // 200}.{1 + n % 200}" for n in range(count)]


def load(rig: HostRig, server: Server, path: str, addresses: Sequence[str]) -> Json:
    """Sends requests from these addresses in rotation, 16 at a time."""
    words = ["--one-thread", *(word for address in addresses for word in ("--source", address))]
    before = server.cpu_s()
    result = rig.load("rivulet", path, *words, clients=16, seconds=LOAD_S)
    count = result["requests"]
    return {
        "requests": count,
        "per_second": count / result["seconds"],
        "core_us": (server.cpu_s() - before) / count * 1e6,
        "body_bytes": result["bytes"] / count,
    }


def measure(rig: HostRig) -> Json:
    """Measures both servers in rounds, and their memory with few and with many clients."""
    original = picture()
    (rig.www / "picture.jpg").write_bytes(original)
    addresses = clients(MANY)
    rig.spaces["c"].ip(*(f"addr add {address}/16 dev c0" for address in addresses))
    copy = fetched(rig, addresses[0])
    rows: dict[str, list[Json]] = {"marks": [], "copies": []}
    memory: Json = {}
    for number in range(ROUNDS):
        (rig.www / "copy.jpg").unlink(missing_ok=True)
        marks = rig.start_rivulet("--watermark=.")
        if not number:
            load(rig, marks, "picture.jpg", addresses[:FEW])
            few = marks.anonymous_bytes()
        rows["marks"].append(load(rig, marks, "picture.jpg", addresses))
        if not number:
            memory = {"few": few, "many": marks.anonymous_bytes()}
        rig.stop("rivulet")
        (rig.www / "copy.jpg").write_bytes(copy)
        copies = rig.start_rivulet()
        rows["copies"].append(load(rig, copies, "copy.jpg", addresses))
        rig.stop("rivulet")
        for kind in rows:
            last = rows[kind][-1]
            print(
                f"{kind:8}{last['per_second']:8.0f} requests/s, {last['core_us']:8.0f} us of the core each", flush=True
            )
    summary = {
        kind: {field: median(row[field] for row in found) for field in ("per_second", "core_us", "body_bytes")}
        for kind, found in rows.items()
    }
    return {
        "original_bytes": len(original),
        "copy_bytes": len(copy),
        "clients": MANY,
        "memory": memory,
        "bytes_a_client": max(0, memory["many"] - memory["few"]) / (MANY - FEW),
        "rounds": rows,
        "summary": summary,
    }


def fetched(rig: HostRig, address: str) -> bytes:
    """The picture that a client at this address receives."""
    rig.start_rivulet("--watermark=.", plain="kernel")
    out = rig.folder / "copy.jpg"
    rig.run("c", ["curl", "-sSf", "--interface", address, "-o", str(out), "http://10.9.0.1/picture.jpg"])
    rig.stop("rivulet")
    return out.read_bytes()


def bars(result: Json) -> list[Bar]:
    """Memory per client, requests a second, and processor time of a request."""
    marks, copies = result["summary"]["marks"], result["summary"]["copies"]
    rate, cost = (marks[field] / copies[field] for field in ("per_second", "core_us"))
    return [
        Bar("bytes of memory a further client, marks", result["bytes_a_client"], BYTES_A_CLIENT, at_most=True),
        Bar("requests/s with marks, of those from copies", rate, REQUESTS_OF_COPIES),
        Bar("core time a request with marks, of that from copies", cost, CPU_OF_COPIES, at_most=True),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes the result, and judges it."""
    argparse.ArgumentParser(prog="make bench-watermark", description=__doc__).parse_args(arguments)
    with host_rig("watermark") as rig:
        result = measure(rig)
    save("watermark", result)
    copies = result["clients"] * result["copy_bytes"]
    print(
        f"{result['clients']} clients: copies take {copies / 1e6:.1f} MB;"
        f" marks take {result['bytes_a_client']:.0f} bytes a client and {result['memory']['many'] / 1e6:.1f} MB in all"
    )
    return judge(bars(result))


if __name__ == "__main__":
    sys.exit(main())
