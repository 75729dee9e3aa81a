"""VLANs, neighbours and learned sources: rows, frames and ageing."""

from __future__ import annotations

import ipaddress
import random

import pytest
from sample_rack import ARP_REPLY, RACK, config, fragments, lines

from rivulet_controller.config import ConfigError
from rivulet_controller.l2 import LearnedSource
from rivulet_controller.neighbours import (
    REFRESH_S,
    REPLY_WINDOW_S,
    STALE_S,
    NeighbourReply,
    Neighbours,
    parse_reply,
    request_frame,
    source_address,
)
from rivulet_controller.rack_file import parse
from rivulet_controller.sources import AGE_S, DOUBT_S, LEARNED_MAX, Sources

VLANS = RACK.replace(
    "    hosts:\n", "    vlans: [{id: 10, untagged: [101, 102], tagged: [1]}, {id: 20, tagged: [1, 103]}]\n    hosts:\n"
).replace('mac: "02:00:00:00:02:03",', 'mac: "02:00:00:00:02:03", vlan: 20,')
ASKED = RACK.replace('ip: 10.0.1.1, mac: "02:00:00:00:01:01",', "ip: 10.0.1.1,").replace(
    'ip: "fd00:1::1", mac: "02:00:00:00:01:01",', 'ip: "fd00:1::1",'
)
V4, V6 = ipaddress.ip_address("10.0.1.1"), ipaddress.ip_address("fd00:1::1")
TOR4, TOR6 = ipaddress.ip_address("10.0.1.254"), ipaddress.ip_address("fd00:1::fe")
TOR_MAC = "02:00:00:00:00:fe"


def test_vlans_become_rows() -> None:
    found = lines(fragments(config(VLANS)))
    assert {
        line
        for line in found
        if line.startswith(("ports", "vlan_members", "floods", "port_vlans", "multicast[", "bridges"))
    } == {
        "ports[ingress_port=0x1] set_filtered_port(guarded=0x0, pvid=0x0)",
        "ports[ingress_port=0x65] set_filtered_port(guarded=0x0, pvid=0xa)",
        "ports[ingress_port=0x66] set_filtered_port(guarded=0x0, pvid=0xa)",
        "ports[ingress_port=0x67] set_filtered_port(guarded=0x0, pvid=0x0)",
        "vlan_members[ingress_port=0x1 vlan=0xa] member()",
        "vlan_members[ingress_port=0x1 vlan=0x14] member()",
        "vlan_members[ingress_port=0x67 vlan=0x14] member()",
        "floods[vlan=0x0] flood(group=0x1)",
        "floods[vlan=0xa] flood(group=0x100a)",
        "floods[vlan=0x14] flood(group=0x1014)",
        "port_vlans[egress_port=0x65 vlan=0xa] send_untagged()",
        "port_vlans[egress_port=0x66 vlan=0xa] send_untagged()",
        "multicast[1] 1 103",
        "multicast[4106] 1 101 102",
        "multicast[4116] 1 103",
        "multicast[1024] 101 102#1 103#2",
        "bridges[mac=0x20000000101 vlan=0x0] bridge_to(port=0x1)",
        "bridges[mac=0x20000000201 vlan=0xa] bridge_to(port=0x65)",
        "bridges[mac=0x20000000202 vlan=0xa] bridge_to(port=0x66)",
        "bridges[mac=0x20000000203 vlan=0x14] bridge_to(port=0x67)",
    }
    hops = {line.split("dst_mac=")[1] for line in found if line.startswith("neighbours")}
    assert "0x20000000203, src_mac=0x200000000fe, vlan=0x14)" in hops
    assert "0x20000000101, src_mac=0x200000000fe, vlan=0x0)" in hops


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("{id: 20, tagged: [1, 103]}", "{id: 10, tagged: [1]}", "switches.0.vlans.1.id: VLAN 10 appears twice"),
        ("untagged: [101, 102]", "untagged: [101, 7]", "switches.0.vlans.0.untagged.1: switch 'tor1' has no port 7"),
        ("untagged: [101, 102]", "untagged: [101, 101]", "switches.0.vlans.0.untagged.1: port 101 appears twice"),
        ("tagged: [1]}", "tagged: [1, 101]}", "both tagged and untagged"),
        ("{id: 20, tagged", "{id: 20, untagged: [101], tagged", "port 101 is already untagged in VLAN 10"),
        ("vlan: 20,", "vlan: 10,", "replicas.2.vlan: port 103 of switch 'tor1' does not carry VLAN 10"),
        ("vlan: 20,", "vlan: 4095,", "replicas.2.vlan: 4095: must be at most 4094"),
    ],
)
def test_mistakes_in_vlans_are_reported(old: str, new: str, words: str) -> None:
    assert old in VLANS
    with pytest.raises(ConfigError) as caught:
        parse(VLANS.replace(old, new), "rack.yaml")
    assert any(words in problem for problem in caught.value.problems), caught.value.problems


