"""TRODS: its configuration, agents' updates, switches' entries, and agents' reports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, rack, running, until
from sample_rack import NAMES, RACK, TWO_RACKS, config, fragments, lines, service_update

from rivulet_controller.cli import _trods
from rivulet_controller.config import ConfigError
from rivulet_controller.drain_progress import LATE_S, SETTLED_S, MoveWatch, Progress, progress
from rivulet_controller.health import ReplicaView
from rivulet_controller.metrics import Metrics
from rivulet_controller.modes import Mode, settled
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.rack_file import parse
from rivulet_controller.trace import trace
from rivulet_controller.trods import REASONS_MAX, TrodsCounts, counts
from rivulet_controller.view import snapshot

STORE = "    trods: {store: ['10.0.1.1:11211']}\n"
TRODS = RACK + "    plain: trods\n" + STORE


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "rack.yaml")
    return caught.value.problems


def test_trods_settings_are_read() -> None:
    service = config(TRODS).services[0]
    assert service.plain == "trods" and service.trods is not None
    found = service.trods
    assert (found.store, found.copies, found.failure, found.deterministic) == (("10.0.1.1:11211",), 1, "open", False)
    more = "{store: ['[fd00:0::9]:11211', '10.0.2.1:7'], copies: 2, failure: closed, deterministic: true}"
    full = config(TRODS.replace("{store: ['10.0.1.1:11211']}", more)).services[0].trods
    assert full is not None
    assert (full.store, full.copies, full.failure, full.deterministic) == (
        ("[fd00::9]:11211", "10.0.2.1:7"), 2, "closed", True,
    )  # fmt: skip
    assert (found.adopt_as, found.unknown) == ("client", "reset")
    # While its connections drain, `trods` may accompany another mode.
    assert config(RACK + STORE).services[0].trods is not None


@pytest.mark.parametrize(
    ("store", "where", "words"),
    [
        ("", "services.0.plain", "trods: set the store of records: `trods: {store: [ADDRESS:PORT, ...]}`"),
        ("{}", "services.0.trods.store", "no server: list the store's servers, or set `objects`"),
        ("{store: []}", "services.0.trods.store", "no server"),
        ("{objects: list}", "services.0.trods.objects", "is not a path that begins with /"),
        ("{objects: /a b}", "services.0.trods.objects", "is not a path that begins with /"),
        ("{objects: /list, store: ['10.0.2.1:1']}", "services.0.trods.store", "all servers are on the host of replica"),
        ("{objects: /list, failure: closed}", "services.0.trods.failure", "needs `store`"),
        (
            "{store: [" + ", ".join(f"'10.0.1.{n}:1'" for n in range(1, 10)) + "]}",
            "services.0.trods.store",
            "needs 8 at most",
        ),
        ("{store: ['memory:11211']}", "services.0.trods.store.0", "'memory:11211' is not ADDRESS:PORT such as"),
        ("{store: ['10.0.1.1']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['fd00::9:11211']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['[10.0.1.1]:11211']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['[fe80::1%eth0]:11211']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['10.0.1.1:0']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['10.0.1.1:65536']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['127.0.0.1:11211']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: ['0.0.0.0:11211']}", "services.0.trods.store.0", "is not ADDRESS:PORT"),
        ("{store: [11211]}", "services.0.trods.store.0", "11211: must be text"),
        ("{store: ['10.0.1.1:1', '10.0.1.1:1']}", "services.0.trods.store.1", "10.0.1.1:1 appears twice"),
        ("{store: ['[fd00::9]:1', '[fd00:0::9]:1']}", "services.0.trods.store.1", "[fd00::9]:1 appears twice"),
        ("{store: ['10.9.0.1:1']}", "services.0.trods.store.0", "10.9.0.1 is an address of service 'web'"),
        ("{store: ['10.0.1.254:1']}", "services.0.trods.store.0", "10.0.1.254 is an address of switch 'tor1'"),
        (
            "{store: ['10.0.2.1:1', '10.0.2.1:2']}",
            "services.0.trods.store",
            "all servers are on the host of replica 'r1'",
        ),
        ("{store: ['10.0.1.1:1'], copies: 2}", "services.0.trods.copies", "2 copies need at least that many servers"),
        ("{store: ['10.0.1.1:1'], copies: 3}", "services.0.trods.copies", "3: must be 1 or 2"),
        ("{store: ['10.0.1.1:1'], failure: maybe}", "services.0.trods.failure", "'maybe': must be 'open' or 'closed'"),
        ("{store: ['10.0.1.1:1'], deterministic: 7}", "services.0.trods.deterministic", "7: must be true or false"),
        ("{store: ['10.0.1.1:1'], servers: 1}", "services.0.trods.servers", "unknown field"),
    ],
)
def test_mistakes_name_line_and_field(store: str, where: str, words: str) -> None:
    text = RACK + "    plain: trods\n" + (f"    trods: {store}\n" if store else "")
    line = len(text.splitlines())
    found = problems(text)
    assert any(p.startswith(f"rack.yaml:{line}: {where}: ") and words in p for p in found), found


def test_second_object_list_of_replica_is_refused() -> None:
    text = TRODS.replace(STORE, "    trods: {objects: /list}\n")
    assert config(text).services[0].trods is not None
    more = "  - {name: other, addresses: [10.9.0.2], port: 80, replicas: [r2], plain: trods, trods: {objects: /l}}\n"
    found = problems(text + more)
    assert any("services.1.trods.objects: replica 'r2' already has the objects of service 'web'" in p for p in found), (
        found
    )


def test_agent_update_has_list_and_content() -> None:
    rack = config(TRODS.replace(STORE, "    trods: {objects: /list}\n"))
    assert (service_update(rack).trods.objects, list(service_update(rack).trods.store)) == ("/list", [])
    rack = config(TRODS.replace(STORE, "    trods: {objects: /list, store: ['10.0.1.1:11211'], failure: closed}\n"))
    both = service_update(rack).trods
    assert (both.objects, list(both.store), both.closed) == ("/list", ["10.0.1.1:11211"], True)
    assert service_update(config(TRODS)).trods.objects == ""


def test_trods_over_two_racks_is_refused() -> None:
    text = TWO_RACKS + "    plain: trods\n" + STORE
    (problem,) = problems(text)
    line = len(text.splitlines()) - 1
    assert problem == f"rack.yaml:{line}: services.0.plain: trods: works with one switch, and there are 2"
    config(text.replace("plain: trods", "plain: kernel"))


SOURCES = {
    f"plain_sources[address={address} ingress_port={port:#x} mac={0x020000000200 + n:#x} port=0x50]"
    f" speaks_for(pool=0x0, replica={n - 1:#x})"
    for n, port in ((1, 101), (2, 102), (3, 103))
    for address in ("0xffff0a090001", "0xfd000009000000000000000000000001")
}
"""Addresses and ports from which r1, r2 and r3 send for the service."""


def test_plain_sources_guard_only_members_ports() -> None:
    def guard(text: str, prefix: str) -> set[str]:
        return {line for line in lines(fragments(config(text))) if line.startswith(prefix)}

    assert guard(TRODS, "plain_sources") == SOURCES
    assert guard(TRODS, "ports") == {
        "ports[ingress_port=0x1] set_filtered_port(guarded=0x0, pvid=0x0)",
        "ports[ingress_port=0x65] set_filtered_port(guarded=0x1, pvid=0x0)",
        "ports[ingress_port=0x66] set_filtered_port(guarded=0x1, pvid=0x0)",
        "ports[ingress_port=0x67] set_filtered_port(guarded=0x1, pvid=0x0)",
    }
    assert guard(RACK + STORE, "plain_sources") == set()
    assert not any("guarded=0x1" in line for line in guard(RACK + STORE, "ports"))
    (row,) = guard(TRODS, "service_config")
    assert f"plain={NAMES.value('plain_t', 'TRODS'):#x}" in row
    # Another service of the same replicas with the kernel's plain TCP.
    other = TRODS + "  - {name: other, addresses: [10.9.0.2], port: 80, replicas: [r1, r2, r3]}\n"
    assert guard(other, "plain_sources") == SOURCES


def test_agent_update_has_store_and_pool() -> None:
    service = service_update(config(TRODS), incarnations={"r2": 77})
    assert (service.plain, service.plain_drains) == (agent_pb2.PLAIN_TRODS, agent_pb2.PLAIN_NONE)
    trods = service.trods
    assert (list(trods.store), trods.copies, trods.closed, trods.deterministic) == (["10.0.1.1:11211"], 1, False, False)
    assert [(m.replica, m.name, m.address, m.incarnation) for m in trods.members] == [
        (0, "r1", bytes((10, 0, 2, 1)), 0), (1, "r2", bytes((10, 0, 2, 2)), 77), (2, "r3", bytes((10, 0, 2, 3)), 0),
    ]  # fmt: skip
    closed = TRODS.replace("']}", "'], failure: closed, deterministic: true}")
    assert service_update(config(closed)).trods.closed and service_update(config(closed)).trods.deterministic
    assert not trods.as_server and not trods.trust_unknown
    sent = service_update(config(TRODS.replace("']}", "'], adopt_as: server, unknown: trust}"))).trods
    assert sent.as_server and sent.trust_unknown
    assert not service_update(config(RACK + STORE)).HasField("trods")


def test_draining_trods_keeps_configured_store() -> None:
    drains = Mode("kernel", "trods", "trods")
    service = service_update(config(RACK + STORE), mode=drains)
    assert (service.plain, service.plain_drains) == (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_TRODS)
    assert list(service.trods.store) == ["10.0.1.1:11211"]
    for mode in (drains, settled("trods")):
        service = service_update(config(RACK), mode=mode)
        assert (service.plain, service.plain_drains) == (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_NONE)
        assert not service.HasField("trods")


def test_agent_reasons_are_bounded() -> None:
    assert counts(None) is None and counts(agent_pb2.Report()) is None
    status = agent_pb2.TrodsStatus(protected=5, unprotected={"tls": 2, "no_etag": 1}, adopted=3, refused=4)
    assert counts(agent_pb2.Report(trods=status)) == TrodsCounts(5, {"no_etag": 1, "tls": 2}, 3, 4)
    why = agent_pb2.TrodsStatus(refusals={"content": 3, "No": 1}, trusted=2, outside=9)
    expected = TrodsCounts(refusals={"content": 3, "other": 1}, trusted=2, outside=9)
    assert counts(agent_pb2.Report(trods=why)) == expected
    strange = {'x"} evil 1\n': 1, "Upper": 2, "": 4, "a" * 33: 8}
    found = counts(agent_pb2.Report(trods=agent_pb2.TrodsStatus(unprotected=strange)))
    assert found is not None and found.unprotected == {"other": 15}
    many = {f"reason_{n:03}": 1 for n in range(1000)}
    found = counts(agent_pb2.Report(trods=agent_pb2.TrodsStatus(unprotected=many)))
    assert found is not None and len(found.unprotected) == REASONS_MAX + 1 and found.unprotected["other"] == 968


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


def row(switch: FakeSwitch, table: str) -> str:
    """The first row of a table."""
    return next((line for line in switch.lines() if line.startswith(f"{table}[")), "")


async def test_trods_change_reaches_switches_and_replicas_in_order(switch: FakeSwitch, tmp_path: Path) -> None:
    agents = f"unix:{tmp_path}/agents"
    drain = "    plain_drain: 500ms\n"
    async with running(switch, tmp_path, RACK + drain) as controller:
        fakes = [FakeAgent(agents, name) for name in ("r1", "r2", "r3")]
        async with fakes[0] as one, fakes[1], fakes[2]:
            await until(lambda: as_described(controller, switch), "all rows")
            plains: list[tuple[int, bool]] = []

            def plain() -> tuple[int, int]:
                (service,) = one.newest.services
                return service.plain, service.plain_drains

            def note() -> bool:
                """Records the switch's mode at each reading, and whether r1 has TRODS."""
                has_trods = agent_pb2.PLAIN_TRODS in plain()
                now = ("plain=0x3" in row(switch, "service_config"), has_trods)
                if not plains or plains[-1] != now:
                    plains.append(now)
                return bool(controller.state.modes["web"].is_settled)

            text = rack(switch, TRODS + drain)
            assert await controller.change(config(text), "a test", text)
            await until(lambda: note() and plain()[0] == agent_pb2.PLAIN_TRODS, "TRODS")
            assert {line for line in switch.lines() if line.startswith("plain_sources[")} == SOURCES
            # The drain is long enough to be observed on a slow machine.
            text = rack(switch, RACK + STORE + "    plain_drain: 1h\n")
            assert await controller.change(config(text), "a test", text)
            await until(lambda: plain() == (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_TRODS), "it drains")
            assert "plain=0x3" in row(switch, "service_config") and row(switch, "plain_sources")
            text = rack(switch, RACK + STORE + drain)
            assert await controller.change(config(text), "a test", text)
            await until(lambda: note() and plain() == (agent_pb2.PLAIN_KERNEL, agent_pb2.PLAIN_NONE), "over")
            await until(lambda: as_described(controller, switch), "the ToR's guard goes last")
            assert "plain=0x1" in row(switch, "service_config") and row(switch, "plain_sources") == ""
            assert "guarded=0x1" not in "".join(switch.lines())
            assert (False, True) not in plains, "a replica had TRODS before its ToR blocked excluded replicas"


