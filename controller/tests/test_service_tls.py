"""A service's TLS: its settings and ticket keys in agents' updates, and their rotation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import running, until
from sample_rack import LIVES, NAMES, RACK, config, held, none_held, service_update

from rivulet_controller import view
from rivulet_controller.agents import TEXT_MAX
from rivulet_controller.cli import _tls
from rivulet_controller.keys import CONFIRM_MARGIN_S, TLS_KINDS, KeyRing, Kind
from rivulet_controller.metrics import Metrics
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2
from rivulet_controller.service_tls import KEYS_GIVEN
from rivulet_controller.state import State

FILES = "certificates: [{certificate: /etc/site.pem, key: /etc/site.key}]"
TLS = RACK + f"    tls: {{{FILES}, server: '[::1]:8080', forwarded: proxy, client_ca: /etc/ca.pem}}\n"


def test_agents_get_the_settings_and_the_ticket_keys() -> None:
    state, ring = State(), KeyRing().tick(1.0, LIVES, none_held, kinds=TLS_KINDS)
    assert len(ring.of(Kind.TICKET)[0].secret) == 32
    state.set_ring("web", ring)
    tls = service_update(config(TLS), state).tls
    (certificate,) = tls.certificates
    assert (certificate.certificate, certificate.key) == ("/etc/site.pem", "/etc/site.key")
    assert (tls.server, tls.forwarded, tls.client_ca) == ("[::1]:8080", agent_pb2.FORWARDED_PROXY, "/etc/ca.pem")
    assert ([k.epoch for k in tls.ticket_keys], tls.usable_ticket_epoch) == ([1], 0), "no replica holds it yet"
    for _ in range(10):
        ring = ring.tick(1.0, LIVES, held, frozenset({Kind.TICKET}), kinds=TLS_KINDS)
    state.set_ring("web", ring)
    tls = service_update(config(TLS), state).tls
    epochs = [k.epoch for k in ring.of(Kind.TICKET)]
    assert [k.epoch for k in tls.ticket_keys] == epochs[-KEYS_GIVEN:] and len(epochs) > KEYS_GIVEN
    assert tls.usable_ticket_epoch == epochs[-2], "the newest is being distributed"
    assert not service_update(config(RACK), state).HasField("tls")


def test_ticket_keys_open_tickets_for_one_more_rotation() -> None:
    ring = KeyRing().tick(0.0, LIVES, none_held, kinds=TLS_KINDS).tick(0.0, LIVES, held, kinds=TLS_KINDS)
    ring = ring.tick(3600.0, LIVES, none_held, kinds=TLS_KINDS)
    assert [k.epoch for k in ring.of(Kind.TICKET)] == [1, 2]
    ring = ring.tick(3601.0, LIVES, held, kinds=TLS_KINDS)
    gone = 3601.0 + 3600.0 + CONFIRM_MARGIN_S
    assert 1 in [k.epoch for k in ring.tick(gone - 0.1, LIVES, none_held, kinds=TLS_KINDS).of(Kind.TICKET)]
    assert 1 not in [k.epoch for k in ring.tick(gone, LIVES, none_held, kinds=TLS_KINDS).of(Kind.TICKET)]
    assert not ring.tick(3602.0, LIVES, held).of(Kind.TICKET), "a service that lost its TLS has none"


@pytest.fixture
async def switch() -> AsyncIterator[FakeSwitch]:
    async with FakeSwitch(NAMES) as fake:
        yield fake


async def test_ticket_key_is_used_when_all_agents_hold_it(switch: FakeSwitch, tmp_path: Path) -> None:
    agents = f"unix:{tmp_path}/agents"
    async with running(switch, tmp_path, TLS) as controller:
        fakes = [FakeAgent(agents, name) for name in ("r1", "r2", "r3")]
        async with fakes[0] as one, fakes[1], fakes[2] as three:

            def tickets() -> tuple[list[int], int]:
                tls = one.newest.services[0].tls
                return [k.epoch for k in tls.ticket_keys], tls.usable_ticket_epoch

            await until(lambda: one.updates and tickets() == ([1], 1), "usable")
            three.silent = True
            controller.rotate("web", frozenset({Kind.TICKET}))
            await until(lambda: tickets() == ([1, 2], 1), "given")
            three.silent = False
            await until(lambda: tickets() == ([1, 2], 2), "used")


async def test_status_of_tls_is_on_page_metrics_and_problems(switch: FakeSwitch, tmp_path: Path) -> None:
    async with running(switch, tmp_path, TLS) as controller, FakeAgent(f"unix:{tmp_path}/agents", "r1") as agent:
        await until(lambda: bool(agent.updates), "an update")
        number = agent.newest.services[0].id
        good = agent_pb2.TlsStatus(
            service=number, serving=True, in_handshake=2, protected=9, adopted=1, handshakes=12, resumed=4,
            unprotected={"tls12": 3, "No Reason": 1}, ticket_epoch=1,
        )  # fmt: skip
        agent.tls = [good, agent_pb2.TlsStatus(service=number + 77, error="of no service")]
        shown = lambda: view.replica(controller, "r1")["tls"]  # noqa: E731
        await until(lambda: shown().get("web", {}).get("protected") == 9, "reported")
        assert shown() == {
            "web": {
                "serving": True, "error": "", "in_handshake": 2, "protected": 9, "adopted": 1, "handshakes": 12,
                "resumed": 4, "unprotected": {"tls12": 3, "other": 1}, "ticket_epoch": 1,
            }
        }  # fmt: skip
        text = Metrics(controller).text().decode()
        for line in (
            'rivulet_service_tls_protected_total{replica="r1",service="web"} 9.0',
            'rivulet_service_tls_adopted_total{replica="r1",service="web"} 1.0',
            'rivulet_service_tls_in_handshake{replica="r1",service="web"} 2.0',
            'rivulet_service_tls_resumed_total{replica="r1",service="web"} 4.0',
            'rivulet_service_tls_unprotected_total{reason="tls12",replica="r1",service="web"} 3.0',
            'rivulet_service_tls_serving{replica="r1",service="web"} 1.0',
            'rivulet_service_tls_faulty{replica="r1",service="web"} 0.0',
        ):
            assert line in text, line
        (table,) = _tls({"replicas": [view.replica(controller, "r1"), view.replica(controller, "r2")]})
        cells = [list(column.cells) for column in table.columns]
        assert [str(cell[0]) for cell in cells] == ["r1", "web", "9", "1", "2", "12", "4", "1", "other 1, tls12 3", "—"]
        assert not any("TLS" in problem for problem in controller.problems())
        bad = agent_pb2.TlsStatus(service=number, error="/etc/site.pem: No such file" + "!" * 1000)
        agent.tls = [bad]
        await until(lambda: any("TLS" in problem for problem in controller.problems()), "the error is a problem")
        (problem,) = (problem for problem in controller.problems() if "TLS" in problem)
        assert problem.startswith("replica r1, service web: TLS: /etc/site.pem: No such file!")
        assert len(problem) < TEXT_MAX + 50
        assert _tls({"replicas": [view.replica(controller, "r2")]}) == []
