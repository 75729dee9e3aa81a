"""The controller: keeps every switch and every agent as the configuration, the keys and the operators want it.

One loop: whatever changes (the file, an agent, a switch, an operator, time) sets a flag, and `reconcile` brings
everything up to date from pure functions: rings tick, state is made durable, agents get what changed, switches get
the difference.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .agents import Agent, AgentServer
from .clock import OffsetEstimate, RackClock
from .config import Config, Service, SwitchConfig
from .desired import Fragment, Numbers, Tor, desired, next_hops, tor_of
from .entry import Entry
from .health import Health, ReplicaView
from .keys import KeyRing, Kind, Lives
from .names import Names, NamesError
from .pb.rivulet.agent.v1 import agent_pb2
from .slots import pair
from .state import Decision, OutOfNumbers, State
from .store import Store, StoreError
from .switch import Refused, SwitchError, SwitchLink
from .updates import update

log = logging.getLogger("rivulet.controller")

ARTIFACTS = Path(__file__).resolve().parents[2] / "p4src" / "build"
"""Where the compiled program lies unless a switch's `pipeline` says otherwise."""

AGENT_PATIENCE_S = 5.0
"""How long a new key waits for an agent that does not confirm it, or has just gone; its replica then counts as
lost: without the key it is not ready, and the ToRs leave it out."""

SWITCH_PATIENCE_S = 60.0
"""How long a new key waits for a switch that cannot be reached."""

RETRY_S = 1.0
"""Pause after a refused write or a failed save."""

TICK_S = 1.0
"""The loop looks at time at least this often."""

SETTLE_S = 1.0
"""How long after a new clock offset events may still carry the old one."""

LEARNED_MAX = 4096
"""Sources learned per switch; more are bridged by flooding."""

EVENTS_KEPT = 500


@dataclass(slots=True)
class SwitchState:
    """What the controller knows of one switch beside its entries."""

    link: SwitchLink
    task: asyncio.Task[None] | None = None
    tor: Tor | None = None
    estimate: OffsetEstimate = field(default_factory=OffsetEstimate)
    settled_at: float = 0.0
    """Events before this may have been made under another clock offset."""
    readmitted: dict[tuple[int, int], int] = field(default_factory=dict)
    learned: dict[int, int] = field(default_factory=dict)
    sequence: int | None = None
    problem: str = ""
    retry_at: float = 0.0
    lost_at: float = 0.0
    converged_at: float = 0.0