def test_host_without_mac_has_route_but_no_neighbour() -> None:
    found = lines(fragments(config(ASKED)))
    assert "routes[destination=0xffff0a000101/0x80] route_to(next_hop=0x1)" in found
    assert not any(line.startswith("neighbours[next_hop=0x1]") for line in found)


def test_request_frames_are_well_formed() -> None:
    # A Linux host that answers the solicitation has checked its checksum (test_vlans.py).
    arp = request_frame(V4, TOR4, TOR_MAC)
    assert arp[:42] == bytes.fromhex(
        "ffffffffffff0200000000fe080600010800060400010200000000fe0a0001fe0000000000000a000101"
    )
    assert len(arp) == 60
    tagged = request_frame(V4, TOR4, TOR_MAC, 20)
    assert tagged[12:18] == bytes.fromhex("810000140806") and tagged[18:] == arp[14:]
    nd = request_frame(V6, TOR6, TOR_MAC)
    assert nd[:14] == bytes.fromhex("3333ff0000010200000000fe86dd") and nd[21] == 255 and len(nd) == 86
    assert source_address([TOR4, ipaddress.ip_address("10.0.2.254"), TOR6], ipaddress.ip_address("10.0.2.1")) != TOR4


def _advertisement() -> bytes:
    """An advertisement made from a solicitation by swapping the roles, with a checksum computed
    here.
    """
    body = bytearray(bytes([136, 0, 0, 0, 0x60, 0, 0, 0]) + V6.packed + bytes([2, 1]) + bytes.fromhex("020000000101"))
    pseudo = V6.packed + TOR6.packed + len(body).to_bytes(4, "big") + bytes([0, 0, 0, 58]) + bytes(body)
    total = sum(int.from_bytes(pseudo[at : at + 2], "big") for at in range(0, len(pseudo), 2))
    total = (total & 0xFFFF) + (total >> 16)
    body[2:4] = (~((total & 0xFFFF) + (total >> 16)) & 0xFFFF).to_bytes(2, "big")
    head = b"\x60\0\0\0" + len(body).to_bytes(2, "big") + bytes([58, 255]) + V6.packed + TOR6.packed
    return bytes.fromhex("0200000000fe02000000010186dd") + head + bytes(body)


def test_only_valid_replies_are_parsed() -> None:
    assert parse_reply(ARP_REPLY) == NeighbourReply(V4, "02:00:00:00:01:01")
    assert parse_reply(ARP_REPLY[:12] + bytes.fromhex("8100000a") + ARP_REPLY[12:]) == NeighbourReply(
        V4, "02:00:00:00:01:01"
    )
    nd = _advertisement()
    assert parse_reply(nd) == NeighbourReply(V6, "02:00:00:00:01:01")
    assert (
        parse_reply(request_frame(V4, TOR4, TOR_MAC)) is None and parse_reply(request_frame(V6, TOR6, TOR_MAC)) is None
    )
    for at, what in [(21, 64), (56, 1), (14 + 40, 135), (14 + 41, 1), (79, 0)]:
        assert parse_reply(nd[:at] + bytes([what]) + nd[at + 1 :]) is None, f"byte {at} as {what}"
    group = ARP_REPLY[:22] + b"\x03" + ARP_REPLY[23:]
    assert parse_reply(group) is None
    rng = random.Random(5)
    for frame in (ARP_REPLY, nd):
        for cut in range(len(frame)):
            assert parse_reply(frame[:cut]) is None
        for _ in range(2000):
            odd = bytearray(frame)
            for _ in range(rng.randrange(1, 6)):
                odd[rng.randrange(len(odd))] = rng.randrange(256)
            parse_reply(bytes(odd))


