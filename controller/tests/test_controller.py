"""The controller with a fake switch and fake agents: each way in which a rack gets its desired
state.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from finsy.proto import p4r, rpc_code
from harness import as_described, connected, problem, rack, running, until
from sample_rack import ARP_REPLY, ARTIFACTS, NAMES, RACK, config

from rivulet_controller import confirmations
from rivulet_controller.clock import FIRST_WAIT_S, signed
from rivulet_controller.controller import Controller
from rivulet_controller.keys import RACK_RING, Kind
from rivulet_controller.names import Names, NamesError
from rivulet_controller.neighbours import request_frame
from rivulet_controller.store import SqliteStore
from rivulet_controller.switch import SwitchError
from rivulet_controller.view import snapshot

TOR = config().switches[0]
OTHER = (
    "  - {name: other, addresses: [10.9.0.2], port: 80, replicas: [r1, r2, r3], slots: 8, pool: web, liveness: 20ms}\n"
)


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


async def test_empty_switch_gets_all_entries_in_order(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "the switch holds what it should")
        assert switch.pipelines_set == 1
        tables = [line.split("[")[0] for kind, line in switch.writes if kind == "INSERT" and "[" in line]
        for first, then in [
            ("pools", "slots"),
            ("slots", "nonce_keys"),
            ("nonce_keys", "services"),
            ("services", "addresses"),
        ]:
            assert max(i for i, t in enumerate(tables) if t == first) < tables.index(then), (first, then)
        assert not any(kind == "DELETE" for kind, _ in switch.writes)


async def test_restarted_controller_writes_no_unchanged_entry(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        switch.send_digest(kind=NAMES.value("event_kind_t", "UNKNOWN_SOURCE"), clock=5_000_000, mac=0x02AA, port=102)
        await until(
            lambda: "known_sources[ingress_port=0x66 mac=0x2aa vlan=0x0] source_known()" in switch.lines(), "learning"
        )
        await until(lambda: as_described(controller, switch), "clock set")
        tor = controller.fleet.switches["tor1"].tor
        before = switch.lines()
    switch.writes.clear()
    async with running(switch, tmp_path) as controller:
        await until(lambda: controller.reconciles > 3 and connected(controller), "connected again")
        await until(lambda: as_described(controller, switch), "as described")
        await asyncio.sleep(0.2)
        assert switch.writes == [] and switch.lines() == before
        assert switch.pipelines_set == 1 and controller.fleet.switches["tor1"].tor == tor


async def test_restarted_switch_gets_all_entries_and_new_tor_id(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        first = controller.fleet.switches["tor1"].tor
        await switch.restart()
        again = lambda: controller.fleet.switches["tor1"].tor != first and as_described(controller, switch)  # noqa: E731
        await until(again, "everything again, as another ToR")
        second = controller.fleet.switches["tor1"].tor
        assert first and second and (first.tor_id, second.tor_id) == (0x0101, 0x0102)
        assert first.sketch_keys != second.sketch_keys


async def test_only_differences_are_written(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
    foreign = p4r.Entity()
    slots = NAMES.schema.tables["slots"]
    for key, entity in switch.entities.items():
        if key[0] == "entry" and key[1] == slots.id:
            foreign.CopyFrom(entity)
            removed = key
    foreign.table_entry.match[0].exact.value = b"\x77"
    switch.entities[("entry", slots.id, *sorted(m.SerializeToString() for m in foreign.table_entry.match))] = foreign
    changed = next(k for k, e in switch.entities.items() if k[0] == "entry" and k[1] == NAMES.schema.tables["pools"].id)
    switch.entities[changed].table_entry.action.action.params[0].value = b"\x01"
    del switch.entities[removed]
    switch.writes.clear()
    async with running(switch, tmp_path) as controller:
        await until(lambda: connected(controller) and as_described(controller, switch), "repaired")
        kinds = [(kind, line.split("[")[0]) for kind, line in switch.writes]
        assert kinds == [("INSERT", "slots"), ("MODIFY", "pools"), ("DELETE", "slots")]


async def test_changed_line_causes_one_write(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        switch.writes.clear()
        assert await controller.change(config(rack(switch).replace("liveness: 20ms", "liveness: 25ms")), "a test")
        assert switch.writes == [
            ("MODIFY", "pools[pool=0x0] set_pool(bound=0x61a8, copies_group=0x400, members=0x7, settle=0x7918)")
        ]


async def test_adding_and_removing_service_leaves_others_unchanged(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        before = switch.lines()
        switch.writes.clear()
        assert await controller.change(config(rack(switch) + OTHER), "a test")
        await until(lambda: as_described(controller, switch), "added")
        assert {kind for kind, _ in switch.writes} <= {"INSERT", "MODIFY"}
        assert before <= switch.lines()
        assert await controller.change(config(rack(switch)), "a test")
        await until(lambda: as_described(controller, switch), "removed")
        assert [kind for kind, _ in switch.writes].count("RESET") == 6, "its meters are unlimited again"
        gone = [line.split("[")[0] for kind, line in switch.writes if kind == "DELETE"]
        assert gone[:2] == ["addresses", "services"] and gone.index("nonce_keys") > gone.index("service_config")
        assert switch.lines() == before and "other" not in controller.state.rings


@pytest.mark.parametrize(
    ("code", "advice"),
    [(rpc_code.RESOURCE_EXHAUSTED, "the table is full"), (rpc_code.INVALID_ARGUMENT, "does not accept this value")],
)
async def test_refused_write_keeps_last_good_state(
    switch: FakeSwitch, tmp_path: Path, code: int, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        before = switch.lines()
        services = NAMES.schema.tables["services"].id
        switch.refuse = lambda u: (
            code if u.type == p4r.Update.INSERT and u.entity.table_entry.table_id == services else 0
        )
        assert not await controller.change(config(rack(switch) + OTHER), "a test")
        assert advice in controller.config_problem and "services[address=" in controller.config_problem
        assert "the one in force stays" in caplog.text
        assert [s.name for s in controller.config.services] == ["web"]
        assert switch.lines() == before
        switch.refuse = lambda u: 0
        assert await controller.change(config(rack(switch) + OTHER), "a test") and not controller.config_problem


async def test_refused_write_is_explained(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES, capacity=10) as switch, running(switch, tmp_path) as controller:
        await until(lambda: connected(controller) and bool(controller.fleet.switches["tor1"].problem), "an error")
        reported_problem = controller.fleet.switches["tor1"].problem
        assert (
            "slots[" in reported_problem
            and "table is full" in reported_problem
            and "fewer services or slots" in reported_problem
        )


async def test_foreign_program_is_kept_without_take_over(switch: FakeSwitch, tmp_path: Path) -> None:
    foreign = p4r.ForwardingPipelineConfig(cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=1))
    foreign.p4info.tables.add().preamble.alias = "acl"
    switch.pipeline = foreign
    async with running(switch, tmp_path) as controller:
        await until(lambda: "runs another program (tables acl" in problem(controller), "an error")
        assert switch.pipelines_set == 0
        described = rack(switch).replace("    number: 1\n", "    number: 1\n    take_over: true\n")
        await controller.change(config(described), "a test")
        await until(lambda: as_described(controller, switch), "taken over")


async def test_older_version_of_our_program_is_replaced(switch: FakeSwitch, tmp_path: Path) -> None:
    old = NAMES.schema.get_pipeline_config()
    switch.pipeline = p4r.ForwardingPipelineConfig()
    switch.pipeline.CopyFrom(old)
    switch.pipeline.cookie.cookie = 1
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "replaced")
        assert switch.pipelines_set == 1


async def test_recompiled_program_waits_for_restart(switch: FakeSwitch, tmp_path: Path) -> None:
    folder = tmp_path / "p4"
    shutil.copytree(ARTIFACTS, folder)
    text = RACK.replace("    number: 1\n", f"    number: 1\n    pipeline: {folder}\n")
    async with running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        cookie = switch.pipeline.cookie.cookie
        for name in ("rivulet.json", "rivulet.p4info.txtpb"):
            (folder / name).write_text("half written")
        await switch.restart()
        await until(lambda: switch.pipelines_set == 2 and as_described(controller, switch), "everything again")
        assert switch.pipeline.cookie.cookie == cookie
    with pytest.raises(NamesError, match="does not belong to the compilation"):
        Names(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(NamesError, match="is not a P4Info"):
        Names(folder)


async def test_unknown_meter_is_refused_before_writing(switch: FakeSwitch, tmp_path: Path) -> None:
    folder = tmp_path / "p4"
    shutil.copytree(ARTIFACTS, folder)
    text = RACK.replace("    number: 1\n", f"    number: 1\n    pipeline: {folder}\n")
    text += "    meters: {syn: null, timeout: null, restart: null, unproved: null, ranges: null}\n"
    wanted = rack(switch, text).replace("syn: null", "syn: 1000")
    async with running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        before = switch.lines()
        names = controller.fleet.names(controller.config.switches[0], "tor")
        if names.members("service_meter_t"):
            assert await controller.change(config(wanted), "a test")
            await until(lambda: any("service_meters" in line for line in switch.lines()), "the meter is set")
            names._enums.pop("service_meter_t")
            assert await controller.change(config(text.replace("127.0.0.1:9559", switch.address)), "a test")
        assert not await controller.change(config(wanted), "a test")
        assert "does not define service_meter_t.SYN" in controller.config_problem
        assert {line for line in switch.lines() if not line.startswith("meter")} == {
            line for line in before if not line.startswith("meter")
        }


async def test_refused_program_is_explained(switch: FakeSwitch, tmp_path: Path) -> None:
    switch.refuse_pipeline = "table 7 is odd"
    async with running(switch, tmp_path) as controller:
        await until(lambda: "table 7 is odd" in problem(controller), "an error")
        assert "does not accept the program" in problem(controller) and "make p4" in problem(controller)
        switch.refuse_pipeline = ""
        await until(lambda: as_described(controller, switch), "tried again")


async def test_backup_controller_writes_nothing(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        switch.demote()
        switch.writes.clear()
        await until(lambda: "another controller" in problem(controller), "it knows")
        await controller.decide("r1", draining=True)
        await asyncio.sleep(0.3)
        assert switch.writes == []


async def test_controller_without_lease_writes_nothing(switch: FakeSwitch, tmp_path: Path) -> None:
    lost: list[bool] = []

    def guard() -> None:
        if lost:
            raise SwitchError("the lease is lost")

    store = SqliteStore(tmp_path / "state.db")
    controller = Controller(config(rack(switch)), store, guard=guard)
    await controller.start()
    task = asyncio.create_task(controller.run())
    await until(lambda: as_described(controller, switch), "first apply")
    lost.append(True)
    switch.writes.clear()
    await controller.decide("r1", draining=True)
    await until(lambda: "the lease is lost" in controller.fleet.switches["tor1"].problem, "the log says so")
    assert switch.writes == []
    lost.clear()
    controller.wake()
    await until(lambda: as_described(controller, switch), "leading again")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await controller.stop()


async def test_unreachable_switch_is_reported_and_retried(tmp_path: Path) -> None:
    switch = FakeSwitch(NAMES)
    await switch.listen("127.0.0.1:0")
    await switch.stop()
    async with running(switch, tmp_path) as controller:
        await until(lambda: "no server listens at" in problem(controller), "an error")
        await switch.listen(switch.address)
        await until(lambda: as_described(controller, switch), "found")
    await switch.stop()


async def test_event_flood_keeps_replica_events(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        switch.send_digest(kind=NAMES.value("event_kind_t", "EXCLUDED"), clock=1, pool=0, replica=1)
        for number in range(600):
            switch.send_digest(kind=NAMES.value("event_kind_t", "UNJUDGED"), clock=2 + number, sequence=1 + number)
        await until(lambda: len(controller.fleet.events) == 500, "the flood is over")
        shown = [(event["kind"], event["replica"]) for event in snapshot(controller)["events"]]
        assert shown[0] == ("EXCLUDED", "r2") and shown.count(("UNJUDGED", None)) == len(shown) - 1 == 25


async def test_unknown_mac_is_found_and_survives_restart(switch: FakeSwitch, tmp_path: Path) -> None:
    text = RACK.replace('ip: 10.0.1.1, mac: "02:00:00:00:01:01",', "ip: 10.0.1.1,")
    row = "neighbours[next_hop=0x1] set_neighbour(dst_mac=0x20000000101, src_mac=0x200000000fe, vlan=0x0)"
    async with running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        await until(lambda: len(switch.packets) > 0, "the question")
        assert switch.packets[0] == (1, request_frame(TOR.hosts[0].ip, TOR.addresses[0], TOR.mac))
        assert row not in switch.lines()
        switch.send_packet(b"no answer at all", ingress_port=1, vlan=0)
        switch.send_packet(ARP_REPLY, ingress_port=1, vlan=0)
        await until(lambda: row in switch.lines(), "the answer")
    switch.writes.clear()
    async with running(switch, tmp_path, text) as controller:
        await until(lambda: controller.reconciles > 3 and connected(controller), "connected again")
        await asyncio.sleep(0.3)
        assert switch.writes == [] and row in switch.lines()


async def test_agent_reports_mac_of_replica(switch: FakeSwitch, tmp_path: Path) -> None:
    text = RACK.replace('port: 101, mac: "02:00:00:00:02:01",', "port: 101,")
    async with running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        assert (
            "pools[pool=0x0] set_pool(bound=0x4e20, copies_group=0x400, members=0x6, settle=0x6590)" in switch.lines()
        )
        async with FakeAgent(f"unix:{tmp_path}/agents", "r1", mac=bytes.fromhex("0200000002aa")):
            await until(lambda: any("members=0x7" in line for line in switch.lines()), "a member")
            assert any("heartbeat_sources" in line and "source=0x200000002aa" in line for line in switch.lines())
            await until(lambda: "nonce_epoch=0x1" in " ".join(switch.lines()), "its keys are in use")
            await until(lambda: as_described(controller, switch), "all is written")
    switch.writes.clear()
    async with running(switch, tmp_path, text) as controller:
        await until(lambda: controller.reconciles > 3 and connected(controller), "connected again")
        await asyncio.sleep(0.2)
        assert [w for w in switch.writes if "service_checks" not in w[1]] == [], "remembered without its agent"


async def test_key_is_used_only_once_all_live_replicas_hold_it(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmations, "AGENT_PATIENCE_S", 60.0)
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        assert "seal_epoch=0x0" in next(line for line in switch.lines() if line.startswith("service_checks"))
        agents = f"unix:{tmp_path}/agents"
        async with FakeAgent(agents, "r1") as one, FakeAgent(agents, "r2", silent=True) as two:
            await until(lambda: bool(one.newest.services and two.newest.services), "updates")
            service = one.newest.services[0]
            assert (service.id, service.pool, service.replica, service.port) == (1, 0, 0, 80)
            assert (two.newest.services[0].replica, service.heartbeat_interval_us) == (1, 2000)
            assert service.tor_mac == bytes.fromhex("0200000000fe")
            await asyncio.sleep(0.5)
            assert controller.state.rings["web"].usable(Kind.SEAL) is None, "r2 has not confirmed"
        async with FakeAgent(agents, "r1") as one, FakeAgent(agents, "r2") as two:
            await until(lambda: controller.state.rings["web"].usable(Kind.NONCE) is not None, "usable")
            await until(lambda: "seal_epoch=0x1" in " ".join(switch.lines()), "stamped")
            await until(lambda: any(s.usable_seal_epoch == 1 for s in one.newest.services), "it got the new epoch")


async def test_key_waits_for_reconnecting_agents(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the first agent to reconnect made a key usable that the other replicas lacked."""
    monkeypatch.setattr(confirmations, "AGENT_PATIENCE_S", 1e6)
    agents = f"unix:{tmp_path}/agents"

    def usable(controller: Controller) -> int:
        key = controller.state.rings["web"].usable(Kind.SEAL)
        return key.epoch if key is not None else 0

    all_three = (FakeAgent(agents, name) for name in ("r1", "r2", "r3"))
    async with running(switch, tmp_path) as controller, next(all_three), next(all_three), next(all_three):
        await until(lambda: usable(controller) == 1, "all hold the first")
        rounds = controller.reconciles
        controller.wake()
        await until(lambda: controller.reconciles > rounds + 1, "and that is saved")
    async with running(switch, tmp_path) as controller:
        controller.rotate("web", frozenset({Kind.SEAL}))
        async with FakeAgent(agents, "r1") as one, FakeAgent(agents, "r2"):
            await until(lambda: 2 in [k.epoch for s in one.newest.services for k in s.seal_keys], "r1 has it")
            rounds = controller.reconciles
            await until(lambda: controller.reconciles > rounds + 2, "rounds pass")
            assert usable(controller) == 1, "r3 is on its way"
            async with FakeAgent(agents, "r3"):
                await until(lambda: usable(controller) == 2, "all hold it")


