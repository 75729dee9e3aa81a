#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the packet tests on one switch: own namespace, own veth pairs, own switch process; all gone afterwards.

ptf-tests/run.py --switch bmv2 [--binary PATH] [-- ptf arguments, such as test names]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PORTS = range(1, 9)
GRPC = "127.0.0.1:9559"
BINARIES = {"bmv2": "simple_switch_grpc", "embedded": "rivulet-switch"}


def run(*command: str) -> None:
    subprocess.run(command, check=True)


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace with a veth pair a port: pN for the switch, tN for the tests."""
    name = f"rvptf{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        inside = ("ip", "netns", "exec", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        for setting in ("all", "default"):
            run(*inside, "sysctl", "-qw", f"net.ipv6.conf.{setting}.disable_ipv6=1")
        for port in PORTS:
            run("ip", "-n", name, "link", "add", f"p{port}", "type", "veth", "peer", "name", f"t{port}")
            for interface in (f"p{port}", f"t{port}"):
                offloads = ("tx", "off", "rx", "off", "txvlan", "off", "rxvlan", "off", "gro", "off", "gso", "off")
                subprocess.run(
                    [*inside, "ethtool", "-K", interface, *offloads, "tso", "off"],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                run("ip", "-n", name, "link", "set", interface, "mtu", "9000", "up")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def switch_command(kind: str, binary: str) -> list[str]:
    """Both switches take simple_switch_grpc's flags."""
    interfaces = [part for port in PORTS for part in ("-i", f"{port}@p{port}")]
    target = ["--", "--cpu-port", "510", "--drop-port", "511", "--grpc-server-addr", GRPC]
    return [binary, "--no-p4", "--device-id", "0", *interfaces, *target]


@contextlib.contextmanager
def running_switch(name: str, kind: str, binary: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = ["ip", "netns", "exec", name, *switch_command(kind, binary)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        listening = ["ip", "netns", "exec", name, "ss", "-Hltn", "sport", "=", ":9559"]
        while not subprocess.run(listening, capture_output=True, check=True).stdout:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{binary} does not listen on {GRPC}:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process
        if process.poll() is not None:
            raise SystemExit(f"{binary} died during the tests with {process.returncode}:\n{log.read_text()[-2000:]}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def find_binary(kind: str) -> str:
    name = BINARIES[kind]
    if kind == "embedded":
        folder = Path(os.environ.get("RIVULET_BIN", ROOT / "target" / "release"))
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed" + ("" if kind == "bmv2" else ": run `make build`"))
    return found


def version(binary: str) -> str:
    text = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    return text.strip().splitlines()[0] if text.strip() else Path(binary).name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switch", choices=BINARIES, default="embedded")
    parser.add_argument("--binary", help="the switch to run instead of the one that is found")
    parser.add_argument("--log-dir", type=Path, default=ROOT / "build" / "ptf")
    parser.add_argument("ptf", nargs="*", help="tests to run (all), or other arguments of ptf behind --")
    args = parser.parse_args()
    binary = args.binary or find_binary(args.switch)
    args.log_dir.mkdir(parents=True, exist_ok=True)
    log = args.log_dir / f"{args.switch}.log"

    with namespace() as name, running_switch(name, args.switch, binary, log) as switch:
        interfaces = [part for port in PORTS for part in ("-i", f"{port}@t{port}")]
        command = [
            *("ip", "netns", "exec", name, sys.executable, str(Path(sys.executable).parent / "ptf")),
            *("--test-dir", str(HERE / "tests"), "--pypath", str(HERE / "lib"), "--pypath", str(HERE)),
            *(*interfaces, "--qlen", "4000", "--log-file", str(args.log_dir / f"ptf-{args.switch}.log")),
            *("--test-params", f"grpcaddr='{GRPC}';switch='{args.switch}';pid={switch.pid}"),
            *args.ptf,
        ]
        environment = {**os.environ, "PYTHONPATH": f"{HERE / 'lib'}:{HERE}", "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        total = failed = 0
        for line in process.stdout:
            print(line, end="", flush=True)
            if match := re.match(r"Ran (\d+) tests? in", line):
                total += int(match[1])
            elif match := re.match(r"FAILED \((.*)\)", line):
                failed += sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", match[1]))
        code = process.wait()
    if total == 0:
        code = code or 1
    print(f"ptf: {total - failed} of {total} tests passed on {args.switch} ({version(binary)})")
    return code


if __name__ == "__main__":
    sys.exit(main())
