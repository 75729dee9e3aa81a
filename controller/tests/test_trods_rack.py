"""A service's plain TCP gets TRODS at the ToR and loses it again in a real rack, under connections that run."""

from __future__ import annotations

import signal
import sys

import pytest
from netrack import SERVICE, NetRack, needs_rack
from test_drain import troubles, whole
from test_stateless_rack import FOREVER, SHORT, drops, fetch, slow_flow, until_mode

pytestmark = needs_rack

SLUGGISH = r"""
import socket, sys, time
with socket.socket() as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((sys.argv[1], 80))
    s.sendall(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n")
    s.recv(1)
    time.sleep(600)
"""
"""A client that does not take what its server has to say, so that its server's kernel goes on asking."""


def describe(rack: NetRack, plain: str, drain: str) -> None:
    """Changes the file: the mode, with a store that nobody asks here, and how long what began before goes on."""
    lines = f"    plain: {plain}\n    plain_drain: {drain}\n    trods: {{store: ['10.0.1.1:11211']}}\n"
    rack.yaml.write_text(rack.description().replace("    port: 80\n", "    port: 80\n" + lines))


@pytest.mark.parametrize("rack", ["embedded"], indirect=True)
def test_connections_outlive_the_change_and_an_excluded_replica_speaks_no_more(rack: NetRack) -> None:
    rack.until(rack.take_plain_tcp, "all take plain TCP")
    flow, server, out = slow_flow(rack)
    describe(rack, "trods", FOREVER)
    until_mode(rack, "trods")
    rack.until(rack.as_described, "and the ToR has it")
    fetch(rack)
    frozen = server
    while frozen == server:
        frozen = asked_by_a_sluggish_client(rack)
    # Its process stands still, and its kernel goes on with what the process had written.
    before = drops(rack, "SOURCE_EXCLUDED")
    rack.processes[frozen].popen.send_signal(signal.SIGSTOP)
    try:
        rack.until(lambda: rack.replica(frozen)["state"] == "excluded", f"{frozen} is excluded")
        rack.until(lambda: drops(rack, "SOURCE_EXCLUDED") > before, "what it still says is dropped")
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


def asked_by_a_sluggish_client(rack: NetRack) -> str:
    """Starts one, and says who serves it."""
    before = rack.accepted()
    name = f"sluggish-{sum(before.values())}"
    rack.start(name, [sys.executable, "-c", SLUGGISH, SERVICE], rack.spaces["c1"], stdout=None)
    rack.until(lambda: rack.accepted() != before, "somebody serves it")
    return next(name for name, count in rack.accepted().items() if count != before[name])
