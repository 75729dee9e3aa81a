"""Fetches many small objects with unmodified curl: a new process and a new connection for each few objects.

    python -m rivulet_demo.small --out small.json --manifest mosaic.json URL SECONDS

It does not retry: an object that curl does not fetch completely and correctly has failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .fetch import show_live

PATIENCE_S = 20
"""Seconds after which a user would have left."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Result for one object."""

    at: float
    """Start time of curl."""
    name: str
    seconds: float
    """Seconds from the connection's SYN, or on a kept connection from the request, to the last byte."""
    reused: bool
    """Whether an existing connection was used."""
    failure: str
    """Reason of a failure; empty if the object is right."""


def fetch(url: str, names: list[str], digests: dict[str, str], folder: Path) -> list[Fetched]:
    """Fetches these objects with one curl, over one connection if the server keeps it."""
    command = ["curl", "-sS", "--fail", "--max-time", str(PATIENCE_S)]
    command += ["-w", r"%{num_connects} %{time_total} %{exitcode}\n"]
    for place, name in enumerate(names):
        command += ["-o", str(folder / str(place)), f"{url}/{name}"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [line.split() for line in done.stdout.splitlines()]
    found = []
    for place, name in enumerate(names):
        path = folder / str(place)
        connects, seconds, code = told[place] if place < len(told) else ("0", "0", "none")
        content = path.read_bytes() if path.exists() else b""
        path.unlink(missing_ok=True)
        if code != "0":
            failure = (done.stderr.strip() or f"curl ended with {code}")[-200:]
        elif hashlib.sha256(content).hexdigest() != digests[name]:
            failure = "WRONG BYTES"
        else:
            failure = ""
        found.append(Fetched(began, name, float(seconds), connects == "0", failure))
        began += float(seconds)
    return found


def main() -> int:
    """Exit code 0 when all objects are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the folder's address")
    parser.add_argument("seconds", type=float, help="duration")
    parser.add_argument("--manifest", type=Path, required=True, help="SHA-256 of each object, JSON")
    parser.add_argument("--out", type=Path, required=True, help="file for the result, JSON")
    parser.add_argument("--live", type=Path, required=True, help="file that is kept up to date with the bytes so far")
    parser.add_argument("--together", type=int, default=1, help="objects per connection, if the server keeps it")
    options = parser.parse_args()
    digests: dict[str, str] = json.loads(options.manifest.read_text())
    rng, found, received = random.Random(1), list[Fetched](), 0
    show_live(options.live, 0)
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            names = rng.sample(sorted(digests), options.together)
            found += fetch(options.url, names, digests, Path(folder))
            received += len(names)
            show_live(options.live, received)
    options.out.write_text(json.dumps([asdict(one) for one in found]))
    return 0 if found and not any(one.failure for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