def test_neighbours_are_requested_found_and_refreshed() -> None:
    neighbours, switch = Neighbours(), config(ASKED).switches[0]
    neighbours.follow(switch)
    assert [str(n.ip) for n in neighbours.due_for_request(0.0)] == ["10.0.1.1", "fd00:1::1"]
    assert neighbours.due_for_request(0.5) == []
    asked = [now for now in range(1, 60) if any(n.ip == V4 for n in neighbours.due_for_request(float(now)))]
    assert len(asked) < 12 and asked[-1] - asked[-2] == 8, asked
    assert not neighbours.record_reply(NeighbourReply(V4, "02:00:00:00:01:01"), 1, 0, 58.0 + 2 * REPLY_WINDOW_S), (
        "long after the question"
    )
    neighbours.due_for_request(100.0)
    for port, vlan in [(101, 0), (1, 10)]:
        assert not neighbours.record_reply(NeighbourReply(V4, "02:00:00:00:01:01"), port, vlan, 100.1), "from elsewhere"
    assert neighbours.record_reply(NeighbourReply(V4, "02:00:00:00:01:01"), 1, 0, 100.1)
    assert neighbours.found() == {"1/10.0.1.1": "02:00:00:00:01:01"}
    assert not any(n.ip == V4 for n in neighbours.due_for_request(100.0 + REFRESH_S - 1))
    assert any(n.ip == V4 for n in neighbours.due_for_request(100.0 + REFRESH_S))
    assert not neighbours.record_reply(NeighbourReply(V4, "02:00:00:00:01:01"), 1, 0, 130.5), "the same as before"
    neighbours.suspect(101, 0)
    assert neighbours.due_for_request(135.0) == [] or neighbours.due_for_request(135.0)[0].ip == V6
    neighbours.suspect(1, 0)
    assert any(n.ip == V4 for n in neighbours.due_for_request(136.0)), "a new source is behind its port"
    neighbours.due_for_request(170.0)
    assert neighbours.record_reply(NeighbourReply(V4, "02:00:00:00:01:02"), 1, 0, 171.0), "another card"
    for second in range(172, 172 + round(STALE_S) + 2):
        neighbours.due_for_request(float(second))
    assert neighbours.view(172.0 + STALE_S)[0]["state"] == "stale" and "1/10.0.1.1" in neighbours.found()
    neighbours.follow(config().switches[0])
    assert neighbours.found() == {} and neighbours.due_for_request(1e6) == []


def test_sources_are_learned_doubted_and_forgotten() -> None:
    sources, switch = Sources(), config(VLANS).switches[0]
    assert sources.learn(switch, 10, 0x02AA, 101, 0.0) and not sources.learn(switch, 10, 0x02AA, 101, 1.0)
    for vlan, mac, port in [(20, 0x02AB, 101), (0, 0x02AB, 7), (10, 0x010000000000, 101), (10, 0, 101)]:
        assert not sources.learn(switch, vlan, mac, port, 1.0)
    assert sources.learn(switch, 10, 0x02AA, 102, 2.0), "it moved"
    assert not sources.age(2.0 + AGE_S - 1) and sources.age(2.0 + AGE_S)
    doubted = sources.learned()
    assert doubted == {LearnedSource(10, 0x02AA, 102, True)}
    parts = lines({"l2": fragments(config(VLANS), learned=doubted)["l2"]})
    assert "bridges[mac=0x2aa vlan=0xa] bridge_to(port=0x66)" in parts
    assert not any("known_sources" in line and "0x2aa" in line for line in parts), "the switch must report it"
    assert sources.learn(switch, 10, 0x02AA, 102, 2.0 + AGE_S + 1), "it spoke: known again"
    again = 2.0 + AGE_S + 1 + AGE_S
    assert sources.age(again) and not sources.age(again + DOUBT_S - 1) and sources.age(again + DOUBT_S)
    assert sources.learned() == frozenset()
    for number in range(LEARNED_MAX + 10):
        sources.learn(switch, 10, 0x020000 + number, 101, 0.0)
    assert len(sources.learned()) == LEARNED_MAX
    sources.keep(config().switches[0])
    assert sources.learned() == frozenset()
