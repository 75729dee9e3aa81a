"""The systemd units: what they leave open is little, and no count of failures leaves one dead."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).resolve().parents[2] / "packaging" / "systemd").glob("*.service"))
EXPOSURE_MAX = {"rivulet-cm": 35}
"""Tenths, as systemd-analyze counts: 0 is closed, 100 open; others 25. `rivulet cm serve` is root, for all users."""


def test_all_units_are_looked_at() -> None:
    assert [u.stem for u in UNITS] == [
        "rivulet-agent",
        "rivulet-cm",
        "rivulet-controller",
        "rivulet-replica",
        "rivulet-switch",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_little_is_left_open(unit: Path) -> None:
    command = [
        "systemd-analyze",
        "security",
        "--no-pager",
        "--offline=true",
        f"--threshold={EXPOSURE_MAX.get(unit.stem, 25) - 1}",
        str(unit),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.stem)
def test_it_comes_back_however_often_it_fails_and_leaves_no_core(unit: Path) -> None:
    text = unit.read_text()
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    assert parser["Service"]["Restart"] == "always"
    # A back-off: one that cannot start must not keep a core busy.
    assert parser["Service"]["RestartSec"] in ("200ms", "1")
    assert parser["Service"]["LimitCORE"] == "0"
    # The last drop of a list takes from what the one before it gave.
    assert "SystemCallFilter=@system-service\nSystemCallFilter=~@privileged" in text


def test_the_keys_have_a_user_that_nothing_else_runs_as() -> None:
    users = [
        line for unit in UNITS for line in unit.read_text().splitlines() if line.startswith(("User=", "DynamicUser="))
    ]
    # An agent holds its replica's keys as `rivulet serve` does, which may attach to it.
    assert users == ["User=rivulet-replica", "User=rivulet-controller", "User=rivulet-replica", "DynamicUser=yes"]
