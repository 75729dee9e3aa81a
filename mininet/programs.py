#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The compiled programs of examples and exercises: `build` makes them, `check` refuses one that is stale.

They are committed, as the ToR program is (p4src/tools/artifact.py), so that a machine without p4c runs the tests. The
manifest `programs.json` has the SHA-256 of every source and output.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "p4src" / "tools"))

from artifact import compile_program, digest, p4c_version  # noqa: E402

MANIFEST = HERE / "programs.json"


def programs() -> list[Path]:
    """Every program; the files in a folder `include` beside their folders are parts of them."""
    found = [*HERE.glob("examples/*/*.p4"), *HERE.glob("exercises/*/starter.p4"), *HERE.glob("exercises/*/solution.p4")]
    return sorted(found)


def sources(program: Path) -> list[Path]:
    """The files that a program is compiled from."""
    return [program, *sorted(program.parent.parent.glob("include/*.p4"))]


def outputs(program: Path, folder: Path | None = None) -> tuple[Path, Path]:
    """BMv2 JSON and P4Info of a program, in a folder (None: the committed ones)."""
    folder = folder or program.parent / "build"
    return folder / f"{program.stem}.json", folder / f"{program.stem}.p4info.txtpb"


def hashes(program: Path) -> dict[str, str]:
    """The hashes of a program's sources and outputs now; "" for a file that does not exist."""
    files = [*sources(program), *outputs(program)]
    return {str(path.relative_to(HERE)): digest(path) if path.exists() else "" for path in files}


def build() -> None:
    """Compiles every program and writes the manifest."""
    version = p4c_version()
    if version is None:
        raise SystemExit("p4c is not on the PATH; the committed programs serve without it")
    for program in programs():
        (program.parent / "build").mkdir(exist_ok=True)
        compile_program(program, *outputs(program))
    manifest = {"p4c": version, "files": {k: v for program in programs() for k, v in hashes(program).items()}}
    MANIFEST.write_text(json.dumps(manifest, indent=1) + "\n")
    print(f"mininet: {len(programs())} programs compiled by p4c {version}")


def stale() -> list[str]:
    """Differences between the manifest and the files, one message each; empty if there are none."""
    then: dict[str, str] = json.loads(MANIFEST.read_text())["files"]
    now = {k: v for program in programs() for k, v in hashes(program).items()}
    names = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
    return [f"mininet/{name} is not what mininet/programs.json has: run `make p4`" for name in names]


def check() -> None:
    """Compares hashes and, if the same p4c is here, what it makes of the sources."""
    problems = stale()
    version = p4c_version()
    if not problems and version == json.loads(MANIFEST.read_text())["p4c"]:
        with tempfile.TemporaryDirectory() as scratch:
            for program in programs():
                made = outputs(program, Path(scratch))
                compile_program(program, *made)
                pairs = zip(made, outputs(program), strict=True)
                problems += [f"{old} differs from what p4c makes" for new, old in pairs if digest(new) != digest(old)]
    if problems:
        raise SystemExit("\n".join(problems))
    print("mininet: the compiled programs match their sources")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["build", "check"])
    build() if parser.parse_args().command == "build" else check()


if __name__ == "__main__":
    main()
