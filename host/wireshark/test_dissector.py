"""Tests of the Wireshark dissector against docs/wire-vectors.json; they need tshark."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS: dict[str, Any] = json.loads((REPOSITORY / "docs" / "wire-vectors.json").read_text())
SCRIPT = Path(__file__).with_name("rivulet.lua")

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def dissect(folder: Path, frames: list[bytes], *arguments: str, most: int = 65535) -> str:
    """tshark's output for these frames, captured up to `most` bytes each."""
    path = folder / "frames.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, most, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame[:most]), len(frame)) + frame[:most])
    command = ["tshark", "-r", str(path), "-X", f"lua_script:{SCRIPT}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_every_valid_packet_is_shown_with_its_fields(tmp_path: Path) -> None:
    packets = VECTORS["packets"]
    names = ["rivulet.class", "rivulet.number", "rivulet.nonce", "rivulet.tag", "rivulet.malformed"]
    flags = [flag for name in names for flag in ("-e", name)]
    frames = [bytes.fromhex(packet["frame"]) for packet in packets]
    lines = dissect(tmp_path, frames, "-T", "fields", "-E", "occurrence=f", *flags).split("\n")[: len(packets)]
    assert len(lines) == len(packets)
    for packet, line in zip(packets, lines, strict=True):
        shown_class, number, nonce, tag, malformed = line.split("\t")
        assert shown_class, f"{packet['name']}: not recognised"
        assert not malformed, packet["name"]
        if packet["response"] is not None:
            assert int(number) == packet["response"]["number"], packet["name"]
            assert int(nonce, 16) == packet["response"]["nonce"], packet["name"]
        elif packet["request"] is not None and packet["request"]["continuation"] is not None:
            assert int(number) == packet["request"]["continuation"]["number"], packet["name"]
            assert int(tag, 16) == packet["request"]["continuation"]["tag"], packet["name"]


def test_malformed_packets_never_break_the_dissector(tmp_path: Path) -> None:
    frames = [bytes.fromhex(packet["frame"]) for packet in VECTORS["invalid"]]
    cut = [frame[:length] for frame in frames for length in range(54, len(frame), 37)]
    assert "Lua Error" not in dissect(tmp_path, frames + cut, "-V", "-O", "rivulet")


def test_truncated_packet_shows_captured_fields(tmp_path: Path) -> None:
    packets = [p for p in VECTORS["packets"] if p["request"] is not None and p["request"]["continuation"] is not None]
    frames = [bytes.fromhex(packet["frame"]) for packet in packets]
    names = ["rivulet.number", "rivulet.cut", "rivulet.malformed"]
    flags = [flag for name in names for flag in ("-e", name)]
    # The part that the switch reads ends at byte 42 of the payload, after 62 to 86 bytes of headers.
    lines = dissect(tmp_path, frames, "-T", "fields", "-E", "occurrence=f", *flags, most=130).split("\n")
    for packet, line in zip(packets, lines[: len(packets)], strict=True):
        number, cut, malformed = line.split("\t")
        assert int(number) == packet["request"]["continuation"]["number"], packet["name"]
        assert cut, packet["name"]
        assert not malformed, packet["name"]


def test_returned_and_resumed_windows_are_shown(tmp_path: Path) -> None:
    packets = VECTORS["packets"]
    fields = ["-e", "rivulet.retire", "-e", "rivulet.gain"]
    frames = [bytes.fromhex(packet["frame"]) for packet in packets]
    lines = dissect(tmp_path, frames, "-T", "fields", "-E", "occurrence=f", *fields).split("\n")[: len(packets)]
    gains = set()
    for packet, line in zip(packets, lines, strict=True):
        retire, gain = line.split("\t")
        request, response = packet["request"], packet["response"]
        assert bool(retire) == (request is not None and request["retire"]), packet["name"]
        sealed = (request or response or {}).get("continuation")
        if sealed is not None:
            assert int(gain) == sealed["gain"], packet["name"]
            gains.add(int(gain))
    assert gains == {0, 8, 0xAB}