class Controller:
    """The control plane of one rack. `start` first, then `run` until cancelled, then `stop`."""

    def __init__(self, config: Config, store: Store, path: Path | None = None) -> None:
        self.config = config
        self.path = path
        self.config_problem = ""
        """Why the newest configuration is not the one in force; empty if it is."""
        self.state = State()
        self.agents = AgentServer(self._welcome, self.wake)
        self.switches: dict[str, SwitchState] = {}
        self.health = Health()
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.reconciles = 0
        self.last_reconcile_s = 0.0
        self._store = store
        self._names: dict[Path, Names] = {}
        self._numbers: Numbers | None = None
        self._clock = RackClock()
        self._dirty = asyncio.Event()
        self._working = asyncio.Lock()
        self._rotate: dict[str, set[Kind]] = {}
        self._version = 0
        self._sent: dict[str, tuple[Agent, bytes]] = {}
        self._gone: dict[str, float] = {}

    # Life

    async def start(self) -> None:
        """Loads the state and numbers everything. Raises StoreError, NamesError, OutOfNumbers, ValueError."""
        self.state = State(await asyncio.to_thread(self._store.load))
        self._prepare(self.config)
        self._tick_rings()
        await self._save()

    async def run(self) -> None:
        """Keeps everything as it should be; ends only when cancelled."""
        self._follow_switches()
        self._dirty.set()
        poller = asyncio.create_task(self._poll(), name="poll")
        try:
            while True:
                timeout = min(TICK_S, max(0.005, self._next_time() - time.time()))
                # Not wait_for: in Python 3.11 it can swallow a cancellation that comes with the event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._dirty.wait()
                self._dirty.clear()
                await self.reconcile()
        finally:
            poller.cancel()

    async def stop(self) -> None:
        """Ends the sessions. The switches keep what they have."""
        for switch in self.switches.values():
            if switch.task is not None:
                switch.task.cancel()
        tasks = [s.task for s in self.switches.values() if s.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        for agent in list(self.agents.agents.values()):
            agent.close()

    def wake(self) -> None:
        """Something changed: the loop looks at everything again."""
        self._dirty.set()

    # Configuration

    async def change(self, config: Config, who: str) -> bool:
        """Brings a new configuration into force; on a refusal the old one stays. Says whether it is in force."""
        old = self.config
        if config == old:
            self.config_problem = ""
            return True
        began = time.monotonic()
        async with self._working:
            try:
                self._prepare(config)
                self.config = config
                self._follow_switches()
                for switch in self.switches.values():
                    switch.retry_at = 0.0
                problems = await self._reconcile()
            except (StoreError, NamesError, OutOfNumbers) as error:
                problems = [str(error)]
            if problems:
                self.refuse_config(who, "; ".join(problems))
                self.config = old
                for switch in self.switches.values():
                    switch.retry_at = 0.0
                self._prepare(old)
                self._follow_switches()
                await self._reconcile()
                return False
        self.config_problem = ""
        for name in ("listen", "state"):
            if getattr(config, name) != getattr(old, name):
                log.warning("`%s` changed: it takes effect when the controller starts again", name)
        log.info("configuration by %s in force after %.0f ms", who, (time.monotonic() - began) * 1e3)
        return True

    def refuse_config(self, who: str, problem: str) -> None:
        """Records that a configuration was not taken; the last good one stays."""
        self.config_problem = problem
        log.error("configuration by %s is not taken, the last good one stays:\n%s", who, problem)

    def _prepare(self, config: Config) -> None:
        """Numbers and slots for a configuration. Raises NamesError or OutOfNumbers, and then nothing changed hands."""
        for switch in config.switches:
            self._names_of(switch)
        services = self.state.number("service", (s.name for s in config.services), 1, 4095)
        pools = self.state.number("pool", (s.pool_name for s in config.services), 0, 1023)
        replicas: dict[str, dict[str, int]] = {}
        for service in config.services:
            if service.pool_name not in replicas:
                replicas[service.pool_name] = self.state.number(f"pool {service.pool_name}", service.replicas, 0, 63)
        hops = {
            s.name: self.state.number(f"next_hop {s.name}", next_hops(config, s), 1, 65535) for s in config.switches
        }
        self._numbers = Numbers(services, pools, replicas, hops)
        self._assign(config)

    def _assign(self, config: Config) -> None:
        """Slots by weight, with few moves. A draining replica keeps its slots, so that coming back moves nothing."""
        assert self._numbers is not None
        weights = self.weights(config)
        maintenance = {r.name for r in config.replicas if r.maintenance}
        for service in config.services:
            indices = self._numbers.replicas[service.pool_name]
            by_index = {indices[name]: weights[name] for name in service.replicas if name not in maintenance}
            if by_index and not any(by_index.values()):
                by_index = dict.fromkeys(by_index, 1)
            old = self.state.slots.get(service.name, ())
            self.state.set_slots(service.name, pair(old, service.slots, by_index, service.name))

    def weights(self, config: Config | None = None) -> dict[str, int]:
        """The weights in force: the operators' where there is one, else the configuration's."""
        return {
            r.name: r.weight if (w := self.state.decisions.get(r.name, Decision()).weight) is None else w
            for r in (config or self.config).replicas
        }

    def draining(self) -> frozenset[str]:
        """The replicas that an operator drains."""
        return frozenset(name for name, decision in self.state.decisions.items() if decision.draining)

    async def decide(self, replica: str, draining: bool | None = None, weight: int | None = None) -> None:
        """An operator's decision about a replica; None leaves that part as it is. Raises KeyError, StoreError."""
        if not any(r.name == replica for r in self.config.replicas):
            raise KeyError(f"there is no replica {replica!r}")
        old = self.state.decisions.get(replica, Decision())
        self.state.set_decision(
            replica,
            Decision(old.draining if draining is None else draining, old.weight if weight is None else weight),
        )
        self._assign(self.config)
        await self._save()
        self.wake()

    def rotate(self, service: str, kinds: frozenset[Kind]) -> None:
        """Makes new keys of a service now, whatever their age. Raises KeyError."""
        if not any(s.name == service for s in self.config.services):
            raise KeyError(f"there is no service {service!r}")
        self._rotate.setdefault(service, set()).update(kinds)
        self.wake()

    def _names_of(self, switch: SwitchConfig) -> Names:
        folder = switch.pipeline or ARTIFACTS
        if folder not in self._names:
            self._names[folder] = Names(folder)
        return self._names[folder]

    # Keys

    def _lives(self) -> Lives:
        keys = self.config.keys
        return Lives(keys.seal_rotation, keys.nonce_rotation, keys.resume, keys.horizon)

    def _next_time(self) -> float:
        lives = self._lives()
        return min((ring.next_change(lives) for ring in self.state.rings.values()), default=float("inf"))

    def _tick_rings(self) -> bool:
        """Every ring one step on; whether one changed."""
        now, lives, changed = time.time(), self._lives(), False
        for service in self.config.services:
            ring = self.state.rings.get(service.name, KeyRing())
            wanted = frozenset(self._rotate.pop(service.name, ()))
            new = ring.tick(now, lives, self._held(service, ring, now), wanted)
            if new != ring:
                self.state.set_ring(service.name, new)
                changed = True
        self.state.forget_services(s.name for s in self.config.services)
        return changed

    def _held(self, service: Service, ring: KeyRing, now: float) -> Any:
        """Whether all that must hold a key do: every ToR that can be reached, every replica that can be."""
        created = {(key.kind, key.epoch): key.created for key in ring.keys}

        def held(kind: Kind, epoch: int) -> bool:
            age = abs(now - created[kind, epoch])
            clock = time.monotonic()
            holders = 0
            for name in service.replicas:
                agent = self.agents.agents.get(name)
                if agent is not None and (service.name, kind, epoch) in agent.held:
                    holders += 1
                elif (age if agent is not None else clock - self._gone.get(name, -1e9)) < AGENT_PATIENCE_S:
                    return False
            if not holders:
                return False
            if kind is Kind.NONCE:
                assert self._numbers is not None
                number = self._numbers.services.get(service.name)
                key = ("entry", "nonce_keys", (("nonce_epoch", epoch), ("service", number)), 0, False)
                for switch in self.switches.values():
                    if switch.link.connected:
                        if not switch.link.has_key(key):
                            return False
                    elif clock - switch.lost_at < SWITCH_PATIENCE_S:
                        return False
            return True

        return held

    # Agents

    def _welcome(self, name: str) -> agent_pb2.Update:
        """The first update of an agent that registers. Raises KeyError if the configuration has no such replica."""
        assert self._numbers is not None
        message = update(self.config, name, self._numbers, self.state.rings)
        self._version += 1
        message.version = self._version
        self._gone.pop(name, None)
        self._dirty.set()
        return message

    def _tell_agents(self) -> None:
        """Sends each agent what it must serve, if that changed."""
        assert self._numbers is not None
        now = time.monotonic()
        for name in [n for n in self._sent if n not in self.agents.agents]:
            del self._sent[name]
            self._gone[name] = now
        for name, agent in list(self.agents.agents.items()):
            try:
                message = update(self.config, name, self._numbers, self.state.rings)
            except KeyError:
                log.info("agent %s: its replica is no longer in the configuration", name)
                agent.close()
                continue
            content = message.SerializeToString(deterministic=True)
            sent = self._sent.get(name)
            if sent is not None and sent[0] is agent and sent[1] == content:
                continue
            self._version += 1
            message.version = self._version
            agent.send(message)
            self._sent[name] = (agent, content)

    # Switches

    def _follow_switches(self) -> None:
        """Starts links to new switches, ends those to switches that are gone or have moved."""
        wanted = {s.name: s for s in self.config.switches}
        for name in list(self.switches):
            known = self.switches[name]
            new = wanted.get(name)
            place = ("address", "device_id", "pipeline", "take_over")
            if new is None or any(getattr(new, p) != getattr(known.link.config, p) for p in place):
                if known.task is not None:
                    known.task.cancel()
                del self.switches[name]
            else:
                known.link.config = new
        for name, switch in wanted.items():
            if name not in self.switches:
                link = SwitchLink(switch, self._names_of(switch), self._election_id, self._ready, self._event)
                state = SwitchState(link, lost_at=time.monotonic())
                state.task = asyncio.create_task(link.run(), name=f"switch {name}")
                self.switches[name] = state

    def _election_id(self) -> int:
        """A fresh id for each session: higher than any this controller used before."""
        number = self.state.next_counter("election")
        changes = self.state.changes()
        try:
            self._store.save(changes)
        except StoreError:
            self.state.retry(changes)
            raise
        return number

    async def _ready(self, link: SwitchLink) -> None:
        """A session began: what the switch already has decides whether its ToR id and clock go on."""
        switch = self._state_of(link)
        if switch is None:
            return
        tor = tor_of(link.tor_parameters())
        switch.estimate.reset()
        switch.sequence = None
        if tor is None:
            incarnation = self.state.next_counter(f"tor {link.config.name}") & 0xFF
            switch.tor = Tor(
                tor_id=link.config.number << 8 | incarnation,
                sketch_keys=(secrets.randbits(32), secrets.randbits(32)),
            )
            switch.readmitted = {}
            await self._save()
            log.info("switch %s: new pipeline, ToR id %#06x", link.config.name, switch.tor.tor_id)
        else:
            switch.tor = tor
            switch.readmitted = {
                (match["pool"], match["replica"]): dict(item.params)["readmitted"]
                for item in link.items()
                if isinstance(item, Entry) and item.table == "heartbeat_sources"
                for match in [dict(item.match)]
                if isinstance(match["pool"], int) and isinstance(match["replica"], int)
            }
            switch.learned = self._learned_before(link)
            log.info("switch %s: goes on as ToR %#06x", link.config.name, tor.tor_id)
        switch.retry_at = 0.0
        self.wake()

    def _learned_before(self, link: SwitchLink) -> dict[int, int]:
        """Sources that the switch was taught before this controller started, and that are nobody's of the file."""
        rows = [dict(item.match) for item in link.items() if isinstance(item, Entry) and item.table == "known_sources"]
        return {
            mac: port
            for row in rows
            for mac, port in [(row["mac"], row["ingress_port"])]
            if isinstance(mac, int) and isinstance(port, int) and port in link.config.ports
        }

    def _state_of(self, link: SwitchLink) -> SwitchState | None:
        return next((s for s in self.switches.values() if s.link is link), None)

    def _event(self, link: SwitchLink, event: dict[str, int]) -> None:
        """One digest: it tells the clock, and something that happened."""
        switch = self._state_of(link)
        if switch is None or switch.tor is None:
            return
        now = time.monotonic()
        tor = switch.tor
        if tor.time_valid and now >= switch.settled_at:
            self._clock.adopt(now, event["clock"])
        if now >= switch.settled_at:
            local = (event["clock"] - tor.clock_offset) & 0xFFFF_FFFF_FFFF
            switch.estimate.sample(now, self._clock.now(now, time.time()), local)
            if switch.estimate.wanted(tor.clock_offset if tor.time_valid else None) is not None:
                self.wake()
        kind = link.names.member("event_kind_t", event["kind"])
        lost = 0 if switch.sequence is None else (event["sequence"] - switch.sequence - 1) & 0xFFFF_FFFF
        switch.sequence = event["sequence"]
        if kind == "UNKNOWN_SOURCE":
            self._learn(switch, event["mac"], event["port"])
        self._record(link, kind, event, lost)

    def _learn(self, switch: SwitchState, mac: int, port: int) -> None:
        """A source that the switch did not know; group addresses and foreign ports are nobody's."""
        fits = mac in switch.learned or len(switch.learned) < LEARNED_MAX
        if fits and not mac >> 40 & 1 and port in switch.link.config.ports and switch.learned.get(mac) != port:
            switch.learned[mac] = port
            self.wake()

    def _record(self, link: SwitchLink, kind: str, event: dict[str, int], lost: int) -> None:
        replica = self.replica_at(event["pool"], event["replica"]) if kind in _ABOUT_REPLICAS else None
        reason = link.names.member("drop_reason_t", event["reason"])
        self.events.append(
            {
                "time": time.time(),
                "switch": link.config.name,
                "kind": kind,
                "replica": replica,
                "reason": None if reason == "NONE" else reason,
                "clock": event["clock"],
                "lost_before": lost if lost < 1 << 31 else 0,
            }
        )
        if replica is not None:
            log.info("switch %s: replica %s %s", link.config.name, replica, kind.lower())
            self.health.note_event(link.config.name, replica, kind)

    def view(self, replica: str) -> ReplicaView:
        """Everything that is known of one replica. Raises KeyError."""
        place = next((r for r in self.config.replicas if r.name == replica), None)
        if place is None or self._numbers is None:
            raise KeyError(f"there is no replica {replica!r}")
        readmitted = {}
        for name, switch in self.switches.items():
            sample = self.health.samples.get(name)
            for cell, (pool, index, member) in (sample.places if sample else {}).items():
                if member == replica and sample is not None:
                    current = sample.exclusions.get(cell, 0) & 0xFFFF
                    readmitted[name] = switch.readmitted.get((pool, index), 0) == current
        agent = self.agents.agents.get(replica)
        return self.health.view(replica, agent, replica in self.draining(), place.maintenance, readmitted)

    def replica_at(self, pool: int, index: int) -> str | None:
        """The replica of a place in a pool, by the numbers in force."""
        if self._numbers is None:
            return None
        name = next((n for n, number in self._numbers.pools.items() if number == pool), None)
        members = self._numbers.replicas.get(name or "", {})
        return next((n for n, number in members.items() if number == index), None)

    def fragments(self, name: str) -> dict[str, Fragment] | None:
        """What a switch should hold now; None until its session began once."""
        switch = self.switches.get(name)
        if switch is None or switch.tor is None or self._numbers is None:
            return None
        return desired(
            switch.link.names,
            self.config,
            switch.link.config,
            switch.tor,
            self._numbers,
            self.state.rings,
            self.state.slots,
            self.weights(),
            self.draining(),
            switch.readmitted,
            frozenset(switch.learned.items()),
        )

    # The loop's body

    async def reconcile(self) -> None:
        """Brings everything up to date once. Problems are kept where they belong and tried again."""
        async with self._working:
            try:
                await self._reconcile()
            except StoreError as error:
                log.error("%s; trying again", error)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)

    async def _reconcile(self) -> list[str]:
        """One round; the refusals of switches, in words."""
        began = time.monotonic()
        self._tick_rings()
        # Durable before anybody is told: a key that was used must not be forgotten.
        await self._save()
        self._tell_agents()
        links = [s for s in self.switches.values() if s.link.connected and s.tor is not None]
        results = await asyncio.gather(*(self._apply(s) for s in links))
        self.reconciles += 1
        self.last_reconcile_s = time.monotonic() - began
        return [problem for problem in results if problem]

    async def _apply(self, switch: SwitchState) -> str:
        """One switch; what it refused, or an empty string."""
        now = time.monotonic()
        if now < switch.retry_at:
            return switch.problem
        tor = switch.tor
        assert tor is not None
        offset = switch.estimate.wanted(tor.clock_offset if tor.time_valid else None)
        if offset is not None:
            switch.tor = Tor(tor.tor_id, offset, True, tor.sketch_keys)
            switch.estimate.reset()
            switch.settled_at = float("inf")
            log.info("switch %s: clock offset %d us", switch.link.config.name, offset)
        fragments = self.fragments(switch.link.config.name)
        assert fragments is not None
        try:
            done = await switch.link.apply(fragments)
        except Refused as error:
            switch.problem, switch.retry_at = str(error), now + RETRY_S
            log.error("%s", error)
            asyncio.get_running_loop().call_later(RETRY_S, self.wake)
            return str(error)
        except SwitchError as error:
            switch.problem = str(error)
            return ""
        switch.problem = ""
        if offset is not None:
            switch.settled_at = time.monotonic() + SETTLE_S
        if len(done):
            switch.converged_at = time.time()
            log.info(
                "switch %s: %d inserted, %d modified, %d removed in %.0f ms",
                switch.link.config.name, len(done.insert), len(done.modify), len(done.delete),
                (time.monotonic() - now) * 1e3,
            )  # fmt: skip
            # What was just written may be what a key waited for.
            self.wake()
        return ""

    async def _save(self) -> None:
        changes = self.state.changes()
        if not changes:
            return
        try:
            await asyncio.to_thread(self._store.save, changes)
        except StoreError:
            self.state.retry(changes)
            raise

    async def _poll(self) -> None:
        """Reads counters once a second, notes who is gone, and re-admits who came back."""
        while True:
            await asyncio.sleep(1.0)
            for switch in list(self.switches.values()):
                if not switch.link.connected:
                    continue
                switch.lost_at = time.monotonic()
                try:
                    await self._look(switch)
                except Exception as error:
                    # Counters are for people: a failed look is said and tried again.
                    log.debug("switch %s: counters: %s", switch.link.config.name, error)

    async def _look(self, switch: SwitchState) -> None:
        assert self._numbers is not None
        places = {
            pool << 6 | index: (pool, index, replica)
            for name, pool in self._numbers.pools.items()
            for replica, index in self._numbers.replicas[name].items()
        }
        services = self._numbers.services
        sample = await self.health.read(switch.link, places, services)
        for cell, (pool, index, replica) in places.items():
            exclusions = sample.exclusions.get(cell, 0)
            if sample.returns.get(cell, 0) < exclusions:
                continue
            agent = self.agents.agents.get(replica)
            steady = self.health.steady(switch.link.config.name, replica, agent)
            if steady and switch.readmitted.get((pool, index), 0) != exclusions & 0xFFFF:
                switch.readmitted[pool, index] = exclusions & 0xFFFF
                log.info("switch %s: replica %s takes plain TCP again", switch.link.config.name, replica)
                self.wake()


_ABOUT_REPLICAS = frozenset({"EXCLUDED", "RETURNED", "READMITTED"})
