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
from collections.abc import Callable, Iterable

from .agents import Agent, AgentServer
from .clock import SteadyClock
from .config import SKETCH_MBPS, Config, Service
from .contents import Contents
from .desired import Numbers
from .entry import Entry, Item
from .fleet import READ_INTERVAL_S, Fleet, SwitchState
from .health import ReplicaView
from .keys import RACK_RING, SERVICE_KINDS, KeyRing, Kind, Lives, words
from .local import with_local_parts
from .modes import Mode, next_change, settled, step
from .monitor import Monitor
from .names import NamesError
from .pb.rivulet.agent.v1 import agent_pb2
from .placement import assign, number, weights
from .rack import Rack
from .rack_file import parse
from .returning import Returning
from .state import Decision, OutOfNumbers, State
from .state_history import StateHistory
from .store import Store, StoreError
from .supervise import Loop
from .trods import clocks_apart
from .updates import PLAIN, update
from .validator import Baseline, SwitchBaseline, Validator

log = logging.getLogger("rivulet.controller")

AGENT_PATIENCE_S = 5.0
"""How long a new key waits for an agent that has not confirmed it, or has just disconnected. Then
its replica no longer counts: without the key it is not ready, and the ToRs exclude it."""

SWITCH_PATIENCE_S = 60.0
"""How long a new key waits for a switch that cannot be reached."""

RETRY_S = 1.0
"""Pause before a failed save is repeated."""

RECORD_S = 60.0
"""Interval at which the clocks are recorded for the next controller."""

