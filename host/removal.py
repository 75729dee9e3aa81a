#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Removes one defence at a time from a copy of the Rust tree and checks that a test fails.

host/removal.py [NAME...]   needs root, nft, nginx and memcached; without names it removes all, one after the other

The copy and its build folder stay in target/removal, so that each removal compiles only what it changes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import removal_cm  # noqa: E402
import removal_earlier  # noqa: E402
import removal_hangs  # noqa: E402
import removal_inputs  # noqa: E402
import removal_marks  # noqa: E402
import removal_moves  # noqa: E402
import removal_plain  # noqa: E402
import removal_stamps  # noqa: E402
import removal_suspended  # noqa: E402
import removal_terminator  # noqa: E402
import removal_tiny  # noqa: E402
import removal_tls  # noqa: E402
import removal_transport  # noqa: E402
import removal_trods  # noqa: E402
import removal_window  # noqa: E402
from defences import Removal, parser, run, take_out  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "removal"
TREE = TARGET / "tree"
CARGO = os.environ.get("CARGO", "cargo")
PATIENCE_S = 900
"""Time limit of a test. One that hangs only without the defence counts as failed."""

PROGRAMS = {
    "bpf": ("-p", "rivulet-bpf", "--lib"),
    "kernel": ("-p", "rivulet-bpf", "--test", "it"),
    "rules": ("-p", "rivulet-cm", "--lib"),
    "trods": ("-p", "rivulet-trods", "--lib"),
    "it": ("-p", "rivulet-trods", "--test", "it"),
    "agent": ("-p", "rivulet", "--lib"),
    "agents": ("-p", "rivulet", "--test", "it"),
    **removal_transport.PROGRAMS,
    **removal_plain.PROGRAMS,
    **removal_terminator.PROGRAMS,
    **removal_tiny.PROGRAMS,
    **removal_tls.PROGRAMS,
    "calls": ("-p", "rivulet-libcm", "--test", "it"),
    "apps": ("-p", "rivulet-cm-apps", "--lib"),
    "streams": ("-p", "rivulet-cm-apps", "--test", "it"),
    "server": ("-p", "rivulet-server", "--lib"),
    "pktio": ("-p", "rivulet-pktio", "--lib"),
}
"""Cargo's arguments for the program of a test, by the prefix of the test's name."""

REMOVALS = (
    removal_transport.REMOVALS
    | removal_plain.REMOVALS
    | removal_trods.REMOVALS
    | removal_window.REMOVALS
    | removal_stamps.REMOVALS
    | removal_suspended.REMOVALS
    | removal_moves.REMOVALS
    | removal_earlier.REMOVALS
    | removal_hangs.REMOVALS
    | removal_inputs.REMOVALS
    | removal_marks.REMOVALS
    | removal_cm.REMOVALS
    | removal_terminator.REMOVALS
    | removal_tiny.REMOVALS
    | removal_tls.REMOVALS
)


def sources() -> Iterator[Path]:
    """Files of the tree that are tracked or new."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    yield from (Path(os.fsdecode(name)) for name in listed.stdout.split(b"\0") if name)


def copy() -> None:
    """Updates the copy from the tree; unchanged files keep their times, so cargo does not build them again."""
    wanted = {path for path in sources() if (ROOT / path).is_file()}
    there = {path.relative_to(TREE) for path in TREE.rglob("*") if path.is_file()}
    for path in there - wanted:
        (TREE / path).unlink()
    for path in wanted:
        restore(path)
    # The C compiler must accept code that a removal leaves unused.
    build = TREE / "host/bpf/build.rs"
    text = build.read_text()
    build.write_text(text.replace(', "-Werror"]', "]"))


def restore(path: Path) -> None:
    """Copies a file of the tree into the copy if they differ."""
    ours, copied = ROOT / path, TREE / path
    if not copied.exists() or copied.read_bytes() != ours.read_bytes():
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ours, copied)


def test(program: str, names: list[str]) -> list[str]:
    """Runs these tests of a program and returns those that fail."""
    command = [CARGO, "test", "--locked", "--quiet", *PROGRAMS[program]]
    # Without debug information, which takes longer to write than all else to compile.
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(TARGET),
        "CARGO_PROFILE_DEV_DEBUG": "0",
        "RUSTFLAGS": "-Awarnings",
    }
    # Builds first, so that the time limit below is for the tests alone.
    subprocess.run([*command, "--no-run"], cwd=TREE, env=environment, check=True)
    command += ["--", "--exact", "--include-ignored", "--format=pretty", "--show-output", *names]
    with subprocess.Popen(
        command, cwd=TREE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return [f"{name} (it hangs)" for name in names]
    ended = dict(re.findall(r"^test (\S+) \.\.\. (ok|FAILED)", text, re.M))
    if skipped := re.findall(r"^SKIPPED: .*", text, re.M):
        raise SystemExit(skipped[0])
    if set(ended) != set(names):
        raise SystemExit(f"of {', '.join(names)} there ran {', '.join(ended) or 'none'}:\n{text[-3000:]}")
    return [name for name, how in ended.items() if how == "FAILED"]


def test_names() -> set[str]:
    """Names of all Rust functions in the tree, without their modules."""
    files = (ROOT / path for path in sources() if path.suffix == ".rs" and (ROOT / path).is_file())
    return {name for file in files for name in re.findall(r"\bfn (\w+)", file.read_text())}


def failed(removal: Removal) -> list[str]:
    """Removes the defence, runs its tests and returns those that fail; puts the defence back."""
    take_out(removal, TREE)
    try:
        programs: dict[str, list[str]] = {}
        for name in removal.tests:
            program, _, path = name.partition(":")
            programs.setdefault(program, []).append(path)
        return [name for program, names in programs.items() for name in test(program, names)]
    finally:
        restore(Path(removal.file))


def prepare(removals: Iterable[Removal]) -> None:
    """Updates the copy and checks that all tests pass with every defence in place."""
    copy()
    wanted = {name for removal in removals for name in removal.tests}
    for program in PROGRAMS:
        of = {name.partition(":")[2] for name in wanted if name.startswith(f"{program}:")}
        if of and (bad := test(program, sorted(of))):
            raise SystemExit(f"failing with every defence: {', '.join(bad)}")


def main() -> int:
    args = parser(__doc__ or "", REMOVALS).parse_args()
    prepared = False

    def noticed(removal: Removal) -> list[str]:
        nonlocal prepared
        if not prepared:
            prepare(REMOVALS[name] for name in args.names or REMOVALS)
            prepared = True
        return failed(removal)

    names = test_names() if args.check else set()

    def exists(test: str) -> bool:
        program, _, path = test.partition(":")
        return program in PROGRAMS and path.rpartition("::")[2] in names

    return run(REMOVALS, args, ROOT, noticed, exists)


if __name__ == "__main__":
    sys.exit(main())