async def test_record_incarnations_reach_others_and_are_kept(switch: FakeSwitch, tmp_path: Path) -> None:
    agents = f"unix:{tmp_path}/agents"

    def incarnations(agent: FakeAgent) -> list[int]:
        return [m.incarnation for service in agent.newest.services for m in service.trods.members]

    async with running(switch, tmp_path, TRODS) as controller, FakeAgent(agents, "r2") as two:
        async with FakeAgent(agents, "r1") as one:
            one.trods = agent_pb2.TrodsStatus(incarnation=41, protected=3, unprotected={"tls": 2}, adopted=1, moved=6)
            one.trods.refusals["content"] = 7
            one.trods.outside = 8
            await until(lambda: incarnations(two) == [41, 0, 0], "r2 knows where r1's records are")
            text = Metrics(controller).text().decode()
            for line in (
                'rivulet_trods_protected_total{replica="r1"} 3.0',
                'rivulet_trods_unprotected_total{reason="tls",replica="r1"} 2.0',
                'rivulet_trods_adopted_total{replica="r1"} 1.0',
                'rivulet_trods_refused_total{replica="r1"} 0.0',
                'rivulet_trods_refusals_total{reason="content",replica="r1"} 7.0',
                'rivulet_trods_moved_total{replica="r1"} 6.0',
                'rivulet_trods_outside_window_total{replica="r1"} 8.0',
            ):
                assert line in text
            assert 'rivulet_trods_protected_total{replica="r2"}' not in text
        await until(lambda: "r1" not in controller.agents.agents, "r1 disconnected")
        assert incarnations(two) == [41, 0, 0]
    async with running(switch, tmp_path, TRODS), FakeAgent(agents, "r3") as three:
        await until(lambda: incarnations(three) == [41, 0, 0], "another controller knows it too")


