"""Which keys and modes agents and switches have confirmed, and how long absent ones are waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from .agents import Agent
from .config import Service
from .entry import Entry
from .fleet import Fleet
from .keys import KeyRing, Kind, words
from .modes import Mode
from .rack import Rack
from .switch_state import SwitchState
from .updates import PLAIN

AGENT_PATIENCE_S = 5.0
"""How long a new key waits for an agent that has not confirmed it, or has just disconnected. Then
its replica no longer counts: without the key it is not ready, and the ToRs exclude it."""

SWITCH_PATIENCE_S = 60.0
"""How long a new key waits for a switch that cannot be reached."""


class Confirmations:
    """Confirmations of the agents and switches of a rack."""

    def __init__(self, rack: Rack, agents: Mapping[str, Agent], fleet: Fleet) -> None:
        self._rack = rack
        self._agents = agents
        self._fleet = fleet
        self.disconnected_at: dict[str, float] = {}
        """By replica: when its agent disconnected (monotonic seconds)."""
        self.connected: set[str] = set()
        """Replicas with an agent at the last check."""
        self.began = time.monotonic()

    def note_arrival(self, name: str) -> None:
        """Notes that an agent registered."""
        self.disconnected_at.pop(name, None)
        self.connected.add(name)

    def note_departures(self) -> None:
        """Notes which agents disconnected, before decisions depend on it."""
        for name in self.connected - self._agents.keys():
            self.disconnected_at[name] = time.monotonic()
        self.connected &= self._agents.keys()

    def absent_since(self, name: str) -> float:
        """When a replica's agent disconnected; for one that never connected, when the controller began."""
        return self.disconnected_at.get(name, self.began)

    def left_at(self, replica: str) -> float | None:
        """When a replica's agent disconnected; now if it is connected, None if it never was."""
        if replica in self.disconnected_at:
            return self.disconnected_at[replica]
        return time.monotonic() if replica in self.connected else None

    def is_confirmed(self, service: Service, mode: Mode) -> bool:
        """Whether replicas have applied a mode. A replica whose agent is absent stops counting
        after a while, as with a key. One that is connected and has not applied the mode, for
        example because its objects cannot be read, delays the change.
        """
        wanted, clock = (service.name, PLAIN[mode.replicas]), time.monotonic()
        maintained = {replica.name for replica in self._rack.config.replicas if replica.maintenance}
        for name in (name for name in service.replicas if name not in maintained):
            agent = self._agents.get(name)
            if agent is None and clock - self.absent_since(name) < AGENT_PATIENCE_S:
                return False
            if agent is not None and wanted not in agent.plain:
                return False
        return True

    def is_applied(self, service: Service, mode: Mode) -> bool:
        """Whether switches have applied a mode; an unreachable one is waited for as long as with a
        key.
        """
        match = (("service", self._rack.numbers.services[service.name]),)
        for switch in self._fleet.switches.values():
            if not switch.link.connected:
                if time.monotonic() - switch.lost_at < SWITCH_PATIENCE_S:
                    return False
                continue
            row = switch.link.parameters(("entry", "service_config", match, 0, False))
            if row is not None and row["plain"] != switch.link.names.value("plain_t", mode.tors.upper()):
                return False
        return True

    def held(
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
            unseen = float("-inf") if first else self.began
            holders = 0
            for name in replicas:
                agent = self._agents.get(name)
                if agent is not None and (owner, kind, epoch) in agent.held and (first or agent.serves()):
                    holders += 1
                elif (age if agent is not None else clock - self.disconnected_at.get(name, unseen)) < AGENT_PATIENCE_S:
                    return False
            if not holders:
                return False
            for switch in self._fleet.switches.values():
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
        """Whether a connected switch has the rows of a key. A seal key has none, and in a rack whose
        replicas make the checks, nonce and cookie keys have none either.
        """
        if kind in (Kind.COOKIE, Kind.NONCE) and switch.link.names.checks == "host":
            return True
        if kind is Kind.COOKIE and service is not None:
            return self._checks_cookies(switch, epoch, service, ring)
        if kind is Kind.NONCE and service is not None:
            match = tuple(sorted({"nonce_epoch": epoch, **service}.items()))
            return switch.link.has_key(("entry", "nonce_keys", match, 0, False))
        if kind is Kind.TOR:
            fragments = self._fleet.fragments(switch.link.config.name)
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
