"""The controller's status as plain values, for the API, the page, rivuletctl and metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from .config import Replica, Service
from .controller import Controller
from .keys import RACK_RING, KeyRing, Kind
from .keys import State as KeyState
from .service_tls import kinds_of

EVENTS_SHOWN = 25
"""Newest events shown of each kind: about replicas, caused by packets, and operators' actions."""

SERVICES_SHOWN = 200
"""Services in a snapshot, which is sent each second; `/api/services` has all."""

Action = Mapping[str, Any]
"""A record of the audit log."""


def snapshot(controller: Controller, actions: Iterable[Action] = ()) -> dict[str, Any]:
    """A snapshot of the whole rack. Times are Unix seconds, rates per second. `actions`: operators'
    actions, oldest first.
    """
    config = controller.config
    return {
        "time": time.time(),
        "config_problem": controller.config_problem,
        "problems": [problem for problem in controller.problems() if problem != controller.config_problem],
        "lab": config.listen.lab,
        "leader": controller.leading,
        "switches": switches(controller),
        "replicas": replicas(controller),
        "services": services(controller, SERVICES_SHOWN),
        "services_total": len(config.services),
        "events": events(controller, actions),
        "history": list(controller.fleet.health.history),
    }


def events(controller: Controller, actions: Iterable[Action] = ()) -> list[dict[str, Any]]:
    """The newest events, oldest first. A switch's event has its `kind` in capitals; an operator's
    action has OPERATOR.
    """
    sorts = (controller.fleet.events, controller.fleet.replica_events, [_done(action) for action in actions])
    return sorted((e for sort in sorts for e in list(sort)[-EVENTS_SHOWN:]), key=lambda event: event["time"])


def _done(action: Action) -> dict[str, Any]:
    """An operator's action as an event."""
    details = {k: v for k, v in action.items() if k not in ("time", "who", "what", "replica")}
    return {
        "time": action["time"],
        "switch": "",
        "kind": "OPERATOR",
        "replica": action.get("replica"),
        "reason": None,
        "clock": 0,
        "lost_before": 0,
        "who": action["who"],
        "what": action["what"],
        "details": ", ".join(
            f"{k} {_words(v)}" for k, v in details.items() if v is not None and not isinstance(v, bool)
        ),
    }


def _words(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)[:200]


def switches(controller: Controller) -> list[dict[str, Any]]:
    """Each switch with its session, ToR id, entries and drops."""
    found = []
    for place in controller.config.switches:
        state = controller.fleet.switches.get(place.name)
        sample = controller.fleet.health.samples.get(place.name)
        tor = state.tor if state else None
        found.append(
            {
                "name": place.name,
                "address": place.address,
                "connected": bool(state and state.link.connected),
                "problem": (state.problem or state.link.problem) if state else "not yet tried",
                "tor_id": tor.tor_id if tor else 0,
                "clock_valid": bool(tor and tor.time_valid),
                "entries": len(state.link.items()) if state else 0,
                "writes": state.link.writes if state else 0,
                "converged_at": state.converged_at if state else 0.0,
                "neighbours": state.neighbours.view(time.monotonic()) if state else [],
                "drops": dict(sample.drops) if sample else {},
                "suspects": dict(sample.suspects) if sample else {},
                "drops_per_s": controller.fleet.health.drop_rates(place.name),
            }
        )
    return found


def replicas(controller: Controller) -> list[dict[str, Any]]:
    """Each replica with its location, weight, state and reason."""
    weights, draining = controller.weights(), controller.draining()
    return [_replica(controller, place, weights[place.name], draining) for place in controller.config.replicas]


def _replica(controller: Controller, place: Replica, weight: int, draining: frozenset[str]) -> dict[str, Any]:
    return {
        **asdict(controller.view(place.name)),
        **controller.monitor.history.summary(place.name),
        "switch": place.switch,
        "port": place.port,
        "ip": str(place.ip),
        "weight": weight,
        "draining": place.name in draining,
        "maintenance": place.maintenance,
        "other_content": controller.contents.mismatched_services(place.name),
        "refused_services": _refused(controller, place.name),
        "tls": _tls(controller, place.name),
        "can_kill": bool(place.kill_command) and controller.config.listen.lab,
    }


def _refused(controller: Controller, replica: str) -> list[str]:
    """The services that a replica's agent refuses."""
    agent = controller.agents.agents.get(replica)
    return sorted(agent.refused) if agent is not None else []


def _tls(controller: Controller, replica: str) -> dict[str, dict[str, Any]]:
    """Status of TLS on a replica, by service."""
    agent = controller.agents.agents.get(replica)
    return {name: asdict(counts) for name, counts in agent.tls.items()} if agent is not None else {}


def replica(controller: Controller, name: str) -> dict[str, Any]:
    """One replica with its history of states, oldest first. Raises KeyError."""
    place = next((place for place in controller.config.replicas if place.name == name), None)
    if place is None:
        raise KeyError(f"there is no replica {name!r}")
    found = _replica(controller, place, controller.weights()[name], controller.draining())
    return {**found, "states": controller.monitor.history.states(name)}


def services(controller: Controller, most: int | None = None) -> list[dict[str, Any]]:
    """Each service (at most `most`): addresses, policy, epochs of keys, and counts of packets by
    outcome.
    """
    shown = {service.name: service for service in islice(controller.config.services, most)}
    outcomes: dict[str, dict[str, int]] = {name: {} for name in shown}
    for sample in controller.fleet.health.samples.values():
        for (name, outcome), count in sample.outcomes.items():
            if name in shown and count:
                outcomes[name][outcome] = outcomes[name].get(outcome, 0) + count
    return [
        {
            "name": service.name,
            "addresses": [str(address) for address in service.addresses],
            "port": service.port,
            "policy": service.policy,
            "plain": str(controller.state.modes.get(service.name, service.plain)),
            "affinity": service.affinity,
            "slots": service.slots,
            "pool": service.pool_name,
            "replicas": list(service.replicas),
            "content": _content(controller, service),
            "keys": _keys(controller, service),
            "outcomes": outcomes[service.name],
        }
        for service in shown.values()
    ]


def _content(controller: Controller, service: Service) -> dict[str, Any] | None:
    """The content in force for a service without connection state, and the replicas that have
    another.
    """
    content = controller.state.contents.get(service.name)
    if content is None:
        return None
    others = sorted(controller.contents.mismatched(service.name))
    return {"version": content.version, "following": content.following, "words": str(content), "others": others}


def _keys(controller: Controller, service: Service) -> dict[str, dict[str, Any]]:
    """By kind: the usable epoch, its age, seconds until its successor is made, and the epoch being
    distributed.
    """
    rings = controller.state.rings
    now, lives = controller.clock.now(), controller.lives()
    found = {}
    for kind in (*kinds_of(service), Kind.TOR):
        ring = rings.get(RACK_RING if kind is Kind.TOR else service.name, KeyRing())
        usable, accepted = ring.usable(kind), ring.accepted(kind)
        pending = accepted[-1].epoch if accepted and accepted[-1].state is KeyState.ACCEPTED else 0
        found[kind.value] = {
            "usable": usable.epoch if usable else 0,
            "accepted": [key.epoch for key in accepted][-8:],
            "age_s": max(now - usable.since, 0.0) if usable else 0.0,
            "rotates_in_s": max(usable.created + lives.rotation(kind) - now, 0.0) if usable else 0.0,
            "pending": pending,
        }
    return found
