"""Rotation in the whole controller under jumping clocks, lost agents, late replicas, restarts and
absent switches.

A model without networks: agents and a ToR are objects, and time is virtual. Every step checks the
effects on clients: an epoch in a request stays accepted while the request is fresh, and a key is in
use only when every replica that counts holds it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from sample_rack import NAMES, RACK, config

from rivulet_controller import clock as clock_module
from rivulet_controller import confirmations, saver
from rivulet_controller import controller as controller_module
from rivulet_controller.agents import Agent
from rivulet_controller.confirmations import AGENT_PATIENCE_S
from rivulet_controller.controller import Controller
from rivulet_controller.keys import RACK_RING, KeyRing, Kind, words
from rivulet_controller.keys import State as KeyState
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2

HORIZON, RESUME = 1.0, 20.0
LIVES = f"keys: {{seal_rotation: 1s, nonce_rotation: 3s, horizon: {HORIZON}s, resume: {RESUME}s}}\n"
TEXT = f"{RACK}    plain: stateless\n{LIVES}"
COOKIE_LIFE = 60.0
"""A cookie is valid for at least one rotation, 12 h by default, which is longer than the model
runs."""
STEP = 0.05


class Memory:
    """A store that outlives its controllers."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def load(self) -> dict[str, bytes]:
        return dict(self.values)

    def save(self, changes: Mapping[str, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def close(self) -> None:
        """Has nothing to close."""


class World:
    """True time, a wall clock that may differ, three agents, one ToR, and a controller that may be
    restarted.
    """

    def __init__(self, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng, self.monkeypatch = rng, monkeypatch
        self.true = 1000.0
        self.lie = 1.7e9
        fake = SimpleNamespace(time=lambda: self.true + self.lie, monotonic=lambda: self.true)
        for module in (controller_module, confirmations, saver, clock_module):
            monkeypatch.setattr(module, "time", fake)
        monkeypatch.setattr("rivulet_controller.agents.time", fake)
        self.store = Memory()
        self.late: dict[str, float] = {}
        """By agent: the time until which it confirms nothing."""
        self.tor_keys: set[int] = set()
        self.stamps = (0, 0)
        self.cookies: tuple[int, int] | None = None
        """Epochs of the key with which the ToR makes cookies, and of the other one that it
        accepts."""
        self.told_cookie: dict[str, int] = {}
        """By agent: the epoch with which its last update makes cookies."""
        self.tor_gone = False
        self.tor_lost_at = 0.0
        self.requests: dict[tuple[Kind, int], float] = {}
        """By epoch: when the last request carrying it was made, which needs the key longest."""
        self.usable_seen: dict[Kind, list[float]] = {kind: [] for kind in Kind}

    async def start(self) -> None:
        """A new controller with the same store; every agent has to register again."""
        self.controller = Controller(config(TEXT), self.store)
        await self.controller.start()
        link = SimpleNamespace(
            connected=not self.tor_gone,
            has_key=self._tor_has,
            parameters=self._tor_row,
            names=NAMES,
            config=SimpleNamespace(name="tor1"),
        )
        state: Any = SimpleNamespace(link=link, lost_at=self.true)
        self.controller.fleet.switches["tor1"] = state
        # Rows of heartbeat keys: this ToR has them at once.
        self.monkeypatch.setattr(self.controller.fleet, "fragments", lambda _name: {})
        self.link, self.switch = link, state

    def _tor_has(self, key: tuple[Any, ...]) -> bool:
        return dict(key[2])["nonce_epoch"] in self.tor_keys

    def _tor_row(self, key: tuple[Any, ...]) -> dict[str, int] | None:
        stateless = self.cookies is not None
        if key[1] == "service_config":
            return {"plain": NAMES.value("plain_t", "STATELESS" if stateless else "KERNEL")}
        if self.cookies is None:
            return None
        secrets = {k.epoch: k.secret for k in self.controller.state.rings["web"].of(Kind.COOKIE)}
        # The ToR's row still has the words of a key that the ring dropped.
        both = [words(secrets.get(epoch, bytes(8))) for epoch in self.cookies]
        return dict(zip(("current0", "current1", "other0", "other1"), both[0] + both[1], strict=True))

    def connect(self, name: str) -> None:
        agent = Agent(name, 1, bytes(6), "model", self.true)
        self.controller.agents.agents[name] = agent
        agent.send(self.controller.updates.first(name))

    def _take_up(self, agent: Agent) -> None:
        """An agent applies its last update and reports it."""
        while not agent._outbox.empty():
            message = agent._outbox.get_nowait()
            if message is not None:
                (service,) = message.update.services
                self.told_cookie[agent.name] = service.usable_cookie_epoch
                agent.note(agent_pb2.Report(version_in_force=message.update.version, ready=True))

    async def step(self) -> None:
        """A step of time: a round of the controller, then the ToR and the agents apply what they
        received.
        """
        self.true += STEP
        controller = self.controller
        before = {kind: self._usable(kind) for kind in Kind}
        holds = {name: agent.held for name, agent in controller.agents.agents.items()}
        controller._tick_rings()
        await controller.saver.save()
        controller.updates.send()
        ring = controller.state.rings["web"]
        if not self.tor_gone:
            self.switch.lost_at = self.true
            self.tor_keys = {k.epoch for k in ring.accepted(Kind.NONCE)}
            self.stamps = (self._usable(Kind.SEAL), self._usable(Kind.NONCE))
            pair = ring.cookies()
            self.cookies = (pair[0].epoch, pair[1].epoch) if pair else None
        for name, agent in controller.agents.agents.items():
            if self.true >= self.late.get(name, 0.0):
                self._take_up(agent)
        for kind in Kind:
            if (now := self._usable(kind)) != before[kind]:
                self.usable_seen[kind].append(self.true)
                self._check_held(kind, now, holds)
        for kind, epoch in zip((Kind.SEAL, Kind.NONCE), self.stamps, strict=True):
            if epoch:
                self.requests[kind, epoch] = self.true
        self._check_cookies()
        self._check_requests()

    def _check_cookies(self) -> None:
        """The ToR accepts cookies of the ToR and of every replica. With several ToRs, keys wait for
        each of them.
        """
        if self.cookies is None:
            return
        makers = {name: self.told_cookie[name] for name in self.controller.agents.agents if name in self.told_cookie}
        for name, epoch in makers.items():
            if epoch and self.true >= self.late.get(name, 0.0):
                assert epoch in self.cookies, f"{name} makes cookies of epoch {epoch}, the ToR reads {self.cookies}"
        for epoch in {self.cookies[0], *makers.values()} - {0}:
            self.requests[Kind.COOKIE, epoch] = self.true

    def _owner(self, kind: Kind) -> str:
        return RACK_RING if kind is Kind.TOR else "web"

    def _ring(self, kind: Kind) -> KeyRing:
        return self.controller.state.rings.get(self._owner(kind), KeyRing())

    def _usable(self, kind: Kind) -> int:
        key = self._ring(kind).usable(kind)
        return key.epoch if key else 0

    def _check_held(self, kind: Kind, epoch: int, holds: Mapping[str, frozenset[tuple[str, Kind, int]]]) -> None:
        """Checks that every replica that counts holds a key when it becomes usable."""
        key = next(k for k in self._ring(kind).of(kind) if k.epoch == epoch)
        holders = [name for name, held in holds.items() if (self._owner(kind), kind, epoch) in held]
        assert holders, "a key without holders became usable"
        for name in holds:
            waited = self.controller.clock.now() - key.created
            assert name in holders or waited >= AGENT_PATIENCE_S - STEP, f"{name} is there and was not waited for"
        if kind is Kind.NONCE and not self.tor_gone:
            assert epoch in self.tor_keys, "the ToR did not have it"

    def _check_requests(self) -> None:
        """Checks that a stamped request is accepted as long as it is fresh, by true time."""
        accepted = {kind: {k.epoch for k in self._ring(kind).accepted(kind)} for kind in Kind}
        fresh = {Kind.SEAL: RESUME, Kind.NONCE: HORIZON, Kind.COOKIE: COOKIE_LIFE}
        self.requests = {key: at for key, at in self.requests.items() if self.true - at < fresh[key[0]]}
        for kind, epoch in self.requests:
            assert epoch in accepted[kind], f"{kind} epoch {epoch} was withdrawn while requests carry it"
        for kind in Kind:
            keys = self._ring(kind).of(kind)
            assert sum(k.state is KeyState.USABLE for k in keys) <= 1
            assert sum(k.state is KeyState.ACCEPTED for k in keys) <= 1
            assert [k.epoch for k in keys] == sorted(k.epoch for k in keys)

    async def happen(self) -> None:
        """Breaks or repairs something."""
        rng, names = self.rng, ("r1", "r2", "r3")
        name = rng.choice(names)
        match rng.choice(("lose", "lose", "come", "come", "come", "late", "clock", "restart", "tor", "rotate")):
            case "lose":
                self.controller.agents.agents.pop(name, None)
            case "come" if name not in self.controller.agents.agents:
                self.connect(name)
            case "late":
                self.late[name] = self.true + rng.choice((0.2, 2.0, 8.0))
            case "clock":
                self.lie += rng.choice((-86400.0, -10.0, -0.5, 0.5, 10.0, 86400.0, 1e8))
            case "restart":
                await self.start()
            case "tor":
                # Absent for less than SWITCH_PATIENCE_S, so keys wait for it.
                self.tor_gone = not self.tor_gone
                self.link.connected = not self.tor_gone
            case "rotate":
                self.controller.rotate("web", frozenset({rng.choice(list(Kind))}))


@pytest.mark.parametrize("seed", range(12))
async def test_requests_never_outlive_their_key(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(random.Random(seed), monkeypatch)
    await world.start()
    for name in ("r1", "r2", "r3"):
        world.connect(name)
    quiet = 0
    for _ in range(2000):
        if world.rng.random() < 0.04:
            await world.happen()
        quiet = quiet + 1 if world.tor_gone else 0
        if quiet > 30 / STEP:
            world.tor_gone, world.link.connected = False, True
        await world.step()
    # Once all parts work again, rotation resumes at its interval.
    world.tor_gone, world.link.connected = False, True
    world.late.clear()
    for name in ("r1", "r2", "r3"):
        if name not in world.controller.agents.agents:
            world.connect(name)
    for _ in range(round(8 / STEP)):
        await world.step()
    began = world.true
    for _ in range(round(12 / STEP)):
        await world.step()
    seal = [at for at in world.usable_seen[Kind.SEAL] if at > began]
    nonce = [at for at in world.usable_seen[Kind.NONCE] if at > began]
    assert len(seal) >= 11 and len(nonce) >= 3, (seal, nonce)
    assert world.usable_seen[Kind.TOR], "a key of heartbeats came into use"


async def test_clock_jump_ahead_withdraws_no_key_early(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(random.Random(0), monkeypatch)
    await world.start()
    world.connect("r1")
    for _ in range(100):
        await world.step()
    assert world.usable_seen[Kind.NONCE], "keys are in use"
    world.lie += 10 * RESUME
    for _ in range(100):
        await world.step()
    # Another machine takes over with a clock a minute ahead, then one with a clock far behind.
    for lie in (60.0, -1e6):
        world.lie += lie
        await world.start()
        world.connect("r1")
        for _ in range(200):
            await world.step()


def test_model_runs_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    World(random.Random(0), monkeypatch)
    assert abs(controller_module.time.monotonic() - 1000.0) < 1.0 and time.time() > 1.6e9