async def test_key_waits_for_agent_that_just_disconnected(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: in the round that noticed its disconnection, the agent counted as long absent."""
    monkeypatch.setattr(confirmations, "AGENT_PATIENCE_S", 1e6)
    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path) as controller, FakeAgent(agents, "r1"), FakeAgent(agents, "r2"):
        ring = lambda: controller.state.rings["web"]  # noqa: E731
        async with FakeAgent(agents, "r3") as three:
            await until(lambda: (k := ring().usable(Kind.SEAL)) is not None and k.epoch == 1, "all hold the first")
            three.silent = True
            # It was connected for a long time.
            controller.confirmations.began = float("-inf")
            controller.rotate("web", frozenset({Kind.SEAL}))
            await until(
                lambda: all(("web", Kind.SEAL, 2) in controller.agents.agents[name].held for name in ("r1", "r2")),
                "two confirm the next",
            )
        await until(lambda: "r3" not in controller.agents.agents, "the third disconnected")
        rounds = controller.reconciles
        await until(lambda: controller.reconciles > rounds + 2, "rounds pass")
        assert (key := ring().usable(Kind.SEAL)) is not None and key.epoch == 1, "its replica serves, without the key"


async def test_key_waits_for_replica_behind_restarted_agent(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a reconnected agent holds the key at once, its replica only after it has
    attached.
    """
    monkeypatch.setattr(confirmations, "AGENT_PATIENCE_S", 1e6)
    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path) as controller, FakeAgent(agents, "r1"), FakeAgent(agents, "r2"):

        def usable() -> int:
            key = controller.state.rings["web"].usable(Kind.SEAL)
            return key.epoch if key is not None else 0

        async with FakeAgent(agents, "r3"):
            await until(lambda: usable() == 1, "all hold the first")
        fresh = FakeAgent(agents, "r3")
        # No serving process has attached to the agent.
        fresh.ready, fresh.content = False, None
        async with fresh:
            await until(lambda: bool(fresh.updates), "it is back")
            controller.rotate("web", frozenset({Kind.SEAL}))
            held = lambda: ("web", Kind.SEAL, 2) in controller.agents.agents["r3"].held  # noqa: E731
            await until(held, "the agent holds it")
            rounds = controller.reconciles
            await until(lambda: controller.reconciles > rounds + 2, "rounds pass")
            assert usable() == 1, "its replica may not"
            fresh.ready = True
            await until(lambda: usable() == 2, "it has attached")


