"""Tests of the counts of a client's packets, and of the frames that an attacker sends."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

from rivulet_demo import attacker
from rivulet_demo.capture import Traffic, count, plain_connections
from rivulet_lab import RackError

VECTORS = json.loads((Path(__file__).resolve().parents[2] / "docs" / "wire-vectors.json").read_text())
CLIENT = "192.0.2.1"


def pcap(path: Path, frames: list[bytes], snap: int = 1 << 16) -> Path:
    """Writes a pcap of these frames."""
    records = [struct.pack("<4I", 0, 0, len(f[:snap]), len(f)) + f[:snap] for f in frames]
    path.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, snap, 1) + b"".join(records))
    return path


def responses() -> list[tuple[str, bytes, int]]:
    """Name, frame and application bytes of every untagged IPv4 response in the wire vectors."""
    found = []
    for packet in VECTORS["packets"]:
        if packet["response"] is None or packet["eth"]["vlan"] is not None or ":" in packet["ip"]["dst"]:
            continue
        counts = packet["option"]["class"] in ("DATA", "RETRANSMISSION", "SKIP", "INPUT")
        data = len(bytes.fromhex(packet["response"]["data"] or "")) if counts else 0
        found.append((packet["name"], bytes.fromhex(packet["frame"]), data))
    return found


def test_application_bytes_match_wire_vectors(tmp_path: Path) -> None:
    assert len(responses()) > 10 and sum(data > 0 for _, _, data in responses()) > 4
    for name, frame, data in responses():
        traffic = count(pcap(tmp_path / "one.pcap", [frame]), CLIENT)
        assert (traffic.packets_received, traffic.data_bytes) == (1, data), name
        assert traffic.bytes_received == int.from_bytes(frame[16:18], "big")
        assert traffic.retransmissions == int(name.startswith("RETRANSMISSION")), name


def test_truncated_responses_are_counted(tmp_path: Path) -> None:
    for _, frame, data in responses():
        for snap in range(14, len(frame), 7):
            assert count(pcap(tmp_path / "cut.pcap", [frame], snap), CLIENT).data_bytes <= max(data, len(frame))


def segment(sequence: int, data: int, source: bytes = b"\x0a\x09\x00\x01") -> bytes:
    """A plain TCP segment to the client."""
    tcp = struct.pack(">HHIIBBHHH", 80, 40000, sequence % (1 << 32), 1, 5 << 4, 0x10, 1000, 0, 0) + bytes(data)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + bytes((192, 0, 2, 1))
    return bytes(12) + b"\x08\x00" + ip + tcp


def test_plain_segment_below_highest_byte_is_repeated(tmp_path: Path) -> None:
    wrap = (1 << 32) - 1000
    frames = [segment(wrap, 1000), segment(0, 500), segment(1000, 500), segment(500, 500), segment(1500, 0)]
    traffic = count(pcap(tmp_path / "tcp.pcap", frames), CLIENT)
    assert traffic == Traffic(5, 5 * 40 + 2500, 0, 0, 4, 2500, 1)
    report = traffic.report(2500)
    assert report["header_bytes_per_data_packet"] == 50.0 and report["header_overhead_percent"] == 8.0


def opening(port: int, flags: int, back: bool = False) -> bytes:
    """A plain TCP segment from the client to a service, or back."""
    ports = (80, port) if back else (port, 80)
    tcp = struct.pack(">HHIIBBHHH", *ports, 1, 0, 5 << 4, flags, 1000, 0, 0)
    ends = (b"\x0a\x09\x00\x01", bytes((192, 0, 2, 1)))
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0x4000, 64, 6, 0) + b"".join(ends if back else ends[::-1])
    return bytes(12) + b"\x08\x00" + ip + tcp


def test_repeated_syn_counts_one_connection(tmp_path: Path) -> None:
    syn, syn_ack, ack = 0x02, 0x12, 0x10
    frames = [opening(40000, syn), opening(40000, syn | 0xC0), opening(40000, syn_ack, back=True), opening(40000, ack)]
    # Connections that others open to the client do not count.
    frames += [opening(40001, ack), opening(40002, syn, back=True)]
    service = b"\x0a\x09\x00\x01\x00\x50"
    assert plain_connections(pcap(tmp_path / "one.pcap", frames), CLIENT) == {(service, 40000)}
    assert len(plain_connections(pcap(tmp_path / "two.pcap", [*frames, opening(40003, syn)]), CLIENT)) == 2


def test_file_that_is_not_pcap_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"x" * 100):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(RackError):
            count(tmp_path / "x", CLIENT)


def request() -> bytes:
    """A NORMAL request over IPv4 with a proof."""
    frames = (bytes.fromhex(p["frame"]) for p in VECTORS["packets"] if p["request"] is not None)
    return next(frame for frame in frames if attacker.is_request_with_proof(frame))


def test_forgery_differs_in_sum_and_checksums_only() -> None:
    frame = request()
    made = attacker.forged(frame, random.Random(3))
    differing = {place for place, (a, b) in enumerate(zip(frame, made, strict=True)) if a != b}
    total = 14 + 20 + 28 + 44 + 4
    assert differing & set(range(total, total + 4))
    assert differing <= set(range(total, total + 4)) | {50, 51}
    pseudo = made[26:34] + struct.pack(">HH", 6, len(made) - 34)
    assert attacker.checksum(pseudo + made[34:]) == 0


def test_attackers_syn_matches_smallest_syn_vector() -> None:
    made = attacker.syn(bytes(6), random.Random(3))
    vector = next(bytes.fromhex(p["frame"]) for p in VECTORS["packets"] if p["name"] == "the smallest SYN with data")
    # The vector is IPv6: from the TCP data offset on everything but checksum and timestamp is equal.
    ours, theirs = bytearray(made[34 + 12 :]), bytearray(vector[54 + 12 :])
    for part in (ours, theirs):
        part[4:6] = bytes(2)
        part[24:32] = bytes(8)
    assert ours == theirs
    assert attacker.checksum(made[14:34]) == 0
    assert not attacker.is_request_with_proof(made)
