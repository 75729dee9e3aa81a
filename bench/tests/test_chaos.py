"""Half a minute of chaos: a few faults for each store, in a fixed order."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rivulet_bench.chaos_rack import FAKETIME
from rivulet_lab import built

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or not built("rivulet", "rivulet-switch"), reason="needs root and `make build`"
    ),
    pytest.mark.skipif(not FAKETIME.exists(), reason="libfaketime is not installed"),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


def test_downloads_survive_faults_and_rack_recovers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rivulet_bench.chaos", "--seconds", "30", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary = json.loads((tmp_path / "chaos.json").read_text())
    for store in ("sqlite", "etcd"):
        assert summary[store]["broken"] == 0 and summary[store]["downloads"] > 0
        assert summary[store]["disk_is_memory"] and summary[store]["ended_by_themselves"] == []
    with (tmp_path / "chaos.csv").open() as file:
        rows = list(csv.DictReader(file))
    for store in ("sqlite", "etcd"):
        struck = [row["fault"] for row in rows if row["store"] == store]
        assert struck[:2] == ["kill switch", "kill controller"]
    assert (tmp_path / "chaos.png").stat().st_size > 10_000