async def test_unconfirmed_key_delays_rotation_for_bounded_time(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmations, "AGENT_PATIENCE_S", 1.0)
    agents = f"unix:{tmp_path}/agents"
    two = FakeAgent(agents, "r2", silent=True)
    async with running(switch, tmp_path) as controller, two, FakeAgent(agents, "r1"):
        await until(lambda: bool(two.updates), "it got an update")
        await until(lambda: controller.state.rings["web"].usable(Kind.SEAL) is not None, "usable without r2")


async def test_rotation_on_demand_and_by_time(
    switch: FakeSwitch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # r3 never registers.
    monkeypatch.setattr(confirmations, "AGENT_PATIENCE_S", 0.2)
    text = RACK + "keys: {seal_rotation: 200ms, nonce_rotation: 3000s, horizon: 100ms, resume: 1s}\n"
    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, text) as controller, FakeAgent(agents, "r1") as one, FakeAgent(agents, "r2"):
        await until(lambda: controller.state.rings["web"].of(Kind.SEAL)[-1].epoch >= 8, "rotation by time")
        await until(lambda: 1 not in [k.epoch for k in one.newest.services[0].seal_keys], "withdrawal")
        usable = one.newest.services[0].usable_seal_epoch
        assert usable in [k.epoch for k in one.newest.services[0].seal_keys]
        epochs = {int(line.split("nonce_epoch=")[1].split()[0], 16) for line in switch.lines() if "nonce_keys[" in line}
        assert {k.epoch for k in one.newest.services[0].nonce_keys} <= epochs
        before = controller.state.rings["web"].of(Kind.NONCE)[-1].epoch
        controller.rotate("web", frozenset({Kind.NONCE}))
        await until(lambda: controller.state.rings["web"].of(Kind.NONCE)[-1].epoch > before, "on demand")
        with pytest.raises(KeyError):
            controller.rotate("nobody", frozenset({Kind.NONCE}))


