"""The demo's audio: unmodified ffmpeg, the relay with policer and buffer, and the player."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise

from rivulet_lab import RackError, prompt

from ...adaptive import NS, AdaptivePath, Json, Stream

AUDIO = "audio"
SOURCE, PLAYER = "127.0.0.1:5004", ("127.0.0.1", "6004")
PACKET = 1200
"""Bytes of ffmpeg's RTP packets."""
SINE = "sine=frequency=440:sample_rate=44100"
"""Mono, 16 bits uncompressed: a constant 0.7 Mb/s."""


def missing() -> str:
    """Message why there is no audio; empty if there is."""
    return (
        "" if shutil.which("ffmpeg") else "SKIPPED: no audio, because ffmpeg is not installed (apt-get install ffmpeg)"
    )


def start(path: AdaptivePath) -> Stream:
    """Starts source, relay, receiver and player."""
    result = path.folder / "player.json"
    result.unlink(missing_ok=True)
    command = [*prompt(), sys.executable, "-m", "rivulet_demo.player", *PLAYER, str(result)]
    player = path.start("player", command, path.spaces["c"])
    path.until(lambda: "listening" in player.text(), "the player listens", 20.0, player)
    relay = ["audio", "--input", SOURCE]
    stream = path.stream(AUDIO, relay, ["--forward", ":".join(PLAYER)])
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "warning", "-re", "-f", "lavfi", "-i", SINE]
    command += ["-c:a", "pcm_s16be", "-f", "rtp", f"rtp://{SOURCE}?pkt_size={PACKET}"]
    path.start("ffmpeg", [*prompt(), *command], path.spaces["s"])
    return stream


def finish(path: AdaptivePath) -> Json:
    """Ends source and player, after relay and receiver have ended; returns the player's counts."""
    for name in ("ffmpeg", "player"):
        path.end(name, how=15)
    result = path.folder / "player.json"
    if not result.exists():
        raise RackError(f"the player wrote no result; see {path.folder / 'player.log'}")
    heard: Json = json.loads(result.read_text())
    return heard


def taken_out(served: Sequence[Json], start: int, end: int) -> int:
    """Datagrams that policer and buffer dropped between two times."""
    counts = [0, 0]
    for line in served:
        if line["event"] == "share":
            count = line["dropped"]["policed"] + line["dropped"]["buffer"]
            if line["at"] <= start:
                counts[0] = count
            if line["at"] <= end:
                counts[1] = count
    return counts[1] - counts[0]


def phases(stream: Stream, edges: Sequence[int]) -> list[Json]:
    """For each phase: the rate that arrived, in bits a second, and the datagrams dropped."""
    found = []
    for start, end in pairwise(edges):
        received = sum(line["octets"] for line in stream.received.of("arrived") if start < line["at"] <= end)
        out = taken_out(stream.served.read(), start, end)
        found.append({"rate": round(received * 8 * NS / (end - start)), "taken_out": out})
    return found


def doubts(close: Json, end: Json, heard: Json, parts: Sequence[Json]) -> list[str]:
    """Unexpected counts and reordering."""
    found = []
    dropped = close["dropped"]
    if heard["packets"] != end["packets"] or heard["other"] or heard["backwards"]:
        found.append(f"the player counted {heard} of {end['packets']} packets that arrived")
    out = end["missing"] + dropped["policed"] + dropped["buffer"] + dropped["large"]
    if heard["gaps"] > out:
        found.append(f"{heard['gaps']} of ffmpeg's packets are missing, but {out} were lost or dropped")
    if dropped["large"]:
        found.append(f"{dropped['large']} datagrams were too large")
    if not parts[1]["taken_out"] > parts[-1]["taken_out"]:
        found.append("the slow link dropped no more than the fast one")
    return [f"audio: {doubt}" for doubt in found]
