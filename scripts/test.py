#!/usr/bin/env python3
"""Runs parts of the tests one after the other and reports their times, the slowest tests and the failures.

scripts/test.py PART...: `make test` and `make test-long` list their parts. After a failed part the others still run,
except those that need its output (NEEDS). The last line counts the tests of all parts. The workspace is built once, in
the profile `ci`, and every part runs those binaries (RIVULET_BIN). Parts that wait more than they compute run in lanes
beside the others; their output is printed when the lane ends. Needs only Python.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
BINARIES = TARGET / "ci"
LOGS = ROOT / "build" / "test"
CARGO = os.environ.get("CARGO", "cargo")
PYTHON = str(ROOT / ".venv" / "bin" / "python")
# One command for all parts: another selection of packages has other features, with which cargo would compile shared
# dependencies again.
BUILD = [CARGO, "build", "--profile", "ci", "--locked", "--workspace", "--lib", "--bins", "--tests"]
SLOWEST = 25
WHY = 400
"""Characters of a failed test's message that the last lines repeat."""
PATIENCE_S = 3600.0
"""Time limit of a test program."""
LAST = 40
"""Lines printed by the processes of failed tests that are shown."""
LONG = {
    "RIVULET_ROTATION_S": "120",
    "RIVULET_FUZZ": "100000",
    "RIVULET_KILLS": "100",
    "RIVULET_TRANSFERS": "100000",
    "RIVULET_CONNECTIONS": "100000",
}
"""Settings with which `make test-long` repeats tests more often."""
REMOVALS = (ROOT / "ptf-tests" / "removal.py", ROOT / "host" / "removal.py")
"""Programs that remove one defence at a time."""
DEMOS = ("failover", "failover --checks host", "sick", "attack", "switch-restart", "stateless", "trods", "cm")
BESIDE = (("racks", "demos"), ("ptf", "ptf-host", "python"))
"""Lanes of parts that run, one after the other, beside `rust`, in their own network namespaces.

They spend more than half of their time waiting for clocks and links.
"""
SEED = "20261128"
"""Seed of the property tests: `make test` tries the same cases each time, `make test-long` new ones."""

NEEDS = {
    "setup": (),
    "check": ("setup",),
    "p4": ("setup",),
    "build": ("setup",),
}
"""Parts that must succeed before a part. Parts that are not listed run the binaries: `setup` and `build`."""


class PartFailed(Exception):
    """A part failed; the message is the reason."""


@dataclass
class Outcome:
    """Result of one test."""

    name: str
    seconds: float
    how: str = "passed"
    """passed, failed or skipped"""
    why: str = ""


@dataclass
class Took:
    """Times of one part."""

    part: str
    seconds: float
    cpu: float
    """CPU seconds of all processes."""


@dataclass
class Run:
    """Options of a run, and its results."""

    long: bool = False
    only: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    times: list[Took] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """Parts that failed, and those that were not run because of them."""
    programs: list[tuple[str, Path, str]] = field(default_factory=list)
    """Test programs as (name, folder of the crate, path)."""

    def count(self, how: str) -> int:
        return sum(outcome.how == how for outcome in self.outcomes)


def as_root(*command: str) -> list[str]:
    """The command with sudo if this process is not root; it makes network namespaces."""
    if os.geteuid() == 0:
        return list(command)
    ours = ("RIVULET_", "PROPTEST_")
    kept = [f"{name}={value}" for name, value in os.environ.items() if name == "PATH" or name.startswith(ours)]
    return ["sudo", "env", *kept, *command]


def call(*command: str, good: tuple[int, ...] = (0,)) -> None:
    """Runs a command with its output shown; raises PartFailed if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode not in good:
        raise PartFailed(f"`{' '.join(command)}` ended with {done.returncode}")


def lines_of(command: list[str], folder: Path = ROOT, stderr: IO[str] | None = None) -> Iterator[str]:
    """Yields the standard output of a command line by line; raises PartFailed if the command fails or hangs."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace")
    assert process.stdout is not None
    hung = threading.Timer(PATIENCE_S, process.kill)
    hung.start()
    try:
        yield from process.stdout
        code = process.wait()
    finally:
        late = not hung.is_alive()
        hung.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()
    if code:
        what = f"was killed after {PATIENCE_S:g} s" if late else f"ended with {code}"
        raise PartFailed(f"`{' '.join(command)}` {what}")


