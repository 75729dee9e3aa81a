"""Measures what the machine carries, and chooses a rate at which no core is full.

A short trial downloads with the demo's clients at a low rate. The CPU time of the demo's processes, idle and in the
trial, gives the cost of a megabit; the delay of wake-ups gives the exclusion bound. A full core would make the figure
show processor time and not the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rivulet_lab import prompt

from .cpu import CpuMeter
from .scenario import Parameters, Standing, console, standing_rack

RATES_MBIT = (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0)
"""Rates to choose from. Below the lowest a window of TCP is too small to recover quickly."""
BOUNDS_MS = (20.0, 50.0, 100.0, 200.0)
"""Exclusion bounds to choose from. BMv2 needs the longest (docs/dataplane.md)."""
MARGIN = 1.5
"""The bound is at least this multiple of the longest wake-up delay, so that no live replica is excluded."""
FULL = 0.65
"""Share of a core up to which it does not count as full."""
TRIAL_MBIT = {"embedded": 20.0, "bmv2": 5.0}
MOST_MBIT = {"embedded": 100.0, "bmv2": 10.0}
IDLE_S, TRIAL_S, FIRST_BYTES_S = 0.7, 2.0, 20.0
MOST_PROBES = 16
"""Cores on which wake-ups are measured."""
DOWNLOAD_S = 16.0
"""Duration of the demo's download: two kills and two returns, 3.2 s apart."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The trial's measurements. `cores_*`: CPU seconds per second, of all the demo's processes."""

    cores: int
    trial_mbit: float
    cores_idle: float
    cores_trial: float
    fullest_idle: float
    """The same of the process that used most."""
    fullest_trial: float
    fullest_name: str
    lateness_ms: float
    excluded: int = 0
    """Exclusions in the trial, in which every replica is alive."""

    def fits(self, mbit: float) -> bool:
        """Whether neither the machine nor a core for one process is full at this rate."""
        share = mbit / self.trial_mbit
        return (
            self.cores_idle + (self.cores_trial - self.cores_idle) * share <= FULL * self.cores
            and self.fullest_idle + (self.fullest_trial - self.fullest_idle) * share <= FULL
        )

    def rate(self, most: float) -> float:
        """The highest of `RATES_MBIT` that fits, else the lowest, Mb/s."""
        return max((mbit for mbit in RATES_MBIT if mbit <= most and self.fits(mbit)), default=RATES_MBIT[0])

    def bound_ms(self, least: float) -> float:
        """The shortest of `BOUNDS_MS` with the margin, at least `least`; longer than `least` if that was too short."""
        enough = max(least, MARGIN * self.lateness_ms)
        return next((b for b in BOUNDS_MS if b >= enough and (b > least or not self.excluded)), BOUNDS_MS[-1])


def measure(values: Parameters, clients: int, begin: Callable[[Standing], None], **settings: Any) -> Capacity:
    """Runs the trial on a rack of its own; `begin` starts the clients."""
    console.print("[bold cyan]›[/] a trial: what this machine carries")
    rate = TRIAL_MBIT[values.switch]
    # Larger than the trial downloads, so that no client ends before it.
    trial = replace(values, rate_mbit=rate, size_mb=rate / 8 * (FIRST_BYTES_S + 2 * TRIAL_S))
    with standing_rack("capacity", trial, clients=clients, quiet=True, **settings) as standing:
        idle = CpuMeter()
        time.sleep(IDLE_S)
        cores_idle, fullest_idle, _ = idle.cores()
        begin(standing)
        names = list(standing.clients)
        standing.rack.until(
            lambda: all(standing.so_far(name) for name in names), "the clients of the trial receive", FIRST_BYTES_S
        )
        loaded = CpuMeter()
        probe = [*prompt(), sys.executable, "-m", "rivulet_demo.lateness", str(TRIAL_S)]
        probes = [
            subprocess.Popen([*probe, str(core)], stdout=subprocess.PIPE, text=True)
            for core in sorted(os.sched_getaffinity(0))[:MOST_PROBES]
        ]
        late = [float(one.communicate(timeout=60)[0]) for one in probes]
        cores_trial, fullest_trial, name = loaded.cores()
        excluded = sum(out for _, _, out in standing.watch.history)
        for process, _ in standing.clients.values():
            process.end()
    return Capacity(
        cores=len(os.sched_getaffinity(0)),
        trial_mbit=rate,
        cores_idle=round(cores_idle, 3),
        cores_trial=round(cores_trial, 3),
        fullest_idle=round(fullest_idle, 3),
        fullest_trial=round(fullest_trial, 3),
        fullest_name=name,
        lateness_ms=max(late),
        excluded=excluded,
    )


def fit(values: Parameters, found: Capacity, size_given: bool) -> tuple[Parameters, str]:
    """Parameters with the chosen rate, bound and size, and the sentence that explains them."""
    rate, bound = found.rate(MOST_MBIT[values.switch]), found.bound_ms(values.liveness_ms)
    size = values.size_mb if size_given else rate / 8 * DOWNLOAD_S
    full = "at which it fills no core" if found.fits(rate) else "the lowest rate, although it may fill the cores"
    words = (
        f"this machine has {found.cores} cores; a trial at {found.trial_mbit:g} Mb/s a client used"
        f" {found.cores_trial:.1f} of them, {found.fullest_name} {found.fullest_trial:.1f}, and woke processes up to"
        f" {found.lateness_ms:.1f} ms late. So the demo that follows runs at {rate:g} Mb/s a client, {full},"
        f" with a heartbeat every {bound / 10:g} ms and exclusion after {bound:g} ms without one."
    )
    return replace(values, rate_mbit=rate, bound_ms=bound, size_mb=size), words
