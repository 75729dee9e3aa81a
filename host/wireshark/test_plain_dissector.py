"""Tests of the dissector of stateless TCP against docs/plain-vectors.json; they need tshark."""

from __future__ import annotations

import ipaddress
import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
VECTORS: dict[str, Any] = json.loads((REPOSITORY / "docs" / "plain-vectors.json").read_text())
SCRIPT = Path(__file__).with_name("rivulet-plain.lua")
SIZES = (536, 1220, 1440, 1460)
SCALES = (0, 2, 4, 6, 7, 8, 9, 11)
SYN, RST, ACK = 0x02, 0x04, 0x10
SERVICE, CLIENT = 80, 40000
UNIT = 1 << 26
"""Time unit of a SYN-ACK's timestamp, microseconds."""

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def segment(
    *,
    to_service: bool = False,
    flags: int = ACK,
    seq: int = 1,
    ack: int = 1,
    stamps: tuple[int, int] | None = None,
    service: int = SERVICE,
    version: int = 4,
) -> bytes:
    """A frame between a client and a service."""
    ports = (CLIENT, service) if to_service else (service, CLIENT)
    options = struct.pack("!BBBBII", 1, 1, 8, 10, *stamps) if stamps else b""
    tcp = struct.pack("!HHIIBBHHH", *ports, seq, ack, (20 + len(options)) << 2, flags, 0xFFFF, 0, 0) + options
    if version == 6:
        ends = ipaddress.ip_address("2001:db8::1").packed + ipaddress.ip_address("2001:db8::2").packed
        return bytes(12) + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(tcp), 6, 64) + ends + tcp
    ip = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0, 0x0A000001, 0x0A000002)
    return bytes(12) + b"\x08\x00" + ip + tcp


