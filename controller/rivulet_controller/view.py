"""What people see of the controller: one snapshot as plain values, for the API, the page, the CLI and metrics."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from .controller import Controller
from .keys import Kind

EVENTS_SHOWN = 25
"""Newest events of each sort: about replicas, and those that packets alone can cause."""


def snapshot(controller: Controller) -> dict[str, Any]:
    """Everything at a glance. Times are Unix seconds, rates per second."""
    config = controller.config
    return {
        "time": time.time(),
        "config_problem": controller.config_problem,
        "lab": config.listen.lab,
        "leader": controller.leading,
        "switches": switches(controller),
        "replicas": replicas(controller),
        "services": services(controller),
        "events": events(controller),
        "history": list(controller.fleet.health.history),
    }


def events(controller: Controller) -> list[dict[str, Any]]:
    """The newest events, oldest first."""
    sorts = (controller.fleet.events, controller.fleet.replica_events)
    return sorted((e for sort in sorts for e in list(sort)[-EVENTS_SHOWN:]), key=lambda event: event["time"])


def switches(controller: Controller) -> list[dict[str, Any]]:
    """Each switch: whether it is there and as described, its drops."""
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
    """Each replica: its place, weight, state and the reason."""
    weights, draining = controller.weights(), controller.draining()
    return [
        {
            **asdict(controller.view(place.name)),
            "switch": place.switch,
            "port": place.port,
            "ip": str(place.ip),
            "weight": weights[place.name],
            "draining": place.name in draining,
            "maintenance": place.maintenance,
            "can_kill": bool(place.kill_command) and controller.config.listen.lab,
        }
        for place in controller.config.replicas
    ]


def services(controller: Controller) -> list[dict[str, Any]]:
    """Each service: addresses, policy, epochs, and what became of its packets."""
    found = []
    for service in controller.config.services:
        ring = controller.state.rings.get(service.name)
        outcomes: dict[str, int] = {}
        for sample in controller.fleet.health.samples.values():
            for (name, outcome), count in sample.outcomes.items():
                if name == service.name and count:
                    outcomes[outcome] = outcomes.get(outcome, 0) + count
        epochs = {}
        for kind in Kind:
            usable = ring.usable(kind) if ring else None
            epochs[kind.value] = {
                "usable": usable.epoch if usable else 0,
                "accepted": [key.epoch for key in ring.accepted(kind)][-8:] if ring else [],
                "age_s": max(controller.clock.now() - usable.since, 0.0) if usable else 0.0,
            }
        found.append(
            {
                "name": service.name,
                "addresses": [str(address) for address in service.addresses],
                "port": service.port,
                "policy": service.policy,
                "slots": service.slots,
                "pool": service.pool_name,
                "replicas": list(service.replicas),
                "keys": epochs,
                "outcomes": outcomes,
            }
        )
    return found
