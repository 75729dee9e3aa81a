# SPDX-License-Identifier: GPL-2.0-only
# Reason: this file imports scapy (through rivulet_scapy), which is GPL-2.0-only.
"""Checks the Python side of the wire format against docs/wire-vectors.json, as Rust and P4 are checked."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import rivulet_check
import rivulet_scapy as rs
import rivulet_wire as wire
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

VECTORS = wire.load_vectors()
ECN = {0: "NOT_ECT", 1: "ECT1", 2: "ECT0", 3: "CE"}


F = TypeVar("F", bound=Callable[..., None])


def by_name(section: str) -> Callable[[F], F]:
    return pytest.mark.parametrize("vector", VECTORS[section], ids=lambda v: v["name"])


def continuation(c: Any) -> dict[str, Any]:
    names = (
        "tag number base time_ nonce_epoch seal_epoch generation tor_id tcp_base start_cwnd gain ssthresh "
        "wire_base mss flags srtt connection"
    )
    return {n.rstrip("_"): getattr(c, n) for n in names.split()} | {"mac": c.mac.hex()}


def delta(d: rs.DeltaContinuation) -> dict[str, Any]:
    names = ["time_low", "time_", "tor_id", "seal_epoch", "srtt_step", "srtt", "flags"]
    return {n.rstrip("_"): getattr(d, n) for n in names} | {"check": d.check, "mac": d.mac.hex()}


def input_fields(i: rs.InputData) -> dict[str, Any]:
    return {"stream": i.stream, "flags": i.flags, "ucont": i.ucont, "offset": i.offset, "data": i.data.hex()}


def former(f: rs.Former) -> dict[str, Any]:
    address = ipaddress.IPv6Address(f.address)
    return {"address": str(address.ipv4_mapped or address), "port": f.port}


def sums_right(r: rs.RivuletRequest) -> bool:
    keys = VECTORS["nonce_keys"][0]
    for e in r.entries:
        if e.kind > 1:
            continue
        key = keys["k" if e.kind == 0 else "k_prime"]
        if wire.range_sum((key["k0"], key["k1"]), r.tag, r.base + e.first, r.base + e.last) != e.sum:
            return False
    return True


def request(r: Any) -> dict[str, Any]:
    kinds = {v: k for k, v in wire.KINDS.items()}
    syn = isinstance(r, rs.RivuletSyn)
    return {
        "tor": {
            "tor_time": r.tor_time,
            "tor_id": r.stamp_id,
            "tor_seal_epoch": r.tor_seal_epoch,
            "tor_nonce_epoch": r.tor_nonce_epoch,
            "tor_flags": r.tor_flags,
            "tor_key_epoch": r.tor_key_epoch,
            "tor_tag": r.tor_tag,
        },
        "attempt": r.attempt,
        "continuation": None if syn else continuation(r),
        "proof": [{"kind": kinds[e.kind], "first": e.first, "last": e.last, "sum": e.sum} for e in r.entries],
        "sums_right": syn or sums_right(r),
        "hold": r.hold,
        "covers": r.covers,
        "retire": bool(r.body_flags & wire.RETIRE),
        "wants": [{n: getattr(w, n) for n in ("offset", "length", "ucont", "flags")} for w in r.wants],
        "token": r.token.blob.hex() if r.body_flags & wire.TOKEN else None,
        "former": former(r.former) if r.body_flags & wire.FORMER else None,
        "uconts": [u.blob.hex() for u in r.uconts],
        "input": input_fields(r.input) if r.body_flags & wire.INPUT else None,
        "padding": len(r.padding),
    }


def response(r: rs.RivuletResponse) -> dict[str, Any]:
    body: dict[str, Any] = {}
    match r.class_name():
        case "GROUP":
            body = {"members": [{"nonce": m.nonce, "continuation": continuation(m.continuation)} for m in r.members]}
        case "SKIP":
            body = {"offset": r.skip_offset, "length": r.skip_length}
        case "WAIT":
            body = {"milliseconds": r.milliseconds}
        case "NOT_MINE" | "ERROR":
            body = {"code": r.code}
        case "CHALLENGE":
            body = {"token": r.challenge.blob.hex()}
    has = r.content
    return {
        "number": r.number,
        "nonce": r.nonce,
        "prime": bool(has & wire.PRIME),
        "end": bool(has & wire.END),
        "answers": r.answers_,
        "continuation": continuation(r.continuation) if has & wire.FULL else None,
        "delta": delta(r.delta) if has & wire.DELTA else None,
        "offset": r.offset if has & wire.OFFSET else None,
        "uconts": [u.blob.hex() for u in r.uconts] if has & wire.UCONT else [],
        "consumed": {"stream": r.consumed_stream, "offset": r.consumed_offset} if has & wire.CONSUMED else None,
        "token": r.token.blob.hex() if has & wire.HAS_TOKEN else None,
        "body": body,
        "data": r.data.hex(),
    }


def headers(p: Any) -> dict[str, Any]:
    tcp = p[TCP]
    options = dict(tcp.options)
    syn = None
    if "MSS" in options:
        value, echo = options["Timestamp"]
        syn = {"mss": options["MSS"], "ts_value": value, "ts_echo": echo, "window_scale": options["WScale"]}
    ip = p[IP] if IP in p else p[IPv6]
    tag = p.getlayer(Dot1Q)
    return {
        "eth": {
            "dst": p[Ether].dst,
            "src": p[Ether].src,
            "vlan": None if tag is None else tag.prio << 13 | tag.dei << 12 | tag.vlan,
        },
        "ip": {
            "src": ip.src,
            "dst": ip.dst,
            "ecn": ECN[(ip.tos if IP in p else ip.tc) & 3],
            "ttl": ip.ttl if IP in p else ip.hlim,
        },
        "tcp": {
            "src_port": tcp.sport,
            "dst_port": tcp.dport,
            "seq": tcp.seq,
            "ack": tcp.ack,
            "flags": str(tcp.flags),
            "window": tcp.window,
            "syn_options": syn,
        },
        "option": rs.option_fields(tcp),
    }


@by_name("packets")
def test_fields_of_every_packet(vector: dict[str, Any]) -> None:
    p = rs.dissect(bytes.fromhex(vector["frame"]))
    for part, fields in headers(p).items():
        assert fields == vector[part]
    if vector["request"] is not None:
        top = p[rs.RivuletSyn] if rs.RivuletSyn in p else p[rs.RivuletRequest]
        assert request(top) == vector["request"]
    elif vector["response"] is not None:
        assert response(p[rs.RivuletResponse]) == vector["response"]
    else:
        assert not p[TCP].payload


@by_name("packets")
def test_packets_rebuild_without_their_computed_fields(vector: dict[str, Any]) -> None:
    p = rs.dissect(bytes.fromhex(vector["frame"]))
    clear(p)
    assert bytes(p).hex() == vector["frame"]


def clear(packet: Any) -> None:
    """Deletes the computed fields of this layer and of all layers in it, so that building computes them again."""
    computed = {"chksum", "len", "plen", "dataofs", "range_count", "want_count", "ucont_count", "member_count"}
    computed |= {"range_kinds"}
    while packet:
        for f in packet.fields_desc:
            value = packet.fields.get(f.name)
            if f.name in computed or (f.name == "length" and "blob" in packet.fields):
                packet.delfieldval(f.name)
            elif isinstance(value, list):
                for v in value:
                    if hasattr(v, "fields_desc"):
                        clear(v)
            elif hasattr(value, "fields_desc"):
                clear(value)
        packet.raw_packet_cache = None
        packet = packet.payload


@by_name("packets")
def test_strict_parser_accepts_every_valid_packet(vector: dict[str, Any]) -> None:
    rivulet_check.check_frame(bytes.fromhex(vector["frame"]))


@by_name("invalid")
def test_strict_parser_reports_error_and_position(vector: dict[str, Any]) -> None:
    with pytest.raises(rivulet_check.WireError) as caught:
        rivulet_check.check_frame(bytes.fromhex(vector["frame"]))
    error = caught.value
    assert (error.name, error.position, error.layer) == (vector["error"], vector["position"], vector["layer"])


@by_name("invalid")
def test_broken_packets_dissect_without_exception(vector: dict[str, Any]) -> None:
    rs.dissect(bytes.fromhex(vector["frame"]))


def test_heartbeats_over_ethernet_and_udp() -> None:
    for v in VECTORS["heartbeats"]:
        raw = bytes.fromhex(v["bytes"])
        rivulet_check.check_heartbeat(raw)
        for p in (Ether(bytes(Ether(type=0x88B5) / raw)), Ether(bytes(Ether() / IP() / UDP(dport=34997) / raw))):
            h = p[rs.RivuletHeartbeat]
            assert bool(h.flags & 1) == v["ready"]
            for field in ("pool", "replica", "key_epoch", "incarnation", "load", "sequence", "tag"):
                assert getattr(h, field) == v[field]
            assert bytes(rs.RivuletHeartbeat(**h.fields)) == raw
        assert wire.with_tag(wire.words_key(bytes.fromhex(VECTORS["heartbeat_key"])), raw[:-4]) == raw


def test_heartbeat_answers_over_ethernet_and_udp() -> None:
    for v in VECTORS["answers"]:
        raw = bytes.fromhex(v["bytes"])
        for p in (Ether(bytes(Ether(type=0x88B5) / raw)), Ether(bytes(Ether() / IP() / UDP(sport=34997) / raw))):
            a = p[rs.RivuletAnswer]
            assert bool(a.flags & 0x40) == v["settled"]
            for field in ("pool", "replica", "key_epoch", "tor_id", "incarnation", "sequence", "tag"):
                assert getattr(a, field) == v[field]
            assert (a.alive, a.plain) == (int(v["alive"], 16), int(v["plain"], 16))
            assert bytes(rs.RivuletAnswer(**a.fields)) == raw
        assert wire.with_tag(wire.words_key(bytes.fromhex(VECTORS["heartbeat_key"])), raw[:-4]) == raw


def test_tags_of_tor_blocks() -> None:
    key = wire.words_key(bytes.fromhex(VECTORS["block_key"]))
    frames = {packet["name"]: bytes.fromhex(packet["frame"]) for packet in VECTORS["packets"]}
    assert len(VECTORS["block_tags"]) >= 20
    for name, tag in VECTORS["block_tags"]:
        segment = Ether(frames[name])[TCP]
        raw = bytes(segment)
        assert wire.block_tag(key, raw[20:28], segment.seq, raw[4 * segment.dataofs :]) == tag, name


def test_broken_heartbeats() -> None:
    for v in VECTORS["invalid_heartbeats"]:
        with pytest.raises(rivulet_check.WireError) as caught:
            rivulet_check.check_heartbeat(bytes.fromhex(v["bytes"]))
        assert (caught.value.name, caught.value.position) == (v["error"], v["position"])


def test_slots() -> None:
    slots = [(i % 8, (i % 8 + i // 8 % 7 + 1) % 8) for i in range(64)]
    flows = [row for row in VECTORS["slots"] if len(row) == 9]
    blocks = [row for row in VECTORS["slots"] if len(row) == 8]
    assert len(flows) == len(blocks) == 200
    for k0, k1, client, client_port, service, service_port, hashed, alive, who in flows:
        ends = bytes.fromhex(client), bytes.fromhex(service)
        assert wire.flow_hash((k0, k1), *ends, client_port, service_port) == hashed
        assert wire.owner(hashed, slots, alive) == who
    assert len(VECTORS["client_slots"]) == 100
    for k0, k1, client, hashed, alive, who in VECTORS["client_slots"]:
        assert wire.client_hash((k0, k1), bytes.fromhex(client)) == hashed
        assert wire.owner(hashed, slots, alive) == who
    for k0, k1, tag, number, attempt, hashed, alive, who in blocks:
        assert wire.block_hash((k0, k1), tag, number, attempt) == hashed
        assert wire.owner(hashed, slots, alive) == who


def test_nonces() -> None:
    assert len(VECTORS["nonces"]) >= 1000
    for k0, k1, tag, number, r in VECTORS["nonces"]:
        assert wire.nonce_r(k0, k1, tag, number) == r


def test_hand_built_request_is_valid_with_right_sums() -> None:
    keys = VECTORS["nonce_keys"][0]
    key = (keys["k"]["k0"], keys["k"]["k1"])
    proof = [rs.entry("ORIGINAL", 0xFFFFFFFE, 3, base=0xFFFFFFFE, tag=9, key=key), rs.mark(1)]
    r = rs.RivuletRequest(tag=9, number=3, base=0xFFFFFFFE, entries=proof, wants=[rs.Want(offset=5, length=7)])
    p = Ether() / IP(src="192.0.2.1", dst="198.51.100.80") / rs.rivulet_tcp("NORMAL", 3, sport=4000, dport=80) / r
    frame = bytes(p)
    rivulet_check.check_frame(frame)
    again = rs.dissect(frame)[rs.RivuletRequest]
    assert [e.kind for e in again.entries] == [0, 2]
    assert sums_right(again)
    syn = Ether() / IPv6(src="2001:db8::1", dst="2001:db8::2") / rs.rivulet_tcp("SYN", sport=4000, dport=80)
    rivulet_check.check_frame(bytes(syn / rs.RivuletSyn()))
    rivulet_check.check_frame(bytes(syn))
