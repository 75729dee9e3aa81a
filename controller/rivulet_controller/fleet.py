"""The switches of a rack: their sessions, ToR ids, clocks, events, and learned neighbours.

Holds what belongs to one switch besides its table entries; the controller decides when entries are
applied.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .agents import Agent
from .clock import RackClock
from .config import SwitchConfig
from .desired import Fragment
from .health import Health
from .limits import IPAddress
from .listen_config import is_local
from .names import Names, program_of
from .neighbours import parse_reply, request_frame, source_address
from .numbers import Tor, tor_of
from .paths import too_big
from .rack import Rack, SwitchFacts, fragments_of
from .supervise import Loop
from .switch import SwitchError, SwitchLink, WriteRefused
from .switch_state import SwitchState, allowed_by_rows, end, int_of, rows_of

log = logging.getLogger("rivulet.fleet")

RETRY_S = 1.0
"""Pause before a refused write is repeated."""

READ_INTERVAL_S = 1.0
"""Interval at which counters are read."""

SETTLE_S = 1.0
"""How long after a change of the clock offset events may still carry the old one."""

EVENTS_KEPT = 500

_ABOUT_REPLICAS = frozenset({"EXCLUDED", "RETURNED", "READMITTED"})


class Fleet:
    """All switches. Calls `wake` when the controller's loop has to run."""

    def __init__(
        self,
        rack: Rack,
        wake: Callable[[], None],
        save: Callable[[], Awaitable[None]],
        election_id: Callable[[], Awaitable[int]],
        guard: Callable[[], None],
        agents: Callable[[], dict[str, Agent]] = dict,
        excluded: Callable[[str, str], None] = lambda replica, switch: None,
    ) -> None:
        self.rack = rack
        self.switches: dict[str, SwitchState] = {}
        self.health = Health()
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        """Events that packets alone can cause."""
        self.replica_events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        """Exclusions, returns and readmissions, kept apart so that a flood of other events cannot
        displace them."""
        self._wake = wake
        self._save = save
        self._election_id = election_id
        self._guard = guard
        self._agents = agents
        self._excluded = excluded
        self._names: dict[Path, Names] = {}
        self._clock = RackClock()
        self.undecided = False
        """Whether a change is being tried that may still be rolled back."""
        self._ending: set[asyncio.Task[None]] = set()

    def names(self, switch: SwitchConfig, checks: str) -> Names:
        """The P4 program that a switch has to run. Raises NamesError."""
        return program_of(switch, checks, self._names)

    def follow(self) -> None:
        """Starts links to new switches, and ends those to switches that were removed or whose
        address or program changed.
        """
        wanted = {s.name: s for s in self.rack.config.switches}
        checks = self.rack.config.checks
        place = ("address", "device_id", "pipeline", "take_over", "tls")
        for name, known in list(self.switches.items()):
            new = wanted.get(name)
            if (
                new is None
                or any(getattr(new, p) != getattr(known.link.config, p) for p in place)
                or known.link.names is not self.names(new, checks)
            ):
                del self.switches[name]
                self._ending.add(ending := asyncio.create_task(end(known)))
                ending.add_done_callback(self._ending.discard)
            else:
                known.link.config = new
                known.neighbours.follow(new)
                known.sources.keep(new)
        for name, switch in wanted.items():
            if name not in self.switches:
                link = SwitchLink(
                    switch, self.names(switch, checks), self._election_id,
                    self._ready, self._event, self._guard, self._packet,
                )  # fmt: skip
                state = SwitchState(link, lost_at=time.monotonic())
                state.neighbours.follow(switch)
                if switch.tls is None and not is_local(switch.address):
                    log.warning(
                        "switch %s: nonce keys cross the network to %s in the clear: set `tls`", name, switch.address
                    )
                state.task = asyncio.create_task(link.run(), name=f"switch {name}")
                state.loops = (
                    Loop(f"writes to switch {name}", partial(self._apply_if_connected, state)),
                    Loop(f"readings of switch {name}", partial(self._poll, state), READ_INTERVAL_S),
                )
                self.switches[name] = state
                for loop in state.loops:
                    loop.start()

    async def stop(self) -> None:
        """Ends the sessions. Switches keep their entries."""
        await asyncio.gather(*(end(s) for s in self.switches.values()), *self._ending, return_exceptions=True)
        self.switches.clear()

    def problems(self) -> list[str]:
        """Descriptions of loops that are stuck."""
        return [problem for switch in self.switches.values() for loop in switch.loops if (problem := loop.problem())]

    def kick(self) -> None:
        """Wakes the write loop of every switch."""
        for switch in self.switches.values():
            switch.loops[0].wake()

    def retry_now(self) -> None:
        """Cancels the pause after a refusal: a new configuration may be accepted."""
        for switch in self.switches.values():
            switch.retry_at = 0.0

    async def settle(self) -> list[str]:
        """Writes to every connected switch: first inserts and changes on all of them, then
        deletions, so that nothing was deleted if one refuses. Returns the refusals.
        """
        problems: list[str] = []
        for remove in (False, True):
            refusals = await asyncio.gather(*(self.apply(s, remove) for s in self.connected()))
            problems += [problem for problem in refusals if problem]
            if problems:
                break
        return problems

    def converged(self) -> bool:
        """Whether every configured switch is connected and has accepted all of its entries."""
        return all(
            (known := self.switches.get(s.name)) is not None and known.link.connected and known.holds
            for s in self.rack.config.switches
        )

    async def _apply_if_connected(self, switch: SwitchState) -> None:
        # While a change is undecided nothing is deleted; `settle` writes.
        if switch.link.connected and switch.tor is not None and not self.undecided:
            await self.apply(switch)

    def connected(self) -> list[SwitchState]:
        """Switches that can be written to now."""
        return [s for s in self.switches.values() if s.link.connected and s.tor is not None]

    def fragments(self, name: str) -> dict[str, Fragment] | None:
        """The entries that a switch should hold; None before its first session."""
        known = self.known(name)
        place = self._config_of(name)
        if known is None or place is None:
            return None
        return fragments_of(self.switches[name].link.names, self.rack, place, known)

    def known(self, name: str) -> SwitchFacts | None:
        """Facts about a switch; None before its first session."""
        switch = self.switches.get(name)
        if switch is None or switch.tor is None:
            return None
        return SwitchFacts(
            switch.tor, dict(switch.readmitted), switch.sources.learned(), switch.neighbours.found(),
            switch.paths.mtus(), self.without_heartbeat(switch),
        )  # fmt: skip

    def without_heartbeat(self, switch: SwitchState) -> frozenset[tuple[int, int]]:
        """Members (by pool and replica numbers) that must get no traffic: the switch counted no
        heartbeat of theirs, and they have no agent. Empty for a pool in which no member sends
        heartbeats, and before the first reading of a session, so that a restart of a switch or
        controller excludes no replica.
        """
        sample = self.health.samples.get(switch.link.config.name)
        if sample is None or sample.at < switch.began_at:
            return frozenset()
        agents, numbers = self._agents(), self.rack.numbers
        found: set[tuple[int, int]] = set()
        for name, pool in numbers.pools.items():
            members = numbers.replicas.get(name, {})
            without = {
                (pool, index)
                for replica, index in members.items()
                if replica not in agents and sample.ready_heartbeats(pool << 6 | index) <= 0
            }
            if len(without) < len(members):
                found |= without
        return frozenset(found)

    def _config_of(self, name: str) -> SwitchConfig | None:
        return next((s for s in self.rack.config.switches if s.name == name), None)

    async def _compute_fragments(self, switch: SwitchState) -> dict[str, Fragment] | None:
        """Computes a switch's desired entries in a thread, since a large rack takes seconds."""
        name = switch.link.config.name
        while (known := self.known(name)) is not None and (place := self._config_of(name)) is not None:
            found = await asyncio.to_thread(fragments_of, switch.link.names, self.rack.copy(), place, known)
            if switch.tor is known.tor:
                return found
            # Another session began during the computation.
        return None

    async def apply(self, switch: SwitchState, remove: bool = True) -> str:
        """Writes the difference to one switch; `remove` includes deletions. Returns its refusal, or
        an empty string.
        """
        async with switch.applying:
            return await self._apply(switch, remove)

    async def _apply(self, switch: SwitchState, remove: bool) -> str:
        now = time.monotonic()
        tor = switch.tor
        if now < switch.retry_at or tor is None:
            return switch.problem
        offset = self._offset_wanted(switch, tor)
        if offset is not None:
            switch.tor = Tor(tor.tor_id, offset, True, tor.sketch_keys)
            switch.estimate.reset()
            switch.settled_at = float("inf")
            log.info("switch %s: clock offset %d us", switch.link.config.name, offset)
        if tor.tor_id >> 8 != switch.link.config.number:
            # The switch's number changed: its ToR id must not be mistaken for another ToR's.
            switch.tor = replace(switch.tor or tor, tor_id=self._fresh_id(switch.link.config))
            await self._save()
        fragments = await self._compute_fragments(switch)
        if fragments is None:
            return ""
        switch.holds = False
        try:
            done = await switch.link.apply(fragments, remove)
        except WriteRefused as error:
            switch.problem, switch.retry_at = str(error), now + RETRY_S
            log.error("%s", error)
            asyncio.get_running_loop().call_later(RETRY_S, switch.loops[0].wake)
            return str(error)
        except SwitchError as error:
            switch.problem = str(error)
            return ""
        finally:
            if offset is not None:
                switch.settled_at = time.monotonic() + SETTLE_S
        switch.problem = ""
        switch.holds = remove
        if len(done):
            switch.converged_at = time.time()
            log.info(
                "switch %s: %d inserted, %d modified, %d removed in %.0f ms",
                switch.link.config.name, len(done.insert), len(done.modify), len(done.delete),
                (time.monotonic() - now) * 1e3,
            )  # fmt: skip
            # A key may wait for the entries just written.
            self._wake()
        return ""

    # Events of a session

    async def _ready(self, link: SwitchLink) -> None:
        """A session began. A switch that already has a ToR id and clock keeps them."""
        switch = self._state_of(link)
        if switch is None:
            return
        switch.holds = False
        switch.began_at = time.monotonic()
        tor = tor_of(link.tor_parameters())
        switch.estimate.reset()
        switch.sequence = None
        if tor is None:
            switch.tor = Tor(
                tor_id=self._fresh_id(link.config),
                sketch_keys=(secrets.randbits(32), secrets.randbits(32)),
            )
            switch.readmitted = {}
            switch.allowed = {}
            await self._save()
            log.info("switch %s: new pipeline, ToR id %#06x", link.config.name, switch.tor.tor_id)
        else:
            switch.tor = tor
            switch.readmitted = allowed_by_rows(link)
            # Sources and neighbours learned before this controller started.
            now = time.monotonic()
            bridged = [dict(i.match) | dict(i.params) for i in rows_of(link, "bridges")]
            sources = [(int_of(r["vlan"]), int_of(r["mac"]), int_of(r["port"])) for r in bridged]
            switch.sources.recall(link.config, sources, now)
            rows = [dict(i.match) | dict(i.params) for i in rows_of(link, "neighbours")]
            macs = {int_of(r["next_hop"]): int_of(r["dst_mac"]) for r in rows}
            numbers = self.rack.numbers.next_hops[link.config.name]
            switch.neighbours.recall({hop: macs[n] for hop, n in numbers.items() if n in macs}, now)
            log.info("switch %s: resumes as ToR %#06x", link.config.name, tor.tor_id)
        switch.retry_at = 0.0
        self._wake()
        await self._send_requests(switch)

    def _fresh_id(self, place: SwitchConfig) -> int:
        """A ToR id that no earlier run of a pipeline had: runs are counted by switch number."""
        return place.number << 8 | self.rack.state.next_counter(f"tor {place.number}") & 0xFF

    def _state_of(self, link: SwitchLink) -> SwitchState | None:
        return next((s for s in self.switches.values() if s.link is link), None)

    def _event(self, link: SwitchLink, event: dict[str, int]) -> None:
        """Handles one digest: a sample of the switch's clock, and an event."""
        switch = self._state_of(link)
        if switch is None or switch.tor is None:
            return
        now, tor = time.monotonic(), switch.tor
        if now >= switch.settled_at:
            if tor.time_valid:
                self._clock.observe(link.config.name, now, event["clock"])
            local = (event["clock"] - tor.clock_offset) & 0xFFFF_FFFF_FFFF
            switch.estimate.sample(now, self._clock.now(now, time.time()), local)
            if self._offset_wanted(switch, tor) is not None:
                self._wake()
        lost = 0 if switch.sequence is None else (event["sequence"] - switch.sequence - 1) & 0xFFFF_FFFF
        switch.sequence = event["sequence"]
        kind = link.names.member("event_kind_t", event["kind"])
        if kind == "UNKNOWN_SOURCE":
            fresh = switch.sources.learn(link.config, event["vlan"], event["mac"], event["port"], now)
            if fresh:
                switch.neighbours.suspect(event["port"], event["vlan"])
                self._wake()
        replica = self.replica_at(event["pool"], event["replica"]) if kind in _ABOUT_REPLICAS else None
        reason = link.names.member("drop_reason_t", event["reason"])
        (self.events if kind not in _ABOUT_REPLICAS else self.replica_events).append(
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
            if kind == "EXCLUDED":
                switch.reported.add(replica)
                self._excluded(replica, link.config.name)

    def note(self, kind: str, replica: str, reason: str | None = None) -> None:
        """Records an event about a replica that the controller, not a switch, noticed."""
        self.replica_events.append(
            {
                "time": time.time(),
                "switch": "",
                "kind": kind,
                "replica": replica,
                "reason": reason,
                "clock": 0,
                "lost_before": 0,
            }
        )

    def _offset_wanted(self, switch: SwitchState, tor: Tor) -> int | None:
        """The clock offset to set; None if the current one is good."""
        if tor.time_valid and self._clock.reference in ("", switch.link.config.name):
            return None
        return switch.estimate.wanted(tor.clock_offset if tor.time_valid else None, time.monotonic())

    def _packet(self, link: SwitchLink, frame: bytes, metadata: dict[str, int]) -> None:
        """Handles a frame from a switch: a neighbour's reply or a router's "too big" message."""
        switch, reply = self._state_of(link), parse_reply(frame)
        if switch is None:
            return
        if reply is None:
            found = too_big(frame)
            ours = found is not None and self._path(switch, found.source, found.destination)
            if found is not None and ours and switch.paths.learn(found, time.monotonic()):
                log.info(
                    "switch %s: the path to %s has an MTU of %d bytes", link.config.name, found.destination, found.mtu
                )
                self._wake()
            return
        port, vlan = metadata.get("ingress_port", 0), metadata.get("vlan", 0)
        if switch.neighbours.record_reply(reply, port, vlan, time.monotonic()):
            log.info("switch %s: %s is at %s behind port %d", link.config.name, reply.ip, reply.mac, port)
            self._wake()

    def _path(self, switch: SwitchState, source: IPAddress, destination: IPAddress) -> bool:
        """Whether a switch sends tunnels from `source` to `destination`."""
        here = switch.link.config
        beyond = (r.ip for r in self.rack.config.replicas if r.switch != here.name)
        return source in here.addresses and destination in beyond

    async def _send_requests(self, switch: SwitchState) -> None:
        """Sends ARP and neighbour discovery requests that are due."""
        config = switch.link.config
        for neighbour in switch.neighbours.due_for_request(time.monotonic()):
            frame = request_frame(
                neighbour.ip, source_address(config.addresses, neighbour.ip), config.mac, neighbour.tag
            )
            await switch.link.send_packet(frame, neighbour.port)

    def replica_at(self, pool: int, index: int) -> str | None:
        """The replica with an index in a pool, by the numbers in force."""
        numbers = self.rack.numbers
        name = next((n for n, number in numbers.pools.items() if number == pool), None)
        members = numbers.replicas.get(name or "", {})
        return next((n for n, number in members.items() if number == index), None)

    # Reading counters

    async def _poll(self, switch: SwitchState) -> None:
        """One reading of a switch: counters, neighbour requests, and replicas that may take plain
        TCP again.
        """
        if not switch.link.connected or switch.tor is None:
            return
        switch.lost_at = time.monotonic()
        if switch.sources.age(time.monotonic()) | switch.paths.age(time.monotonic()):
            self._wake()
        await self._send_requests(switch)
        await self._read_counters(switch, self._agents())

    async def _read_counters(self, switch: SwitchState, agents: dict[str, Agent]) -> None:
        numbers = self.rack.numbers
        places = {
            pool << 6 | index: (pool, index, replica)
            for name, pool in numbers.pools.items()
            for replica, index in numbers.replicas[name].items()
        }
        new = {k: n for k, n in switch.readmitted.items() if switch.allowed.get(k, (None, 0))[0] != n}
        rows = allowed_by_rows(switch.link) if new else {}
        place = switch.link.config
        ports = sorted({replica.port for replica in self.rack.config.replicas if replica.switch == place.name})
        sample = await self.health.read(switch.link, places, numbers.services, ports)
        if (without_heartbeat := self.without_heartbeat(switch)) != switch.without_heartbeat:
            switch.without_heartbeat = without_heartbeat
            self._wake()
        # The counter shows exclusions with a lost event.
        for replica in self.health.excluded_since(switch.link.config.name) - switch.reported:
            self._excluded(replica, switch.link.config.name)
        switch.reported.clear()
        for cell, (pool, index, replica) in places.items():
            exclusions = sample.exclusions.get(cell, 0)
            if sample.returns.get(cell, 0) < exclusions:
                continue
            steady = self.health.steady(switch.link.config.name, replica, agents.get(replica))
            if steady and switch.readmitted.get((pool, index), 0) != exclusions & 0xFFFF:
                switch.readmitted[pool, index] = exclusions & 0xFFFF
                log.info("switch %s: replica %s takes plain TCP again", switch.link.config.name, replica)
                self._wake()
        for (pool, index), count in new.items():
            if rows.get((pool, index)) == count:
                switch.allowed[pool, index] = count, sample.ready_heartbeats(pool << 6 | index)

    def readmitted(self, replica: str) -> dict[str, bool]:
        """By switch, whether it gives a replica plain TCP: a heartbeat arrived after `readmitted`
        was raised.
        """
        found: dict[str, bool] = {}
        for name, switch in self.switches.items():
            sample = self.health.samples.get(name)
            if sample is None:
                continue
            for cell in sample.cells.get(replica, ()):
                exclusions = sample.exclusions.get(cell, 0)
                count, ready = switch.allowed.get((cell >> 6, cell & 0x3F), (None, 0))
                arrived = count == exclusions & 0xFFFF and sample.ready_heartbeats(cell) > ready
                found[name] = found.get(name, True) and (arrived or exclusions == 0)
        return found