def build(run: Run) -> None:
    """Builds the workspace with its tests."""
    linked: dict[str, list[str]] = {}
    for line in lines_of([*BUILD, "--message-format", "json-render-diagnostics"]):
        message = json.loads(line)
        if message["reason"] != "compiler-artifact" or not message["profile"]["test"] or not message["executable"]:
            continue
        folder, target = Path(message["manifest_path"]).parent, message["target"]
        name = str(folder.relative_to(ROOT)) + ("" if "lib" in target["kind"] else f" {target['name']}")
        run.programs.append((name, folder, message["executable"]))
        if target["kind"] == ["test"]:
            linked.setdefault(name.split()[0], []).append(target["name"])
    # Without a standard library, and so with other features.
    call("scripts/tiny.sh")
    run.programs.sort()
    for crate, names in linked.items():
        if len(names) > 1:
            raise PartFailed(f"{crate}/tests: {' and '.join(names)}; a crate has one test program")


def rust(run: Run) -> None:
    """Runs the unit, property and integration tests, and the examples in the documentation."""
    if not run.programs:
        raise PartFailed("there are no test programs: name the part `build` before it")
    bad = []
    for name, folder, program in run.programs:
        if run.only not in name:
            continue
        if problem := libtest(run, name, folder, program):
            bad.append(problem)
    if not run.only:
        doc_tests(run)
    if bad:
        raise PartFailed("\n".join(bad))


def libtest(run: Run, name: str, folder: Path, program: str) -> str:
    """Runs one test program; returns the problem, or ""."""
    # The stable compiler's tests report their times only with these unstable options; the variable is for them alone.
    flags = ["-Z", "unstable-options", "--format", "json", "--report-time", "--show-output"]
    flags += ["--include-ignored"] if run.long else []
    command = as_root("env", "RUSTC_BOOTSTRAP=1", program, *flags)
    began, running, failed, ended = time.monotonic(), set[str](), list[str](), False
    # Output of the tests' own processes goes to a file, of which only the end is shown, and only after a failure.
    log = LOGS / f"rust-{name.replace('/', '-').replace(' ', '-')}.log"
    problem = ""
    with log.open("w", buffering=1) as printed:
        try:
            for line in lines_of(command, folder, printed):
                event = json.loads(line) if line.startswith('{ "type": "') else {}
                kind, test = (event.get("type"), event.get("event")), f"{name} {event.get('name', '')}"
                if not event:
                    printed.write(line)
                elif kind[0] == "suite":
                    ended = kind[1] != "started"
                elif kind == ("test", "started"):
                    running.add(test)
                elif kind in (("test", "ok"), ("test", "failed")):
                    running.discard(test)
                    output = event.get("stdout", "")
                    skipped = re.search(r"^SKIPPED: (.*)", output, re.M)
                    how = "failed" if event["event"] != "ok" else "skipped" if skipped else "passed"
                    why = skipped[1] if skipped else " ".join(output.split())[:WHY] if how == "failed" else ""
                    run.outcomes.append(Outcome(test, event.get("exec_time", 0.0), how, why))
                    if how == "failed":
                        failed.append(test)
                        print(f"\nFAILED: {test}\n{output}", flush=True)
        except PartFailed as e:
            problem = "" if failed else f"{e}; running: {', '.join(sorted(running)) or 'none'}"
    problem = problem or "\n".join(f"FAILED: {test}" for test in failed)
    problem = problem or ("" if ended else f"{name} did not end as it should")
    print(f"{name}: {time.monotonic() - began:.1f} s{', FAILED' if problem else ''}", flush=True)
    if problem:
        print(f"last lines of its processes, from {log.relative_to(ROOT)}:")
        print(*log.read_text(errors="replace").splitlines()[-LAST:], sep="\n", flush=True)
    return problem