def dissect(
    folder: Path, frames: list[bytes], *fields: str, seconds: int = 0, flags: tuple[str, ...] = ()
) -> list[Any]:
    """tshark's fields of each frame, without the prefix `rivulet_plain.`."""
    path = folder / "frames.pcap"
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", seconds, 0, len(frame), len(frame)) + frame)
    command = ["tshark", "-r", str(path), "-X", f"lua_script:{SCRIPT}", *flags, "-T", "fields", "-E", "occurrence=a"]
    command += [flag for name in fields for flag in ("-e", f"rivulet_plain.{name}")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Lua" not in run.stderr, run.stderr
    rows = [line.split("\t") for line in run.stdout.split("\n")[:-1]]
    assert len(rows) == len(frames)
    return rows


def test_cookies(tmp_path: Path) -> None:
    cookies = VECTORS["cookies"]
    frames = [
        segment(
            flags=SYN | ACK,
            seq=cookie["isn"],
            ack=cookie.get("first", 7),
            stamps=(0, 0) if cookie["stamped"] else None,
            version=ipaddress.ip_address(cookie["client"]).version,
        )
        for cookie in cookies
    ]
    rows = dissect(tmp_path, frames, "cookie", "mss", "first", "foreign")
    for cookie, (isn, mss, first, foreign) in zip(cookies, rows, strict=True):
        assert int(isn, 16) == cookie["isn"] and not foreign, cookie
        if cookie["stamped"]:
            assert int(mss) == cookie["mss"] and not first, cookie
        else:
            assert int(first, 16) == cookie["first"] & 0x1FE and not mss, cookie


def test_isn_that_is_no_cookie_is_reported(tmp_path: Path) -> None:
    stamped, bare = ((c["isn"], c.get("first", 7)) for c in (VECTORS["cookies"][0], VECTORS["cookies"][4]))
    frames = [
        segment(flags=SYN | ACK, seq=stamped[0] | 1, stamps=(0, 0)),
        segment(flags=SYN | ACK, seq=bare[0] | 1, ack=bare[1]),
        segment(flags=SYN | ACK, seq=bare[0] | 0x200, ack=bare[1]),
        segment(flags=SYN | ACK, seq=bare[0], ack=bare[1] ^ 0x10),
    ]
    assert all(foreign for (foreign,) in dissect(tmp_path, frames, "foreign"))


def test_acknowledgements(tmp_path: Path) -> None:
    places = VECTORS["places"]
    frames = [
        segment(to_service=True, ack=place["ack"], stamps=(1, 0) if place["stamped"] else None) for place in places
    ]
    rows = dissect(tmp_path, frames, "class", "fin", "end", "first", "cookie")
    for place, (number, fin, end, first, cookie) in zip(places, rows, strict=True):
        assert not cookie
        if place["stamped"]:
            assert (int(number), fin == "True" or fin == "1") == (place["class"], place["fin"]), place
        elif place.get("end"):
            assert end and (fin == "True" or fin == "1") == place["fin"], place
        else:
            assert int(first, 16) == place["sequence"] and not end, place


def test_openings(tmp_path: Path) -> None:
    openings = VECTORS["openings"]
    later = 3
    for opening in openings:
        value = opening["value"]
        # The value of a SYN-ACK, and the echo of a client three units later.
        frames = [segment(flags=SYN | ACK, stamps=(value, 9)), segment(to_service=True, stamps=(9, value))]
        seconds = -(-(opening["minute"] + later) * UNIT // 1_000_000) % (1 << 31)
        for row in dissect(tmp_path, frames, "value", "kind", "minute", "sealed", "scale", "start", seconds=seconds):
            shown, kind, minute, sealed, scale, start = row
            assert (int(shown, 16), int(kind), int(minute)) == (value, 0, opening["minute"] & 15), opening
            assert int(sealed, 16) == value >> 3 & 0x7FFF and not start
            assert int(scale) == max(known for known in SCALES if known <= opening["shift"])
    minute = 29_000_001 & 0xFFFF
    frame = segment(to_service=True, stamps=(9, (minute & 15) << 18))
    ((age,),) = dissect(tmp_path, [frame], "age", seconds=-(-(minute + later) * UNIT // 1_000_000))
    assert int(age) == later


def test_answers_and_the_kernels(tmp_path: Path) -> None:
    answers = VECTORS["answers"]
    frames = [segment(stamps=(answer["value"], 5)) for answer in answers]
    frames += [segment(to_service=True, stamps=(5, answer["value"])) for answer in answers]
    fields = ("value", "kind", "start", "next", "version", "scale", "slot", "clock")
    rows = dissect(tmp_path, frames, *fields)
    for answer, row in zip(answers * 2, rows, strict=True):
        value, kind, start, behind, version, scale, slot, clock = row
        assert int(value, 16) == answer["value"]
        if answer.get("kernel"):
            assert (int(kind), int(slot), int(clock)) == (3, answer["value"] >> 24, answer["value"] & 0x3FFFFF)
            continue
        assert (int(kind), int(start), int(behind, 16)) == (0, answer["start"], answer["next"])
        assert (int(version), slot) == (answer["version"], "")
        assert int(scale) == max(known for known in SCALES if known <= answer["shift"])


def test_large_answers(tmp_path: Path) -> None:
    answers = VECTORS["large"]
    frames = [segment(stamps=(answer["value"], 5)) for answer in answers]
    fields = ("value", "kind", "slot", "window", "all", "object", "scale", "start")
    for answer, row in zip(answers, dissect(tmp_path, frames, *fields), strict=True):
        value, kind, slot, window, everything, number, scale, start = row
        assert (int(value, 16), int(kind), start) == (answer["value"], 2 if answer["repair"] else 1, "")
        assert (int(slot), int(window)) == (answer["at"] >> 16 & 0xFF, answer["window"])
        # The object's number is encrypted with a pad of the connection.
        assert (bool(int(everything)), int(number, 16)) == (answer["all"], answer["value"] >> 6 & 0x1FF)
        assert int(scale) == max(known for known in SCALES if known <= answer["shift"])


def test_answers_of_back_ends(tmp_path: Path) -> None:
    answers = VECTORS["back_ends"]
    frames = [segment(stamps=(answer["value"], 5)) for answer in answers]
    frames += [segment(to_service=True, ack=1000 + n, stamps=(5, a["value"])) for n, a in enumerate(answers)]
    fields = ("value", "kind", "length", "mss", "check", "scale", "start", "fin")
    told = ("-o", f"rivulet_plain.back_ends:{SERVICE}")
    for answer, row in zip(answers * 2, dissect(tmp_path, frames, *fields, flags=told), strict=True):
        value, kind, length, mss, check, scale, start, fin = row
        assert (int(value, 16), int(kind), int(length)) == (answer["value"], 0, answer["length"])
        # The class comes from the timestamp; an acknowledgement has none.
        assert (int(mss), int(check, 16), start, fin) == (answer["mss"], answer["check"], "", "")
        assert int(scale) == max(known for known in SCALES if known <= answer["shift"])
    # Openings and kernel timestamps are the same with a back end; other ports are not affected.
    opening, kernel = VECTORS["openings"][0]["value"], next(a["value"] for a in VECTORS["answers"] if a.get("kernel"))
    frames = [segment(to_service=True, stamps=(5, value)) for value in (opening, kernel)]
    rows = dissect(tmp_path, frames, "sealed", "clock", "class", "length", flags=told)
    assert [(sealed != "", clock != "", number != "", length) for sealed, clock, number, length in rows] == [
        (True, False, True, ""),
        (False, True, True, ""),
    ]
    other = ("-o", "rivulet_plain.back_ends:53,8000-8080")
    ((length, start),) = dissect(tmp_path, [segment(stamps=(answers[0]["value"], 5))], "length", "start", flags=other)
    assert length == "" and start != ""


def test_large_answers_are_named(tmp_path: Path) -> None:
    frames = [segment(stamps=(slot << 24 | kind << 22 | 12345, 1)) for slot in (0, 255) for kind in (1, 2)]
    rows = dissect(tmp_path, frames, "kind", "slot", "start")
    assert rows == [[str(kind), str(slot), ""] for slot in (0, 255) for kind in (1, 2)]


def test_other_ports_and_foreign_segments_are_not_dissected(tmp_path: Path) -> None:
    stamps = (VECTORS["answers"][0]["value"], 1)
    other = segment(stamps=stamps, service=8080)
    frames = [
        other,
        segment(to_service=True, flags=SYN, ack=0, stamps=stamps),
        segment(flags=RST | ACK, stamps=stamps),
    ]
    assert dissect(tmp_path, frames, "value", "class") == [["", ""]] * 3
    told = ("-o", "rivulet_plain.ports:1-79,8000-8080,9000")
    assert [value != "" for (value,) in dissect(tmp_path, [other, segment(stamps=stamps)], "value", flags=told)] == [
        True,
        False,
    ]


def test_cut_frames_never_break_the_dissector(tmp_path: Path) -> None:
    whole = segment(stamps=(VECTORS["answers"][0]["value"], 1)), segment(to_service=True, stamps=(1, 2))
    cut = [frame[:length] for frame in whole for length in range(14, len(frame))]
    dissect(tmp_path, cut, "value")
