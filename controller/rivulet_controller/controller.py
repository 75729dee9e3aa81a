"""The controller: keeps every switch and every agent as the configuration, the keys and the
operators want it.

One loop: whatever changes (the file, an agent, a switch, an operator, time) sets a flag, and
`reconcile` brings everything up to date from pure functions: rings tick, state is made durable,
agents get what changed, switches get the difference.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable

from .agents import Agent, AgentServer
from .chronicle import Chronicle
from .clock import SteadyClock
from .config import SKETCH_MBPS, Config, Service
from .contents import Contents
from .desired import Numbers
from .entry import Entry, Item
from .fleet import LOOK_S, Fleet, SwitchState
from .health import ReplicaView
from .judge import Judge, Situation, Standing
from .keys import RACK_RING, SERVICE_KINDS, KeyRing, Kind, Lives, words
from .local import with_local_parts
from .lookout import Lookout
from .modes import Mode, next_change, settled, step
from .names import NamesError
from .pb.rivulet.agent.v1 import agent_pb2
from .placement import assign, number, weights
from .rack import Rack
from .rack_file import parse
from .returning import Returning
from .state import Decision, OutOfNumbers, State
from .store import Store, StoreError
from .supervise import Loop
from .updates import PLAIN, update

log = logging.getLogger("rivulet.controller")

AGENT_PATIENCE_S = 5.0
"""How long a new key waits for an agent that does not confirm it, or has just gone; its replica
then counts as lost: without the key it is not ready, and the ToRs leave it out."""

SWITCH_PATIENCE_S = 60.0
"""How long a new key waits for a switch that cannot be reached."""

RETRY_S = 1.0
"""Pause after a failed save."""

RECORD_S = 60.0
"""How often the time is recorded for the controller that comes next."""

ELECTION_BITS = 16
"""Sessions of one second that election ids tell apart."""

TICK_S = 1.0
"""The loop looks at time at least this often."""


SHARED = "config"
"""The document that several controllers share: the configuration in force, as YAML."""

APPLIED = "applied"
"""The document of a controller alone: what came through its API, and the digest of the file that it
replaced."""


class Controller:
    """The control plane of one rack. `start` first, then `run` until cancelled, then `stop`."""

    def __init__(
        self,
        config: Config,
        store: Store,
        text: str = "",
        guard: Callable[[], None] = lambda: None,
    ) -> None:
        """`config` and `text` are the file's, parsed and as it is. `guard` raises SwitchError when
        this controller must not write.
        """
        self.local = config
        """The file's configuration: where this machine's own parts come from (local.py)."""
        self.text = text
        """The configuration in force as it was given."""
        self._file = _digest(text)
        self.config_problem = ""
        """Why the newest configuration is not the one in force; empty if it is."""
        self.store_problem = ""
        """Why what is known is not durable; empty if it is."""
        self.leading = True
        """Whether this controller writes; with several controllers, whether it holds the lease."""
        self.leader = ""
        """Who leads, as last seen in etcd, when it is not this controller."""
        self.agents = AgentServer(self._welcome, self.wake)
        self._told_macs: dict[str, str] = {}
        self.reconciles = 0
        self.last_reconcile_s = 0.0
        self._rack = Rack(config, State(), Numbers({}, {}, {}, {}, b""))
        chronicle = Chronicle()
        self.fleet = Fleet(
            self._rack, self.wake, self._note, self._next_election, guard, lambda: self.agents.agents,
            chronicle.excluded,
        )  # fmt: skip
        self.lookout = Lookout(self.fleet, chronicle, self._spare)
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
        self._gone: dict[str, float] = {}
        """Since when agents that were there are not."""
        self._there: set[str] = set()
        """Agents that were there when it was last looked."""
        self._began = time.monotonic()
        self.judge = Judge(self._situation)
        self.contents = Contents(self._rack, self.fleet.note, self.rotate)

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._rack.config

    @property
    def state(self) -> State:
        """What is remembered."""
        return self._rack.state

    # Life

    async def start(self) -> None:
        """Loads the state and numbers everything. Raises StoreError, NamesError, OutOfNumbers,
        ValueError.

        Where controllers share their state, the configuration in it is the one in force, but for
        what is this machine's own; for a controller alone what was applied through the API is,
        until the file changes.
        """
        self._rack.state = State(await asyncio.to_thread(self._store.load))
        self._began = time.monotonic()
        self.returning.forget()
        kept = self._kept()
        if kept is not None:
            found = await asyncio.to_thread(parse, kept, "the configuration in the state")
            self._rack.config = with_local_parts(found, self.local)
            self.text = kept
        self._rack.draining = self._away()
        self._prepare(self.config)
        self._take_keys_over()
        self._tick_rings()
        await self._save()

    async def run(self) -> None:
        """Keeps everything as it should be; ends only when cancelled."""
        self.fleet.follow()
        history = Loop("the history", self._remember, LOOK_S)
        self.loop.start()
        history.start()
        try:
            while True:
                # Keys have times of their own.
                await asyncio.sleep(min(TICK_S, max(0.005, self._next_time() - self.clock.now())))
                if self._next_time() <= self.clock.now():
                    self.wake()
        finally:
            await asyncio.gather(self.loop.stop(), history.stop())

    async def _remember(self) -> None:
        self.lookout.look(self.config, self.agents.agents, self.view, self.draining())

    def _spare(self) -> None:
        """Brings into force who gets nothing new."""
        self._rack.draining = self._away()
        # Not by the loop alone: it may wait for another switch.
        self.fleet.kick()
        self.wake()

    async def stop(self) -> None:
        """Ends the sessions. The switches keep what they have."""
        await self.judge.stop()
        await self.fleet.stop()
        for agent in list(self.agents.agents.values()):
            agent.close()

    def wake(self) -> None:
        """Something changed: the loop looks at everything again."""
        self.loop.wake()

    # Configuration and decisions

    def _kept(self) -> str | None:
        """The configuration in the state that goes before the file's."""
        if self.config.etcd is not None:
            return self.state.documents.get(SHARED)
        applied = self.state.documents.get(APPLIED)
        if applied is None:
            return None
        replaced, _, text = applied.partition("\n")
        if replaced == self._file:
            return text
        log.info("the file changed since a configuration was applied: the file's is in force")
        self.state.drop_document(APPLIED)
        return None

    async def change(self, config: Config, who: str, text: str = "", applied: bool = False) -> bool:
        """Brings a new configuration into force; on a refusal the old one stays. Says whether it is
        in force.

        `text` is the YAML. `applied`: it came through the API; otherwise it is the file's. A caller
        that is cancelled, as by a client that hangs up, does not stop it half way.
        """
        task = asyncio.create_task(self._change(config, who, text, applied))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

    async def _change(self, config: Config, who: str, text: str, applied: bool) -> bool:
        """`change`, to its end."""
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
                    await self._go_back(old, before)
            except Exception as error:
                if not isinstance(error, (StoreError, NamesError, OutOfNumbers)):
                    log.exception("configuration by %s cannot be brought into force", who)
                problems = [str(error) or type(error).__name__]
                await self._go_back(old, before)
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
                log.warning("`%s` changed: it takes effect when the controller starts again", name)
        log.info("configuration by %s in force after %.0f ms", who, (time.monotonic() - began) * 1e3)
        return True

    async def _enforce(self, config: Config) -> list[str]:
        """Makes a configuration the one in force and writes it; the refusals of switches, in words.

        The switches first: agents are told what is in force, and keys of what is gone are
        forgotten, once all of them have taken it.
        """
        self._prepare(config)
        self._rack.config = config
        self.fleet.follow()
        self.fleet.try_now()
        self._tick_rings()
        await self._save()
        problems = await self.fleet.settle()
        if not problems:
            await self._reconcile()
        return problems

    async def _go_back(self, old: Config, before: State) -> None:
        """The configuration and the state as they were before a change that was refused half way."""
        self.state.roll_back(before)
        self._rack.config = old
        self._rack.draining = self._away()
        self._prepare(old)
        self.fleet.follow()
        try:
            await self._save()
        except StoreError as error:
            # In memory it is right; the loop goes on trying.
            log.error("%s; trying again", error)
        self.fleet.try_now()
        await self.fleet.settle()
        self.wake()

    def refuse_config(self, who: str, problem: str) -> None:
        """Records that a configuration was not taken; the last good one stays."""
        self.config_problem = problem
        log.error("configuration by %s is not taken, the last good one stays:\n%s", who, problem)

    def _situation(self) -> tuple[Situation, dict[str, list[Item]]]:
        """What a configuration is judged against, and what each switch holds."""
        switches = {
            name: Standing(self.fleet.known(name), switch.link.connected)
            for name, switch in self.fleet.switches.items()
        }
        held = {name: switch.link.items() for name, switch in self.fleet.switches.items()}
        return Situation(self._rack.copy(), self.clock.now(), self.lives(), switches), held

    def _prepare(self, config: Config) -> None:
        """Numbers and slots for a configuration. Raises NamesError or OutOfNumbers."""
        for switch in config.switches:
            names = self.fleet.names(switch)
            # Told now, for the file that wants them, and not at the first packet of a table.
            for service in config.services:
                for cell in service.meters.of_classes():
                    names.value("service_meter_t", cell.upper())
        for switch in config.wider_than_the_sketch():
            log.warning(
                "switch %s: links of %d Mb/s bring more than the replay sketch judges (%d Mb/s); hosts judge the rest",
                switch.name, switch.link_mbps, SKETCH_MBPS,
            )  # fmt: skip
        self._rack.numbers = number(config, self.state)
        assign(config, self.state, self._rack.numbers)

    def weights(self) -> dict[str, int]:
        """The weights in force: the operators' where there is one, else the configuration's."""
        return weights(self.config, self.state.decisions)

    def draining(self) -> frozenset[str]:
        """The replicas that an operator drains."""
        return frozenset(name for name, decision in self.state.decisions.items() if decision.draining)

    def _away(self) -> frozenset[str]:
        away = self.draining() | self.lookout.left_out()
        self._rack.returning = self.returning.awaited(away, [service.replicas for service in self.config.services])
        return away | self._rack.returning

    def _left_at(self, replica: str) -> float | None:
        return self._gone.get(replica, time.monotonic() if replica in self._there else None)

    async def decide(self, replica: str, draining: bool | None = None, weight: int | None = None) -> None:
        """An operator's decision about a replica; None leaves that part as it is, weight -1 is the
        file's again.

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
            # What is not durable is not in force either.
            self.state.set_decision(replica, old)
            assign(self.config, self.state, self._rack.numbers)
            self.wake()
            raise
        if draining is False:
            self.lookout.take_back(replica)
            modes = self.state.modes
            served = [modes.get(s.name, settled(s.plain)) for s in self.config.services if replica in s.replicas]
            if old.draining and any(mode.replicas == "trods" for mode in served):
                self.returning.take_back(replica)
        self._spare()

    def rotate(self, service: str, kinds: frozenset[Kind]) -> None:
        """Makes new keys of a service now, or those between all replicas and ToRs. Raises KeyError."""
        if not any(s.name == service for s in self.config.services):
            raise KeyError(f"there is no service {service!r}")
        self._rotate.setdefault(service, set()).update(kinds & {*SERVICE_KINDS})
        if Kind.TOR in kinds:
            self._rotate.setdefault(RACK_RING, set()).add(Kind.TOR)
        self.wake()

    def view(self, replica: str) -> ReplicaView:
        """Everything that is known of one replica. Raises KeyError."""
        place = next((r for r in self.config.replicas if r.name == replica), None)
        if place is None:
            raise KeyError(f"there is no replica {replica!r}")
        agent = self.agents.agents.get(replica)
        readmitted = self.fleet.readmitted(replica)
        return self.fleet.health.view(
            replica, agent, replica in self.draining() | self._rack.returning, place.maintenance, readmitted,
            self.lookout.words(replica), replica in self.lookout.left_out(),
        )  # fmt: skip

    def _update(self, replica: str) -> agent_pb2.Update:
        """What an agent is told. Raises KeyError."""
        rack = self._rack
        state = self.state
        return update(
            self.config, replica, rack.numbers, state.rings, state.slots, self.weights(), rack.draining,
            state.modes, state.incarnations, state.contents, rack.excluded_by_service(),
        )  # fmt: skip

    # Keys

    def lives(self) -> Lives:
        """How long keys live, by the configuration in force."""
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

    def _take_keys_over(self) -> None:
        """Goes on with the keys that a controller before this one made, maybe on another machine.

        Nothing is withdrawn for the time between, whatever the wall clocks say; what they say only
        makes new keys.
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
        """Every ring one step on."""
        self._miss_agents()
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
        absent = {r.name: self._gone.get(r.name, self._began) for r in self.config.replicas}
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
        """Every service's plain TCP one step nearer to what the configuration says."""
        for service in self.config.services:
            mode = self.state.modes.get(service.name)
            if mode is None:
                self.state.set_mode(service.name, settled(service.plain))
            elif "stateless" == service.plain != mode.replicas and self.contents.awaits(service.name):
                # Replicas serve as before until it is known from what they are to answer.
                continue
            elif not mode.is_settled or mode.replicas != service.plain:
                told, held = self._told(service, mode), self._at_tors(service, mode)
                after = step(mode, service.plain, now, service.plain_drain, told, held)
                if (str(after), after.tors) != (str(mode), mode.tors):
                    log.info("service %s: plain TCP is %s", service.name, after)
                    # Switches and agents are told in this round; what they make of it counts in the
                    # next.
                    self.wake()
                self.state.set_mode(service.name, after)

    def _told(self, service: Service, mode: Mode) -> bool:
        """Whether replicas serve plain TCP as they were told. Who is not there counts as lost after
        a while, as with a key; one that is there and does not serve so, as when its objects cannot
        be read, holds the change up.
        """
        wanted, clock = (service.name, PLAIN[mode.replicas]), time.monotonic()
        maintained = {replica.name for replica in self.config.replicas if replica.maintenance}
        for name in (name for name in service.replicas if name not in maintained):
            agent = self.agents.agents.get(name)
            if agent is None and clock - self._gone.get(name, self._began) < AGENT_PATIENCE_S:
                return False
            if agent is not None and wanted not in agent.plain:
                return False
        return True

    def _at_tors(self, service: Service, mode: Mode) -> bool:
        """Whether switches serve plain TCP as they were told; who cannot be reached is waited for
        as with a key.
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
        """Whether all that must hold a key do: every ToR that can be reached, every replica that
        can be.

        `service` is the key of the service in tables; None: keys of the ring that replicas and ToRs
        share.
        """
        created = {(key.kind, key.epoch): key.created for key in ring.keys}

        def held(kind: Kind, epoch: int) -> bool:
            age = abs(now - created[kind, epoch])
            clock = time.monotonic()
            # A service that has no key yet waits for nobody who does not serve. Later, who was not
            # there yet may be on the way here from the controller before this one, and an agent may
            # hold what its replica does not: one that has just started says that it is not ready,
            # while the replica serves with the keys of before.
            first = ring.usable(kind) is None
            unseen = float("-inf") if first else self._began
            holders = 0
            for name in replicas:
                agent = self.agents.agents.get(name)
                if agent is not None and (owner, kind, epoch) in agent.held and (first or agent.serves()):
                    holders += 1
                elif (age if agent is not None else clock - self._gone.get(name, unseen)) < AGENT_PATIENCE_S:
                    return False
            if not holders:
                return False
            for switch in self.fleet.switches.values():
                if not switch.link.connected:
                    # It goes on stamping what is usable now, of either kind.
                    if clock - switch.lost_at < SWITCH_PATIENCE_S:
                        return False
                elif not self._holds(switch, kind, epoch, service, ring):
                    return False
            return True

        return held

    def _holds(
        self, switch: SwitchState, kind: Kind, epoch: int, service: dict[str, int] | None, ring: KeyRing
    ) -> bool:
        """Whether a switch that is connected has the rows of a key; a seal key has none."""
        if kind is Kind.COOKIE and service is not None:
            return self._reads(switch, epoch, service, ring)
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

    def _reads(self, switch: SwitchState, epoch: int, service: dict[str, int], ring: KeyRing) -> bool:
        """Whether a switch reads cookies of an epoch: it has two keys, of a service that it answers
        without state.
        """
        match = tuple(sorted(service.items()))
        row = switch.link.parameters(("entry", "cookie_keys", match, 0, False))
        if row is None:
            config = switch.link.parameters(("entry", "service_config", match, 0, False))
            return config is None or config["plain"] != switch.link.names.value("plain_t", "STATELESS")
        key = next(key for key in ring.of(Kind.COOKIE) if key.epoch == epoch)
        return words(key.secret) in ((row["current0"], row["current1"]), (row["other0"], row["other1"]))

    # Agents

    def _welcome(self, name: str) -> agent_pb2.Update:
        """The first update of an agent that registers. Raises KeyError if the configuration has no
        such replica.
        """
        message = self._update(name)
        self._version += 1
        message.version = self._version
        self._gone.pop(name, None)
        self._there.add(name)
        self.wake()
        return message

    def _note_agents(self) -> None:
        """Takes over what agents say: incarnations of records, which others look for when the
        replica is gone, and MAC addresses of replicas of which the configuration gives none.
        """
        for replica in self.config.replicas:
            agent = self.agents.agents.get(replica.name)
            if agent is not None and agent.records:
                self.state.set_incarnation(replica.name, agent.records)
            if agent is None or len(agent.mac) != 6 or agent.mac[0] & 1 or not any(agent.mac):
                continue
            said = agent.mac.hex(":")
            if replica.mac is None:
                self.state.set_mac(replica.name, said)
            elif replica.mac != said and self._told_macs.get(replica.name) != said:
                self._told_macs[replica.name] = said
                log.warning(
                    "replica %s: its agent says %s, the configuration %s: the configuration's is used",
                    replica.name, said, replica.mac,
                )  # fmt: skip

    def _miss_agents(self) -> None:
        """Notes who has gone, before anything is decided without them."""
        for name in self._there - self.agents.agents.keys():
            self._sent.pop(name, None)
            self._gone[name] = time.monotonic()
        self._there &= self.agents.agents.keys()

    def _tell_agents(self) -> None:
        """Sends each agent what it must serve, if that changed."""
        for name, agent in list(self.agents.agents.items()):
            try:
                message = self._update(name)
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

    # The loop's body

    async def reconcile(self) -> None:
        """Brings everything up to date once. Problems are kept where they belong and tried again."""
        async with self._working:
            try:
                await self._reconcile()
                self.store_problem = ""
            except StoreError as error:
                if str(error) != self.store_problem:
                    log.error("%s; trying again", error)
                self.store_problem = str(error)
                asyncio.get_running_loop().call_later(RETRY_S, self.wake)

    async def _reconcile(self) -> None:
        """One round. Raises StoreError; then nobody was told anything."""
        began = time.monotonic()
        self._note_agents()
        if self.returning.look():
            self._rack.draining = self._away()
        self._tick_rings()
        # Keys of a service that is gone go with its last entry, not before: a change may still be
        # refused.
        if self.fleet.converged():
            self.state.forget_services(s.name for s in self.config.services)
        # Durable before anybody is told: a key that was used must not be forgotten.
        await self._save()
        self._tell_agents()
        self.fleet.kick()
        self.reconciles += 1
        self.last_reconcile_s = time.monotonic() - began

    async def _next_election(self) -> int:
        """An election id for a session, above all before it: this controller's, those of others
        with the same state, and, by the wall clock, those of controllers whose state is gone.
        Durable before it is used. Raises StoreError.
        """
        number = self.state.next_counter("election", int(time.time()) << ELECTION_BITS)
        await self._note()
        return number

    async def _note(self) -> None:
        """Makes counters durable. With a state of its own a controller goes on without, as on a
        full disk: a switch that starts anew must not wait for it. Raises StoreError where several
        share the state, whose counters tell them apart.
        """
        try:
            await self._save()
        except StoreError as error:
            if self.config.etcd is not None:
                raise
            log.error("%s; going on, and trying again", error)
            self.wake()

    async def _save(self) -> None:
        """Makes durable what is not. One save at a time, in order. Raises StoreError."""
        async with self._saving:
            changes = self.state.changes()
            if not changes:
                return
            try:
                await asyncio.to_thread(self._store.save, changes)
            except BaseException:
                # Cancelled, it may have been written or not: written twice is the same.
                self.state.retry(changes)
                raise

    def refusals(self) -> list[str]:
        """What agents do not serve of their last update, in their words, by replica."""
        agents = sorted(self.agents.agents.items())
        return [f"replica {name}: its agent refuses: {agent.error}" for name, agent in agents if agent.error]

    def problems(self) -> list[str]:
        """What an operator should know, in words: a watchdog's findings, the store, a refused
        configuration, what agents refuse.
        """
        found = [self.loop.problem(), *self.fleet.problems(), self.store_problem, self.config_problem, *self.refusals()]
        return [problem for problem in found if problem]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