def doc_tests(run: Run) -> None:
    """Runs the examples in the documentation of the crates."""
    crate = ""
    for line in lines_of([CARGO, "test", "--doc", "--profile", "ci", "--locked", "--workspace"]):
        if match := re.match(r"test (\S+) - (.*) \.\.\. (ok|FAILED|ignored)", line):
            how = {"ok": "passed", "FAILED": "failed"}.get(match[3])
            crate = match[1]
            if how:
                run.outcomes.append(Outcome(f"{crate} {match[2]}", 0.0, how))
        if "FAILED" in line or line.startswith(("error", "----")):
            print(line, end="")


def pytest(run: Run, name: str, *arguments: str, mark: str = "") -> None:
    """Runs the tests with these marks in one call of pytest, as root, since most make network namespaces."""
    report = LOGS / f"{name}.xml"
    report.unlink(missing_ok=True)
    marked = " and ".join(filter(None, ["long" if run.long else "not long", mark]))
    only = ["-k", run.only] if run.only else []
    command = [PYTHON, "-m", "pytest", "-q", "-rs", "-m", marked, *only, "--junitxml", str(report), *arguments]
    try:
        # 5: no test has this name; one in another part may.
        call(*as_root(*command), good=(0, 5) if run.only else (0,))
    finally:
        if report.exists():
            run.outcomes += junit(report)


