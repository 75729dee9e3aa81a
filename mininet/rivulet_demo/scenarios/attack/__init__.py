"""Forged proofs, replays, and floods of SYNs and of acknowledgements, beside good clients.

The attacker has its own link and sends, one after the other: requests with random sums, as of a client that hides
losses; its own requests again and again; SYNs from addresses that do not exist; acknowledgements of plain TCP with
random numbers. The ToR drops and counts each for its reason; the clients of Rivulet and of stateless TCP keep their
rate and their one connection.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from functools import partial
from itertools import pairwise
from typing import Any

from rivulet_lab import RackError, binary, prompt

from ...deeds import Deed
from ...meter import typical_mbps
from ...report import RIVULET, STATELESS, kept, show, three_clients
from ...scenario import Parameters, Standing, console
from ...services import SwitchView, make_file, url

WORDS = __doc__ or ""

ATTACKS = {"forged": "SUM", "replay": "REPLAY", "syn": "METER_SYN", "ack": "COOKIE"}
"""Attacks, and the drop reason of each. Some acknowledgements are within the reach of a large answer, or look like
those of a connection that a replica's kernel adopted: these reach replicas, which refuse them."""

GOOD = {RIVULET: "the Rivulet client", STATELESS: "stateless TCP"}
"""Clients that must keep their rate."""

PACKETS_PER_MBIT = 50
"""Attack packets a second for each Mb/s of a link: as many as a good client's full link carries."""

SYNS_PER_SECOND = 100
"""Rates that the ToR's meters allow for SYNs and for plain packets without a cookie: above the good clients' needs and
below a flood."""
METERS = {"syn": SYNS_PER_SECOND, "uncookied": SYNS_PER_SECOND}

TRIES = 3
"""Runs of the scenario. An attack slows a client in every run, a stall of a busy machine only in some."""

