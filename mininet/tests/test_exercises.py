"""Tests of the exercises: each checker fails on the starter and passes on the solution."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rivulet_lab import REPOSITORY, built, switches

EXERCISES = REPOSITORY / "mininet" / "exercises"
pytestmark = [
    pytest.mark.rack,
    pytest.mark.skipif(os.geteuid() != 0 or not built("rivulet-switch"), reason="needs root and the binaries"),
]
PASSED = {"spray": (1, 4), "liveness": (1, 5), "range": (1, 6)}
"""Checks that pass on the starter, and all checks. Those that pass show that the starter's base works."""
QUICK = [("spray", "embedded"), ("range", "embedded")]
LONG = [("liveness", "embedded"), *((name, "bmv2") for name in PASSED)]


@pytest.mark.parametrize(("name", "switch"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.long) for one in LONG)])
def test_checker_fails_on_starter_and_passes_on_solution(name: str, switch: str) -> None:
    if switch not in switches.installed():
        pytest.skip(f"{switch} is not installed")
    base, checks = PASSED[name]
    command = [sys.executable, str(EXERCISES / name / "check.py")]
    for program, passed in (("starter", base), ("solution", checks)):
        done = subprocess.run(
            [*command, program, "--switch", switch], capture_output=True, text=True, timeout=120, check=False
        )
        assert f"{passed} of {checks} checks passed on {switch}" in done.stdout, done.stdout + done.stderr
        assert done.returncode == (passed != checks)
        assert done.stdout.count("\nok   ") + done.stdout.startswith("ok") == passed


def test_program_that_does_not_exist_is_an_error() -> None:
    done = subprocess.run(
        [sys.executable, str(EXERCISES / "range" / "check.py"), "/nope.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "/nope.json does not exist: compile the program first" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("switch", ["embedded", "bmv2"])
def test_spraying_over_unequal_paths_reorders_tcp(tmp_path: Path, switch: str) -> None:
    if switch not in switches.installed():
        pytest.skip(f"{switch} is not installed")
    folder = Path(shutil.copytree(EXERCISES / "spray", tmp_path / "spray"))
    for suffix in ("json", "p4info.txtpb"):
        shutil.copy(folder / "build" / f"solution.{suffix}", folder / "build" / f"spray.{suffix}")
    transfer = (
        "h1 iperf -c 10.0.2.2 -n 2M -Z reno > /dev/null\nh1 nstat -az TcpExtTCPSACKReorder TcpRetransSegs | tail -2\n"
    )
    commands = (
        f"h2 iperf -s > /dev/null 2>&1 &\nh1 sleep 2\n{transfer}console s1 table_set_default policy spray\n{transfer}"
    )
    command = [sys.executable, "-m", "rivulet_lab", "run", "topology.json", "--switch", switch, "--grpc-port", "0"]
    done = subprocess.run(command, cwd=folder, input=commands, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    by_flow, spray = (int(count) for count in re.findall(r"TcpExtTCPSACKReorder +(\d+)", done.stderr))
    assert spray > 50 > 10 * by_flow, f"reordered: {by_flow} by flow, {spray} sprayed\n{done.stderr}"
