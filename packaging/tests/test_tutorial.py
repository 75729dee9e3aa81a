"""Runs docs/tutorial.md: its commands, as they are, in a copy of this machine with nothing but the packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from machine import ENVIRONMENT, REPOSITORY, Machine

BINARIES = Path(os.environ.get("RIVULET_BIN", REPOSITORY / "target" / "release"))
PAGE = REPOSITORY / "docs" / "tutorial.md"
PATIENCE_S = 300.0

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(not (BINARIES / "rivulet").exists(), reason="needs the binaries"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("nginx", "memcached", "curl"))), reason="needs nginx, memcached and curl"
    ),
]


def commands(page: str) -> list[str]:
    """The blocks of commands, in order."""
    return re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_every_command_of_tutorial_runs(tmp_path: Path) -> None:
    blocks = commands(PAGE.read_text())
    assert len(blocks) == PAGE.read_text().count("```") // 2, "a block of the page is not run"
    packages = tmp_path / "packages"
    subprocess.run(
        [REPOSITORY / "scripts" / "deb.sh", "--quick", "--out", str(packages), str(BINARIES)],
        check=False, capture_output=True,
    )  # fmt: skip
    assert len(list(packages.glob("*.deb"))) == 2
    (tmp_path / "machine").mkdir()
    machine = Machine(tmp_path / "machine", packages)
    if machine.why_not is not None:
        pytest.skip(f"no overlay of / can be mounted: {machine.why_not}")
    try:
        # One shell, as a reader has it. A command that fails ends it, and the trace shows which.
        script = "cd /srv/packages\nset -euxo pipefail\n" + "\n".join(blocks)
        done = subprocess.run(
            [*machine.enter, "bash", "-c", script],
            env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        said = f"{done.stdout}\n{done.stderr}"[-6000:]
        assert done.returncode == 0, said
        assert re.search("^killed nginx of r[123]$", done.stdout, re.MULTILINE), said
        assert "curl ended without an error\nevery byte is right\n" in done.stdout, said
        # Processes with an agent's BPF programs end three seconds after it; the first process reaps none (Z).
        machine.until(
            lambda: not re.search("^[^Z].* rivulet", machine.do("ps", "-e", "-o", "stat=,comm="), re.M), "end"
        )
    finally:
        machine.close()
