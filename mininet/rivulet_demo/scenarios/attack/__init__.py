"""Forged proofs, replays and a flood of SYNs beside two good clients.

The attacker has a link of its own and sends, one after the other: requests whose proofs are made up, as of a client
that hides losses; its own requests again and again; SYNs from addresses that nobody has. The ToR drops each for its
reason and counts it; the Rivulet client keeps its rate and its one connection.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from functools import partial
from itertools import pairwise
from typing import Any

from ...deeds import Deed
from ...meter import typical_mbps
from ...rack import RackError, binary, prompt
from ...report import RIVULET, show, two_clients
from ...scenario import Parameters, Standing, console
from ...services import make_file, url

WORDS = __doc__ or ""

ATTACKS = {"forged": "SUM", "replay": "REPLAY", "syn": "METER_SYN"}
"""What the attacker does, and the drop reason that answers it."""

PACKETS_PER_MBIT = 50
"""Packets a second of the attack for each Mb/s of a link: as many as the good client's full link carries."""

SYNS_PER_SECOND = 100
"""What the ToR lets through of SYNs: more than the good clients need, less than a flood."""

BAIT_BYTES = 200_000
SHARE = 0.7
"""The least part of its undisturbed goodput that the good client must keep, each most of the time (the median)."""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if every attack was dropped for its reason and the good client kept its rate."""
    report = two_clients("attack", values, _plan, _also, clients=3, meters={"syn": SYNS_PER_SECOND})
    words, good = _judge(report)
    opening = (
        f"Forged proofs, replays and SYNs, {values.rate_mbit * PACKETS_PER_MBIT:,.0f} packets a second each, were sent"
        f" to the service while two clients fetched {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s,"
        f" {values.rtt_ms:g} ms round-trip time."
    )
    code = show(report, values, "an attacker beside two good clients", opening, words)
    if not good:
        console.print("The attack was NOT warded off as it should be.")
    return code or int(not good)


def _plan(standing: Standing, seconds: float) -> list[Deed]:
    make_file(standing.replicas.www, "bait.bin", BAIT_BYTES)
    deeds = []
    for place, kind in enumerate(ATTACKS):
        # Quiet first: what the attacks are compared with. The end is left free, for machines on which all is late.
        start = seconds * (0.15 + 0.25 * place)
        end = start + seconds * 0.18
        deeds.append(Deed(start, partial(_begin, kind=kind, seconds=end - start)))
        deeds.append(Deed(end, partial(Standing.mark, what="calm", who="")))
    return deeds


def _begin(standing: Standing, kind: str, seconds: float) -> None:
    values, host = standing.parameters, "c3"
    bait = [*prompt(), binary("rivulet"), "get", "--quiet", "-o", "/dev/null", url("bait.bin")]
    command = [*prompt(), sys.executable, "-m", "rivulet_demo.attacker", kind, "--device", f"{host}-eth0"]
    command += ["--rate", f"{values.rate_mbit * PACKETS_PER_MBIT:g}", "--seconds", f"{seconds:g}"]
    command += ["--bait", shlex.join(bait), "--out", str(standing.rack.folder / f"attacker-{kind}.json")]
    (standing.rack.folder / f"attacker-{kind}.json").unlink(missing_ok=True)
    standing.rack.start(f"attacker-{kind}", standing.rack.nodes[host], command)
    standing.notes[kind] = _drops(standing)
    standing.mark(kind, "attack")


def _drops(standing: Standing) -> dict[str, int]:
    view = standing.watch.view
    return dict(view.drops) if view is not None else {}


def _also(standing: Standing, report: dict[str, Any]) -> None:
    """What the attacker sent and what the ToR dropped meanwhile, by reason."""
    attacks = []
    for kind in ATTACKS:
        path = standing.rack.folder / f"attacker-{kind}.json"
        if kind not in standing.notes:
            raise RackError("the download ended before the attacks: make the file larger")
        standing.rack.wait_for(path.exists, 20.0, None, f"the attacker ({kind}) left no result")
        attacks.append(json.loads(path.read_text()))
    # What is under way when an attack ends is counted until the next one begins.
    counts = [*(standing.notes[kind] for kind in ATTACKS), _drops(standing)]
    for attack, before, after in zip(attacks, counts, counts[1:], strict=False):
        attack["dropped"] = {
            reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)
        }
    report["attacks"] = attacks


def _judge(report: dict[str, Any]) -> tuple[list[str], bool]:
    """Words on each attack, and whether all was as it should be."""
    client = report["clients"][RIVULET]
    samples = [(float(at), int(count)) for at, count in client["samples"]]
    edges = [*(phase["from_s"] for phase in client["phases"]), samples[-1][0]]
    phases = {
        phase["since"]: typical_mbps(samples, start, end)
        for phase, (start, end) in zip(client["phases"], pairwise(edges), strict=True)
    }
    quiet = phases["begin"]
    words, good = [], True
    for attack in report["attacks"]:
        kind, sent, dropped = attack["kind"], attack["sent"], attack["dropped"]
        rate = phases.get(f"{kind} attack")
        hits = dropped.get(ATTACKS[kind], 0)
        others = ", ".join(f"{reason} {n:,}" for reason, n in sorted(dropped.items()) if reason != ATTACKS[kind])
        kept = rate is not None and rate >= SHARE * quiet
        # What the meter lets through of SYNs, and originals that the attacker's copies overtook, are not dropped.
        good = good and kept and hits >= 0.5 * sent > 0
        words.append(
            f"Attack {kind}: {sent:,} packets sent, {hits:,} dropped as {ATTACKS[kind]}"
            f"{' (also ' + others + ')' if others else ''}; the Rivulet client had"
            f" {'nothing' if rate is None else f'{rate:.1f} Mb/s'} most of the time, {quiet:.1f} before the attacks."
        )
    return words, good
