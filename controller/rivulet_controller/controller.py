"""The controller brings every switch and agent of a rack to what configuration, keys and operators
require.

Any change (of the file, an agent, a switch, an operator's decision, or time) wakes one loop. Its
body, `reconcile`, advances the key rings, saves the state, and sends agents and switches what
differs, all computed by pure functions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import fields

from . import service_tls
from .agent_updates import AgentUpdates
from .agents import AgentServer
from .clock import SteadyClock
from .config import Config
from .confirmations import Confirmations
from .contents import Contents
from .entry import Item
from .fleet import READ_INTERVAL_S, Fleet
from .health import ReplicaView
from .keys import RACK_RING, TLS_KINDS, KeyRing, Kind, Lives
from .local import with_local_parts
from .modes import next_change, settled, step
from .monitor import Monitor
from .names import NamesError
from .numbers import Numbers
from .placement import assign, prepare, weights
from .rack import Rack
from .rack_file import parse
from .returning import Returning
from .saver import Saver
from .state import Decision, OutOfNumbers, State
from .state_history import StateHistory
from .store import Store, StoreError
from .supervise import Loop
from .trods import clocks_apart
from .validator import Baseline, SwitchBaseline, Validator

log = logging.getLogger("rivulet.controller")

RETRY_S = 1.0
"""Pause before a failed save is repeated."""

RECORD_S = 60.0
"""Interval at which the clocks are recorded for the next controller."""

TICK_S = 1.0
"""Longest pause between two rounds of the loop."""


SHARED = "config"
"""Name of the document that several controllers share: the configuration in force, as YAML."""

APPLIED = "applied"
"""Name of a single controller's document: the digest of its file, and the configuration from the
API that replaced it."""


class Controller:
    """The control plane of one rack. Call `start`, then `run` until it is cancelled, then `stop`."""

    def __init__(
        self,
        config: Config,
        store: Store,
        text: str = "",
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """`config` and `text` are the file's, parsed and as text. `guard` raises SwitchError when
        this controller must not write to switches.
        """
        self.local = config
        """The file's configuration, which has this machine's own settings (local.py)."""
        self.text = text
        """The text of the configuration in force."""
        self._file = _digest(text)
        self.config_problem = ""
        """Why the newest configuration is not in force; empty if it is."""
        self.store_problem = ""
        """Why the state in memory could not be saved; empty if it was."""
        self.leading = True
        """Whether this controller writes: with etcd, whether it holds the lease."""
        self.leader = ""
        """The leader's name as last read from etcd, if another controller leads."""
        self.agents = AgentServer(lambda name: self.updates.first(name), self.wake)
        self.reconciles = 0
        self.last_reconcile_s = 0.0
        self._rack = Rack(config, State(), Numbers({}, {}, {}, {}, b""))
        self.saver = Saver(store, self._rack, self.wake)
        history = StateHistory()
        self.fleet = Fleet(
            self._rack, self.wake, self.saver.note, self.saver.next_election, guard, lambda: self.agents.agents,
            history.excluded,
        )  # fmt: skip
        agents = self.agents.agents
        self.confirmations = Confirmations(self._rack, agents, self.fleet)
        self.updates = AgentUpdates(self._rack, agents, self.confirmations, self.weights, self.wake)
        self.monitor = Monitor(self.fleet, history, self._apply_draining)
        self.returning = Returning(self.agents.agents, self.confirmations.left_at)
        self.loop = Loop("the controller", self.reconcile, TICK_S)
        self.clock = SteadyClock()
        self._store = store
        self._working = asyncio.Lock()
        self._changes: set[asyncio.Task[bool]] = set()
        self._rotate: dict[str, set[Kind]] = {}
        self.validator = Validator(self._baseline)
        self.contents = Contents(self._rack, self.fleet.note, self.rotate)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._rack.config

    @property
    def state(self) -> State:
        """The durable state."""
        return self._rack.state

    # Life

    async def start(self) -> None:
        """Loads the state and assigns numbers. Raises StoreError, NamesError, OutOfNumbers,
        ValueError.

        With etcd, the stored configuration is in force, except for this machine's own settings. A
        single controller puts the configuration applied through its API in force, unless the file
        has changed since.
        """
        self._rack.state = State(await asyncio.to_thread(self._store.load))
        self.confirmations.began = time.monotonic()
        self.returning.forget()
        kept = self._stored_config()
        if kept is not None:
            found = await asyncio.to_thread(parse, kept, "the configuration in the state")
            self._rack.config = with_local_parts(found, self.local)
            self.text = kept
        self._rack.draining = self._draining_now()
        self._rack.numbers = prepare(self.config, self.state, self.fleet.names)
        self._resume_keys()
        self._tick_rings()
        await self.saver.save()

    async def run(self) -> None:
        """Runs the loop; ends only when cancelled."""
        self.fleet.follow()
        history = Loop("the history", self._record_history, READ_INTERVAL_S)
        self.loop.start()
        history.start()
        try:
            while True:
                # Keys change by time alone, possibly more often than TICK_S.
                await asyncio.sleep(min(TICK_S, max(0.005, self._next_time() - self.clock.now())))
                if self._next_time() <= self.clock.now():
                    self.wake()
        finally:
            await asyncio.gather(self.loop.stop(), history.stop())

    async def _record_history(self) -> None:
        self.monitor.look(self.config, self.agents.agents, self.view, self.draining())

    def _apply_draining(self) -> None:
        """Puts a changed set of draining replicas in force."""
        self._rack.draining = self._draining_now()
        # Wakes each switch's own loop too, since the controller's loop may wait for another switch.
        self.fleet.kick()
        self.wake()

    async def stop(self) -> None:
        """Ends sessions and agents' streams. Switches keep their entries."""
        await self.validator.stop()
        await self.fleet.stop()
        for agent in list(self.agents.agents.values()):
            agent.close()

    def wake(self) -> None:
        """Requests a round of the loop."""
        self.loop.wake()

    # Configuration and decisions

    def _stored_config(self) -> str | None:
        """The stored configuration that takes precedence over the file's, if any."""
        if self.config.etcd is not None:
            return self.state.documents.get(SHARED)
        applied = self.state.documents.get(APPLIED)
        if applied is None:
            return None
        replaced, _, text = applied.partition("\n")
        if replaced == self._file:
            return text
        log.info(
            "the file changed since a configuration was applied through the API: the file's configuration is in force"
        )
        self.state.drop_document(APPLIED)
        return None

    async def change(self, config: Config, who: str, text: str = "", applied: bool = False) -> bool:
        """Puts a new configuration in force, or keeps the old one if it is refused. Returns whether
        the new one is in force.

        `text` is the YAML. `applied`: it came through the API, otherwise it is the file's.
        Cancelling the caller (a client that hangs up) does not interrupt the change.
        """
        task = asyncio.create_task(self._change(config, who, text, applied))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _change(self, config: Config, who: str, text: str, applied: bool) -> bool:
        """The body of `change`, which runs in a separate task."""
        began = time.monotonic()
        async with self._working:
            old, before = self.config, self.state.copy()
            if text and self.config.etcd is not None:
                self.state.set_document(SHARED, text)
            elif applied:
                self.state.set_document(APPLIED, f"{self._file}\n{text}")
            else:
                self.state.drop_document(APPLIED)
            self.fleet.undecided = True
            try:
                problems = await self._enforce(config)
                if problems:
                    await self._roll_back(old, before)
            except Exception as error:
                if not isinstance(error, (StoreError, NamesError, OutOfNumbers)):
                    log.exception("configuration by %s cannot be put in force", who)
                problems = [str(error) or type(error).__name__]
                await self._roll_back(old, before)
            finally:
                self.fleet.undecided = False
            if problems:
                self.refuse_config(who, "; ".join(problems))
                return False
        self.config_problem = ""
        self.text = text or self.text
        if not applied:
            self.local, self._file = config, _digest(text)
        for name in ("listen", "state"):
            if getattr(config, name) != getattr(old, name):
                log.warning("`%s` changed: restart the controller to apply it", name)
        log.info("configuration by %s is in force after %.0f ms", who, (time.monotonic() - began) * 1e3)
        return True

    async def _enforce(self, config: Config) -> list[str]:
        """Makes a configuration current and writes it to the switches. Returns the switches'
        refusals.

        Agents get it only after all switches accepted it, and keys of removed services are dropped
        after that.
        """
        self._rack.numbers = prepare(config, self.state, self.fleet.names)
        self._rack.config = config
        self.fleet.follow()
        self.fleet.retry_now()
        self._tick_rings()
        await self.saver.save()
        problems = await self.fleet.settle()
        if not problems:
            await self._reconcile()
        return problems

    async def _roll_back(self, old: Config, before: State) -> None:
        """Restores configuration and state after a change that was refused."""
        self.state.roll_back(before)
        self._rack.config = old
        self._rack.draining = self._draining_now()
        self._rack.numbers = prepare(old, self.state, self.fleet.names)
        self.fleet.follow()
        try:
            await self.saver.save()
        except StoreError as error:
            # Memory is consistent; the loop repeats the save.
            log.error("%s; the save will be repeated", error)
        self.fleet.retry_now()
        await self.fleet.settle()
        self.wake()

    def refuse_config(self, who: str, problem: str) -> None:
        """Records a configuration that was refused; the one in force stays."""
        self.config_problem = problem
        log.error("configuration by %s is refused, the one in force stays:\n%s", who, problem)

    def _baseline(self) -> tuple[Baseline, dict[str, list[Item]]]:
        """The state against which a configuration is checked, and the entries that each switch
        holds.
        """
        switches = {
            name: SwitchBaseline(self.fleet.known(name), switch.link.connected)
            for name, switch in self.fleet.switches.items()
        }
        held = {name: switch.link.items() for name, switch in self.fleet.switches.items()}
        return Baseline(self._rack.copy(), self.clock.now(), self.lives(), switches), held

    def weights(self) -> dict[str, int]:
        """The weights in force: the operator's if set, else the configuration's."""
        return weights(self.config, self.state.decisions)

    def draining(self) -> frozenset[str]:
        """Replicas that an operator drains."""
        return frozenset(name for name, decision in self.state.decisions.items() if decision.draining)

    def _draining_now(self) -> frozenset[str]:
        away = self.draining() | self.monitor.left_out()
        self._rack.returning = self.returning.awaited(away, [service.replicas for service in self.config.services])
        return away | self._rack.returning

    async def decide(self, replica: str, draining: bool | None = None, weight: int | None = None) -> None:
        """Records an operator's decision about a replica. None leaves a part unchanged; weight -1
        restores the configuration's.

        Raises KeyError, StoreError.
        """
        if not any(r.name == replica for r in self.config.replicas):
            raise KeyError(f"there is no replica {replica!r}")
        old = self.state.decisions.get(replica, Decision())
        chosen = old.weight if weight is None else None if weight < 0 else weight
        self.state.set_decision(replica, Decision(old.draining if draining is None else draining, chosen))
        assign(self.config, self.state, self._rack.numbers)
        try:
            await self.saver.save()
        except StoreError:
            # A decision that was not saved is not in force.
            self.state.set_decision(replica, old)
            assign(self.config, self.state, self._rack.numbers)
            self.wake()
            raise
        if draining is False:
            self.monitor.take_back(replica)
            modes = self.state.modes
            served = [modes.get(s.name, settled(s.plain)) for s in self.config.services if replica in s.replicas]
            if old.draining and any(mode.replicas == "trods" for mode in served):
                self.returning.take_back(replica)
        self._apply_draining()

    def rotate(self, service: str, kinds: frozenset[Kind]) -> None:
        """Creates new keys of a service; kind TOR: of all replicas and ToRs. Raises KeyError."""
        if not any(s.name == service for s in self.config.services):
            raise KeyError(f"there is no service {service!r}")
        self._rotate.setdefault(service, set()).update(kinds & {*TLS_KINDS})
        if Kind.TOR in kinds:
            self._rotate.setdefault(RACK_RING, set()).add(Kind.TOR)
        self.wake()

    def view(self, replica: str) -> ReplicaView:
        """The joined view of one replica. Raises KeyError."""
        place = next((r for r in self.config.replicas if r.name == replica), None)
        if place is None:
            raise KeyError(f"there is no replica {replica!r}")
        agent = self.agents.agents.get(replica)
        readmitted = self.fleet.readmitted(replica)
        return self.fleet.health.view(
            replica, agent, replica in self.draining() | self._rack.returning, place.maintenance, readmitted,
            self.monitor.words(replica), replica in self.monitor.left_out(),
        )  # fmt: skip

    # Keys

    def lives(self) -> Lives:
        """Lifetimes of keys, by the configuration in force."""
        return Lives(**{field.name: getattr(self.config.keys, field.name) for field in fields(Lives)})

    def _next_time(self) -> float:
        lives = self.lives()
        times = [ring.next_change(lives) for ring in self.state.rings.values()]
        drains = {service.name: service.plain_drain for service in self.config.services}
        times += [next_change(mode, drains.get(name, 0.0)) for name, mode in self.state.modes.items()]
        return min(times, default=float("inf"))

    def _resume_keys(self) -> None:
        """Continues with the keys of an earlier controller, which may have run on another machine.

        The clock resumes at the newest time on record, so that no key is withdrawn for time that
        passed between the two controllers or because of a wall clock that differs. That time only
        makes rotations due.
        """
        newest = max((ring.newest() for ring in self.state.rings.values()), default=0.0)
        record, lives = self.state.time, self.lives()
        start = max(newest, record[0] if record else 0.0)
        self.clock = SteadyClock(start or None)
        now = self.clock.now()
        between = max(time.time() - record[1], 0.0) if record else 0.0
        for service, ring in self.state.rings.items():
            for kind in Kind:
                key = ring.usable(kind)
                if key is not None and now - key.created + between >= lives.rotation(kind):
                    self._rotate.setdefault(service, set()).add(kind)

    def _tick_rings(self) -> None:
        """Advances every key ring, the contents in force, and the modes of plain TCP."""
        self.confirmations.note_departures()
        now, lives = self.clock.now(), self.lives()
        if self.state.time is None or now - self.state.time[0] >= RECORD_S:
            self.state.set_time(now, time.time())
        for service in self.config.services:
            ring = self.state.rings.get(service.name, KeyRing())
            wanted = frozenset(self._rotate.pop(service.name, ()))
            given = self.state.given.get(service.name)
            match = {"service": self._rack.numbers.services[service.name]}
            held = self.confirmations.held(service.name, service.replicas, match, ring, now)
            self.state.set_ring(service.name, ring.tick(now, lives, held, wanted, given, service_tls.kinds_of(service)))
        absent = {r.name: self.confirmations.absent_since(r.name) for r in self.config.replicas}
        self.contents.look(self.agents.agents, absent)
        agents = self.agents.agents
        refused = {
            service.name: frozenset(
                name for name in service.replicas if name in agents and service.name in agents[name].refused
            )
            for service in self.config.services
        }
        self._rack.refused = {service: names for service, names in refused.items() if names}
        self._step_modes(now)
        ring, given = self.state.rings.get(RACK_RING, KeyRing()), self.state.given.get(RACK_RING)
        wanted = frozenset(self._rotate.pop(RACK_RING, ()))
        serving = {name: None for service in self.config.services for name in service.replicas}
        there = tuple(r.name for r in self.config.replicas if r.name in serving and not r.maintenance)
        held = self.confirmations.held(RACK_RING, there, None, ring, now)
        self.state.set_ring(RACK_RING, ring.tick(now, lives, held, wanted, given, (Kind.TOR,)))

    # Plain TCP

    def _step_modes(self, now: float) -> None:
        """Advances every service's mode of plain TCP towards the configuration's."""
        for service in self.config.services:
            mode = self.state.modes.get(service.name)
            if mode is None:
                self.state.set_mode(service.name, settled(service.plain))
            elif "stateless" == service.plain != mode.replicas and self.contents.awaits(service.name):
                # Replicas keep the old mode until it is known which content they have to serve.
                continue
            elif not mode.is_settled or mode.replicas != service.plain:
                confirmed, applied = (
                    self.confirmations.is_confirmed(service, mode),
                    self.confirmations.is_applied(service, mode),
                )
                after = step(mode, service.plain, now, service.plain_drain, confirmed, applied)
                if (str(after), after.tors) != (str(mode), mode.tors):
                    log.info("service %s: plain TCP is %s", service.name, after)
                    # This round sends the stage to switches and agents; their confirmations count
                    # in the next.
                    self.wake()
                self.state.set_mode(service.name, after)

    # The loop's body

    async def reconcile(self) -> None:
        """One round of the loop. An error is recorded where it belongs, and the work is repeated."""
        async with self._working:
            try:
                await self._reconcile()
                self.store_problem = ""
            except StoreError as error:
                if str(error) != self.store_problem:
                    log.error("%s; the save will be repeated", error)
                self.store_problem = str(error)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)

    async def _reconcile(self) -> None:
        """The body of a round. Raises StoreError before anything was sent."""
        began = time.monotonic()
        self.updates.store_reports()
        if self.returning.look():
            self._rack.draining = self._draining_now()
        self._tick_rings()
        # Drops keys of removed services only after the switches dropped their entries: until then
        # the change may be refused.
        if self.fleet.converged():
            self.state.forget_services(s.name for s in self.config.services)
        # Saves before sending: a key in use must not be lost.
        await self.saver.save()
        self.updates.send()
        self.fleet.kick()
        self.reconciles += 1
        self.last_reconcile_s = time.monotonic() - began

    def problems(self) -> list[str]:
        """Problems for the operator: stuck loops, the store, a refused configuration, agents'
        refusals, TLS, hosts' clocks.
        """
        found = [self.loop.problem(), *self.fleet.problems(), self.store_problem, self.config_problem]
        found += self.updates.refusals()
        found += service_tls.problems({name: agent.tls for name, agent in self.agents.agents.items()})
        found += clocks_apart(self.config, {name: a.clock_ahead_s for name, a in self.agents.agents.items()})
        return [problem for problem in found if problem]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