ELECTION_BITS = 16
"""Bits of an election id below the Unix time in seconds: 65,536 sessions a second get distinct
ids."""

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
        self.agents = AgentServer(self._first_update, self.wake)
        self._reported_macs: dict[str, str] = {}
        self.reconciles = 0
        self.last_reconcile_s = 0.0
        self._rack = Rack(config, State(), Numbers({}, {}, {}, {}, b""))
        history = StateHistory()
        self.fleet = Fleet(
            self._rack, self.wake, self._note, self._next_election, guard, lambda: self.agents.agents,
            history.excluded,
        )  # fmt: skip
        self.monitor = Monitor(self.fleet, history, self._apply_draining)
        self.returning = Returning(self.agents.agents, self._left_at)
        self.loop = Loop("the controller", self.reconcile, TICK_S)
        self.clock = SteadyClock()
        self._store = store
        self._working = asyncio.Lock()
        self._saving = asyncio.Lock()
        self._changes: set[asyncio.Task[bool]] = set()
        self._rotate: dict[str, set[Kind]] = {}
        self._version = 0
        self._sent: dict[str, tuple[Agent, bytes]] = {}
        self._disconnected_at: dict[str, float] = {}
        """By replica: when its agent disconnected (monotonic seconds)."""
        self._connected: set[str] = set()
        """Replicas with an agent at the last check."""
        self._began = time.monotonic()
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
        self._began = time.monotonic()
        self.returning.forget()
        kept = self._stored_config()
        if kept is not None:
            found = await asyncio.to_thread(parse, kept, "the configuration in the state")
            self._rack.config = with_local_parts(found, self.local)
            self.text = kept
        self._rack.draining = self._draining_now()
        self._prepare(self.config)
        self._resume_keys()
        self._tick_rings()
        await self._save()

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
        self._prepare(config)
        self._rack.config = config
        self.fleet.follow()
        self.fleet.retry_now()
        self._tick_rings()
        await self._save()
        problems = await self.fleet.settle()
        if not problems:
            await self._reconcile()
        return problems

    async def _roll_back(self, old: Config, before: State) -> None:
        """Restores configuration and state after a change that was refused."""
        self.state.roll_back(before)
        self._rack.config = old
        self._rack.draining = self._draining_now()
        self._prepare(old)
        self.fleet.follow()
        try:
            await self._save()
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

    def _prepare(self, config: Config) -> None:
        """Assigns numbers and slots for a configuration. Raises NamesError or OutOfNumbers."""
        for switch in config.switches:
            names = self.fleet.names(switch)
            # Raises NamesError here, where it refuses the configuration, rather than while entries
            # are computed.
            for service in config.services:
                for cell in service.meters.of_classes():
                    names.value("service_meter_t", cell.upper())
        for switch in config.wider_than_the_sketch():
            log.warning(
                "switch %s: links of %d Mb/s exceed the replay sketch (%d Mb/s); replicas check what it cannot",
                switch.name, switch.link_mbps, SKETCH_MBPS,
            )  # fmt: skip
        self._rack.numbers = number(config, self.state)
        assign(config, self.state, self._rack.numbers)

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

    def _left_at(self, replica: str) -> float | None:
        return self._disconnected_at.get(replica, time.monotonic() if replica in self._connected else None)

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
            await self._save()
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
        self._rotate.setdefault(service, set()).update(kinds & {*SERVICE_KINDS})
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

    def _update(self, replica: str) -> agent_pb2.Update:
        """The update for an agent, without its version. Raises KeyError."""
        rack = self._rack
        state = self.state
        return update(
            self.config, replica, rack.numbers, state.rings, state.slots, self.weights(), rack.draining,
            state.modes, state.incarnations, state.contents, rack.excluded_by_service(),
        )  # fmt: skip

    # Keys

    def lives(self) -> Lives:
        """Lifetimes of keys, by the configuration in force."""
        keys = self.config.keys
        return Lives(
            keys.seal_rotation, keys.nonce_rotation, keys.resume, keys.horizon, keys.tor_rotation, keys.cookie_rotation
        )

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
        self._note_departures()
        now, lives = self.clock.now(), self.lives()
        if self.state.time is None or now - self.state.time[0] >= RECORD_S:
            self.state.set_time(now, time.time())
        for service in self.config.services:
            ring = self.state.rings.get(service.name, KeyRing())
            wanted = frozenset(self._rotate.pop(service.name, ()))
            given = self.state.given.get(service.name)
            match = {"service": self._rack.numbers.services[service.name]}
            held = self._held(service.name, service.replicas, match, ring, now)
            self.state.set_ring(service.name, ring.tick(now, lives, held, wanted, given))
        absent = {r.name: self._disconnected_at.get(r.name, self._began) for r in self.config.replicas}
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
        held = self._held(RACK_RING, there, None, ring, now)
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
                confirmed, applied = self._is_confirmed(service, mode), self._is_applied(service, mode)
                after = step(mode, service.plain, now, service.plain_drain, confirmed, applied)
                if (str(after), after.tors) != (str(mode), mode.tors):
                    log.info("service %s: plain TCP is %s", service.name, after)
                    # This round sends the stage to switches and agents; their confirmations count
                    # in the next.
                    self.wake()
                self.state.set_mode(service.name, after)

    def _is_confirmed(self, service: Service, mode: Mode) -> bool:
        """Whether replicas have applied a mode. A replica whose agent is absent stops counting
        after a while, as with a key. One that is connected and has not applied the mode, for
        example because its objects cannot be read, delays the change.
        """
        wanted, clock = (service.name, PLAIN[mode.replicas]), time.monotonic()
        maintained = {replica.name for replica in self.config.replicas if replica.maintenance}
        for name in (name for name in service.replicas if name not in maintained):
            agent = self.agents.agents.get(name)
            if agent is None and clock - self._disconnected_at.get(name, self._began) < AGENT_PATIENCE_S:
                return False
            if agent is not None and wanted not in agent.plain:
                return False
        return True

    def _is_applied(self, service: Service, mode: Mode) -> bool:
        """Whether switches have applied a mode; an unreachable one is waited for as long as with a
        key.
        """
        match = (("service", self._rack.numbers.services[service.name]),)
        for switch in self.fleet.switches.values():
            if not switch.link.connected:
                if time.monotonic() - switch.lost_at < SWITCH_PATIENCE_S:
                    return False
                continue
            row = switch.link.parameters(("entry", "service_config", match, 0, False))
            if row is not None and row["plain"] != switch.link.names.value("plain_t", mode.tors.upper()):
                return False
        return True

    def _held(
        self, owner: str, replicas: Iterable[str], service: dict[str, int] | None, ring: KeyRing, now: float
    ) -> Callable[[Kind, int], bool]:
        """A predicate: whether every reachable ToR and every replica that counts holds a
        key.

        `service` is the service's key in tables; None for the ring that replicas and ToRs share.
        """
        created = {(key.kind, key.epoch): key.created for key in ring.keys}

        def held(kind: Kind, epoch: int) -> bool:
            age = abs(now - created[kind, epoch])
            clock = time.monotonic()
            # The first key of a service waits only for replicas that serve. A later key also waits
            # for agents that have not connected since this controller started: they may still be
            # reconnecting. An agent may hold a key that its replica lacks: one that has just
            # restarted reports that it is not ready, while its replica serves with the old keys.
            first = ring.usable(kind) is None
            unseen = float("-inf") if first else self._began
            holders = 0
            for name in replicas:
                agent = self.agents.agents.get(name)
                if agent is not None and (owner, kind, epoch) in agent.held and (first or agent.serves()):
                    holders += 1
                elif (age if agent is not None else clock - self._disconnected_at.get(name, unseen)) < AGENT_PATIENCE_S:
                    return False
            if not holders:
                return False
            for switch in self.fleet.switches.values():
                if not switch.link.connected:
                    # A lost switch keeps stamping requests with the epochs usable at that time.
                    if clock - switch.lost_at < SWITCH_PATIENCE_S:
                        return False
                elif not self._holds(switch, kind, epoch, service, ring):
                    return False
            return True

        return held

    def _holds(
        self, switch: SwitchState, kind: Kind, epoch: int, service: dict[str, int] | None, ring: KeyRing
    ) -> bool:
        """Whether a connected switch has the rows of a key. A seal key has none."""
        if kind is Kind.COOKIE and service is not None:
            return self._checks_cookies(switch, epoch, service, ring)
        if kind is Kind.NONCE and service is not None:
            match = tuple(sorted({"nonce_epoch": epoch, **service}.items()))
            return switch.link.has_key(("entry", "nonce_keys", match, 0, False))
        if kind is Kind.TOR:
            fragments = self.fleet.fragments(switch.link.config.name)
            return fragments is not None and all(
                switch.link.has_key(item.key)
                for name, fragment in fragments.items()
                if name.startswith("pool ")
                for item in fragment
                if isinstance(item, Entry) and ("key_epoch", epoch & 0xFF) in item.match
            )
        return True

    def _checks_cookies(self, switch: SwitchState, epoch: int, service: dict[str, int], ring: KeyRing) -> bool:
        """Whether a switch checks cookies with a key: its row has two keys. True for a service that
        it does not serve without state.
        """
        match = tuple(sorted(service.items()))
        row = switch.link.parameters(("entry", "cookie_keys", match, 0, False))
        if row is None:
            config = switch.link.parameters(("entry", "service_config", match, 0, False))
            return config is None or config["plain"] != switch.link.names.value("plain_t", "STATELESS")
        key = next(key for key in ring.of(Kind.COOKIE) if key.epoch == epoch)
        return words(key.secret) in ((row["current0"], row["current1"]), (row["other0"], row["other1"]))

    # Agents

    def _first_update(self, name: str) -> agent_pb2.Update:
        """The first update for an agent that registers. Raises KeyError if the configuration lacks
        its replica.
        """
        message = self._update(name)
        self._version += 1
        message.version = self._version
        self._disconnected_at.pop(name, None)
        self._connected.add(name)
        self.wake()
        return message

    def _store_reports(self) -> None:
        """Stores what agents report: incarnations of records, which other replicas look up after a
        replica's death, and MAC addresses that the configuration does not give.
        """
        for replica in self.config.replicas:
            agent = self.agents.agents.get(replica.name)
            if agent is not None and agent.records:
                self.state.set_incarnation(replica.name, agent.records)
            if agent is None or len(agent.mac) != 6 or agent.mac[0] & 1 or not any(agent.mac):
                continue
            reported = agent.mac.hex(":")
            if replica.mac is None:
                self.state.set_mac(replica.name, reported)
            elif replica.mac != reported and self._reported_macs.get(replica.name) != reported:
                self._reported_macs[replica.name] = reported
                log.warning(
                    "replica %s: its agent reports MAC address %s, the configuration has %s, which is used",
                    replica.name, reported, replica.mac,
                )  # fmt: skip

    def _note_departures(self) -> None:
        """Notes which agents disconnected, before decisions depend on it."""
        for name in self._connected - self.agents.agents.keys():
            self._sent.pop(name, None)
            self._disconnected_at[name] = time.monotonic()
        self._connected &= self.agents.agents.keys()

    def _send_updates(self) -> None:
        """Sends each agent its update if it changed."""
        for name, agent in list(self.agents.agents.items()):
            try:
                message = self._update(name)
            except KeyError:
                log.info("agent %s: the configuration no longer has its replica", name)
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
        self._store_reports()
        if self.returning.look():
            self._rack.draining = self._draining_now()
        self._tick_rings()
        # Drops keys of removed services only after the switches dropped their entries: until then
        # the change may be refused.
        if self.fleet.converged():
            self.state.forget_services(s.name for s in self.config.services)
        # Saves before sending: a key in use must not be lost.
        await self._save()
        self._send_updates()
        self.fleet.kick()
        self.reconciles += 1
        self.last_reconcile_s = time.monotonic() - began

    async def _next_election(self) -> int:
        """An election id for a session, above all earlier ones: of this controller, of others that
        share its state, and, thanks to the wall clock, of controllers whose state is lost. Saved
        before use. Raises StoreError.
        """
        number = self.state.next_counter("election", int(time.time()) << ELECTION_BITS)
        await self._note()
        return number

    async def _note(self) -> None:
        """Saves counters. A controller that shares no state continues without them, for example
        when the disk is full: a switch that restarts must not wait. Raises StoreError with etcd,
        where the counters keep controllers apart.
        """
        try:
            await self._save()
        except StoreError as error:
            if self.config.etcd is not None:
                raise
            log.error("%s; continuing, the save will be repeated", error)
            self.wake()

    async def _save(self) -> None:
        """Saves what changed, one save at a time, in order. Raises StoreError."""
        async with self._saving:
            changes = self.state.changes()
            if not changes:
                return
            try:
                await asyncio.to_thread(self._store.save, changes)
            except BaseException:
                # A cancelled save may have been written or not; writing it twice does no harm.
                self.state.retry(changes)
                raise

    def refusals(self) -> list[str]:
        """Agents' reasons for not applying their last update, by replica."""
        agents = sorted(self.agents.agents.items())
        return [f"replica {name}: its agent refuses: {agent.error}" for name, agent in agents if agent.error]

    def problems(self) -> list[str]:
        """Problems for the operator: stuck loops, the store, a refused configuration, agents'
        refusals, hosts' clocks.
        """
        found = [self.loop.problem(), *self.fleet.problems(), self.store_problem, self.config_problem, *self.refusals()]
        found += clocks_apart(self.config, {name: a.clock_ahead_s for name, a in self.agents.agents.items()})
        return [problem for problem in found if problem]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