def test_connection_counts_are_shown() -> None:
    reset, unprotected = {"content": 2}, {"tls": 2, "post": 1}
    shown = {"protected": 5, "unprotected": unprotected, "adopted": 3, "refusals": reset, "trusted": 1, "moved": 4}
    shown["outside"] = 6
    (table,) = _trods({"replicas": [{"name": "r1", "trods": shown}, {"name": "r2", "trods": None}]})
    cells = [list(column.cells) for column in table.columns]
    assert cells == [["r1"], ["5"], ["3"], ["1"], ["4"], ["6"], ["content 2"], ["post 1, tls 2"]]
    assert _trods({"replicas": [{"name": "r2", "trods": None}]}) == []


def test_drain_is_done_when_no_movable_connection_is_left() -> None:
    def of(moved: int, watched: int, load: int) -> Progress:
        return progress({"trods": {"moved": moved, "watched": watched}, "load": load})

    assert of(3, 2, 7).words == "3 moved, 2 to move, 5 stay until they end"
    assert of(5, 0, 0).words == "5 moved, 0 to move, none stays"
    assert (of(3, 2, 7).done, of(5, 0, 5).done) == (False, True)
    # `load` may lag behind `watched`, since agents count the kernel's sockets less often.
    assert of(0, 3, 1).staying == 0
    assert progress({"trods": None, "load": 4}) == Progress(0, 0, 4)


