#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The compiled P4 programs: `build` makes them, `check` refuses one that is stale.

BMv2 JSON and P4Info are committed, so that a machine without p4c runs everything. p4c's output holds paths
and positions, which differ between machines: `program` and `source_info` are dropped, the order of keys is kept, the
rest is written compact. The manifest has the SHA-256 of every source and of both outputs, and p4c's version.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

P4SRC = Path(__file__).resolve().parent.parent
BUILD = P4SRC / "build"
OUTPUTS = ("rivulet.json", "rivulet.p4info.txtpb")
DROPPED = {"source_info", "program"}


@dataclass(frozen=True)
class Program:
    """A program: its source, the folder of its outputs, and the flags that choose where requests are checked."""

    source: Path
    build: Path
    flags: tuple[str, ...]


TOR = Program(P4SRC / "v1model" / "rivulet.p4", BUILD, ("-I", "../core/checks_at_tor"))
"""The ToR checks requests."""
HOST = Program(
    # The core has constants and controls for the checks at the ToR, which this program does not use.
    P4SRC / "v1model" / "host.p4", BUILD / "host", ("-I", "../core/checks_at_host", "--Wdisable=unused")
)  # fmt: skip
"""Replicas check requests (`checks: host`)."""
PROGRAMS = (TOR, HOST)


def sources() -> list[Path]:
    """Every P4 source, in the order of the manifests."""
    return sorted([*P4SRC.glob("core/**/*.p4"), *P4SRC.glob("v1model/*.p4")])


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def source_hashes() -> dict[str, str]:
    return {str(path.relative_to(P4SRC)): digest(path) for path in sources()}


def p4c_version() -> str | None:
    """p4c's version and commit, or None where there is no p4c."""
    if shutil.which("p4c") is None:
        return None
    text = subprocess.run(["p4c", "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"(\d+(?:\.\d+)+)(?: \(SHA: (\w+))?", text)
    return " ".join(part for part in match.groups() if part) if match else text.strip()


def stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: stripped(item) for key, item in value.items() if key not in DROPPED}
    if isinstance(value, list):
        return [stripped(item) for item in value]
    return value


def compile_program(program: Path, code: Path, p4info: Path, flags: Sequence[str] = ()) -> None:
    """Runs p4c in the program's folder and writes both outputs, without what depends on the machine."""
    with tempfile.TemporaryDirectory() as scratch:
        command = ["p4c", "--Werror", "-I", ".", *flags, "--target", "bmv2", "--arch", "v1model"]
        subprocess.run(
            [*command, "--p4runtime-files", str(p4info), "-o", scratch, program.name],
            check=True,
            cwd=program.parent,
            stderr=subprocess.DEVNULL if "--Wdisable=unused" in flags else None,
        )
        raw = json.loads((Path(scratch) / f"{program.stem}.json").read_text())
    code.write_text(json.dumps(stripped(raw), separators=(",", ":")) + "\n")


def compile_into(program: Program, folder: Path) -> None:
    """Compiles a program into a folder."""
    compile_program(program.source, folder / OUTPUTS[0], folder / OUTPUTS[1], program.flags)


def build() -> None:
    version = p4c_version()
    if version is None:
        raise SystemExit("p4c is not on the PATH; the committed programs in p4src/build serve without it")
    for program in PROGRAMS:
        program.build.mkdir(exist_ok=True)
        compile_into(program, program.build)
        manifest = {
            "p4c": version,
            "sources": source_hashes(),
            "outputs": {name: digest(program.build / name) for name in OUTPUTS},
        }
        (program.build / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        print(f"{shown(program.build)}: {shown(program.source)} compiled by p4c {version}")


def shown(path: Path) -> str:
    return str(path.relative_to(P4SRC.parent))


def stale(program: Program) -> list[str]:
    """Differences between a committed program and the sources, one message each; empty if there are none."""
    build = shown(program.build)
    manifest = json.loads((program.build / "manifest.json").read_text())
    problems = []
    now = source_hashes()
    for name in sorted(now.keys() | manifest["sources"].keys()):
        if now.get(name) != manifest["sources"].get(name):
            problems.append(f"p4src/{name} is not what {build} was compiled from: run `make p4`")
    for name in OUTPUTS:
        if digest(program.build / name) != manifest["outputs"][name]:
            problems.append(f"{build}/{name} was changed after it was compiled: run `make p4`")
    return problems


def check(program: Program) -> None:
    problems = stale(program)
    if problems:
        raise SystemExit("\n".join(problems))
    build = shown(program.build)
    manifest = json.loads((program.build / "manifest.json").read_text())
    version = p4c_version()
    if version != manifest["p4c"]:
        print(f"{build}: hashes agree (not recompiled: p4c here is {version}, there {manifest['p4c']})")
        return
    with tempfile.TemporaryDirectory() as scratch:
        compile_into(program, Path(scratch))
        for name in OUTPUTS:
            if (Path(scratch) / name).read_bytes() != (program.build / name).read_bytes():
                raise SystemExit(f"{build}/{name} differs from what p4c {version} makes of the sources")
    print(f"{build}: hashes agree, and p4c {version} makes the same again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["build", "check"])
    if parser.parse_args().command == "build":
        build()
    else:
        for program in PROGRAMS:
            check(program)


if __name__ == "__main__":
    sys.exit(main())