def junit(report: Path) -> list[Outcome]:
    """The tests in a report of pytest."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        how, why = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                how, why = "failed", " ".join(child.get("message", "").split())[:WHY]
            elif child.tag == "skipped" and how != "failed":
                how, why = "skipped", child.get("message", "")
        name = f"{case.get('classname', '').replace('.', '/')} {case.get('name', '')}"
        found.append(Outcome(name, float(case.get("time", 0)), how, why))
    return found


def ptf(run: Run, switch: str, *flags: str) -> None:
    """Runs the packet tests on one switch."""
    command = as_root(PYTHON, str(ROOT / "ptf-tests" / "run.py"), "--switch", switch, *flags, *run.only.split())
    part = f"ptf {switch} host" if "host" in flags else f"ptf {switch}"
    test, began, found, total = "", time.monotonic(), list[Outcome](), 0
    try:
        for line in lines_of(command):
            print(line, end="", flush=True)
            rest = line
            if match := re.match(r"([\w.]+) \.\.\. (.*)", line):
                test, rest = match.groups()
            if test and (match := re.match(r"(ok|FAIL|ERROR|skipped)\b(.*)", rest)):
                how = {"ok": "passed", "skipped": "skipped"}.get(match[1], "failed")
                found.append(Outcome(f"{part} {test}", time.monotonic() - began, how, match[2].strip()))
                test, began = "", time.monotonic()
            elif match := re.match(r"Ran (\d+) tests?", line):
                total += int(match[1])
            elif match := re.match(r"FAILED ([\w.]+)[^:]*: (.*)", line):
                for outcome in found:
                    if outcome.name == f"{part} {match[1]}":
                        outcome.why = match[2][:WHY]
    finally:
        run.outcomes += found
    if total != len(found):
        raise PartFailed(f"{total} packet tests ran, but the output has results of {len(found)}")


def of_host_program(run: Run) -> list[str]:
    """Flags of the packet tests of the program without checks."""
    return ["--program", "host", *(["--long"] if run.long else [])]


def demos(run: Run) -> None:
    """Short demos: killed and stalled replicas, an attacker, a restarted ToR; connections must survive."""
    for scenario in DEMOS:
        name, *more = scenario.split()
        # Four attacks follow each other, each after the ToR has reported the one before, which takes time.
        of_link = ["--rate", "20", "--size", "60" if name == "attack" else "20"]
        # The streams of `cm` have their own rates, and their link is set to match.
        flags = [*([] if name == "cm" else of_link), "--plain", "--out", "build/e2e"]
        command = as_root(PYTHON, "-m", "rivulet_demo", name, *more, *flags)
        timed(run, f"demo {scenario}", lambda command=command: call(*command))


def removal(run: Run) -> None:
    """Checks that each defence, removed from a copy of the P4 program or of the Rust tree, fails a test."""
    bad = []
    for program in REMOVALS:
        known = {line.strip() for line in lines_of([PYTHON, str(program), "--list"])}
        names = [name for name in run.only.split() if name in known]
        if run.only and not names:
            continue
        try:
            for line in lines_of(as_root(PYTHON, str(program), *names)):
                print(line, end="", flush=True)
                if (match := re.match(r"([\w-]+): (.*)", line)) and match[1] != "removal":
                    how = "failed" if "UNNOTICED" in match[2] else "passed"
                    run.outcomes.append(Outcome(f"removal {match[1]}", 0.0, how))
        except PartFailed as e:
            bad.append(str(e))
    if bad:
        raise PartFailed("\n".join(bad))


def fuzz(run: Run) -> None:
    """Compares both switches on random packets and entries."""
    program = ROOT / "switch" / "switchd" / "tests" / "compare" / "fuzz.py"
    timed(run, "fuzz", lambda: call(*as_root(PYTHON, str(program), "--packets", "100000")))


def timed(run: Run, name: str, work: Callable[[], None]) -> None:
    """Runs work that counts as one test."""
    began, how = time.monotonic(), "failed"
    try:
        work()
        how = "passed"
    finally:
        run.outcomes.append(Outcome(name, time.monotonic() - began, how))


PARTS: dict[str, Callable[[Run], None]] = {
    "setup": lambda run: call("make", "--no-print-directory", "setup-test", "protos"),
    "check": lambda run: call("make", "--no-print-directory", "check"),
    "build": build,
    "rust": rust,
    "p4": lambda run: pytest(run, "p4", "p4src/tests", "ptf-tests/test_rivulet_scapy.py"),
    "python": lambda run: pytest(run, "python", mark="not rack"),
    "racks": lambda run: pytest(run, "racks", mark="rack"),
    "packages": lambda run: pytest(run, "packages", "packaging/tests"),
    "ptf": lambda run: ptf(run, "embedded"),
    "ptf-host": lambda run: ptf(run, "embedded", *of_host_program(run)),
    "ptf-bmv2": lambda run: ptf(run, "bmv2"),
    "ptf-bmv2-host": lambda run: ptf(run, "bmv2", *of_host_program(run)),
    "ptf-workers": lambda run: ptf(run, "embedded", "--workers", "2"),
    "demos": demos,
    "removal": removal,
    "fuzz": fuzz,
}


class Beside:
    """Parts that run in another process beside those of this one, with their output in a file."""

    def __init__(self, options: argparse.Namespace, parts: list[str]) -> None:
        name = "-".join(parts)
        self.log, self.report = LOGS / f"beside-{name}.log", LOGS / f"beside-{name}.json"
        self.report.unlink(missing_ok=True)
        flags = [*(["--long"] if options.long else []), *(["--only", options.only] if options.only else [])]
        command = [sys.executable, "-u", __file__, *flags, "--report", str(self.report), *parts]
        print(f"\n=== {', '.join(parts)}: beside the following, see {self.log.relative_to(ROOT)}", flush=True)
        self.process = subprocess.Popen(command, stdout=self.log.open("w"), stderr=subprocess.STDOUT)

    def join(self, run: Run) -> None:
        """Waits for the parts, prints their output and adds their results to `run`."""
        if self.process.poll() is None:
            print(f"\n=== waiting for the parts beside, see {self.log.relative_to(ROOT)}", flush=True)
        code = self.process.wait()
        print(self.log.read_text(errors="replace"), end="", flush=True)
        if not self.report.exists():
            run.problems.append(f"what ran beside ended with {code} and no report")
            return
        found = json.loads(self.report.read_text())
        run.outcomes += [Outcome(**outcome) for outcome in found["outcomes"]]
        run.times += [Took(**took) for took in found["times"]]
        run.problems += found["problems"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="run the long tests in place of those of `make test`")
    parser.add_argument(
        "--only", default="", help="run programs (rust), tests (pytest, ptf) or removals with this name"
    )
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    options = parser.parse_args()
    os.environ.update({"RIVULET_BIN": str(BINARIES), **(LONG if options.long else {})})
    if not options.long:
        os.environ.setdefault("PROPTEST_RNG_SEED", SEED)
    LOGS.mkdir(parents=True, exist_ok=True)
    run, began = Run(options.long, options.only), time.monotonic()
    lanes = [[part for part in lane if part in options.parts] for lane in BESIDE]
    if options.report or "rust" not in options.parts:
        lanes = []
    beside: list[Beside] = []
    for part in options.parts:
        if any(part in lane for lane in lanes):
            continue
        if missing := needs_failed(run, part):
            run.failed.add(part)
            run.problems.append(f"{part} did not run: it needs {missing}, which failed")
            continue
        if not beside and part == "rust":
            beside = [Beside(options, lane) for lane in lanes if lane]
        work(run, part)
    for lane in beside:
        lane.join(run)
    if options.only and not (options.report or run.outcomes or run.problems):
        run.problems.append(f"there is no test of the name {options.only}")
    if options.report:
        options.report.write_text(
            json.dumps(
                {
                    key: [vars(x) if key != "problems" else x for x in getattr(run, key)]
                    for key in ("outcomes", "times", "problems")
                }
            )
        )
    else:
        summary(run, time.monotonic() - began, options.parts)
    return 1 if run.problems or run.count("failed") else 0


def needs_failed(run: Run, part: str) -> str:
    """The failed or skipped part that this one needs; "" if there is none."""
    return next((need for need in NEEDS.get(part, ("setup", "build")) if need in run.failed), "")


def work(run: Run, part: str) -> None:
    """Runs one part and records its time and its failure."""
    print(f"\n=== {part}", flush=True)
    began, cpu = time.monotonic(), cpu_s()
    try:
        PARTS[part](run)
    except PartFailed as e:
        run.failed.add(part)
        run.problems.append(f"{part} failed: {e}")
    run.times.append(Took(part, time.monotonic() - began, cpu_s() - cpu))


def cpu_s() -> float:
    """CPU time in seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(run: Run, seconds: float, parts: list[str]) -> None:
    """Prints times, skipped tests and failures, and last the numbers of tests."""
    print(f"\n=== the {SLOWEST} slowest tests")
    for outcome in sorted(run.outcomes, key=lambda outcome: -outcome.seconds)[:SLOWEST]:
        print(f"{outcome.seconds:8.1f} s  {outcome.name}")
    skipped = [outcome for outcome in run.outcomes if outcome.how == "skipped"]
    if skipped:
        print("\n=== skipped")
        for outcome in skipped:
            print(f"{outcome.name}: {outcome.why}")
    print("\n=== parts: time, CPU time")
    took = {took.part: took for took in run.times}
    for part in parts:
        known = took.get(part)
        print(
            f"{minutes(known.seconds)}  {minutes(known.cpu)}  {part}" if known else f"    -       -    {part}: not run"
        )
    print(f"{minutes(seconds)}  {minutes(sum(took.cpu for took in run.times))}  together\n")
    for outcome in run.outcomes:
        if outcome.how == "failed":
            print(f"FAILED {outcome.name}{outcome.why and ': '}{outcome.why}")
    for problem in run.problems:
        print(problem)
    counts = f"{run.count('passed')} passed, {run.count('failed')} failed, {len(skipped)} skipped"
    print(f"{counts} in {seconds:.0f}s", flush=True)


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60:3}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    sys.exit(main())
