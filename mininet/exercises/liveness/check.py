#!/usr/bin/env python3
"""Checks of the exercise "liveness": see README.md."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rivulet_lab.checker import Rig, ethernet, main, tcp_frame

PORTS = 3
BOUND_S = 2.0
"""Longest time between two heartbeats of a live replica; long, so that a busy machine keeps it."""
COMMANDS = f"""
table_add routes service 10.0.2.2/32 => 2 {BOUND_S * 1e6:.0f}
table_add routes forward 10.0.1.0/24 => 1
table_add replicas forward 0 => 2
table_add replicas forward 1 => 3
"""
FLOWS = range(4000, 4016)


def _heartbeat(rig: Rig, *replicas: int) -> None:
    for replica in replicas:
        rig.send(2 + replica, ethernet(0x88B5, bytes([replica])))
        # The switch reads its ports in any order: the answer to this packet shows that it has read the port.
        rig.send(2 + replica, tcp_frame(1, to="10.0.1.1"))
        assert rig.receive(1), "the route to 10.0.1.0/24 does not forward"


def _requests(rig: Rig, wanted: int = len(FLOWS)) -> dict[int, int]:
    """Sends a request of each flow; returns the port of each that leaves."""
    # A packet that is always forwarded follows: when it leaves, the switch has decided about the requests.
    rig.send(1, *(tcp_frame(source) for source in FLOWS), tcp_frame(1, to="10.0.1.1"))
    found = {int.from_bytes(frame[34:36], "big"): port for port, frame in rig.receive(wanted + 1)}
    assert found.pop(1, 0) == 1, "the route to 10.0.1.0/24 does not forward"
    return found


def _silence() -> None:
    time.sleep(BOUND_S * 1.25)


def without_heartbeats_nothing_is_forwarded(rig: Rig) -> None:
    found = _requests(rig, 0)
    assert not found, f"{len(found)} requests were forwarded, but no replica has sent a heartbeat"


def live_replicas_share_the_flows(rig: Rig) -> None:
    _heartbeat(rig, 0, 1)
    found = _requests(rig)
    assert len(found) == len(FLOWS), f"only {len(found)} of {len(FLOWS)} requests were forwarded"
    assert set(found.values()) == {2, 3}, "one replica got all flows"
    assert _requests(rig) == found, "a flow changed its replica while both are alive"


def flows_of_a_dead_replica_go_to_the_next(rig: Rig) -> None:
    for live in (0, 1):
        _heartbeat(rig, 0, 1)
        _silence()
        _heartbeat(rig, live)
        found = _requests(rig)
        assert len(found) == len(FLOWS), f"only {len(found)} of {len(FLOWS)} requests were forwarded"
        dead = 3 - live
        assert set(found.values()) == {2 + live}, f"port {dead} got requests, but its replica has been quiet too long"


def a_replica_that_returns_gets_its_flows_again(rig: Rig) -> None:
    _heartbeat(rig, 0, 1)
    before = _requests(rig)
    _silence()
    _heartbeat(rig, 1)
    assert set(_requests(rig).values()) == {3}, "the dead replica got requests"
    _heartbeat(rig, 0, 1)
    assert _requests(rig) == before, "flows did not return to the replica that they had"


def when_all_are_dead_nothing_is_forwarded(rig: Rig) -> None:
    _heartbeat(rig, 0, 1)
    _silence()
    found = _requests(rig, 0)
    assert not found, f"{len(found)} requests were forwarded to dead replicas"


CHECKS = (
    without_heartbeats_nothing_is_forwarded,
    live_replicas_share_the_flows,
    flows_of_a_dead_replica_go_to_the_next,
    a_replica_that_returns_gets_its_flows_again,
    when_all_are_dead_nothing_is_forwarded,
)

if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent, PORTS, COMMANDS, CHECKS))
