"""A sample configuration for tests, and the entries that a switch should hold for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rivulet_controller.config import Config
from rivulet_controller.desired import Fragment, desired
from rivulet_controller.keys import KeyRing, Kind, Lives
from rivulet_controller.l2 import LearnedSource, next_hops
from rivulet_controller.modes import Mode
from rivulet_controller.names import Names
from rivulet_controller.numbers import Numbers, Tor
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.rack_file import parse
from rivulet_controller.slots import pair
from rivulet_controller.state import State
from rivulet_controller.updates import update

ARTIFACTS = Path(__file__).resolve().parents[2] / "p4src" / "build"
NAMES = Names(ARTIFACTS)
LIVES = Lives(seal_rotation=3600.0, nonce_rotation=1800.0, resume=86400.0, horizon=4.0)

RACK = """\
switches:
  - name: tor1
    address: 127.0.0.1:9559
    number: 1
    mac: "02:00:00:00:00:fe"
    addresses: [10.0.1.254, "fd00:1::fe"]
    ports: [1, 101, 102, 103]
    hosts:
      - {ip: 10.0.1.1, mac: "02:00:00:00:01:01", port: 1}
      - {ip: "fd00:1::1", mac: "02:00:00:00:01:01", port: 1}
    routes:
      - {prefix: 0.0.0.0/0, via: 10.0.1.1}
      - {prefix: "::/0", via: "fd00:1::1"}
replicas:
  - {name: r1, switch: tor1, port: 101, mac: "02:00:00:00:02:01", ip: 10.0.2.1}
  - {name: r2, switch: tor1, port: 102, mac: "02:00:00:00:02:02", ip: 10.0.2.2}
  - {name: r3, switch: tor1, port: 103, mac: "02:00:00:00:02:03", ip: 10.0.2.3, weight: 2}
services:
  - name: web
    addresses: [10.9.0.1, "fd00:9::1"]
    port: 80
    replicas: [r1, r2, r3]
    slots: 16
    liveness: 20ms
"""

TWO_RACKS = RACK.replace(
    "replicas:\n  - {name: r1",
    """\
  - name: tor2
    address: 127.0.0.1:9560
    number: 2
    mac: "02:00:00:00:00:fd"
    addresses: [10.0.3.254, "fd00:3::fe"]
    ports: [1]
    hosts: [{ip: 10.0.3.1, mac: "02:00:00:00:03:01", port: 1, mtu: 1600}]
    routes: [{prefix: 10.0.2.0/24, via: 10.0.3.1}]
replicas:
  - {name: r1""",
)
"""The same rack with a second switch, to which the replicas are remote."""

ARP_REPLY = bytes.fromhex("0200000000fe020000000101080600010800060400020200000001010a0001010200000000fe0a0001fe")
"""An ARP reply to the ToR: 10.0.1.1 is at 02:00:00:00:01:01."""


def config(text: str = RACK) -> Config:
    """The sample configuration, parsed."""
    return parse(text, "rack.yaml")


def held(kind: Kind, epoch: int) -> bool:
    """A predicate for rings under which every replica and ToR holds every key."""
    return True


def none_held(kind: Kind, epoch: int) -> bool:
    """A predicate for rings under which no replica or ToR holds any key."""
    return False


def numbers_of(rack: Config, state: State) -> Numbers:
    """Numbers as a new state assigns them."""
    return Numbers(
        state.number("service", (s.name for s in rack.services), 1, 4095),
        state.number("pool", (s.pool_name for s in rack.services), 0, 1023),
        {s.pool_name: state.number(f"pool {s.pool_name}", s.replicas, 0, 63) for s in rack.services},
        {s.name: state.number(f"next_hop {s.name}", next_hops(rack, s), 1, 65535) for s in rack.switches},
        bytes(range(32)),
    )


def fragments(
    rack: Config,
    switch: str = "tor1",
    *,
    tor: Tor | None = None,
    draining: frozenset[str] = frozenset(),
    keys: bool = True,
    state: State | None = None,
    learned: frozenset[LearnedSource] = frozenset(),
    path_mtus: Mapping[str, int] | None = None,
    names: Names = NAMES,
) -> dict[str, Fragment]:
    """Entries that a switch should hold, with fresh numbers, slots and usable keys."""
    state = state or State()
    weights = weights_of(rack)
    numbers = numbers_of(rack, state)
    replicas = numbers.replicas
    for service in rack.services:
        if keys and service.name not in state.rings:
            state.set_ring(service.name, KeyRing().tick(1.0, LIVES, held).tick(1.0, LIVES, held))
        by_index = {replicas[service.pool_name][name]: weights[name] for name in service.replicas}
        state.set_slots(service.name, pair(state.slots.get(service.name, ()), service.slots, by_index, service.name))
    return desired(
        names,
        rack,
        next(s for s in rack.switches if s.name == switch),
        tor or Tor(0x0101, 5, True, (7, 8)),
        numbers,
        state.rings,
        state.slots,
        weights,
        draining,
        {},
        learned,
        path_mtus=path_mtus or {},
    )


def weights_of(rack: Config) -> dict[str, int]:
    """The configuration's weights."""
    return {r.name: r.weight for r in rack.replicas}


def service_update(
    rack: Config, state: State | None = None, mode: Mode | None = None, incarnations: Mapping[str, int] | None = None
) -> agent_pb2.Service:
    """The first service in r1's update."""
    state = state or State()
    fragments(rack, state=state)
    modes = {"web": mode} if mode is not None else {}
    message = update(
        rack, "r1", numbers_of(rack, state), state.rings, state.slots, weights_of(rack), frozenset(), modes,
        incarnations or {},
    )  # fmt: skip
    return message.services[0]


def lines(parts: dict[str, Fragment]) -> set[str]:
    """All entries as readable lines."""
    return {str(item) for fragment in parts.values() for item in fragment}
