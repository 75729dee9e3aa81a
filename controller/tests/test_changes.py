"""A change of the configuration is a transaction: in force everywhere and durable, or without any
effect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import harness
import pytest
from fake_switch import FakeSwitch
from finsy.proto import p4r, rpc_code
from harness import as_described, connected, rack, running, until
from sample_rack import NAMES, RACK, config

from rivulet_controller.controller import Controller
from rivulet_controller.keys import Kind
from rivulet_controller.state import State
from rivulet_controller.store import SqliteStore, StoreError

SERVICES = NAMES.schema.tables["services"].id


def service(name: str, address: str) -> str:
    """A third service of the same replicas, in another pool."""
    return f"  - {{name: {name}, addresses: [{address}], port: 80, replicas: [r1, r2, r3], slots: 8, liveness: 20ms}}\n"


def two_switches(first: FakeSwitch, second: FakeSwitch) -> str:
    """The rack with a second ToR."""
    lines = RACK.splitlines(keepends=True)
    at = lines.index("replicas:\n")
    block = "".join(lines[1:at]).replace("127.0.0.1:9559", second.address)
    others = {"tor1": "tor2", "number: 1": "number: 2", "00:fe": "00:fd", "10.0.1.254": "10.0.1.253", "1::fe": "1::fd"}
    for ours, theirs in others.items():
        block = block.replace(ours, theirs)
    return "".join([*lines[:at], block, *lines[at:]]).replace("127.0.0.1:9559", first.address)


OTHER, THIRD = service("other", "10.9.0.2"), service("third", "10.9.0.3")


def refuse(update: p4r.Update) -> int:
    """Makes the switch's table too small for another service."""
    insert = update.type == p4r.Update.INSERT and update.entity.table_entry.table_id == SERVICES
    return int(rpc_code.RESOURCE_EXHAUSTED) if insert else 0


def secrets(controller: Controller) -> dict[tuple[str, Kind, int], bytes]:
    """Every secret, by service, kind and epoch."""
    return {(name, k.kind, k.epoch): k.secret for name, ring in controller.state.rings.items() for k in ring.keys}


def stored(folder: Path) -> State:
    """The state that a controller starting now would load."""
    store = SqliteStore(folder / "state.db")
    try:
        return State(store.load())
    finally:
        store.close()


async def test_refused_change_keeps_keys_numbers_and_slots(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, RACK + OTHER) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        before, lines = controller.state.copy(), switch.lines()
        switch.refuse = refuse
        switch.writes.clear()
        assert not await controller.change(config(rack(switch) + THIRD), "a test")
        assert switch.lines() == lines
        assert not any(kind == "DELETE" and "other" in line for kind, line in switch.writes)
        for state in (controller.state, stored(tmp_path)):
            assert state.rings["other"] == before.rings["other"]
            assert "third" not in state.rings and "third" not in state.slots
            assert (state.numbers, state.slots) == (before.numbers, before.slots)


async def test_epoch_is_never_reused_for_another_secret(tmp_path: Path) -> None:
    seen: dict[tuple[str, Kind, int], bytes] = {}

    def note(controller: Controller) -> None:
        for key, secret in secrets(controller).items():
            assert seen.setdefault(key, secret) == secret, f"{key} had another secret"

    async with FakeSwitch(NAMES) as switch:
        async with running(switch, tmp_path) as controller:
            await until(lambda: as_described(controller, switch), "first apply")
            for _ in range(3):
                # First refused by an agent, then in force, then removed.
                switch.refuse = refuse
                asked = controller.state.given.get("third", {}).get(Kind.SEAL, 0)
                assert not await controller.change(config(rack(switch) + THIRD), "a test")
                assert controller.state.given["third"][Kind.SEAL] == asked + 1, "its epoch is spent"
                switch.refuse = lambda update: 0
                assert await controller.change(config(rack(switch) + THIRD), "a test")
                note(controller)
                assert await controller.change(config(rack(switch)), "a test")
                await until(lambda: "third" not in controller.state.rings, "its keys are forgotten")
        async with running(switch, tmp_path, RACK + THIRD) as controller:
            await until(lambda: as_described(controller, switch), "back after a restart")
            note(controller)
    assert {epoch for name, kind, epoch in seen if (name, kind) == ("third", Kind.NONCE)} == {2, 4, 6, 7}


async def test_refusal_of_one_switch_keeps_entries_of_others(tmp_path: Path) -> None:
    async with (
        FakeSwitch(NAMES) as first,
        FakeSwitch(NAMES) as second,
        running(first, tmp_path, two_switches(first, second) + OTHER) as controller,
    ):
        await until(lambda: as_described(controller, first) and controller.fleet.converged(), "first apply")
        await until(lambda: len(second.lines()) > 20, "the second one too")
        lines = first.lines()
        second.refuse = refuse
        first.writes.clear()
        assert not await controller.change(config(two_switches(first, second) + THIRD), "a test")
        assert "tor2 refused" in controller.config_problem
        assert first.lines() == lines
        assert any(kind == "DELETE" for kind, _ in first.writes), "what was new went again"
        assert not any(kind == "DELETE" and "0xffff0a090002" in line for kind, line in first.writes)