def test_drain_is_reported_when_done_and_when_late() -> None:
    watch, drains = MoveWatch(), frozenset({"r1"})

    def look(now: float, moved: int, watched: int, draining: frozenset[str] = drains) -> list[tuple[str, str, str]]:
        counts = TrodsCounts(moved=moved, watched=watched)
        views = [
            ReplicaView(
                name, "draining", "", True, True, watched + 1, 0.0, {}, 0.0, 0.0, 0, 0, True, 0, 0, 7, False, trods
            )
            for name, trods in (("r1", counts), ("r2", counts), ("r3", None))
        ]
        return watch.look(now, views, draining)

    assert look(0.0, 0, 0) == [], "its agent may not have received it"
    assert look(SETTLED_S, 2, 1) == [], "one is to move"
    assert look(LATE_S, 2, 1) == [("STILL_MOVING", "r1", "2 moved, 1 to move, 1 stay until they end")]
    assert look(LATE_S + 1, 2, 1) == [], "this is reported"
    assert look(LATE_S + 2, 3, 0) == [("MOVED", "r1", "3 moved, 0 to move, 1 stay until they end")]
    assert look(LATE_S + 3, 0, 1) == look(2 * LATE_S + 3, 0, 0) == [], "another agent"
    assert look(100.0, 3, 0, frozenset()) == []
    assert look(101.0, 3, 0) == [], "another drain, just begun"
    assert look(101.0 + SETTLED_S, 3, 0) == [("MOVED", "r1", "3 moved, 0 to move, 1 stay until they end")]
    assert look(200.0, 3, 0, frozenset({"r3"})) == look(300.0, 3, 0, frozenset({"r3"})) == [], "it has no TRODS"


