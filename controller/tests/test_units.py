"""The systemd units: limited exposure, and unlimited restarts."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).resolve().parents[2] / "packaging" / "systemd").glob("*.service"))
EXPOSURE_MAX = {"rivulet-cm": 35}
"""Tenths, as systemd-analyze counts: 0 is closed, 100 open; others 25. `rivulet cm serve` is root,
for all users."""


def test_every_systemd_unit_is_tested() -> None:
    assert [u.stem for u in UNITS] == [
        "rivulet-agent",
        "rivulet-cm",
        "rivulet-controller",
        "rivulet-replica",
        "rivulet-switch",
        "rivulet-tls",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_unit_exposure_is_bounded(unit: Path) -> None:
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
def test_units_restart_always_and_leave_no_core(unit: Path) -> None:
    text = unit.read_text()
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    assert parser["Service"]["Restart"] == "always"
    # A back-off: a unit that cannot start must not keep a core busy.
    assert parser["Service"]["RestartSec"] in ("200ms", "1")
    assert parser["Service"]["LimitCORE"] == "0"
    # The last drop-in resets a list that an earlier one filled.
    assert "SystemCallFilter=@system-service\nSystemCallFilter=~@privileged" in text


def test_units_with_keys_have_their_own_user() -> None:
    users = [
        line for unit in UNITS for line in unit.read_text().splitlines() if line.startswith(("User=", "DynamicUser="))
    ]
    # An agent holds its replica's keys. `rivulet serve` and `rivulet tls` hold them, too, since
    # they may attach to it.
    replica = "User=rivulet-replica"
    assert users == [replica, "User=rivulet-controller", replica, "DynamicUser=yes", replica]
