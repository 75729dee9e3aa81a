"""Tests of `rivulet-lab run`: topologies and runtime JSON in the format of p4lang/tutorials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rivulet_lab import REPOSITORY, RackError, built, switches
from rivulet_lab.runtime_json import Runtime
from rivulet_lab.topology import Topology
from rivulet_lab.values import parse

ROUTER = REPOSITORY / "mininet" / "examples" / "router"
LAB = [sys.executable, "-m", "rivulet_lab"]
needs_rack = pytest.mark.skipif(
    os.geteuid() != 0 or not built("rivulet-switch", "rivulet-wire"), reason="needs root and the binaries (make build)"
)
SOME = ["embedded", pytest.param("bmv2", marks=pytest.mark.long)]


def lab(folder: Path, *words: str, prompt: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `rivulet-lab` in a folder."""
    # A display that does not exist: `xterm` must not end the lab.
    environment = {**os.environ, "DISPLAY": ":77"}
    return subprocess.run(
        [*LAB, *words], cwd=folder, input=prompt, capture_output=True, text=True, timeout=120, env=environment
    )


@pytest.fixture
def router(tmp_path: Path) -> Path:
    """A copy of the router's folder, for logs and changes."""
    return Path(shutil.copytree(ROUTER, tmp_path / "router", ignore=shutil.ignore_patterns("logs", "pcaps")))


def change(path: Path, edit: Any) -> None:
    """Changes a JSON file."""
    found = json.loads(path.read_text())
    edit(found)
    path.write_text(json.dumps(found))


@pytest.mark.rack
@needs_rack
@pytest.mark.parametrize("switch", SOME)
def test_topology_runs_with_its_runtime_json(router: Path, switch: str) -> None:
    if switch not in switches.installed():
        pytest.skip(f"{switch} is not installed")
    commands = (
        "xterm h1\n"
        "pingall\n"
        "h1 ping -c1 -W5 h3\n"
        "h1 ip -br addr show eth0\n"
        "s1 tc qdisc show dev s1-eth3\n"
        # An access entry drops UDP to these ports from h1; another ports' datagram arrives.
        "h2 timeout 4 tcpdump -U -Z root -lnc2 -i eth0 udp > h2.txt 2>/dev/null &\n"
        "h1 sleep 2; echo x | socat -u - UDP:10.0.2.2:2500; echo x | socat -u - UDP:10.0.2.2:3000; sleep 1\n"
        "console s1 table_num_entries routes\n"
        "console s1 nonsense\n"
        "console h1 show_tables\n"
    )
    words = ("run", "topology.json", "--program", "build/router.json", "--switch", switch, "--grpc-port", "0")
    done = lab(router, *words, prompt=commands)
    assert done.returncode == 0, done.stderr
    # Mininet prints to the error output.
    printed = done.stderr
    assert "s1: unix:logs/s1.sock, device 0; 10 entries of s1-runtime.json" in printed
    assert shutil.which("xhost") or "is not installed: apt install xterm" in printed
    assert "(6/6 received)" in printed and "1 received" in printed
    assert "10.0.1.1/24" in printed, "the host's interface is eth0"
    assert "rate 20Mbit" in printed
    got = (router / "h2.txt").read_text()
    assert "10.0.2.2.3000" in got and "10.0.2.2.2500" not in got
    assert "mininet> 4\n" in done.stdout, "routes of s1"
    assert 'there is no command "nonsense"' in done.stderr
    assert "'h1' is no switch: write console s1 or s2" in done.stderr
    assert {path.name for path in (router / "pcaps").glob("s1-eth1*")} == {"s1-eth1_in.pcap", "s1-eth1_out.pcap"}


