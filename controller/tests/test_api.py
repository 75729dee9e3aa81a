"""The API: its views, the rights that changes need, and the audit log."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import Authority
from fake_switch import FakeSwitch
from harness import as_described, audit_records, rack, running, served, until
from ports import free_port
from sample_rack import NAMES, RACK, config
from typer.testing import CliRunner

from rivulet_controller import cli, view
from rivulet_controller.api import make_app
from rivulet_controller.audit import Audit
from rivulet_controller.client import ApiError, Client
from rivulet_controller.config import ConfigError
from rivulet_controller.controller import Controller
from rivulet_controller.rights import AcceptedBy, Listener, Tokens
from rivulet_controller.store import SqliteStore
from rivulet_controller.worker import Worker

ME = {"x-rivulet-client": "a test"}


@asynccontextmanager
async def api(
    tmp_path: Path, text: str = RACK, tokens: str = "", peer: str | None = None
) -> AsyncIterator[tuple[Controller, FakeSwitch, httpx.AsyncClient]]:
    """A controller with a connected switch, and a client of its API: over a Unix socket, or over
    TCP with the source address `peer`.
    """
    token_file = tmp_path / "tokens"
    token_file.touch(mode=0o600)
    token_file.write_text(tokens)
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path, text) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        client_at: Any = None if peer is None else (peer, 1)
        app = make_app(controller, Tokens(token_file if tokens else None), Audit(tmp_path / "audit"))
        listener = AcceptedBy(app, Listener.UNIX if peer is None else Listener.TCP)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(listener, client=client_at), base_url="http://localhost"
        ) as client:
            yield controller, switch, client


def shares(held: set[str]) -> list[int]:
    """Number of slots by first replica."""
    return [sum(f"first={index:#x}" in line for line in held) for index in range(3)]


async def test_drain_moves_slots_and_is_audited(tmp_path: Path) -> None:
    async with api(tmp_path) as (_, switch, client):
        answer = await client.post("/api/replicas/r1/drain", headers=ME)
        assert answer.json() == {"done": "drain r1"}
        await until(lambda: not any("first=0x0" in line for line in switch.lines()), "slots moved")
        shown = {r["name"]: r for r in (await client.get("/api/replicas")).json()}
        assert shown["r1"]["draining"] and not shown["r2"]["draining"]
        await client.post("/api/replicas/r1/undrain", headers=ME)
        await until(lambda: any("first=0x0" in line for line in switch.lines()), "slots back")
        records = audit_records(tmp_path)
        assert [(r["who"], r["what"], r["replica"]) for r in records] == [
            ("a test@local", "drain", "r1"),
            ("a test@local", "undrain", "r1"),
        ]
        assert (tmp_path / "audit").stat().st_mode & 0o077 == 0


async def test_weights_change_shares_and_can_be_restored(tmp_path: Path) -> None:
    async with api(tmp_path) as (controller, switch, client):
        before = switch.lines()
        assert (await client.post("/api/replicas/r1/weight", json={"weight": 13}, headers=ME)).status_code == 200
        await until(lambda: sum("first=0x0" in line for line in switch.lines()) == 13, "13 of 16 slots")
        await client.post("/api/replicas/r1/weight", json={"weight": None}, headers=ME)
        await until(lambda: controller.weights()["r1"] == 1 and as_described(controller, switch), "back")
        assert shares(before) == shares(switch.lines())
        for wrong in (-1, 257, "x", 1.5):
            assert (await client.post("/api/replicas/r1/weight", json={"weight": wrong}, headers=ME)).status_code == 422


async def test_unknown_names_are_404(tmp_path: Path) -> None:
    async with api(tmp_path) as (_, _, client):
        for path in ("/api/replicas/r9/drain", "/api/replicas/r9/kill"):
            assert (await client.post(path, headers=ME)).status_code == 404
        assert (await client.post("/api/services/nobody/rotate", json={}, headers=ME)).status_code == 404
        assert (await client.get("/api/switches/nobody/entries")).status_code == 404
        assert audit_records(tmp_path) == []


async def test_foreign_page_can_neither_read_nor_change(tmp_path: Path) -> None:
    async with api(tmp_path, peer="127.0.0.1") as (controller, _, client):
        assert (await client.post("/api/replicas/r1/drain")).status_code == 403
        rebound = await client.get("/api/status", headers={"host": "evil.example"})
        assert rebound.status_code == 421 and "r1" not in rebound.text
        preflight = await client.options(
            "/api/replicas/r1/drain",
            headers={"origin": "http://evil.example", "access-control-request-method": "POST"},
        )
        assert "access-control-allow-origin" not in preflight.headers
        assert controller.draining() == frozenset() and audit_records(tmp_path) == []


async def test_token_file_makes_tokens_mandatory(tmp_path: Path) -> None:
    lines = (
        "# mallory:apply:open sesame\n#bob:apply:sesame\n\nalice:apply:sesame\nbob:operate:opened\ncarol:read:looking\n"
    )
    async with api(tmp_path, tokens=lines, peer="127.0.0.1") as (_, _, client):
        for path in ("/api/status", "/metrics", "/api/replicas", "/api/switches/tor1/entries"):
            assert (await client.get(path)).status_code == 401, path
            for guess in ("guess", "open", "apply:sesame", ""):
                wrong = {"authorization": f"Bearer {guess}"}
                assert (await client.get(path, headers=wrong)).status_code == 401
        right = {"authorization": "Bearer opened"}
        assert (await client.get("/api/status", headers=right)).status_code == 200
        assert (await client.post("/api/replicas/r1/drain", headers=ME)).status_code == 401
        assert (await client.post("/api/replicas/r1/drain", headers={**ME, **right})).status_code == 200
        assert [r["who"] for r in audit_records(tmp_path)] == ["bob@127.0.0.1"]
        (tmp_path / "tokens").touch(mode=0o600)
        (tmp_path / "tokens").write_text("alice:apply:sesame\n")
        assert (await client.get("/api/status", headers=right)).status_code == 401, "a token can be withdrawn"


async def test_waiting_controller_refuses_changes(tmp_path: Path) -> None:
    async with api(tmp_path) as (controller, _, client):
        controller.leading = False
        assert (await client.post("/api/replicas/r1/drain", headers=ME)).status_code == 409
        assert (await client.get("/api/status")).json()["leader"] is False


async def test_kill_is_refused_outside_labs(tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    command = f"ip: 10.0.2.1, kill_command: [touch, {mark}]}}"
    text = RACK.replace("ip: 10.0.2.1}", command)
    async with api(tmp_path, text) as (_, _, client):
        assert (await client.post("/api/replicas/r1/kill", headers=ME)).status_code == 403 and not mark.exists()
    lab = text + f"listen: {{lab: true}}\nstate: {tmp_path}/other.db\n"
    async with api(tmp_path, lab) as (_, _, client):
        assert (await client.post("/api/replicas/r2/kill", headers=ME)).status_code == 403, "it has no kill command"
        assert (await client.post("/api/replicas/r1/kill", headers=ME)).status_code == 200 and mark.exists()
        assert [r["what"] for r in audit_records(tmp_path)] == ["kill"]


async def test_plan_shows_and_apply_writes(tmp_path: Path) -> None:
    async with api(tmp_path) as (controller, switch, client):
        before = switch.lines()
        changed = rack(switch).replace("liveness: 20ms", "liveness: 25ms")
        planned = (await client.post("/api/plan", content=changed, headers=ME)).json()
        assert planned == {
            "tor1": ["~ pools[pool=0x0] set_pool(bound=0x61a8, copies_group=0x400, members=0x7, settle=0x7918)"]
        }
        more = rack(switch) + "  - {name: new, addresses: [10.9.0.7], port: 80, replicas: [r1], slots: 2}\n"
        planned = (await client.post("/api/plan", content=more, headers=ME)).json()["tor1"]
        assert {line[0] for line in planned if "meter" not in line} == {"+"}
        assert any("nonce_keys" in line for line in planned)
        assert switch.lines() == before and "new" not in controller.state.rings, "a plan changes nothing"
        assert (await client.post("/api/apply", content=changed, headers=ME)).status_code == 200
        await until(lambda: any("bound=0x61a8" in line for line in switch.lines()), "applied")
        assert (await client.get("/api/config")).text == changed
        assert [r["what"] for r in audit_records(tmp_path)] == ["apply"]


async def test_invalid_configuration_is_refused_with_lines(tmp_path: Path) -> None:
    async with api(tmp_path) as (controller, switch, client):
        before = switch.lines()
        for path in ("/api/plan", "/api/apply"):
            answer = await client.post(path, content=rack(switch).replace("slots: 16", "slots: 15"), headers=ME)
            assert answer.status_code == 422 and "slots: 15 is not a power of two" in answer.json()["detail"][0]
            assert (await client.post(path, content=b"\xff\xfe", headers=ME)).status_code == 422
            assert (await client.post(path, content=b"#" * (5 << 20), headers=ME)).status_code == 413
        assert switch.lines() == before and audit_records(tmp_path) == []
        assert controller.config == config(rack(switch))


async def test_metrics_health_and_schema(tmp_path: Path) -> None:
    async with api(tmp_path) as (controller, switch, client):
        switch.counters["replica_packets", 1] = 42
        switch.counters["drops", NAMES.value("drop_reason_t", "REPLAY")] = 7
        samples = controller.fleet.health.samples
        await until(lambda: "tor1" in samples and samples["tor1"].packets.get(1) == 42, "a reading")
        text = (await client.get("/metrics")).text
        assert 'rivulet_replica_packets_total{pool="0",replica="r2",switch="tor1"} 42.0' in text
        assert 'rivulet_drops_total{reason="replay",switch="tor1"} 7.0' in text
        assert 'rivulet_switch_up{switch="tor1"} 1.0' in text
        assert (await client.get("/healthz")).text == "ok"
        controller.refuse_config("a test", "rack.yaml:3: wrong")
        # The text before is shown for nine times as long as it took to make.
        for _ in range(1000):
            if (sick := await client.get("/healthz")).status_code != 200:
                break
            await asyncio.sleep(0.01)
        assert sick.status_code == 503 and "rack.yaml:3: wrong" in sick.text
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert {"/api/status", "/api/replicas/{name}/drain", "/api/plan"} <= paths.keys()
        entries = (await client.get("/api/switches/tor1/entries")).json()
        assert set(entries) == switch.lines() and not any("k0=0x" in line for line in entries)


async def test_trace_explains_why_packet_is_dropped(tmp_path: Path) -> None:
    async with api(tmp_path) as (_, _, client):

        async def way(**query: Any) -> list[dict[str, str]]:
            return (await client.get("/api/switches/tor1/trace", params=query)).json()  # type: ignore[no-any-return]

        steps = await way(address="10.9.0.1", port=80)
        assert [s["table"] for s in steps][:4] == ["tor", "addresses", "services", "service_config"]
        shares = next(s["meaning"] for s in steps if s["table"] == "slots")
        assert shares == "first choice: replica 0: 4/16, replica 1: 4/16, replica 2: 8/16"
        assert "port=0x67" in steps[-1]["meaning"]
        assert (await way(address="10.9.0.1", port=81))[-1]["meaning"] == "no row: dropped as NOT_SERVED"
        assert (await way(address="10.0.2.3", port=1))[-1]["row"].startswith("routes[destination=0xffff0a000203/0x80]")
        assert (await way(address="8.8.8.8", port=1))[-1]["row"].startswith("routes[destination=0xffff00000000/0x60]")
        assert (await client.get("/api/switches/tor1/trace", params={"address": "x", "port": 1})).status_code == 422
        plain = {"address": "10.9.0.1", "port": 80, "rivulet": False, "client": "192.0.2.1", "ack": 1}
        assert (await way(**plain))[-1]["table"] == "replicas", "kernel mode needs no cookie"
        for bad in ({"ack": 1 << 32}, {"tsecr": -1}, {"client": "x"}, {"client_port": 65536}):
            answer = await client.get("/api/switches/tor1/trace", params={**plain, **bad})
            assert answer.status_code == 422, bad


async def test_live_snapshots_over_owners_socket(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address):
        assert os.stat(address.removeprefix("unix:")).st_mode & 0o077 == 0
        async for found in Client(address).live():
            assert [r["name"] for r in found["replicas"]] == ["r1", "r2", "r3"]
            break


async def test_live_snapshots_require_token_first(tmp_path: Path) -> None:
    port = free_port()
    async with served(tmp_path, "alice:read:sesame\n", f"127.0.0.1:{port}") as (_, address):
        with pytest.raises(ApiError):
            async for _ in Client(address, "guess").live():
                pytest.fail("a snapshot without clients")
        async for found in Client(address, "sesame").live():
            assert found["switches"]
            break


@pytest.mark.parametrize(
    ("token", "may"),
    [("", 0), ("looking", 1), ("opened", 2), ("sesame", 3)],
)
async def test_roles_grant_only_their_rights(tmp_path: Path, token: str, may: int) -> None:
    lines = "alice:apply:sesame\nbob:operate:opened\ncarol:read:looking\n"
    async with api(tmp_path, tokens=lines, peer="127.0.0.1") as (controller, switch, client):
        headers = {**ME, **({"authorization": f"Bearer {token}"} if token else {})}
        body = rack(switch).replace("liveness: 20ms", "liveness: 25ms")
        asked = [
            (1, await client.get("/metrics", headers=headers)),
            (1, await client.post("/api/plan", headers=headers, content=body)),
            (2, await client.post("/api/replicas/r1/drain", headers=headers)),
            (2, await client.post("/api/replicas/r1/weight", json={"weight": 3}, headers=headers)),
            (2, await client.post("/api/services/web/rotate", json={}, headers=headers)),
            (3, await client.post("/api/apply", headers=headers, content=body)),
        ]
        for wants, answer in asked:
            expected = 200 if may >= wants else 401 if not token else 403
            assert answer.status_code == expected, (wants, answer.text)
        assert len(audit_records(tmp_path)) == [0, 0, 3, 4][may]
        assert bool(controller.draining()) == (may >= 2)
        assert (controller.config.services[0].liveness == 0.025) == (may >= 3)


async def test_loopback_without_tokens_is_read_only(tmp_path: Path) -> None:
    async with api(tmp_path, peer="127.0.0.1") as (controller, switch, client):
        assert (await client.get("/api/status")).status_code == 200
        for path in ("/api/replicas/r1/drain", "/api/replicas/r1/kill", "/api/apply"):
            answer = await client.post(path, headers=ME, content=rack(switch))
            assert answer.status_code == 403 and "listen.control" in answer.text
        assert (await client.get("/api/status", headers={"authorization": "Bearer x"})).status_code == 401
        assert controller.draining() == frozenset() and audit_records(tmp_path) == []


async def test_foreign_request_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[object] = []
    monkeypatch.setattr(Worker, "run", lambda *a: parsed.append(a))
    async with api(tmp_path, peer="127.0.0.1") as (_, switch, client):
        foreign = {**ME, "origin": "http://evil.example"}
        for path in ("/api/plan", "/api/apply"):
            assert (await client.post(path, content=rack(switch), headers=foreign)).status_code == 403
        # A form of another site cannot send our header.
        assert (await client.post("/api/plan", content=rack(switch))).status_code == 403
        assert parsed == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("alice:sesame", "NAME:ROLE:TOKEN"),
        ("alice:root:sesame", "NAME:ROLE:TOKEN"),
        ("alice:read:", "NAME:ROLE:TOKEN"),
        ("alice:read:short", "six"),
    ],
)
def test_token_file_mistake_is_reported_with_line(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "tokens").touch(mode=0o600)
    (tmp_path / "tokens").write_text(f"# comment\nbob:read:looking\n{line}\n")
    with pytest.raises(ValueError, match=f"tokens:3: .*{words}"):
        Tokens(tmp_path / "tokens").read()
    assert Tokens(tmp_path / "tokens").caller("looking") is None, "a partly valid file authenticates no caller"


async def test_apply_cannot_change_local_settings(tmp_path: Path) -> None:
    mark = tmp_path / "marked"
    async with api(tmp_path) as (controller, switch, client):
        good = rack(switch)
        tries = {
            "listen": good + "listen: {lab: true}\n",
            "state": good + f"state: {tmp_path}/elsewhere.db\n",
            "replicas.0.kill_command": good.replace("ip: 10.0.2.1}", f"ip: 10.0.2.1, kill_command: [touch, {mark}]}}"),
            "switches.0.pipeline": good.replace("    number: 1\n", f"    number: 1\n    pipeline: {tmp_path}\n"),
            "switches.0.tls": good.replace(
                "    number: 1\n",
                "    number: 1\n    tls: {certificate: /etc/shadow, key: /etc/shadow, authority: x}\n",
            ),
        }
        for place, text in tries.items():
            for path in ("/api/plan", "/api/apply"):
                answer = await client.post(path, content=text, headers=ME)
                assert answer.status_code == 422, (place, answer.text)
                problem = "only the controller's own file may set it"
                assert answer.json()["detail"] == [f"config: {place}: {problem}"]
        assert (await client.post("/api/replicas/r1/kill", headers=ME)).status_code == 403
        assert not mark.exists() and audit_records(tmp_path) == [] and controller.config == config(good)


async def test_applied_configuration_lasts_until_file_changes(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch:
        file = rack(switch)
        applied = file.replace("liveness: 20ms", "liveness: 25ms")

        async def restarted(text: str) -> tuple[float, str]:
            store = SqliteStore(tmp_path / "state.db")
            controller = Controller(config(text), store, text)
            await controller.start()
            store.close()
            return controller.config.services[0].liveness, controller.text

        store = SqliteStore(tmp_path / "state.db")
        controller = Controller(config(file), store, file)
        await controller.start()
        assert await controller.change(config(applied), "a test", applied, applied=True)
        store.close()
        assert await restarted(file) == (0.025, applied)
        assert await restarted(file) == (0.025, applied), "however often"
        edited = file.replace("liveness: 20ms", "liveness: 30ms")
        assert await restarted(edited) == (0.030, edited), "an edited file takes precedence"
        assert await restarted(file) == (0.020, file), "what was applied before is forgotten"


async def test_unwritable_audit_log_blocks_changes(tmp_path: Path) -> None:
    async with api(tmp_path) as (controller, switch, client):
        (tmp_path / "audit").mkdir()
        before = switch.lines()
        changed = rack(switch).replace("liveness: 20ms", "liveness: 25ms")
        for path, body in (("/api/replicas/r1/drain", ""), ("/api/apply", changed)):
            answer = await client.post(path, content=body, headers=ME)
            assert answer.status_code == 503 and "nothing was changed" in answer.json()["detail"]
        assert controller.draining() == frozenset() and controller.config == config(rack(switch))
        assert switch.lines() == before


async def test_remote_api_uses_tls(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours").make(), Authority(tmp_path, "theirs").make()
    certificate, key = ours.sign("controller", "IP:127.0.0.1")
    files = f"api_tls: {{certificate: {certificate}, key: {key}}}"
    port = free_port()
    async with served(tmp_path, "alice:read:sesame\n", f"127.0.0.1:{port}", files) as (_, address):
        found = await asyncio.to_thread(Client(address, "sesame", authority=str(ours.certificate)).get, "/api/status")
        assert found["switches"]
        async for live in Client(address, "sesame", authority=str(ours.certificate)).live():
            assert live["switches"]
            break
        for client in (Client(address, "sesame", authority=str(theirs.certificate)), Client(address, "sesame")):
            with pytest.raises(ApiError):
                await asyncio.to_thread(client.get, "/api/status")
        control = await asyncio.to_thread(Client(f"unix:{tmp_path}/control.sock").post, "/api/replicas/r1/drain")
        assert control == {"done": "drain r1"}
    for missing in ("api_token_file: /t", "api_tls: {certificate: a, key: b}"):
        with pytest.raises(ConfigError, match=r"api: .*beyond loopback needs"):
            config(RACK + f"listen: {{api: '10.0.0.5:8443', {missing}}}\n")


async def test_rivuletctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as (controller, address):
        monkeypatch.setenv("COLUMNS", "200")

        async def run(*arguments: str) -> tuple[int, str]:
            result = await asyncio.to_thread(CliRunner().invoke, cli.app, ["--api", address, *arguments])
            return result.exit_code, result.output + (str(result.exception) if result.exception else "")

        code, text = await run("status")
        assert code == 0 and "as described" in text and "r3" in text
        assert (await run("drain", "r2"))[0] == 1 and controller.draining() == frozenset(), "it asks first"
        assert (await run("drain", "--yes", "r2"))[0] == 0 and controller.draining() == {"r2"}
        assert (await run("undrain", "r2"))[0] == 0 and controller.draining() == frozenset()
        assert (await run("weight", "r2", "9"))[0] == 0 and controller.weights()["r2"] == 9
        assert (await run("weight", "r2", "default"))[0] == 0 and controller.weights()["r2"] == 1
        assert (await run("weight", "r2", "heavy"))[0] == 2
        assert [(await run("keys", "rotate", "web", "--kind", kind))[0] for kind in ("seal", "cookie", "x")] == [
            0,
            0,
            2,
        ]
        code, text = await run("drain", "-y", "r9")
        assert code == 1 and "there is no replica 'r9'" in text
        assert "web" in (await run("services"))[1]
        assert "NOT_SERVED" in (await run("trace", "tor1", "10.9.0.1", "81"))[1]
        asked = ("trace", "tor1", "10.9.0.1", "80", "--client", "[2001:db8::1]:4000", "--ack", "7", "--tsecr", "9")
        assert "replicas" in (await run(*asked))[1]
        assert (await run(*asked[:4], "--client", "nobody"))[0] == 2
        assert (await run("config"))[1].startswith(controller.text.rstrip())
        assert "set_pool" in (await run("entries", "tor1", "--match", "pools["))[1]
        file = tmp_path / "new.yaml"
        file.write_text(RACK.replace("liveness: 20ms", "liveness: 3ms"))
        code, text = await run("check", str(file))
        assert code == 1 and "new.yaml:19" in text and "at least two heartbeats" in text


async def test_status_and_metrics_are_cached_for_many_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def slow(make: Any) -> Any:
        def made_slowly(*arguments: Any) -> Any:
            made.append(make.__name__)
            # As on a rack where a snapshot takes long; nothing else runs meanwhile.
            time.sleep(0.3)
            return make(*arguments)

        return made_slowly

    for name in ("snapshot", "switches"):
        monkeypatch.setattr(view, name, slow(getattr(view, name)))
    async with api(tmp_path) as (_, _, client):
        # Snapshots, metrics and /healthz all compute the switches' view.
        for path, makes in (("/api/status", 2), ("/metrics", 1), ("/healthz", 1)):
            made.clear()
            for _ in range(5):
                assert (await client.get(path)).status_code in (200, 503)
            assert len(made) == makes, path
        made.clear()
        await client.post("/api/replicas/r1/drain", headers=ME)
        shown = {r["name"]: r for r in (await client.get("/api/status")).json()["replicas"]}
        assert shown["r1"]["draining"] and made.count("snapshot") == 1, "a change is seen at once"
