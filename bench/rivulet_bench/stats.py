"""Means with 95 % intervals, percentiles, and the description of the measuring machine."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "bench" / "results"
Json = dict[str, Any]

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom; beyond, the normal's.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % interval (infinite for one value)."""
    if not values:
        raise ValueError("no values")
    if len(values) == 1:
        return values[0], math.inf
    freedom = len(values) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.960
    return statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def machine() -> dict[str, Any]:
    """The machine's properties that affect the figures, without names of hosts or people."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def commit() -> str:
    """The measured commit, with a `+` if files differ from it; empty outside of a git work tree."""
    git = ["git", "-C", str(REPOSITORY)]
    found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return ""
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], check=False).returncode != 0
    return found.stdout.strip() + ("+" if changed else "")


def load(name: str) -> dict[str, Any]:
    """Contents of bench/results/NAME.json; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def updated(kept: dict[str, Any], result: dict[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """The stored result with these parts replaced, and their date and machine added."""
    again = {part: result[part] for part in parts}
    return kept | again | {"again": kept.get("again", {}) | dict.fromkeys(again, machine())}


def save(name: str, result: dict[str, Any]) -> Path:
    """Writes bench/results/NAME.json with a description of the machine."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    # A stored result already has the machine that it was measured on.
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path
