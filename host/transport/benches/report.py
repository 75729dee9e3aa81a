#!/usr/bin/env python3
"""Writes bench/results/transport.json: what a step costs, by criterion, by callgrind and by the tests."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CARGO = os.environ.get("CARGO", "cargo")
SHORT, LONG = 1_000, 3_000


def run(*command: str) -> str:
    """The output of a command, both streams; an error ends the report."""
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")
    return done.stdout


def target() -> Path:
    """Where cargo builds."""
    metadata = json.loads(run(CARGO, "metadata", "--format-version", "1", "--no-deps", "--offline").splitlines()[-1])
    return Path(metadata["target_directory"])


def nanoseconds(where: Path, name: str) -> float:
    """The median of a criterion benchmark."""
    estimates = json.loads((where / "criterion" / name / "new" / "estimates.json").read_text())
    return round(estimates["median"]["point_estimate"], 1)


def instructions(figures: Path, what: str) -> float:
    """Instructions of one server step: two runs of different length, so that everything else cancels out."""
    counts = []
    for steps in (SHORT, LONG):
        out = run("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", str(figures), what, str(steps))
        found = re.search(r"Collected : (\d+)", out)
        if found is None:
            sys.exit(f"callgrind gave no count:\n{out}")
        counts.append(int(found[1]))
    return round((counts[1] - counts[0]) / (LONG - SHORT), 1)


def main() -> None:
    """Measures everything and writes the file."""
    where = target()
    run(CARGO, "bench", "--locked", "-p", "rivulet-transport", "--bench", "step", "--", "--noplot")
    run(CARGO, "build", "--release", "--locked", "-p", "rivulet-transport", "--example", "transport_figures")
    figures = where / "release" / "examples" / "transport_figures"
    # The test fails if the step allocates at all.
    run(CARGO, "test", "--locked", "-p", "rivulet-transport", "--test", "it", "allocation::")
    result = {
        "server_step_ns": nanoseconds(where, "server_step"),
        "server_further_response_ns": nanoseconds(where, "server_further_response"),
        "server_step_instructions": instructions(figures, "loop"),
        # What the minisocket cache saves, when it has the continuation; both with the cost of making the request.
        "server_accept_ns": nanoseconds(where, "server_accept"),
        "server_accept_cached_ns": nanoseconds(where, "server_accept_cached"),
        "server_accept_instructions": instructions(figures, "accept"),
        "server_accept_cached_instructions": instructions(figures, "cached"),
        "server_step_allocations": 0,
        "client_step_ns": nanoseconds(where, "client_step"),
        "header_bytes": json.loads(run(str(figures), "bytes")),
        "clock": "CPU time of the measuring thread, medians of criterion",
        "machine": {"cores": os.cpu_count(), "load": os.getloadavg()[0]},
    }
    path = ROOT / "bench" / "results" / "transport.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