BAIT_BYTES = 200_000
SHARE = 0.7
"""Least part of its median goodput without attack that a good client must keep in each attack."""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if every attack was dropped for its reason and the good clients kept their rate."""
    for left in reversed(range(TRIES)):
        report = three_clients("attack", values, _plan, _also, clients=4, meters=METERS)
        words, warded, doubts = _judge(report)
        # Attack packets that reach a replica, and lost connections, are never the effect of a stall.
        if not (left and doubts and warded and all(kept(report["clients"][name]) for name in GOOD)):
            break
        for line in [*words, f"Repeated, because a stall of this machine looks the same: {', '.join(doubts)}."]:
            console.print(line, soft_wrap=True)
    opening = (
        "Forged proofs, replays, SYNs and acknowledgements,"
        f" {values.rate_mbit * PACKETS_PER_MBIT:,.0f} packets a second each, were sent to the service while three"
        f" clients fetched {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    code = show(report, values, "an attacker beside good clients", opening, words)
    good = warded and not doubts
    if not good:
        console.print(f"The attack was NOT repelled{': ' if doubts else ''}{', '.join(doubts)}.")
    return code or int(not good)


def _plan(standing: Standing, seconds: float) -> list[Deed]:
    make_file(standing.replicas.www, "bait.bin", BAIT_BYTES)
    deeds = []
    for place, kind in enumerate(ATTACKS):
        # First a quiet phase, with which the attacks are compared. The last seconds are free for machines that run
        # late.
        start = seconds * (0.12 + 0.2 * place)
        end = start + seconds * 0.15
        deeds.append(Deed(start, partial(_begin, kind=kind, seconds=end - start)))
        deeds.append(Deed(end, partial(_end, kind=kind)))
    return deeds


def _begin(standing: Standing, kind: str, seconds: float) -> None:
    values, host = standing.parameters, "c4"
    bait = [*prompt(), binary("rivulet"), "get", "--quiet", "-o", "/dev/null", url("bait.bin")]
    command = [*prompt(), sys.executable, "-m", "rivulet_demo.attacker", kind, "--device", f"{host}-eth0"]
    command += ["--rate", f"{values.rate_mbit * PACKETS_PER_MBIT:g}", "--seconds", f"{seconds:g}"]
    command += ["--bait", shlex.join(bait), "--out", str(standing.rack.folder / f"attacker-{kind}.json")]
    (standing.rack.folder / f"attacker-{kind}.json").unlink(missing_ok=True)
    standing.notes[kind] = _drops(standing)
    standing.rack.start(f"attacker-{kind}", command, standing.rack.spaces[host])
    standing.mark(kind, "attack")


def _end(standing: Standing, kind: str) -> None:
    _await_end(standing, kind)
    standing.mark("calm", "")


def _await_end(standing: Standing, kind: str) -> None:
    """Waits for the end of an attacker that started late, so that its packets do not count for the next attack."""
    attacker = standing.rack.processes[f"attacker-{kind}"]
    standing.rack.until(lambda: not attacker.running(), f"the attacker ({kind}) ends", 20.0)


def _has_told(standing: Standing, before: SwitchView | None) -> bool:
    return standing.watch.view is not before


def _drops(standing: Standing) -> dict[str, int]:
    """Packets that the ToR has dropped so far, by reason."""
    # On a busy machine the newest view may be old, and so may the next one, whose reading began before this call.
    for _ in range(2):
        standing.rack.until(partial(_has_told, standing, standing.watch.view), "the ToR's counters are read", 20.0)
    return dict(standing.watch.view.drops) if standing.watch.view is not None else {}


def _also(standing: Standing, report: dict[str, Any]) -> None:
    """Adds the attacker's packets and the ToR's drops of each attack, by reason."""
    attacks = []
    for kind in standing.notes:
        path = standing.rack.folder / f"attacker-{kind}.json"
        _await_end(standing, kind)
        if not path.exists():
            raise RackError(f"the attacker ({kind}) left no result; see {path.with_suffix('.log')}")
        attacks.append(json.loads(path.read_text()))
    # Packets in flight at the end of an attack count until the next one begins.
    counts = [*standing.notes.values(), _drops(standing)]
    for attack, before, after in zip(attacks, counts, counts[1:], strict=False):
        attack["dropped"] = {
            reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)
        }
    report["attacks"] = attacks


def _judge(report: dict[str, Any]) -> tuple[list[str], bool, list[str]]:
    """A sentence for each attack, whether all were dropped for their reason, and the attacks that slowed a client."""
    phases = {name: _typical(report["clients"][name]) for name in GOOD}
    words, warded, doubts = [], True, []
    for attack in report["attacks"]:
        kind, sent, dropped = attack["kind"], attack["sent"], attack["dropped"]
        rates = {name: phases[name].get(f"{kind} attack") for name in GOOD}
        hits = dropped.get(ATTACKS[kind], 0)
        others = ", ".join(f"{reason} {n:,}" for reason, n in sorted(dropped.items()) if reason != ATTACKS[kind])
        few = sent < SYNS_PER_SECOND
        if few or None in rates.values():
            doubts.append(f"{kind} (hardly made)")
        doubts += [
            f"{kind} (slowed {GOOD[name]})"
            for name, rate in rates.items()
            if rate is not None and rate < SHARE * phases[name]["begin"]
        ]
        # SYNs within the meter's rate, and originals overtaken by the attacker's copies, are not dropped.
        warded = warded and (hits >= 0.5 * sent or (few and kind == "syn"))
        had = [
            f"{GOOD[name]} had {'nothing' if rate is None else f'{rate:.1f} Mb/s'} most of the time,"
            f" {phases[name]['begin']:.1f} before the attacks"
            for name, rate in rates.items()
        ]
        words.append(
            f"Attack {kind}: {sent:,} packets sent, {hits:,} dropped as {ATTACKS[kind]}"
            f"{' (also ' + others + ')' if others else ''}; {'; '.join(had)}."
        )
    doubts += [f"{kind} (not made)" for kind in list(ATTACKS)[len(words) :]]
    return words, warded, doubts


def _typical(client: dict[str, Any]) -> dict[str, float]:
    """Median goodput of a client in each phase, Mb/s."""
    samples = [(float(at), int(count)) for at, count in client["samples"]]
    edges = [*(phase["from_s"] for phase in client["phases"]), samples[-1][0]]
    return {
        phase["since"]: typical_mbps(samples, start, end)
        for phase, (start, end) in zip(client["phases"], pairwise(edges), strict=True)
    }
