"""A service's plain TCP changes to TRODS and back at the ToR of a real rack, during connections."""

from __future__ import annotations

import signal
import sys

import pytest
from netrack import SERVICE, NetRack, needs_rack
from test_drain import troubles, whole
from test_stateless_rack import FOREVER, SHORT, drops, fetch, slow_flow, until_mode

pytestmark = needs_rack

SLOW_READER = r"""
import socket, sys, time
with socket.socket() as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((sys.argv[1], 80))
    s.sendall(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
    s.recv(1)
    time.sleep(600)
"""
"""A client that does not read the response, so that its server's kernel keeps probing."""


def describe(rack: NetRack, plain: str, drain: str) -> None:
    """Changes the mode (with a store that is never used here) and the drain's duration in the file."""
    lines = f"    plain: {plain}\n    plain_drain: {drain}\n    trods: {{store: ['10.0.1.1:11211']}}\n"
    rack.yaml.write_text(rack.description().replace("    port: 80\n", "    port: 80\n" + lines))


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_connections_survive_change_and_excluded_replica_is_dropped(rack: NetRack) -> None:
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    flow, server, out = slow_flow(rack)
    describe(rack, "trods", FOREVER)
    until_mode(rack, "trods")
    rack.until(rack.as_described, "and the ToR has it")
    fetch(rack)
    frozen = server
    while frozen == server:
        frozen = start_slow_reader(rack)
    # Its process is stopped, while its kernel keeps sending what the process had written.
    before = drops(rack, "SOURCE_EXCLUDED")
    rack.processes[frozen].popen.send_signal(signal.SIGSTOP)
    try:
        rack.until(lambda: rack.replica(frozen)["state"] == "excluded", f"{frozen} is excluded")
        rack.until(lambda: drops(rack, "SOURCE_EXCLUDED") > before, "its remaining segments are dropped")
    finally:
        rack.processes[frozen].popen.send_signal(signal.SIGCONT)
    rack.until(rack.all_live, "it is back")
    rack.until(rack.take_plain_tcp, "and takes plain TCP")
    describe(rack, "kernel", FOREVER)
    until_mode(rack, "kernel, ToRs trods, trods drains")
    fetch(rack)
    describe(rack, "kernel", SHORT)
    until_mode(rack, "kernel")
    rack.until(rack.as_described, "and the ToR has it")
    fetch(rack)
    assert whole(rack, flow, out), f"a connection of {server}, to which nothing happened, broke: {troubles(rack)}"


def start_slow_reader(rack: NetRack) -> str:
    """Starts such a client; returns its replica."""
    before = rack.accepted()
    name = f"sluggish-{sum(before.values())}"
    rack.start(name, [sys.executable, "-c", SLOW_READER, SERVICE], rack.spaces["c1"], stdout=None)
    rack.until(lambda: rack.accepted() != before, "a replica accepted it")
    return next(name for name, count in rack.accepted().items() if count != before[name])
