"""p4c's own tests on the embedded switch's engine: counts of `stf-run` for a folder of compiled programs.

switch/README.md describes how to make the folder (switch/engine/tests/compile_stf.py); its corpus.json contains the
version of p4c. The tests are run as machine code and interpreted.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from rivulet_lab import RackError

from .stats import REPOSITORY

CORPUS = REPOSITORY / "switch" / "engine" / "tests" / "stf-corpus.txt"
"""Names of the tests that p4c 1.2.5.16 compiles."""
KINDS: dict[str, tuple[str, ...]] = {"machine code": (), "interpreted": ("--interpret",)}
TIMEOUT_S = 600
_LAST = re.compile(r"^(\d+) run, (\d+) passed, (\d+) failed$")
_FAILED = re.compile(r"^FAILED (\S+): (.*)$")


def counts(runner: Path, folder: Path) -> dict[str, Any]:
    """The block `stf` of the results: date, version of p4c, and for each kind the counts and the reasons of
    failures."""
    tests = {path.stem for path in folder.glob("*.stf") if path.with_suffix(".json").exists()}
    if not tests:
        raise RackError(f"{folder} has no NAME.json with a NAME.stf beside it")
    corpus_file = folder / "corpus.json"
    corpus: dict[str, Any] = json.loads(corpus_file.read_text()) if corpus_file.exists() else {}
    refused: dict[str, str] = corpus.get("refused", {})
    return {
        "date": time.strftime("%Y-%m-%d"),
        "p4c": corpus.get("p4c"),
        "not_compiled": [{"name": name, "why": why} for name, why in sorted(refused.items())],
        "not_in_folder": sorted(set(CORPUS.read_text().split()) - tests - set(refused)),
        **{kind: _run(runner, folder, flags, len(tests)) for kind, flags in KINDS.items()},
    }


def _run(runner: Path, folder: Path, flags: tuple[str, ...], tests: int) -> dict[str, Any]:
    """One run; RackError if it does not end or its counts are inconsistent."""
    done = subprocess.run([str(runner), *flags, str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S)
    lines = done.stdout.splitlines()
    last = _LAST.match(lines[-1]) if lines else None
    if last is None:
        raise RackError(f"{runner.name} ended with {done.returncode} and no count: {done.stderr.strip()[-500:]}")
    run, passed, failed = (int(number) for number in last.groups())
    found = [_FAILED.match(line) for line in lines[:-1]]
    failures = [{"name": one.group(1), "why": one.group(2)} for one in found if one]
    if run != tests or passed + failed != run or len(failures) != failed:
        raise RackError(f"{runner.name}: {lines[-1]}, but {tests} tests and {len(failures)} lines of failures")
    return {"run": run, "passed": passed, "failed": failed, "failures": failures}


def carried(path: Path) -> dict[str, Any] | None:
    """Counts of an earlier run, with their date; `None` if there are none."""
    try:
        stf = json.loads(path.read_text()).get("stf")
    except FileNotFoundError:
        return None
    return stf if isinstance(stf, dict) and "date" in stf else None


def replace(path: Path, stf: dict[str, Any]) -> None:
    """Replaces the counts in the results of an earlier run."""
    try:
        result = json.loads(path.read_text())
    except FileNotFoundError:
        raise RackError(f"there is no {path.name} yet for the counts to go into") from None
    path.write_text(json.dumps(result | {"stf": stf}, indent=1) + "\n")
