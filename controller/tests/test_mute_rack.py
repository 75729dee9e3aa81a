"""A real replica that heartbeats and whose answers are lost: found by the ToR's counters, left out, taken back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from netrack import SERVICE, SWITCHES, NetRack, Racks, needs_rack

from rivulet_lab import Process, binary

pytestmark = [
    needs_rack,
    pytest.mark.skipif("embedded" not in SWITCHES, reason="needs the embedded switch (make build)"),
]

CLIENTS = 3
MUTE = """
table netdev mute {{
  chain out {{
    type filter hook egress device "{device}" priority 0; policy accept;
    meta l4proto tcp drop
  }}
}}
"""


@contextmanager
def muted(rack: NetRack, name: str) -> Iterator[Callable[[], None]]:
    """Drops what a replica answers as it leaves; its heartbeats, which are no TCP, go on. Gives what ends that."""
    space = rack.spaces[name]

    def end() -> None:
        space.run("nft", "-f", "-", stdin="table netdev mute\ndelete table netdev mute\n")

    space.run("nft", "-f", "-", stdin=MUTE.format(device=f"{name}-eth0"))
    try:
        yield end
    finally:
        end()


class Load:
    """Clients that download again and again; none of their downloads may break. Several, and all the while: a
    connection that begins at a replica that is mute gets nowhere before others' requests have shown that it is.
    """

    def __init__(self, rack: NetRack) -> None:
        self._rack = rack
        self._content = rack.file.read_bytes()
        self._running: dict[Path, Process] = {}
        for number in range(CLIENTS):
            self._begin(rack.folder / f"out-{number}")

    def _begin(self, out: Path) -> None:
        get = [binary("rivulet"), "get", "--json", "-o", str(out), f"http://{SERVICE}/big"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._running[out] = self._rack.start(f"download {out.name}", get, self._rack.spaces["c1"], **pipes)

    def until(self, seen: Callable[[], bool], what: str) -> None:
        """Waits for something while they go on."""

        def or_the_next() -> bool:
            for out in [out for out, process in self._running.items() if not process.running()]:
                self._end(out)
                self._begin(out)
            return seen()

        self._rack.until(or_the_next, what)

    def finish(self) -> None:
        """Waits for their ends."""
        for out in list(self._running):
            self._end(out)

    def _end(self, out: Path) -> None:
        result = json.loads(self._running.pop(out).output())
        assert result["ok"] and result["transport"] == "rivulet", result
        assert out.read_bytes() == self._content, "the file came damaged"
        out.unlink()


def test_a_replica_whose_answers_are_lost_is_left_out_and_taken_back(racks: Racks) -> None:
    with racks.lent("embedded") as rack:
        rack.yaml.write_text(rack.description() + "mute: {after: 1s, requests: 20, exclude: true}\n")
        rack.until(lambda: "mute:" in rack.client.text("/api/config"), "the rule is in force")
        load = Load(rack)
        load.until(lambda: rack.replica("r2")["requests_per_s"] > 0, "it serves")
        assert not rack.replica("r2")["left_out"]
        with muted(rack, "r2") as end:
            load.until(lambda: bool(rack.replica("r2")["left_out"]), "it is found and left out")
            found = rack.replica("r2")
            assert found["state"] == "mute" and found["heartbeats_per_s"] > 0 and found["ready"], found
            assert found["last_exclusion"]["by"] == "the controller"
            assert not rack.replica("r1")["left_out"] and not rack.replica("r3")["left_out"]
            rack.until(rack.as_described, "the switch sends it nothing new")
            # An operator takes it back too early: it is left out once more.
            # A slow machine may be longer about it than the pause after which the controller tries by itself.
            out = lambda: [e["kind"] for e in rack.status()["events"] if e["replica"] == "r2"].count("LEFT_OUT")  # noqa: E731
            before = out()
            rack.client.post("/api/replicas/r2/undrain")
            load.until(lambda: out() > before, "it is mute still")
            end()
            rack.client.post("/api/replicas/r2/undrain")
            load.until(lambda: rack.replica("r2")["state"] == "live", "it answers")
        load.until(lambda: rack.replica("r2")["requests_per_s"] > 0, "it serves again")
        assert not rack.replica("r2")["left_out"]
        load.finish()
