"""Test of the packets for the switch's benchmark, recorded from the packet tests' rack."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rivulet_bench.stats import REPOSITORY
from rivulet_bench.switch_rig import Trace

SCRIPT = REPOSITORY / "switch" / "engine" / "benches" / "tor_trace.py"


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ((), {"range1": 2, "range4": 2, "response": 1}),
        (
            ("whole",),
            {
                f"{kind}-{size}": 1 if kind == "response" else 2
                for kind in ("range1", "range4", "response", "plain_kernel", "plain_data")
                for size in (0, 1400)
            }
            | {"plain_syn-0": 2},
        ),
    ],
)
def test_entries_heartbeats_and_packets_of_every_kind_are_recorded(
    words: tuple[str, ...], kinds: dict[str, int]
) -> None:
    command = [sys.executable, str(SCRIPT), "2", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    trace = Trace.read(done.stdout)
    assert {kind: len(frames) for kind, frames in trace.packets.items()} == kinds
    assert len(trace.beats) > 0 and any(line[:2] == ["insert", "service_checks"] for line in trace.lines)