async def test_hanging_switch_does_not_delay_others(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as healthy, FakeSwitch(NAMES) as hung:
        text = two_switches(healthy, hung)
        async with running(healthy, tmp_path, text) as controller:
            await until(controller.fleet.converged, "both have what they should")
            await until(lambda: as_described(controller, healthy), "first apply")
            hung.answering.clear()
            for draining in (True, False, True):
                await controller.decide("r1", draining=draining)
                await until(lambda: as_described(controller, healthy), "the healthy one follows")
                drained = not any("first=0x0" in line for line in healthy.lines() if "slots[" in line)
                assert drained == draining
            assert not hung.answering.is_set() and any("first=0x0" in line for line in hung.lines())
            hung.answering.set()
            held = lambda: any("first=0x0" in line for line in hung.lines() if "slots[" in line)  # noqa: E731
            await until(lambda: not held(), "and the other one once it answers")


class Gate(SqliteStore):
    """A store on which a save can be delayed or fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.open = threading.Event()
        self.open.set()
        self.full = False
        self.under_way = 0
        self.most = 0

    def save(self, changes: Mapping[str, bytes | None]) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            self.open.wait(30.0)
            if self.full:
                raise StoreError("state file: database or disk is full")
            super().save(changes)
        finally:
            self.under_way -= 1


async def test_saves_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(harness, "SqliteStore", Gate)
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        disk = controller._store
        assert isinstance(disk, Gate)
        disk.open.clear()
        asked = [asyncio.create_task(controller.decide("r1", draining=n % 2 == 0)) for n in range(9)]
        await until(lambda: disk.under_way == 1, "a save is under way")
        await asyncio.sleep(0.2)
        assert disk.most == 1, "no other one beside it"
        disk.open.set()
        await asyncio.gather(*asked)
        assert stored(tmp_path).decisions == controller.state.decisions
        assert controller.state.decisions["r1"].draining and controller.draining() == {"r1"}


async def test_full_disk_refuses_changes_and_keeps_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(harness, "SqliteStore", Gate)
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        disk, lines = controller._store, switch.lines()
        assert isinstance(disk, Gate)
        disk.full = True
        with pytest.raises(StoreError, match="disk is full"):
            await controller.decide("r1", draining=True)
        assert controller.draining() == frozenset()
        assert not await controller.change(config(rack(switch) + OTHER), "a test")
        assert "disk is full" in controller.config_problem
        assert [s.name for s in controller.config.services] == ["web"]
        controller.rotate("web", frozenset({Kind.SEAL}))
        await until(lambda: any("disk is full" in said for said in controller.problems()), "the error is reported")
        assert switch.lines() == lines, "no agent got what is not durable"
        disk.full = False
        await until(lambda: not controller.store_problem, "and it is tried again")
        assert await controller.change(config(rack(switch) + OTHER), "a test") and controller.problems() == []
        assert secrets(controller) == {
            (name, key.kind, key.epoch): key.secret
            for name, ring in stored(tmp_path).rings.items()
            for key in ring.keys
        }


async def test_lost_session_ends_no_loop(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        for what in ("a reading", "a write"):
            switch.answering.clear()
            if what == "a write":
                await controller.decide("r1", draining=True)
            rounds = [loop.rounds for loop in controller.fleet.switches["tor1"].loops]
            # The next read (or write) hangs, and the session with it.

            await asyncio.sleep(1.5)
            await switch.restart()
            switch.answering.set()
            await until(lambda: as_described(controller, switch), f"again, after {what} was cut off")
            for before, loop in zip(rounds, controller.fleet.switches["tor1"].loops, strict=True):
                await until(lambda b=before, l=loop: l.rounds > b + 1, f"{loop.name} goes on")  # type: ignore[misc]  # noqa: E741
            await until(lambda: controller.problems() == [], "nothing is wrong any more")


async def test_election_id_without_state_exceeds_stale_session(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with FakeSwitch(NAMES) as switch, running(switch, old) as left:
        await until(lambda: as_described(left, switch), "first apply")
        for _ in range(50):
            left.state.next_counter("election")
        await switch.restart()
        await until(lambda: as_described(left, switch), "a session with a high election id")
        # Its machine has died without closing the connection; its successor has an empty or another
        # store.
        async with running(switch, new) as next_one:
            await until(lambda: connected(next_one), "the new one is primary")
            await until(lambda: as_described(next_one, switch), "and writes")
            first = max(left.state.counters["election"], 1)
            assert next_one.state.counters["election"] >= first


async def test_tor_ids_are_unique_across_renumbering(tmp_path: Path) -> None:
    seen: dict[int, str] = {}
    async with FakeSwitch(NAMES) as first, FakeSwitch(NAMES) as second:
        plain = two_switches(first, second)
        swapped = (
            plain.replace("number: 2", "number: 9")
            .replace("number: 1\n", "number: 2\n")
            .replace("number: 9", "number: 1")
        )
        async with running(first, tmp_path, plain) as controller:
            for turn, text in enumerate((plain, swapped, plain, swapped)):
                assert await controller.change(config(text), "a test"), controller.config_problem
                await until(controller.fleet.converged, "both are as described")
                for name, switch in controller.fleet.switches.items():
                    assert switch.tor is not None
                    number = next(s.number for s in controller.config.switches if s.name == name)
                    held = first if name == "tor1" else second
                    assert switch.tor.tor_id >> 8 == number
                    assert any(f"tor_id={switch.tor.tor_id:#x}" in line for line in held.lines())
                    run = f"{name} in turn {turn}"
                    assert switch.tor.tor_id not in seen, f"{run} and {seen[switch.tor.tor_id]}"
                    seen[switch.tor.tor_id] = run
