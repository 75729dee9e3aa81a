"""Mute replicas, which send heartbeats but no responses: found, excluded if configured, tried
again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fake_switch import FakeSwitch
from harness import as_described, running, until
from sample_rack import NAMES, RACK, config

from rivulet_controller.config import ConfigError, Mute
from rivulet_controller.controller import Controller
from rivulet_controller.mute import PAUSE_RESET_S, PAUSE_S, MuteWatch, RequestCounts

NAMED = ("a", "b", "c")


class Watch:
    """A watch of one pool of three replicas with 100 requests a second each; `answer` names those
    that respond.
    """

    def __init__(self, **rule: object) -> None:
        self.watch = MuteWatch()
        self.rule = Mute.model_validate({"after": 5, "requests": 100, "exclude": True, **rule})
        self.now = 0.0
        self.counted = {name: RequestCounts(0, 0, 0, 1) for name in NAMED}
        self.live = list(NAMED)
        self.pools: list[tuple[str, ...]] = [NAMED]
        self.seen_events: list[tuple[str, str]] = []

    def run(self, seconds: int, answer: str = "abc", asked: str = "abc", refuse: str = "") -> list[tuple[str, str]]:
        """The events of this many seconds."""
        seen_events = []
        for _ in range(seconds):
            self.now += 1.0
            for name in asked:
                old = self.counted[name]
                self.counted[name] = RequestCounts(
                    old.requests + 100,
                    old.answers + 100 * (name in answer),
                    old.refused + 100 * (name in refuse),
                    old.incarnation,
                )
            seen_events += self.watch.look(self.now, self.rule, self.counted, self.pools, self.live)
        return seen_events


def test_mute_replica_is_found_and_excluded() -> None:
    rack = Watch()
    assert rack.run(20) == []
    assert rack.run(4, answer="ab") == [], "not before the time is over"
    assert rack.run(2, answer="ab") == [("MUTE", "c"), ("LEFT_OUT", "c")]
    assert rack.watch.left_out() == {"c"} and rack.watch.mute("c") == 600


def test_mute_replica_is_only_shown_by_default() -> None:
    rack = Watch(exclude=Mute().exclude)
    rack.run(3)
    assert rack.run(30, answer="ab") == [("MUTE", "c")]
    assert rack.watch.left_out() == frozenset() and rack.watch.mute("c") is not None
    assert rack.run(1) == [("ANSWERS", "c")] and rack.watch.mute("c") is None


def test_unanswerable_and_refused_requests_do_not_count() -> None:
    rack = Watch()
    rack.run(3)
    assert rack.run(30, answer="") == [], "no replica answers"
    rack.run(3)
    assert rack.run(30, answer="ab", refuse="c") == [], "it refuses, which is no answer and no silence"
    assert rack.run(30, answer="ab", asked="ab") == [], "it gets no requests"
    rack = Watch(requests=10_000)
    assert rack.run(60, answer="ab") == [], "too few to judge by"


def test_missing_or_restarted_counters_are_ignored() -> None:
    rack = Watch()
    rack.run(3)
    for _ in range(10):
        rack.run(3, answer="ab")
        kept = rack.counted.pop("c")
        rack.run(1, answer="ab", asked="ab")
        rack.counted["c"] = kept
    for _ in range(10):
        assert rack.run(4, answer="ab") == []
        # The switch restarted.
        rack.counted = {name: RequestCounts(0, 0, 0, 1) for name in NAMED}
    assert rack.watch.mute("c") is None
    assert rack.run(7, answer="ab") == [("MUTE", "c"), ("LEFT_OUT", "c")], "but what follows does"


def test_retry_pauses_grow() -> None:
    rack = Watch()
    rack.run(3)
    assert rack.run(6, answer="ab")[-1] == ("LEFT_OUT", "c")
    out = []
    for _ in range(4):
        began = rack.now
        while rack.run(1, answer="ab", asked="ab") != [("TRIED_AGAIN", "c")]:
            assert rack.now < began + 1000
        out.append(rack.now - began)
        assert rack.watch.left_out() == frozenset()
        seen_events = rack.run(6, answer="ab")
        assert seen_events == [("LEFT_OUT", "c")], "still mute"
    assert out[0] >= PAUSE_S - 1 and all(b > 1.8 * a for a, b in itertools.pairwise(out)), out
    # After long enough without being mute, pauses start from the shortest.
    assert rack.run(round(PAUSE_RESET_S) + 5) == [("ANSWERS", "c"), ("TRIED_AGAIN", "c")]
    assert rack.run(6, answer="ab")[-1] == ("LEFT_OUT", "c")
    assert 0 < rack.watch.tried_again_in("c", rack.now) <= PAUSE_S


def test_answer_operator_or_restart_ends_exclusion() -> None:
    rack = Watch()
    rack.run(3)
    rack.run(6, answer="ab")
    assert rack.run(1) == [("ANSWERS", "c"), ("TRIED_AGAIN", "c")] and rack.watch.left_out() == frozenset()
    rack.run(6, answer="ab")
    rack.watch.take_back("c", rack.now)
    assert rack.watch.left_out() == frozenset()
    assert rack.run(6, answer="ab") == [("LEFT_OUT", "c")], "it is mute still"
    rack.counted["c"] = RequestCounts(rack.counted["c"].requests, rack.counted["c"].answers, 0, 2)
    assert rack.run(1, answer="ab", asked="ab") == [("ANSWERS", "c"), ("TRIED_AGAIN", "c")]
    rack.rule = rack.rule.model_copy(update={"exclude": False})
    rack.run(6, answer="ab")
    assert rack.watch.left_out() == frozenset()


def test_last_live_replica_is_never_excluded() -> None:
    rack = Watch()
    rack.run(3)
    rack.live = ["a", "c"]
    assert rack.run(6, answer="b") == [("MUTE", "a"), ("MUTE", "c")], "none but these is live"
    rack.live = ["a", "b", "c"]
    assert rack.run(1, answer="b") == [("LEFT_OUT", "a"), ("LEFT_OUT", "c")], "b serves"
    rack.live = []
    assert rack.run(1, answer="b") == [("TRIED_AGAIN", "a"), ("TRIED_AGAIN", "c")], "no replica does"
    # Being the last one of a single pool is enough.
    rack = Watch()
    rack.pools = [NAMED, ("c",)]
    rack.run(3)
    assert ("LEFT_OUT", "c") not in rack.run(30, answer="ab")


def test_removed_replica_is_forgotten() -> None:
    rack = Watch()
    rack.run(3)
    rack.run(6, answer="ab")
    rack.pools = [("a", "b")]
    del rack.counted["c"]
    rack.run(1, answer="ab", asked="ab")
    assert rack.watch.left_out() == frozenset() and rack.watch.mute("c") is None


@pytest.mark.parametrize("wrong", ["{after: 0.5s}", "{after: 2h}", "{requests: 5}", "{exclude: perhaps}", "{soon: 1s}"])
def test_mute_settings_are_validated(wrong: str) -> None:
    with pytest.raises(ConfigError, match="mute"):
        config(RACK + f"mute: {wrong}\n")


@asynccontextmanager
async def watched_rack(tmp_path: Path, rule: str) -> AsyncIterator[tuple[Controller, FakeSwitch, set[str]]]:
    """A controller with replicas that send heartbeats and get requests; those in the set send no
    responses.
    """
    silent: set[str] = set()

    def add(counter: str, cell: int, count: int) -> None:
        switch.counters[counter, cell] = switch.counters.get((counter, cell), 0) + count

    async def traffic() -> None:
        while True:
            held = switch.lines()
            for index, name in enumerate(("r1", "r2", "r3")):
                asked = sum(f"first={index:#x}," in line for line in held)
                add("heartbeats", index, 25)
                add("replica_packets", index, asked)
                add("replica_requests", index, asked)
                add("port_answers", 101 + index, 0 if name in silent else asked)
            await asyncio.sleep(0.05)

    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, RACK + rule) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        task = asyncio.create_task(traffic())
        try:
            yield controller, switch, silent
        finally:
            task.cancel()


async def test_controller_excludes_and_readmits_mute_replica(tmp_path: Path) -> None:
    rule = "mute: {after: 1s, requests: 20, exclude: true}\n"
    async with watched_rack(tmp_path, rule) as (controller, switch, silent):
        await until(lambda: controller.view("r1").state == "live", "live")
        silent.add("r1")

        def first(name: str) -> bool:
            return any(f"first={name}," in line for line in switch.lines())

        await until(lambda: "r1" in controller.monitor.left_out() and not first("0x0"), "nothing new goes there")
        view = controller.view("r1")
        assert view.state == "mute" and view.left_out and "requests was answered" in view.reason
        assert controller.draining() == frozenset(), "that is an operator's word"
        last = controller.monitor.history.summary("r1")["last_exclusion"]
        assert last["by"] == "the controller" and "requests was answered" in last["why"]
        # The operator undrains it while it is still mute.
        await controller.decide("r1", draining=False)
        await until(lambda: first("0x0"), "readmitted")
        await until(lambda: "r1" in controller.monitor.left_out() and not first("0x0"), "and excluded again")
        silent.clear()
        switch.counters["port_answers", 101] += 1
        await until(lambda: first("0x0") and controller.view("r1").state == "live", "it answers")
        kinds = [event["kind"] for event in controller.fleet.replica_events]
        assert kinds == ["MUTE", "LEFT_OUT", "LEFT_OUT", "ANSWERS", "TRIED_AGAIN"]

        def states() -> list[str]:
            return [entered["state"] for entered in controller.monitor.history.states("r1")]

        await until(lambda: states()[-3:] == ["live", "mute", "live"], "it has a history")


async def test_replicas_sharing_a_port_are_not_watched(tmp_path: Path) -> None:
    def together(text: str) -> str:
        return text.replace("port: 103, mac", "port: 101, mac")

    found = await _seen(tmp_path, together)
    assert found == {"r2"}


async def _seen(tmp_path: Path, change: Callable[[str], str]) -> set[str]:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, change(RACK)) as controller:
        await until(lambda: "tor1" in controller.fleet.health.before, "two readings")
        return set(controller.fleet.health.request_counts(controller.config.replicas, {}))
