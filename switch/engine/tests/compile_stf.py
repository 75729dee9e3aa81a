"""Compiles p4c's own v1model tests for `stf-run`, which `make bench-switch BENCH_FLAGS="--stf FOLDER"` counts.

python3 compile_stf.py P4C_SOURCES FOLDER

Takes every program of testdata/p4_16_samples that includes v1model.p4 and has an .stf next to it. FOLDER/corpus.json
contains the version of p4c and, for each program that p4c refused, its error message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMPILER = "p4c-bm2-ss"
TIMEOUT_S = 300


def version() -> str:
    """The version of the compiler on the PATH, for example 1.2.5.16."""
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, timeout=60)
    found = re.search(r"[Vv]ersion (\d[\w.]*)", done.stdout + done.stderr)
    return found.group(1) if found else "unknown"


def programs(samples: Path) -> list[Path]:
    """The .stf files of programs for v1model."""
    pairs = ((stf, stf.with_suffix(".p4")) for stf in sorted(samples.glob("*.stf")))
    return [stf for stf, p4 in pairs if p4.exists() and "v1model.p4" in p4.read_text(errors="replace")]


def compiled(stf: Path, folder: Path) -> str | None:
    """Compiles one program into the folder; returns the compiler's error as one line, or `None` on success."""
    target = folder / f"{stf.stem}.json"
    command = [COMPILER, "--arch", "v1model", "-o", str(target), str(stf.with_suffix(".p4"))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"not compiled in {TIMEOUT_S} s"
    if done.returncode != 0 or not target.exists():
        target.unlink(missing_ok=True)
        lines = (line for line in done.stderr.splitlines() if "error" in line)
        return next(lines, f"{COMPILER} ended with {done.returncode}").replace(f"{stf.parent}/", "")
    shutil.copy(stf, folder)
    return None


def main() -> int:
    """Fills the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("p4c", type=Path, help="p4c's sources")
    parser.add_argument("folder", type=Path, help="where the compiled programs go")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    tests = programs(options.p4c / "testdata" / "p4_16_samples")
    if not tests:
        parser.error(f"{options.p4c} has no testdata/p4_16_samples with .stf files")
    if shutil.which(COMPILER) is None:
        parser.error(f"{COMPILER} is not on the path")
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        said = list(pool.map(lambda stf: compiled(stf, options.folder), tests))
    refused = {stf.stem: why for stf, why in zip(tests, said, strict=True) if why is not None}
    corpus = {"p4c": version(), "compiled": len(tests) - len(refused), "refused": refused}
    (options.folder / "corpus.json").write_text(json.dumps(corpus, indent=1) + "\n")
    print(json.dumps(corpus, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
