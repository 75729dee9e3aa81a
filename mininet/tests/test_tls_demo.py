"""The scenario `tls` in small: one HTTPS connection of plain curl survives five harms, and its capture decrypts."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rivulet_demo.report import TCP
from rivulet_demo.scenario import Parameters
from rivulet_demo.scenarios import tls
from rivulet_lab import built

usable = os.geteuid() == 0 and built("rivulet", "rivulet-switch", "rivulet-wire")
pytestmark = [
    pytest.mark.rack,
    pytest.mark.skipif(not usable, reason="needs root and the binaries (make build)"),
    *(
        pytest.mark.skipif(shutil.which(name, path="/usr/sbin:/usr/bin") is None, reason=f"{name} is not installed")
        for name in ("curl", "memcached", "nginx", "openssl", "tcpdump")
    ),
]

RATE_MBIT, SIZE_MB = 3.0, 24.0
"""A minute of few packets: the harms, which take 40 s, need little CPU time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one run without Chromium, which would take most of the CPU time."""
    out = tmp_path_factory.mktemp("tls-demo")
    values = Parameters(RATE_MBIT, 10.0, SIZE_MB, 3, "embedded", out, live=False)
    assert tls.run(values, argparse.Namespace(rate=RATE_MBIT, size=SIZE_MB), with_browser=False) == 0
    return out


def test_https_connection_survives_every_harm_and_breaks_at_nginx(folder: Path) -> None:
    report: dict[str, Any] = json.loads((folder / "tls.json").read_text())
    assert [harm["what"] for harm in report["harms"]] == ["nginx", "tls", "agent", "link", "drain"]
    assert all(harm["resumed_by"] for harm in report["harms"])
    assert report["opened"] == {tls.HTTPS: 1} and report["connections"]["refused"] == 0
    ours, theirs = report["clients"][tls.HTTPS], report["clients"][TCP]
    assert ours["sha256_ok"] and not ours["failures"]
    assert not theirs["complete"] and theirs["connections_opened"] == 1
    assert (folder / "tls.png").stat().st_size > 0


@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")
def test_capture_with_its_keys_has_the_file_of_all_replicas(folder: Path) -> None:
    objects = folder / "objects"
    command = ["tshark", "-q", "-r", str(folder / f"tls-{tls.HTTPS}.pcap")]
    command += ["-o", f"tls.keylog_file:{folder / f'tls-{tls.HTTPS}.keys'}"]
    command += ["-o", "tcp.reassemble_out_of_order:TRUE", "--export-objects", f"http,{objects}"]
    subprocess.run(command, check=True, capture_output=True)
    found = hashlib.sha256((objects / "file.bin").read_bytes()).hexdigest()
    assert found == hashlib.sha256((folder / "www-tls" / "file.bin").read_bytes()).hexdigest()