async def test_heartbeat_key_is_used_once_all_hold_it(switch: FakeSwitch, tmp_path: Path) -> None:
    def newest() -> dict[int, int]:
        rows = [line for line in switch.lines() if line.startswith("heartbeat_keys[") and "replica=0x0" in line]
        return {int(r.split("key_epoch=")[1].split()[0], 16): int(r.split("newest=")[1][:3], 16) for r in rows}

    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path) as controller:
        await until(lambda: newest() == {1: 1}, "the switch has a first key")
        assert controller.state.rings[RACK_RING].usable(Kind.TOR) is None, "no replica holds it"
        async with FakeAgent(agents, "r1") as one, FakeAgent(agents, "r2"), FakeAgent(agents, "r3"):
            await until(lambda: any(s.usable_tor_epoch == 1 for s in one.newest.services), "it got the usable epoch")
            controller.rotate("web", frozenset({Kind.TOR}))
            await until(lambda: any(s.usable_tor_epoch == 2 for s in one.newest.services), "its successor")
            await until(lambda: newest() == {1: 0, 2: 1}, "the first is good until its replica leaves it")
            keys = one.newest.services[0].tor_keys
            assert [key.epoch for key in keys] == [1, 2] and keys[0].heartbeat != keys[1].heartbeat
        secrets = [key.secret for key in controller.state.rings[RACK_RING].keys]
    # Another controller resumes with them.
    async with running(switch, tmp_path) as controller:
        await until(lambda: controller.reconciles > 2 and connected(controller), "connected again")
        assert [key.secret for key in controller.state.rings[RACK_RING].keys] == secrets
        assert newest() == {1: 0, 2: 1}


