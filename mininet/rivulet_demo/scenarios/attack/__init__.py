"""Forged proofs, replays, and floods of SYNs and of acknowledgements beside good clients.

The attacker has a link of its own and sends, one after the other: requests whose proofs are made up, as of a client
that hides losses; its own requests again and again; from addresses that nobody has SYNs, and acknowledgements of plain
TCP whose numbers are made up. The ToR drops each for its reason and counts it; the clients of Rivulet and of stateless
TCP keep their rate and their one connection.
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
"""What the attacker does, and the drop reason that answers it. Some of the acknowledgements are within the reach of a
large answer, and some speak of a socket that a replica's kernel adopted: replicas find out."""

GOOD = {RIVULET: "the Rivulet client", STATELESS: "stateless TCP"}
"""Clients that must keep their rate."""

PACKETS_PER_MBIT = 50
"""Packets a second of the attack for each Mb/s of a link: as many as the good client's full link carries."""

SYNS_PER_SECOND = 100
"""What the ToR lets through of SYNs, and of plain packets that show no cookie: more than the good clients need, less
than a flood."""
METERS = {"syn": SYNS_PER_SECOND, "uncookied": SYNS_PER_SECOND}

TRIES = 3
"""What an attack does to a client it does every time; what holds a busy machine up for a moment does not."""

BAIT_BYTES = 200_000
SHARE = 0.7
"""The least part of its undisturbed goodput that a good client must keep, each most of the time (the median)."""


def run(values: Parameters, options: argparse.Namespace) -> int:
    """Runs the scenario; 0 if every attack was dropped for its reason and the good clients kept their rate."""
    for left in reversed(range(TRIES)):
        report = three_clients("attack", values, _plan, _also, clients=4, meters=METERS)
        words, warded, doubts = _judge(report)
        # Packets that got through and a lost connection are never a stall's doing.
        if not (left and doubts and warded and all(kept(report["clients"][name]) for name in GOOD)):
            break
        for line in [*words, f"Once more, for a stall of this machine looks the same: {', '.join(doubts)}."]:
            console.print(line, soft_wrap=True)
    opening = (
        "Forged proofs, replays, SYNs and acknowledgements,"
        f" {values.rate_mbit * PACKETS_PER_MBIT:,.0f} packets a second each, were sent to the service while three"
        f" clients fetched {values.size / 1e6:g} MB at {values.rate_mbit:g} Mb/s, {values.rtt_ms:g} ms round-trip time."
    )
    code = show(report, values, "an attacker beside good clients", opening, words)
    good = warded and not doubts
    if not good:
        console.print(f"The attack was NOT warded off as it should be{': ' if doubts else ''}{', '.join(doubts)}.")
    return code or int(not good)


def _plan(standing: Standing, seconds: float) -> list[Deed]:
    make_file(standing.replicas.www, "bait.bin", BAIT_BYTES)
    deeds = []
    for place, kind in enumerate(ATTACKS):
        # Quiet first: what the attacks are compared with. The end is left free, for machines on which all is late.
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
    """An attacker that began late ends late: what it sends must not be counted as the next one's."""
    attacker = standing.rack.processes[f"attacker-{kind}"]
    standing.rack.until(lambda: not attacker.running(), f"the attacker ({kind}) ends", 20.0)


def _has_told(standing: Standing, before: SwitchView | None) -> bool:
    return standing.watch.view is not before


def _drops(standing: Standing) -> dict[str, int]:
    """What the ToR has dropped so far, by reason."""
    # On a busy machine the newest view is one of before, and so may be the next one, which was asked for before.
    for _ in range(2):
        standing.rack.until(partial(_has_told, standing, standing.watch.view), "the ToR tells what it dropped", 20.0)
    return dict(standing.watch.view.drops) if standing.watch.view is not None else {}


def _also(standing: Standing, report: dict[str, Any]) -> None:
    """What the attacker sent and what the ToR dropped meanwhile, by reason."""
    attacks = []
    for kind in standing.notes:
        path = standing.rack.folder / f"attacker-{kind}.json"
        _await_end(standing, kind)
        if not path.exists():
            raise RackError(f"the attacker ({kind}) left no result; see {path.with_suffix('.log')}")
        attacks.append(json.loads(path.read_text()))
    # What is under way when an attack ends is counted until the next one begins.
    counts = [*standing.notes.values(), _drops(standing)]
    for attack, before, after in zip(attacks, counts, counts[1:], strict=False):
        attack["dropped"] = {
            reason: n - before.get(reason, 0) for reason, n in after.items() if n > before.get(reason, 0)
        }
    report["attacks"] = attacks


def _judge(report: dict[str, Any]) -> tuple[list[str], bool, list[str]]:
    """Words on each attack, whether it was dropped for its reason, and which ones slowed the client or hardly came."""
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
        # What the meter lets through of SYNs, and originals that the attacker's copies overtook, are not dropped.
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
    """A client's goodput in each phase, most of the time, Mb/s."""
    samples = [(float(at), int(count)) for at, count in client["samples"]]
    edges = [*(phase["from_s"] for phase in client["phases"]), samples[-1][0]]
    return {
        phase["since"]: typical_mbps(samples, start, end)
        for phase, (start, end) in zip(client["phases"], pairwise(edges), strict=True)
    }