@pytest.mark.rack
@needs_rack
def test_controller_writes_over_tcp_port_and_port_in_use_is_an_error(router: Path) -> None:
    change(router / "topology.json", lambda t: [s.pop("runtime_json") for s in t["switches"].values()])
    command = [*LAB, "run", "topology.json", "--program", "build/router.json", "--grpc-port", "52051"]
    command += ["--pcap-dir", ""]
    with subprocess.Popen(
        command, cwd=router, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as first:
        assert first.stdin is not None and first.stdout is not None
        try:
            while b"at the prompt" not in (line := first.stdout.readline()):
                assert line, "it ended"
            push = (
                "from pathlib import Path; from rivulet_lab.p4runtime import Connection;"
                " from rivulet_lab.runtime_json import Runtime;"
                " Runtime(Path('s2-runtime.json'), Path).load(Connection('127.0.0.1:52052', 1))"
            )
            subprocess.run([sys.executable, "-c", push], cwd=router, check=True, timeout=60)
            again = lab(router, *command[len(LAB) :])
            assert again.returncode == 1 and "the TCP port 52051 of P4Runtime is not free" in again.stderr
        finally:
            first.communicate(b"exit\n", timeout=60)
    assert not (router / "pcaps").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("links"), 'the key "links" is missing; the keys are hosts, switches, links'),
        (lambda t: t["hosts"]["h1"].update(ipp=1), 'hosts.h1: there is no key "ipp". Did you mean ip?'),
        (lambda t: t["hosts"]["h1"].update(ip="10.0.0.300/24"), 'hosts.h1: "ip" must be an IPv4 address'),
        (lambda t: t["switches"]["s1"].update(cli_input="x"), "`rivulet-lab console < FILE`"),
        (lambda t: t["links"].append(["h1", "s9-p1"]), "links[4]: 's9-p1' names no host or switch"),
        (lambda t: t["links"].append(["s2", "s1-p7"]), "links[4]: 's2': a switch's end of a link is written s2-p1"),
        (lambda t: t["links"].append(["s2-p7", "s1-p1"]), "links[4]: s1-p1 already has a link"),
        (lambda t: t["links"].append(["s2-p7", "s1-p7", "5 parsecs"]), "the latency must be a number of milliseconds"),
        (lambda t: t["links"].append(["s2-p7", "s1-p7", 0, -1]), "the bandwidth must be a number of megabits"),
        (lambda t: t["links"].pop(0), "the host h1 has no link"),
        (lambda t: t["switches"]["s1"].update(runtime_json="nope.json"), "nope.json does not exist in "),
    ],
)
def test_wrong_topology_is_explained(router: Path, edit: Any, message: str) -> None:
    change(router / "topology.json", edit)
    done = lab(router, "run", "topology.json")
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r.update(target="tofino"), '"target" must be "bmv2"'),
        (lambda r: r["table_entries"][1].update(table="RouterIngress.rotes"), "Did you mean RouterIngress.routes?"),
        (lambda r: r["table_entries"][1].update(action_name="mirror"), 'there is no action "mirror"'),
        (lambda r: r["table_entries"][1]["match"].update({"hdr.ipv4.dst": ["10.0.1.1", 33]}), "prefix length 33"),
        (lambda r: r["table_entries"][1]["match"].update({"hdr.ipv4.dst": "10.0.1.1"}), "[value, prefix length]"),
        (lambda r: r["table_entries"][1]["action_params"].pop("mac"), "the parameter mac of RouterIngress.forward"),
        (lambda r: r["table_entries"][1]["action_params"].update(port=512), "512 does not fit in 9 bits"),
        (lambda r: r["table_entries"][1].update(priority=3), "have no priority"),
        (lambda r: r["table_entries"][5].pop("priority"), "needs a priority (1 to 2147483647, the highest wins)"),
        (lambda r: r["table_entries"][7]["match"].clear(), "the exact match field hdr.ethernet.src"),
        (lambda r: r["multicast_group_entries"][0].pop("replicas"), 'the key "replicas" is missing'),
        (lambda r: r["clone_session_entries"][0].update(clone_session_id="x"), '"clone_session_id" must be a number'),
        (lambda r: r.update(table_entry=[]), 'there is no key "table_entry". Did you mean table_entries?'),
    ],
)
def test_wrong_runtime_json_is_explained(router: Path, edit: Any, message: str) -> None:
    path = router / "s1-runtime.json"
    change(path, edit)
    with pytest.raises(RackError) as problem:
        Runtime(path, Topology.of(router / "topology.json").find)
    assert message in str(problem.value) and str(path) in str(problem.value)


def test_values_are_numbers_and_addresses() -> None:
    assert parse("08:00:00:00:01:11", 48) == 0x080000000111
    assert parse("10.0.1.1", 32) == 0x0A000101 and parse("::1", 128) == 1
    assert (parse("0x1f", 8), parse("017", 8), parse("0b11", 2), parse(-1, 8), parse([5], 8)) == (31, 17, 3, 255, 5)
    for value, bits in (("10.0.1.1", 16), (256, 8), (-129, 8), ("10.0.0", 32), (True, 8), (1.5, 8)):
        with pytest.raises(RackError):
            parse(value, bits)


def test_compiled_programs_match_their_sources() -> None:
    done = subprocess.run([sys.executable, str(REPOSITORY / "mininet" / "programs.py"), "check"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