async def test_tunnel_mtu_from_router_is_used(switch: FakeSwitch, tmp_path: Path) -> None:
    text = RACK.replace(
        "replicas:\n",
        """\
  - name: tor2
    address: 127.0.0.1:9
    number: 2
    mac: "02:00:00:00:00:fd"
    addresses: [10.0.3.254, "fd00:3::fe"]
    ports: [1]
    hosts: [{ip: 10.0.3.1, mac: "02:00:00:00:03:01", port: 1}]
    routes: [{prefix: 10.0.2.0/24, via: 10.0.3.1}]
replicas:
""",
        1,
    ).replace("name: r3, switch: tor1, port: 103", "name: r3, switch: tor2, port: 1")
    quote = bytes.fromhex("450005dc000040004004000a0a0001fe0a000203") + bytes(8)
    elsewhere = quote[:16] + bytes.fromhex("0a000202") + quote[20:]
    not_ours = quote[:12] + bytes.fromhex("0a000909") + quote[16:]

    def too_big_message(about: bytes, mtu: int) -> bytes:
        message = bytes.fromhex("0304000000") + bytes(1) + mtu.to_bytes(2, "big") + about
        return bytes(12) + b"\x08\x00" + bytes.fromhex("4500004000004000400100000a0000010a0001fe") + message

    def path_mtus() -> set[str]:
        return {line.split("path_mtu=")[1].rstrip(")") for line in switch.lines() if "path_mtu=" in line}

    async with running(switch, tmp_path, text):
        await until(lambda: path_mtus() == {"0x0"}, "the tunnel")
        for frame in (
            too_big_message(elsewhere, 1400),
            too_big_message(not_ours, 1400),
            too_big_message(quote, 600),
            b"no word",
        ):
            switch.send_packet(frame, ingress_port=1, vlan=0)
        switch.send_packet(too_big_message(quote, 1400), ingress_port=1, vlan=0)
        await until(lambda: path_mtus() == {hex(1400)}, "the router's word")


