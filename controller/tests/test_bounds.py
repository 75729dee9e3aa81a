"""Input and history are bounded: they fill neither memory, disk and log, nor the event loop's time."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fake_switch import FakeSwitch
from harness import as_described, running, until
from sample_rack import NAMES, RACK

from rivulet_controller import view
from rivulet_controller.agents import SENT_KEPT, TEXT_MAX, Agent, AgentServer
from rivulet_controller.api import Live, make_app
from rivulet_controller.audit import LINE_MAX, RECENT, Audit, AuditError
from rivulet_controller.body_limit import BODY_MAX
from rivulet_controller.config import ConfigError
from rivulet_controller.document import MAX_BYTES
from rivulet_controller.health import ReplicaView
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.rack_file import load
from rivulet_controller.rights import Tokens
from rivulet_controller.state_history import STATES_KEPT, StateHistory


def test_partial_audit_line_is_removed(tmp_path: Path) -> None:
    """Limits the file's size, which like a full disk accepts a part of a write."""
    file = tmp_path / "audit"
    audit = Audit(file)
    audit.note("somebody", "drain", replica="r1")
    whole = file.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, before[1]))
    try:
        with pytest.raises(AuditError, match="cannot be written"):
            audit.note("somebody", "drain", replica="r2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == whole and [r["replica"] for r in audit.recent] == ["r1"]
    audit.note("somebody", "drain", replica="r3")
    assert [json.loads(line)["replica"] for line in file.read_text().splitlines()] == ["r1", "r3"]


def test_audit_lines_are_bounded_and_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    audit = Audit(file)
    audit.note("somebody", "apply refused", problem="x" * (1 << 20))
    for number in range(2 * RECENT):
        audit.note("somebody", "weight", replica=f"r{number}", weight=number)
    lines = file.read_bytes().splitlines()
    assert len(lines) == 2 * RECENT + 1 and max(map(len, lines)) <= LINE_MAX
    with file.open("ab") as more:
        more.write(b'\xff{"half a line\n[]\n{"time": "late", "who": "x", "what": "y"}\n')
    audit = Audit(file)
    assert [r["weight"] for r in audit.recent][-3:] == [2 * RECENT - 3, 2 * RECENT - 2, 2 * RECENT - 1]
    assert RECENT / 2 < len(audit.recent) <= RECENT


async def test_long_body_is_cut_before_authentication(tmp_path: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(10_000):
            taken += 4096
            yield b" " * 4096

    (tmp_path / "tokens").touch(mode=0o600)
    (tmp_path / "tokens").write_text("alice:apply:sesame\n")
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        app = make_app(controller, Tokens(tmp_path / "tokens"), Audit(tmp_path / "audit"))
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            me = {"x-rivulet-client": "a test"}
            for path, most in (
                ("/api/services/web/rotate", BODY_MAX),
                ("/api/replicas/r1/weight", BODY_MAX),
                ("/api/replicas/r1/drain", BODY_MAX),
                ("/api/apply", 0),
                ("/api/plan", 0),
            ):
                taken = 0
                answer = await client.post(path, content=endless(), headers=me)
                assert answer.status_code in (401, 413), (path, answer.text)
                assert taken <= most + 2 * 4096, (path, taken)


async def test_snapshot_is_made_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def counted(*arguments: object) -> dict[str, object]:
        nonlocal made
        made += 1
        return {"number": made}

    monkeypatch.setattr(view, "snapshot", counted)
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        live = Live(controller, Audit(None))
        assert {live.text() for _ in range(200)} == {'{"number": 1}'}
        await asyncio.sleep(1.1)
        assert {live.text() for _ in range(200)} == {'{"number": 2}'}


async def test_snapshot_limits_services_and_counts_all(tmp_path: Path) -> None:
    text = RACK
    for number in range(view.SERVICES_SHOWN + 20):
        text += f"  - {{name: s{number}, addresses: [10.9.0.1], port: {1000 + number}, pool: web, slots: 4,"
        text += " replicas: [r1, r2, r3]}\n"
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, text) as controller:
        found = view.snapshot(controller)
        assert len(found["services"]) == view.SERVICES_SHOWN and found["services_total"] == view.SERVICES_SHOWN + 21
        assert len(view.services(controller)) == view.SERVICES_SHOWN + 21


def agent() -> Agent:
    return Agent("r1", 1, b"", "test", 0.0)


def test_agent_texts_and_unconfirmed_updates_are_bounded() -> None:
    one = agent()
    one.note(agent_pb2.Report(version_in_force=1, reason="x" * 10_000, error="y" * 10_000))
    assert one.report is not None
    assert (len(one.report.reason), len(one.report.error)) == (TEXT_MAX, TEXT_MAX)
    for version in range(1, 10_000):
        update = agent_pb2.Update(version=version)
        update.services.add(name="web").seal_keys.add(epoch=version % 65_535 + 1)
        one.send(update)
    assert len(one._sent) <= SENT_KEPT
    one.note(agent_pb2.Report(version_in_force=9_999))
    assert {epoch for _, _, epoch in one.held} == {10_000}, "the newest is known all the same"


async def test_agent_errors_are_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    async def complaints() -> AsyncIterator[agent_pb2.AgentMessage]:
        for number in range(2000):
            yield agent_pb2.AgentMessage(report=agent_pb2.Report(error=f"complaint {number}"))

    server = AgentServer(lambda _: agent_pb2.Update(), lambda: None)
    with caplog.at_level(logging.INFO, "rivulet.agents"):
        await server._read(agent(), complaints())
    logged = [record for record in caplog.records if "complaint" in record.getMessage()]
    # One a second; a very slow machine may log a few.
    assert 1 <= len(logged) < 100


def test_reading_a_file_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "rack.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(400 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=f"at most {MAX_BYTES}"):
            load(file)
        assert tracemalloc.get_traced_memory()[1] < 10 * MAX_BYTES
    finally:
        tracemalloc.stop()


def test_state_history_is_bounded_and_explains_exclusion(tmp_path: Path) -> None:
    def seen(state: str, reason: str = "") -> ReplicaView:
        return ReplicaView(
            "r1", state, reason, True, True, 0, 0.0, {}, 0.0, 0.0, 0, 0, True, 0, 0, 1, False
        )  # fmt: skip

    history = StateHistory()
    for second in range(3 * STATES_KEPT):
        history.note([seen("live" if second % 2 else "silent", f"look {second}")], float(second))
        history.note([seen("live" if second % 2 else "silent", f"look {second}, more")], second + 0.5)
    states = history.states("r1")
    assert len(states) == STATES_KEPT
    assert states[-1] == {"time": 3.0 * STATES_KEPT - 1, "state": "live", "reason": f"look {3 * STATES_KEPT - 1}, more"}
    history.excluded("r1", "tor1")
    last = history.summary("r1")["last_exclusion"]
    assert last["by"] == "tor1" and last["why"] == "not yet known"
    history.note([seen("excluded", "excluded by tor1: no heartbeats arrive")])
    assert history.summary("r1")["last_exclusion"]["why"] == "excluded by tor1: no heartbeats arrive"
    history.excluded("r1", "tor1", now=1.0)
    assert "back before the next reading" in history.summary("r1")["last_exclusion"]["why"]
    history.note([])
    assert history.states("r1") == [] and history.summary("r1") == {"since": 0.0, "last_exclusion": None}
