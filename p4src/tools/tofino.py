#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino: `build` has p4c's front end check it for both chips, `check` refuses changed sources.

`build` needs p4test (p4c's ENABLE_P4TEST) and the folder of `tna.p4` of the same p4c, in TNA_INCLUDE. p4test parses,
checks types and runs the target-independent passes; it places no table and allocates no register, which only the
Tofino backend does. The record has the SHA-256 of every source that was checked.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from artifact import BUILD, P4SRC, digest, p4c_version

PROGRAM = P4SRC / "tna" / "rivulet.p4"
RECORD = BUILD / "tna.json"
CHIPS = {"tofino": 1, "tofino2": 2}


def sources() -> dict[str, str]:
    """SHA-256 of the sources by path, in order."""
    paths = sorted([*P4SRC.glob("core/**/*.p4"), *P4SRC.glob("tna/*.p4")])
    return {str(path.relative_to(P4SRC)): digest(path) for path in paths if "checks_at_tor" not in path.parts}


def build() -> None:
    include = os.environ.get("TNA_INCLUDE", "")
    if shutil.which("p4test") is None or not (Path(include) / "tna.p4").is_file():
        raise SystemExit(
            "needs p4test on the PATH, and TNA_INCLUDE=FOLDER of tna.p4 (p4c: backends/tofino/bf-p4c/p4include)"
        )
    for chip, number in CHIPS.items():
        command = ["p4test", f"-D__TARGET_TOFINO__={number}", "-I", include, "-I", ".", "-I", "../core/checks_at_host"]
        found = subprocess.run(
            [*command, PROGRAM.name], cwd=PROGRAM.parent, capture_output=True, text=True, check=False
        )
        if found.returncode != 0:
            raise SystemExit(f"{chip}: p4test refuses the program:\n{found.stderr[-4000:]}")
        print(f"{chip}: p4test accepts p4src/tna/rivulet.p4 (front end only: no stages, no memory)")
    record = {"p4c": p4c_version(), "chips": list(CHIPS), "sources": sources()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def check() -> None:
    """Fails if the program's own sources differ from those that p4test accepted last, and names changes of the core."""
    before, now = json.loads(RECORD.read_text())["sources"], sources()
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    again = f"{', '.join(changed)} changed since p4test accepted the program for Tofino: run `make p4-tofino`"
    if any(name.startswith("tna/") for name in changed):
        raise SystemExit(f"p4src: {again}")
    print(f"p4src/tna: {again if changed else 'the sources are those that p4test accepted'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["build", "check"])
    build() if parser.parse_args().command == "build" else check()


if __name__ == "__main__":
    sys.exit(main())