def test_trace_lists_plain_sources() -> None:
    rack = config(TRODS)
    items = [item for part in fragments(rack).values() for item in part]
    steps = {step.table: step for step in trace(items, NAMES, rack.services[0].addresses[0], 80, rivulet=False)}
    assert "source addresses of 3 replicas" in steps["plain_sources"].meaning
    assert "SOURCE_EXCLUDED" in steps["plain_sources"].meaning
    assert "plain_sources" not in {s.table for s in trace(items, NAMES, rack.services[0].addresses[0], 80)}


async def test_clocks_that_differ_are_reported(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, TRODS) as controller:
        address = f"unix:{tmp_path}/agents"
        async with FakeAgent(address, "r1") as slow, FakeAgent(address, "r2") as fast:
            agents = controller.agents.agents
            await until(
                lambda: len(agents) == 2 and all(a.clock_ahead_s is not None for a in agents.values()), "reports"
            )
            assert controller.problems() == []
            slow.clock_ahead_s, fast.clock_ahead_s = -4.0, 3.0
            await until(lambda: len(controller.problems()) == 1, "they are apart")
            await until(lambda: "clock of r2 is 7.0 s ahead of the clock of r1" in controller.problems()[0], "by 7 s")
            shown = snapshot(controller)
            assert shown["problems"] == controller.problems()
            # A late report does not count as a clock that is behind.
            slow.clock_ahead_s = fast.clock_ahead_s = 0.0
            await until(lambda: controller.problems() == [], "they are set")
            slow.clock_ahead_s = -9.0
            before = agents["r1"].reported_at
            await until(lambda: agents["r1"].reported_at > before, "one report")
            assert controller.problems() == []
