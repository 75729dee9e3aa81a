"""The health of each replica and its reason, joined from switches' counters, events, and agents'
reports.

The data plane excludes and readmits replicas by itself. This module explains it, and decides when a
replica has been steady for long enough to take plain TCP again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .agents import Agent
from .config import Replica
from .mute import RequestCounts
from .switch import SwitchLink
from .trods import TrodsCounts, counts

STEADY_S = 2.0
"""How long a replica's heartbeats must have been back and ready before it takes plain TCP again."""

REPORT_STALE_S = 5.0
"""Age at which an agent's report no longer counts; agents report at least once a second."""

SERVICES_A_LOOK = 64
"""Services with outcome counters read at a time; later readings continue with the next
ones."""

FRESH_S = 3.0
"""Age at which a reading of counters no longer counts."""

HISTORY = 300
"""Seconds of rates kept for the status page."""

COUNTERS = {
    "packets": "replica_packets",
    "requests": "replica_requests",
    "exclusions": "replica_exclusions",
    "returns": "replica_returns",
    "unready": "heartbeats_unready",
    "heartbeats": "heartbeats",
}

Place = tuple[int, int, str]
"""Pool number, index in the pool, replica's name."""


@dataclass(slots=True)
class Sample:
    """One reading of a switch's counters, by cell. `at` is in monotonic seconds."""

    at: float
    packets: dict[int, int] = field(default_factory=dict)
    requests: dict[int, int] = field(default_factory=dict)
    """Rivulet requests, a subset of the packets."""
    answers: dict[int, int] = field(default_factory=dict)
    """Rivulet responses, by ingress port."""
    bytes: dict[int, int] = field(default_factory=dict)
    exclusions: dict[int, int] = field(default_factory=dict)
    returns: dict[int, int] = field(default_factory=dict)
    heartbeats: dict[int, int] = field(default_factory=dict)
    """All heartbeats, ready and unready."""
    unready: dict[int, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    suspects: dict[str, int] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], int] = field(default_factory=dict)
    places: dict[int, Place] = field(default_factory=dict)
    cells: dict[str, list[int]] = field(default_factory=dict)
    """Cells of each replica."""

    def __post_init__(self) -> None:
        for cell, (_, _, replica) in self.places.items():
            self.cells.setdefault(replica, []).append(cell)

    def ready_heartbeats(self, cell: int) -> int:
        """Heartbeats that reported ready. Never too few, since unready ones are read first."""
        return self.heartbeats.get(cell, 0) - self.unready.get(cell, 0)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """The health of one replica. Rates are per second."""

    name: str
    state: str
    """live, excluded, unready, silent, mute, draining, maintenance or unknown."""
    reason: str
    agent: bool
    ready: bool
    load: int
    requests_per_s: float
    requests_by_switch: dict[str, float]
    packets_per_s: float
    """Includes plain TCP."""
    heartbeats_per_s: float
    exclusions: int
    returns: int
    readmitted: bool
    requests_total: int
    refused_total: int
    """Requests that the replica refused since it started, for any reason."""
    incarnation: int
    left_out: bool
    """Whether the controller excludes it because it is mute."""
    trods: TrodsCounts | None = None
    """Counts of TRODS, if its agent reports them."""