async def test_unknown_agent_is_refused_with_reason(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path), FakeAgent(f"unix:{tmp_path}/agents", "r9") as stranger:
        await until(lambda: bool(stranger.error), "refusal")
        assert "there is no replica 'r9'" in stranger.error and stranger.updates == []


async def test_clock_is_set_by_event_and_survives_restart(switch: FakeSwitch, tmp_path: Path) -> None:
    kind = NAMES.value("event_kind_t", "UNKNOWN_SOURCE")
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        assert not any(line.startswith("known_sources") for line in switch.lines())
        sent, began = round(time.time() * 1e6), time.monotonic()
        switch.send_digest(kind=kind, clock=1_000_000, mac=0x020000000101, port=1)
        await until(lambda: any("time_valid=0x1" in line for line in switch.lines()), "clock")
        assert time.monotonic() - began >= FIRST_WAIT_S, "one event may have been late"
        # An event sent before the change still carries the old offset.
        switch.send_digest(kind=kind, clock=1_000_900, mac=0x020000000101, port=1)
        await asyncio.sleep(0.2)
        tor = controller.fleet.switches["tor1"].tor
        assert tor is not None
        assert abs(signed(tor.clock_offset + 1_000_000 - sent)) < 5_000_000
        await until(lambda: as_described(controller, switch), "known sources follow")
        await asyncio.sleep(1.2)
        switch.writes.clear()
        common = (round(time.time() * 1e6) + 3000) & (1 << 48) - 1
        switch.send_digest(kind=kind, clock=common, mac=0x020000000101, port=1, sequence=1)
        await asyncio.sleep(0.3)
        assert switch.writes == [], "an offset within tolerance is kept"
        await switch.restart()
        await until(lambda: as_described(controller, switch), "again")
        sent = round(time.time() * 1e6)
        switch.send_digest(kind=kind, clock=500_000, mac=0x020000000101, port=1)
        await until(lambda: any("time_valid=0x1" in line for line in switch.lines()), "clock again")
        again = controller.fleet.switches["tor1"].tor
        assert again is not None
        error = signed(again.clock_offset + 500_000 - sent)
        assert abs(error) < 5_000_000, "the common clock continues"


