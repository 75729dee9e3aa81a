"""A real replica that heartbeats and whose answers are lost: found by the ToR's counters, left out, taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from netrack import SWITCHES, NetRack, Racks, needs_rack

pytestmark = [
    needs_rack,
    pytest.mark.skipif("embedded" not in SWITCHES, reason="needs the embedded switch (make build)"),
]

CLIENTS = ("out-1", "out-2", "out-3")
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
        self._running = {name: rack.download(name) for name in CLIENTS}

    def until(self, seen: Callable[[], bool], what: str) -> None:
        """Waits for something while they go on."""

        def or_the_next() -> bool:
            for name, download in self._running.items():
                if not download.running():
                    self._rack.finish(download, name=name)
                    self._running[name] = self._rack.download(name)
            return seen()

        self._rack.until(or_the_next, what)

    def finish(self) -> None:
        """Waits for their ends."""
        for name, download in self._running.items():
            self._rack.finish(download, name=name)


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