class Health:
    """Readings of all switches, and the health that follows from them."""

    def __init__(self) -> None:
        self.samples: dict[str, Sample] = {}
        self.before: dict[str, Sample] = {}
        self.history: deque[dict[str, float]] = deque(maxlen=HISTORY)
        self._steady_since: dict[tuple[str, str], float] = {}
        self._turn = 0

    def note_event(self, switch: str, replica: str, kind: str) -> None:
        """Takes an event about a replica: the time for which it was steady starts again."""
        self._steady_since.pop((switch, replica), None)

    async def read(
        self, link: SwitchLink, places: Mapping[int, Place], services: Mapping[str, int], ports: Sequence[int] = ()
    ) -> Sample:
        """Reads the counters of these replicas, services and ports. Raises what SwitchLink.counters
        raises.
        """
        names = link.names
        sample = Sample(time.monotonic(), places=dict(places))
        for attribute, counter in COUNTERS.items():
            cells = await link.counters(counter, places)
            setattr(sample, attribute, {cell: packets for cell, (packets, _) in cells.items()})
            if attribute == "packets":
                sample.bytes = {cell: size for cell, (_, size) in cells.items()}
        # The P4 program counts unready heartbeats separately.
        sample.heartbeats = {cell: ready + sample.unready.get(cell, 0) for cell, ready in sample.heartbeats.items()}
        answers = await link.counters("port_answers", ports)
        sample.answers = {port: packets for port, (packets, _) in answers.items()}
        # The program without checks has no suspects.
        for attribute in sorted({"drops", "suspects"} & names.counters):
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
        """Rate of a counter cell between the last two readings; 0 after a restart of the switch."""
        new, old = self.samples.get(switch), self.before.get(switch)
        if new is None or old is None or new.at <= old.at:
            return 0.0
        difference = getattr(new, attribute).get(cell, 0) - getattr(old, attribute).get(cell, 0)
        return float(max(difference, 0) / (new.at - old.at))

    def request_counts(self, replicas: Sequence[Replica], agents: Mapping[str, Agent]) -> dict[str, RequestCounts]:
        """Requests and answers of each replica that has a port to itself at a switch with a fresh
        reading.
        """
        now = time.monotonic()
        places = Counter((replica.switch, replica.port) for replica in replicas)
        found = {}
        for replica in replicas:
            own = self.samples.get(replica.switch)
            if own is None or now - own.at > FRESH_S or replica.port not in own.answers:
                continue
            if places[replica.switch, replica.port] > 1:
                continue
            requests = sum(
                sample.requests.get(cell, 0)
                for sample in self.samples.values()
                for cell in sample.cells.get(replica.name, ())
            )
            agent = agents.get(replica.name)
            refused = agent.report.refused_total if agent is not None and agent.report is not None else 0
            incarnation = agent.incarnation if agent is not None else 0
            found[replica.name] = RequestCounts(requests, own.answers[replica.port], refused, incarnation)
        return found

    def excluded_since(self, switch: str) -> set[str]:
        """Replicas that a switch excluded between its last two readings."""
        new, old = self.samples.get(switch), self.before.get(switch)
        if new is None or old is None:
            return set()
        return {
            replica
            for cell, (_, _, replica) in new.places.items()
            if cell in old.exclusions and new.exclusions.get(cell, 0) > old.exclusions[cell]
        }

    def drop_rates(self, switch: str) -> dict[str, float]:
        """Drops a second between the last two readings, by reason."""
        new, old = self.samples.get(switch), self.before.get(switch)
        if new is None or old is None or new.at <= old.at:
            return {}
        return {
            reason: max(count - old.drops.get(reason, 0), 0) / (new.at - old.at)
            for reason, count in new.drops.items()
            if count > old.drops.get(reason, 0)
        }

    def steady(self, switch: str, replica: str, agent: Agent | None) -> bool:
        """Whether for `STEADY_S` heartbeats of a replica reached this switch, and none reported it
        as unready.
        """
        sample = self.samples.get(switch)
        cells = sample.cells.get(replica, ()) if sample else ()
        heard = any(self.rate(switch, "heartbeats", c) > self.rate(switch, "unready", c) for c in cells)
        refused = agent is not None and agent.report is not None and not agent.report.ready
        key = (switch, replica)
        if not heard or refused:
            self._steady_since.pop(key, None)
            return False
        now = time.monotonic()
        return now - self._steady_since.setdefault(key, now) >= STEADY_S

    def record_history(self) -> None:
        """Adds a second to the history for the status page: sums over all switches."""
        rates = dict.fromkeys(("requests", "packets", "bytes"), 0.0)
        drops = 0.0
        for switch, sample in self.samples.items():
            for attribute in rates:
                rates[attribute] += sum(self.rate(switch, attribute, cell) for cell in sample.places)
            drops += sum(self.drop_rates(switch).values())
        self.history.append({"time": time.time(), **rates, "drops": drops})

    def view(
        self,
        name: str,
        agent: Agent | None,
        draining: bool,
        maintenance: bool,
        readmitted: Mapping[str, bool],
        mute: str = "",
        left_out: bool = False,
    ) -> ReplicaView:
        """The view of one replica. `readmitted`: by switch, whether it gives it plain TCP. `mute`:
        the reason, if it is mute.
        """
        packets = heartbeats = unready = 0.0
        requests: dict[str, float] = {}
        exclusions = returns = 0
        silent_at = []
        looked = False
        for switch, sample in self.samples.items():
            for cell in sample.cells.get(name, ()):
                looked = looked or switch in self.before
                packets += self.rate(switch, "packets", cell)
                requests[switch] = requests.get(switch, 0.0) + self.rate(switch, "requests", cell)
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
            state, reason = "maintenance", "in maintenance by the configuration"
        elif silent_at:
            state = "excluded"
            reason = f"excluded by {', '.join(sorted(silent_at))}: "
            if heartbeats == 0:
                reason += "no heartbeats arrive" + ("" if agent else ", and its agent is not connected")
            elif _all_unready(unready, heartbeats):
                reason += "it reports that it is not ready" + (
                    f" ({report.reason})" if report and report.reason else ""
                )
            else:
                reason += "heartbeats are back, waiting for three ready ones in time"
        elif report is not None and not stale and not report.ready:
            state, reason = "unready", report.error or report.reason or "its agent reports that it is not ready"
        elif _all_unready(unready, heartbeats):
            state, reason = "unready", "its heartbeats report that it is not ready"
        elif looked and heartbeats == 0:
            state = "silent"
            reason = "no heartbeats arrive"
        elif not looked:
            state, reason = "unknown", "no switch's counters have been read twice yet"
        elif mute:
            state, reason = "mute", mute
        elif draining:
            state, reason = "draining", "new flows go elsewhere"
        elif agent is None:
            reason = "heartbeats arrive, but no agent is connected: it gets no new keys"
        elif stale:
            reason = "heartbeats arrive, but its agent has stopped reporting"
        elif report is not None and report.error:
            reason = f"its agent refuses: {report.error}"
        return ReplicaView(
            name=name,
            state=state,
            reason=reason,
            agent=agent is not None,
            ready=bool(report and report.ready and not stale),
            load=report.load if report else 0,
            requests_per_s=sum(requests.values()),
            requests_by_switch=requests,
            packets_per_s=packets,
            heartbeats_per_s=heartbeats,
            exclusions=exclusions,
            returns=returns,
            readmitted=all(readmitted.values()),
            requests_total=report.requests_total if report else 0,
            refused_total=report.refused_total if report else 0,
            incarnation=agent.incarnation if agent else 0,
            left_out=left_out,
            trods=counts(report),
        )


def _all_unready(unready: float, heartbeats: float) -> bool:
    """Whether the heartbeats that came were unready; within 20 %, since the two counters are read
    one after the other.
    """
    return heartbeats > 0 and unready >= 0.8 * heartbeats
