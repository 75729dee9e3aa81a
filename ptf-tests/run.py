#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the packet tests on one switch, in a network namespace with veth pairs that it removes at the end.

ptf-tests/run.py --switch bmv2 [--binary PATH] [-- ptf arguments, such as test names]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rivulet_lab import REPOSITORY, End, Lab, Process, RackError, prompt, standing, switches, veth

HERE = Path(__file__).resolve().parent
PORTS = range(1, 9)
GRPC = "127.0.0.1:9559"
HOST_TESTS = (
    *("t01_requests.RequestReachesAReplicaV4Vlan", "t01_requests.EveryClassOfRequestV6"),
    *("t04_choice.BlocksOfEightNumbersV4", "t04_choice.RoundRobinByWeightV6", "t04_choice.SlotsUnderAKeyV4"),
    *("t05_liveness.DeathAndReturnV4", "t05_liveness.PlainTcpWaitsForReadmissionV6"),
    *("t09_icmp_errors.ErrorsOfPlainTcpV4", "t10_events.EventsOfLife", "t15_second_chance.SegmentWithoutASocketV4"),
    *("t16_heartbeats.TagsAreChecked", "t16_heartbeats.AnswersListLiveMembers"),
    *("t19_trods.TrodsFlowsMatchKernelFlowsV4", "t19_trods.ExcludedMembersCannotSendV4"),
    *("t19_trods.SegmentsGoToNamedHolderV4", "t20_affinity.OneReplicaPerClientV6", "t21_host"),
)
"""Tests of the program in which replicas make the checks, in `make test`."""
HOST_TESTS_LONG = (
    *("t01_requests", "t02_malformed", "t04_choice", "t05_liveness", "t06_answers", "t07_forward", "t09_icmp_errors"),
    *("t10_events.EventsOfLife", "t10_events.TorUnset", "t15_second_chance", "t16_heartbeats", "t17_own_meters"),
    *("t19_trods", *(f"t20_affinity.OneReplicaPerClientV{v}" for v in (4, 6))),
    *(f"t20_affinity.{name}V{v}" for name in ("RequestsIgnoreAffinity", "BothCandidatesDead") for v in (4, 6)),
    "t21_host",
)
"""All tests that apply to that program. The others are about the checks, or about replicas beyond the rack."""
INTERFACES = [part for port in PORTS for part in ("-i", f"{port}@t{port}")]
"""Arguments of ptf: the tests' ends of the links."""
HOST_PROGRAM = REPOSITORY / "p4src" / "build" / "host"
"""Folder of the program in which replicas make the checks."""
RULE, THIN_RULE = "=" * 70, "-" * 70
"""Lines that unittest prints between failed tests."""


@contextmanager
def running_switch(switch: str, binary: str, flags: list[str], folder: Path) -> Iterator[tuple[Lab, Process]]:
    """Starts the switch in a namespace with one veth pair per port: pN for the switch, tN for the tests."""
    log = folder / f"{switch}.log"
    log.unlink(missing_ok=True)
    with standing(Lab(folder)) as lab:
        space = lab.namespace("ptf")
        for port in PORTS:
            veth(End(space, f"p{port}"), End(space, f"t{port}"), mtu=9000)
        ports = {port: f"p{port}" for port in PORTS}
        command = [*prompt(), *switches.command(switch, ports, GRPC, device_id=0, flags=flags, path=binary)]
        process = lab.start(switch, command, space)
        listening = ("ss", "-Hltn", "sport", "=", f":{GRPC.rpartition(':')[2]}")
        lab.until(lambda: bool(space.run(*listening)), f"{binary} listens at {GRPC}", 60.0, process)
        yield lab, process
        if not process.running():
            raise RackError(f"{binary} died during the tests with {process.popen.returncode}:\n{process.last_lines()}")


def failures(output: Iterable[str]) -> list[tuple[str, str]]:
    """Names and messages of failed tests, parsed from unittest's output: rule, `FAIL: NAME`, rule, traceback."""
    found: list[tuple[str, str]] = []
    name, message = "", list[str]()
    for line in [*output, RULE]:
        text = line.rstrip("\n")
        if text in (RULE, THIN_RULE):
            if message:
                found.append((name, "\n".join(message).strip()))
                name, message = "", []
        elif match := re.match(r"(?:FAIL|ERROR): (.*)", text):
            name = match[1]
        elif name and re.match("  File ", text):
            # The message follows the last frame of the traceback, whose lines are indented.
            message = []
        elif name and (message or (text and not text.startswith(("  ", "Traceback ")))):
            message.append(text)
    return found


def version(binary: str) -> str:
    """The first line of the switch's --version."""
    text = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    return text.strip().splitlines()[0] if text.strip() else Path(binary).name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switch", choices=switches.SWITCHES, default="embedded")
    parser.add_argument("--program", choices=["tor", "host"], default="tor", help="where requests are checked")
    parser.add_argument("--long", action="store_true", help="with --program host: all tests that apply to it")
    parser.add_argument("--binary", help="path of the switch; by default it is searched for")
    parser.add_argument("--workers", type=int, default=1, help="packet threads of the embedded switch")
    parser.add_argument("--log-dir", type=Path, default=REPOSITORY / "build" / "ptf")
    parser.add_argument("ptf", nargs="*", help="tests to run (default: all), or, after --, other arguments of ptf")
    args = parser.parse_args()
    if args.workers != 1 and args.switch != "embedded":
        parser.error("--workers: only the embedded switch has several workers")
    flags = ["--workers", str(args.workers)] if args.workers != 1 else []
    binary = args.binary or switches.program(args.switch)
    tests = (HOST_TESTS_LONG if args.long else HOST_TESTS) if args.program == "host" else ()
    args.log_dir.mkdir(parents=True, exist_ok=True)

    with running_switch(args.switch, binary, flags, args.log_dir) as (lab, switch):
        command = [
            *(sys.executable, str(Path(sys.executable).parent / "ptf")),
            *("--test-dir", str(HERE / "tests"), "--pypath", str(HERE / "lib"), "--pypath", str(HERE)),
            *(*INTERFACES, "--qlen", "4000", "--log-file", str(args.log_dir / f"ptf-{args.switch}.log")),
            *("--test-params", f"grpcaddr='{GRPC}';switch='{args.switch}';pid={switch.pid}"),
            *(args.ptf or tests),
        ]
        program = {"RIVULET_P4_BUILD": str(HOST_PROGRAM)} if args.program == "host" else {}
        environment = {**os.environ, **program, "PYTHONPATH": f"{HERE / 'lib'}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = lab.start("ptf", command, lab.spaces["ptf"], env=environment, **pipes).popen
        assert process.stdout is not None
        total = failed = 0
        output: list[str] = []
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
            if match := re.match(r"Ran (\d+) tests? in", line):
                total += int(match[1])
            elif match := re.match(r"FAILED \((.*)\)", line):
                failed += sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", match[1]))
        code = process.wait()
    if total == 0:
        code = code or 1
    for name, message in failures(output):
        print(f"FAILED {name}: {message}")
    print(f"ptf: {total - failed} of {total} tests passed on {args.switch} ({version(binary)})")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RackError as error:
        sys.exit(str(error))
