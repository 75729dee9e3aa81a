"""A real replica whose responses are lost: found by the ToR's counters, excluded, readmitted."""

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
    """Drops a replica's responses but not its heartbeats, which are not TCP; yields a function that
    stops the drops.
    """
    space = rack.spaces[name]

    def end() -> None:
        space.run("nft", "-f", "-", stdin="table netdev mute\ndelete table netdev mute\n")

    space.run("nft", "-f", "-", stdin=MUTE.format(device=f"{name}-eth0"))
    try:
        yield end
    finally:
        end()


class Load:
    """Clients that download repeatedly, with no failure allowed. Several of them, all the time: a
    connection to a mute replica makes no progress until other clients' requests have shown that the
    replica is mute.
    """

    def __init__(self, rack: NetRack) -> None:
        self._rack = rack
        self._running = {name: rack.download(name) for name in CLIENTS}

    def until(self, seen: Callable[[], bool], what: str) -> None:
        """Waits for a condition while the clients continue."""

        def or_the_next() -> bool:
            for name, download in self._running.items():
                if not download.running():
                    self._rack.finish(download, name=name)
                    self._running[name] = self._rack.download(name)
            return seen()

        self._rack.until(or_the_next, what)

    def finish(self) -> None:
        """Waits for the clients' ends."""
        for name, download in self._running.items():
            self._rack.finish(download, name=name)


def test_replica_with_lost_answers_is_excluded_and_readmitted(racks: Racks) -> None:
    with racks.lent("embedded") as rack:
        rack.yaml.write_text(rack.description() + "mute: {after: 1s, requests: 20, exclude: true}\n")
        rack.until(lambda: "mute:" in rack.client.text("/api/config"), "the rule is in force")
        load = Load(rack)
        load.until(lambda: rack.replica("r2")["requests_per_s"] > 0, "it serves")
        assert not rack.replica("r2")["left_out"]
        with muted(rack, "r2") as end:
            load.until(lambda: bool(rack.replica("r2")["left_out"]), "it is found and excluded")
            found = rack.replica("r2")
            assert found["state"] == "mute" and found["heartbeats_per_s"] > 0 and found["ready"], found
            assert found["last_exclusion"]["by"] == "the controller"
            assert not rack.replica("r1")["left_out"] and not rack.replica("r3")["left_out"]
            rack.until(rack.as_described, "the switch sends it nothing new")
            # An operator undrains it too early: it is excluded once more. On a slow machine this
            # may take longer than the pause after which the controller tries by itself.
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