async def test_returned_replica_gets_plain_tcp_once_steady(switch: FakeSwitch, tmp_path: Path) -> None:
    readmitted = (
        "heartbeat_sources[ingress_port=0x65 pool=0x0 remote=0x0 replica=0x0 source=0x20000000201]"
        " admit_heartbeat(readmitted=0x3)"
    )

    async def beat() -> None:
        while True:
            switch.counters["heartbeats", 0] = switch.counters.get(("heartbeats", 0), 0) + 10
            await asyncio.sleep(0.05)

    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        switch.counters["replica_exclusions", 0] = 3
        switch.counters["replica_returns", 0] = 2
        beating = asyncio.create_task(beat())
        await asyncio.sleep(6.0)
        assert readmitted not in switch.lines(), "it is still excluded"
        view = controller.view("r1")
        assert view.state == "excluded" and "heartbeats are back" in view.reason
        switch.counters["replica_returns", 0] = 3
        await until(lambda: readmitted in switch.lines(), "re-admission")
        beating.cancel()
        # The ToR admits plain TCP with a heartbeat, and none has arrived since.
        tor = controller.fleet.switches["tor1"]
        await until(lambda: (0, 0) in tor.allowed, "the row is seen")
        await asyncio.sleep(2.5)
        assert not controller.view("r1").readmitted
        switch.counters["heartbeats_unready", 0] = 1
        await asyncio.sleep(2.5)
        assert not controller.view("r1").readmitted, "that one was not ready"
        switch.counters["heartbeats", 0] += 1
        await until(lambda: controller.view("r1").readmitted, "a heartbeat came")


async def test_lost_switch_and_lost_agent_are_explained(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: "tor1" in controller.fleet.health.before, "two readings")
        assert controller.view("r1").state == "silent"
        async with FakeAgent(f"unix:{tmp_path}/agents", "r1") as agent:
            await until(lambda: "r1" in controller.agents.agents, "registered")
            assert agent.updates is not None
            await until(lambda: controller.view("r1").agent, "seen")
        switch.counters["replica_exclusions", 0] = 1
        await until(lambda: controller.view("r1").state == "excluded", "excluded")
        assert "no heartbeats arrive, and its agent is not connected" in controller.view("r1").reason


async def test_decisions_survive_controller_restart(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        await controller.decide("r3", weight=1)
        await controller.decide("r1", draining=True)
        await until(lambda: not any("first=0x0" in line for line in switch.lines() if "slots[" in line), "drained")
        await until(lambda: as_described(controller, switch), "as described")
        before = switch.lines()
        with pytest.raises(KeyError):
            await controller.decide("r9", draining=True)
    switch.writes.clear()
    async with running(switch, tmp_path) as controller:
        await until(lambda: connected(controller) and as_described(controller, switch), "again")
        assert switch.lines() == before and switch.writes == []
        assert controller.weights()["r3"] == 1 and controller.draining() == {"r1"}
