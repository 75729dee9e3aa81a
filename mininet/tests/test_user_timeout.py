"""A client with TCP_USER_TIMEOUT in a whole rack, while the replica that serves it dies."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from rivulet_demo.scenario import Parameters, standing_rack
from rivulet_demo.spec import SERVICE_V4, STATELESS_PORT
from rivulet_lab import built

SIZE_MB, RATE_MBIT = 16.0, 4.0
"""More than thirty seconds; a block, which one replica sends, takes two."""
TIMEOUT_S = 25.0
"""TCP_USER_TIMEOUT of the client in seconds: it has expired before the kill at KILL_S."""
KILL_S = 27.0
PATIENCE_S = 180.0
CLIENT = Path(__file__).parents[2] / "host" / "rivulet" / "tests" / "programs" / "get.py"

usable = os.geteuid() == 0 and built("rivulet", "rivulet-switch", "rivulet-wire")
pytestmark = pytest.mark.skipif(not usable, reason="needs root and the binaries (make build)")


def test_expired_user_timeout_ends_no_download(tmp_path: Path) -> None:
    values = Parameters(
        rate_mbit=RATE_MBIT, rtt_ms=10.0, size_mb=SIZE_MB, replicas=3, switch="embedded", out=tmp_path, live=False
    )
    rack = {"services": (("files", STATELESS_PORT, "stateless"),), "serve": ("--large",)}
    # A long bound, so that a slow machine does not get live replicas excluded.
    with standing_rack("user-timeout", values, liveness_ms=200.0, heartbeat_ms=20.0, **rack) as standing:
        place, came = standing.rack.spaces["c1"], tmp_path / "came"
        options = ["--port", str(STATELESS_PORT), "--user-timeout", f"{TIMEOUT_S * 1000:.0f}"]
        command = [sys.executable, str(CLIENT), *options, SERVICE_V4, "/file.bin", str(came)]
        client = standing.rack.start("client", command, place)
        began, died = time.monotonic(), False
        while client.running():
            now = time.monotonic() - began
            assert now < PATIENCE_S, "it neither ends nor makes progress"
            if now > KILL_S and not died:
                # The replica that serves it now.
                before = standing.watch.view
                time.sleep(0.2)
                after = standing.watch.view
                assert before is not None and after is not None
                standing.kill(after.busiest(before, standing.replicas.alive()))
                died = True
            time.sleep(0.05)
        assert died, "it ended before a replica died:\n" + client.last_lines()
        assert came.exists(), "it did not begin:\n" + client.last_lines()
        assert came.read_bytes() == (tmp_path / "www" / "file.bin").read_bytes(), "other bytes:\n" + client.last_lines()
