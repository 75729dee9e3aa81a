"""Figure 7 with Rivulet's own connections: fetches of one process as streams of one connection, and fetches of separate
processes that share only a token on disk.

It is the part `rivulet` of `make bench-cm`. As a program under `rivulet run` it is the process that fetches.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from rivulet_lab import binary

from .bars import Bar
from .cm_rig import SERVER, CmRig, Wire, cm_rig
from .stats import interval

Json = dict[str, Any]

FETCHES = 9
FETCH_BYTES = 128 * 1024
FETCH_GAP_S = 0.5
# The paper's round trip. The bytes take a seventh of it, so that round trips dominate the time.
WIRE = Wire(rate_mbit=100, rtt_ms=75)
SENDING_MS = FETCH_BYTES * 8 / WIRE.rate_mbit / 1e3
ROUNDS = 3
"""Bar of a later fetch in round trips, to which a tenth is added for the programs' own time."""
SERVICE = "10.78.1.1"
# A server accepts moved windows only after it has run for a horizon.
HORIZON_S = 4.0
KINDS = ("streams", "processes", "without")
"""One process; processes that share the user's state folder; processes without one."""


def fetches(options: Any) -> Json:
    """Nine fetches of each kind, repeatedly, the kinds alternating."""
    took: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    with cm_rig(WIRE) as rig:
        _serve(rig)
        state = rig.folder / "state"
        for _ in range(options.repetitions):
            for kind in KINDS:
                shutil.rmtree(state, ignore_errors=True)
                took[kind].append(_nine(rig, kind, state))
    rows = []
    for kind, runs in took.items():
        first = interval([run[0] for run in runs])
        later = interval([statistics.fmean(run[1:]) for run in runs])
        rounds = _rounds(later[0])
        rows.append({"kind": kind, "first_ms": first, "later_ms": later, "later_rounds": rounds, "runs_ms": runs})
        print(
            f"{kind:9} first {first[0]:6.1f} ± {first[1]:.1f}, later {later[0]:6.1f} ± {later[1]:.1f} ms"
            f" ({_rounds(first[0]):.2f}, {rounds:.2f} round trips)",
            flush=True,
        )
    return {"wire": WIRE.flags(), "summary": rows}


def bars(result: Json) -> list[Bar]:
    """Times of first and later fetches, in round trips."""
    found = []
    of = {row["kind"]: row for row in result.get("summary", [])}
    for kind in ("streams", "processes") if of else ():
        what = f"figure 7, Rivulet's {kind}"
        found.append(Bar(f"{what}: round trips of later fetches", of[kind]["later_rounds"], ROUNDS + 0.1, at_most=True))
        ratio = of[kind]["later_ms"][0] / of["without"]["later_ms"][0]
        found.append(Bar(f"{what}: later fetches, of the time without", ratio, 0.7, at_most=True))
    return found


def _rounds(ms: float) -> float:
    """Round trips in a time, without the time that the link needs for the bytes."""
    return (ms - SENDING_MS) / WIRE.rtt_ms


def _serve(rig: CmRig) -> None:
    www = rig.folder / "www"
    www.mkdir(exist_ok=True)
    (www / "file").write_bytes(bytes(FETCH_BYTES))
    keys = rig.folder / "keys.toml"
    keys.unlink(missing_ok=True)
    rig.spaces["s"].run(binary("rivulet"), "keygen", str(keys))
    rig.spaces["s"].serve_at(SERVICE)
    rig.spaces["c"].ip(f"route add {SERVICE}/32 via {SERVER}")
    command = [binary("rivulet"), "serve", str(www), "-i", "s0", "--listen", f"{SERVICE}:80", "--keys", str(keys)]
    server = rig.start("serve", command, rig.spaces["s"])
    rig.until(lambda: "serving" in server.text(), "rivulet serves", 20.0, server)
    time.sleep(HORIZON_S)


def _nine(rig: CmRig, kind: str, state: Path) -> list[float]:
    """Milliseconds of each of nine fetches."""
    url = f"http://{SERVICE}/file"
    folder = "" if kind == "without" else str(state)
    run = ["env", f"RIVULET_STATE={folder}", binary("rivulet"), "run", "--"]
    if kind == "streams":
        found = rig.spaces["c"].run(*run, sys.executable, "-m", "rivulet_bench.cm_rivulet", url, str(FETCHES))
        return [float(ms) for ms in json.loads(found)]
    took = []
    for _ in range(FETCHES):
        time.sleep(FETCH_GAP_S)
        words = ("curl", "-sS", "--fail", "-o", "/dev/null", "-w", "%{time_total} %{size_download}", url)
        seconds, size = rig.spaces["c"].run(*run, *words).split()
        _check(int(float(size)))
        took.append(float(seconds) * 1e3)
    return took


def _check(size: int) -> None:
    if size != FETCH_BYTES:
        raise SystemExit(f"{size} bytes of {FETCH_BYTES} came")


def _fetch(url: str) -> float:
    """Milliseconds from the opening of the connection to the last byte."""
    began = time.perf_counter()
    with urlopen(url) as answer:
        size = len(answer.read())
    took = (time.perf_counter() - began) * 1e3
    _check(size)
    return took


def main() -> int:
    """Fetches URL a number of times, with a pause between, and prints the times."""
    url, count = sys.argv[1], int(sys.argv[2])
    took = []
    for number in range(count):
        if number > 0:
            time.sleep(FETCH_GAP_S)
        took.append(_fetch(url))
    print(json.dumps(took), flush=True)
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
