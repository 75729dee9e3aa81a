#!/usr/bin/env python3
"""Checks of the exercise "spray": see README.md."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

from rivulet_lab.checker import Rig, main, tcp_frame

PORTS = 3
COMMANDS = """
table_add routes balance 10.0.2.0/24 => 2
table_add routes forward 10.0.1.0/24 => 1
table_add paths forward 0 => 2
table_add paths forward 1 => 3
"""


def _ports(rig: Rig, *sources: int) -> list[int]:
    """The ports through which the segments of these source ports leave, in order."""
    found = []
    for source in sources:
        rig.send(1, tcp_frame(source))
        frames = rig.receive(1)
        assert len(frames) == 1, f"a segment left {len(frames)} times"
        port, frame = frames[0]
        assert frame[22] == 63 and frame[34:36] == source.to_bytes(2, "big"), "a header other than the TTL changed"
        found.append(port)
    return found


def by_flow_keeps_the_order_of_a_flow(rig: Rig) -> None:
    assert len(set(_ports(rig, *[4000] * 6))) == 1, "segments of one flow took different paths"
    assert set(_ports(rig, *range(4000, 4016))) == {2, 3}, "16 flows took one path"


def spray_alternates_within_a_flow(rig: Rig) -> None:
    rig.run("table_set_default policy spray")
    found = _ports(rig, *[4000] * 8)
    assert set(found) == {2, 3}, f"8 segments of one flow all left by port {found[0]}: spray must not use the flow"
    assert all(one != two for one, two in pairwise(found)), f"the ports do not take turns: {found}"


def spray_takes_turns_over_all_flows(rig: Rig) -> None:
    rig.run("table_set_default policy spray")
    # Two segments of each flow: by flow, an even number would leave by each port.
    found = _ports(rig, *(source for source in range(4000, 4005) for _ in range(2)))
    assert found.count(2) == found.count(3) == 5, f"of 10 segments of 5 flows {found.count(2)} left by port 2"


def fewer_paths_take_effect_at_once(rig: Rig) -> None:
    rig.run("table_set_default policy spray\ntable_add paths forward 2 => 2")
    rig.run("table_add routes balance 10.0.2.2/32 => 3")
    assert sorted(_ports(rig, *[4000] * 3)) == [2, 2, 3], "with three paths each gets a third"
    rig.run("table_modify routes balance 2 => 1")
    assert set(_ports(rig, *[4000] * 4)) == {2}, "with one path every segment takes it"


CHECKS = (
    by_flow_keeps_the_order_of_a_flow,
    spray_alternates_within_a_flow,
    spray_takes_turns_over_all_flows,
    fewer_paths_take_effect_at_once,
)

if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent, PORTS, COMMANDS, CHECKS))
