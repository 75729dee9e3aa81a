"""One view per replica, with the reason: what the switches count, what events said, what agents report.

The data plane excludes and takes back on its own; this explains it, and says when a replica has been steady for
long enough to take plain TCP again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from .agents import Agent
from .switch import SwitchLink

STEADY_S = 2.0
"""How long a replica must have been back, ready and heard, before it takes plain TCP again."""

REPORT_STALE_S = 5.0
"""An agent's report older than this says nothing (agents report at least once a second)."""

SERVICES_A_LOOK = 64
"""Services whose outcome counters are read in one look; the others have their turn in the next ones."""

HISTORY = 300
"""Seconds of rates that are kept for the page."""

COUNTERS = {
    "packets": "replica_packets",
    "exclusions": "replica_exclusions",
    "returns": "replica_returns",
    "unready": "heartbeats_unready",
    "heartbeats": "heartbeats",
}

Place = tuple[int, int, str]
"""Pool, index in it, replica."""


@dataclass(slots=True)
class Sample:
    """One reading of a switch's counters, by cell. `at` is monotonic seconds."""

    at: float
    packets: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    exclusions: dict[int, int] = field(default_factory=dict)
    returns: dict[int, int] = field(default_factory=dict)
    heartbeats: dict[int, int] = field(default_factory=dict)
    unready: dict[int, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    suspects: dict[str, int] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)

    def ready_heartbeats(self, cell: int) -> int:
        """Heartbeats that said ready: never too few, unready ones being read first."""
        return self.heartbeats.get(cell, 0) - self.unready.get(cell, 0)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What is known of one replica. Rates are per second."""

    name: str
    state: str
    """live, excluded, unready, silent, draining, maintenance or unknown."""
    reason: str
    agent: bool
    ready: bool
    load: int
    packets_per_s: float
    heartbeats_per_s: float
    exclusions: int
    returns: int
    readmitted: bool
    requests_total: int
    refused_total: int
    """Requests that the replica refused since it started, whatever the reason."""
    incarnation: int


class Health:
    """Readings of all switches and what they mean."""

    def __init__(self) -> None:
        self.samples: dict[str, Sample] = {}
        self.before: dict[str, Sample] = {}
        self.history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._steady_since: dict[tuple[str, str], float] = {}
        self._turn = 0

    def note_event(self, switch: str, replica: str, kind: str) -> None:
        """An event about a replica: its steadiness starts again."""
        self._steady_since.pop((switch, replica), None)

    async def read(self, link: SwitchLink, places: Mapping[int, Place], services: Mapping[str, int]) -> Sample:
        """Reads the counters of these replicas and services. Raises what SwitchLink.counters raises."""
        names = link.names
        sample = Sample(time.monotonic(), places=dict(places))
        for attribute, counter in COUNTERS.items():
            cells = await link.counters(counter, places)
            setattr(sample, attribute, {cell: packets for cell, (packets, _) in cells.items()})
            if attribute == "packets":
                sample.bytes = {cell: size for cell, (_, size) in cells.items()}
        for attribute in ("drops", "suspects"):
            found = await link.counters(attribute, names.members("drop_reason_t").values())
            reasons = {names.member("drop_reason_t", cell): packets for cell, (packets, _) in found.items() if packets}
            setattr(sample, attribute, reasons)
        old = self.samples.get(link.config.name)
        sample.outcomes = dict(old.outcomes) if old else {}
        ordered = sorted(services.items())
        if ordered:
            start = self._turn % len(ordered)
            looked = (ordered * 2)[start : start + min(SERVICES_A_LOOK, len(ordered))]
            self._turn = start + len(looked)
            outcomes = names.members("outcome_t")
            where = {number * 16 + o: (name, outcome) for name, number in looked for outcome, o in outcomes.items()}
            for cell, (packets, _) in (await link.counters("service_outcomes", where)).items():
                sample.outcomes[where[cell]] = packets
        if old is not None:
            self.before[link.config.name] = old
        self.samples[link.config.name] = sample
        return sample

    def rate(self, switch: str, attribute: str, cell: int) -> float:
        """A counter cell's rate between the last two readings; 0 after a restart of the switch."""
        new, old = self.samples.get(switch), self.before.get(switch)
        if new is None or old is None or new.at <= old.at:
            return 0.0
        difference = getattr(new, attribute).get(cell, 0) - getattr(old, attribute).get(cell, 0)
        return float(max(difference, 0) / (new.at - old.at))

    def drop_rates(self, switch: str) -> dict[str, float]:
        """Drops a second by reason, between the last two readings."""
        new, old = self.samples.get(switch), self.before.get(switch)
        if new is None or old is None or new.at <= old.at:
            return {}
        return {
            reason: max(count - old.drops.get(reason, 0), 0) / (new.at - old.at)
            for reason, count in new.drops.items()
            if count > old.drops.get(reason, 0)
        }

    def steady(self, switch: str, replica: str, agent: Agent | None) -> bool:
        """Whether a replica has been heard by this switch, and not reported as unready, for `STEADY_S`."""
        sample = self.samples.get(switch)
        cells = [cell for cell, place in (sample.places if sample else {}).items() if place[2] == replica]
        heard = any(self.rate(switch, "heartbeats", c) > self.rate(switch, "unready", c) for c in cells)
        refused = agent is not None and agent.report is not None and not agent.report.ready
        key = (switch, replica)
        if not heard or refused:
            self._steady_since.pop(key, None)
            return False
        now = time.monotonic()
        return now - self._steady_since.setdefault(key, now) >= STEADY_S

    def remember(self) -> None:
        """One second of history for the page: the sum over all switches."""
        rates = dict.fromkeys(("packets", "bytes"), 0.0)
        drops = 0.0
        for switch, sample in self.samples.items():
            for attribute in rates:
                rates[attribute] += sum(self.rate(switch, attribute, cell) for cell in sample.places)
            drops += sum(self.drop_rates(switch).values())
        self.history.append({"time": time.time(), **rates, "drops": drops})

    def view(
        self, name: str, agent: Agent | None, draining: bool, maintenance: bool, readmitted: Mapping[str, bool]
    ) -> ReplicaView:
        """Everything joined for one replica; `readmitted` by switch: it takes plain TCP there."""
        packets = heartbeats = unready = 0.0
        exclusions = returns = 0
        silent_at = []
        looked = False
        for switch, sample in self.samples.items():
            for cell, place in sample.places.items():
                if place[2] != name:
                    continue
                looked = looked or switch in self.before
                packets += self.rate(switch, "packets", cell)
                heartbeats += self.rate(switch, "heartbeats", cell)
                unready += self.rate(switch, "unready", cell)
                excluded, returned = sample.exclusions.get(cell, 0), sample.returns.get(cell, 0)
                exclusions, returns = exclusions + excluded, returns + returned
                if excluded > returned:
                    silent_at.append(switch)
        report = agent.report if agent is not None else None
        stale = agent is None or report is None or time.monotonic() - agent.reported_at > REPORT_STALE_S
        state, reason = "live", ""
        if maintenance:
            state, reason = "maintenance", "taken out by the configuration"
        elif silent_at:
            state = "excluded"
            reason = f"excluded by {', '.join(sorted(silent_at))}: "
            if heartbeats == 0:
                reason += "no heartbeat is heard" + ("" if agent else ", and its agent is gone")
            elif _all_unready(unready, heartbeats):
                reason += "it says that it is not ready" + (f" ({report.reason})" if report and report.reason else "")
            else:
                reason += "heartbeats are back, three ready ones in time are awaited"
        elif report is not None and not stale and not report.ready:
            state, reason = "unready", report.error or report.reason or "its agent reports that it is not ready"
        elif _all_unready(unready, heartbeats):
            state, reason = "unready", "its heartbeats say that it is not ready"
        elif looked and heartbeats == 0:
            state = "silent"
            reason = "no heartbeat is heard"
        elif not looked:
            state, reason = "unknown", "no switch has been read twice yet"
        elif draining:
            state, reason = "draining", "new flows go elsewhere"
        elif agent is None:
            reason = "heartbeats are heard, but no agent is registered: it gets no new keys"
        elif stale:
            reason = "heartbeats are heard, but its agent has stopped reporting"
        return ReplicaView(
            name=name,
            state=state,
            reason=reason,
            agent=agent is not None,
            ready=bool(report and report.ready and not stale),
            load=report.load if report else 0,
            packets_per_s=packets,
            heartbeats_per_s=heartbeats,
            exclusions=exclusions,
            returns=returns,
            readmitted=all(readmitted.values()),
            requests_total=report.requests_total if report else 0,
            refused_total=report.refused_total if report else 0,
            incarnation=agent.incarnation if agent else 0,
        )


def _all_unready(unready: float, heartbeats: float) -> bool:
    """Whether those that came say so; the two counters are not read at the same moment."""
    return heartbeats > 0 and unready >= 0.8 * heartbeats
