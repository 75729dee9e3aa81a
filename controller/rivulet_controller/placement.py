"""Assigns numbers and slots to a configuration's names, and keeps them in the state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from .config import SKETCH_MBPS, Config, SwitchConfig
from .l2 import next_hops
from .names import Names
from .numbers import Numbers
from .slots import pair
from .state import Decision, Pairs, State

log = logging.getLogger("rivulet.controller")


def weights(config: Config, decisions: Mapping[str, Decision]) -> dict[str, int]:
    """The weights in force: the operator's if set, else the configuration's."""
    return {
        r.name: r.weight if (chosen := decisions.get(r.name, Decision()).weight) is None else chosen
        for r in config.replicas
    }


def prepare(config: Config, state: State, names_of: Callable[[SwitchConfig, str], Names]) -> Numbers:
    """Assigns numbers and slots for a configuration. Raises NamesError or OutOfNumbers."""
    for switch in config.switches:
        names = names_of(switch, config.checks)
        # Raises NamesError here, where it refuses the configuration, rather than while entries
        # are computed.
        for service in config.services if names.checks == "tor" else ():
            for cell in service.meters.of_classes():
                names.value("service_meter_t", cell.upper())
    for switch in config.wider_than_the_sketch():
        log.warning(
            "switch %s: links of %d Mb/s exceed the replay sketch (%d Mb/s); replicas check what it cannot",
            switch.name, switch.link_mbps, SKETCH_MBPS,
        )  # fmt: skip
    numbers = number(config, state)
    assign(config, state, numbers)
    return numbers


def number(config: Config, state: State) -> Numbers:
    """Numbers of everything that the tables name. Raises OutOfNumbers."""
    services = state.number("service", (s.name for s in config.services), 1, 4095)
    pools = state.number("pool", (s.pool_name for s in config.services), 0, 1023)
    replicas: dict[str, dict[str, int]] = {}
    for service in config.services:
        if service.pool_name not in replicas:
            replicas[service.pool_name] = state.number(f"pool {service.pool_name}", service.replicas, 0, 63)
    hops = {s.name: state.number(f"next_hop {s.name}", next_hops(config, s), 1, 65535) for s in config.switches}
    state.make_secret()
    return Numbers(services, pools, replicas, hops, state.secret)


def assign(config: Config, state: State, numbers: Numbers) -> None:
    """Assigns slots by weight, with few moves. A draining replica keeps its slots, so that its
    return moves nothing.
    """
    for inputs in list(slot_inputs(config, state, numbers)):
        state.set_slots(inputs[-1], _pair(*inputs))


SlotInputs = tuple[Pairs, int, tuple[tuple[int, int], ...], str]
"""The inputs for one service's slots: previous pairs, number of slots, weights by index, the
service's name."""

SLOT_CACHE_ENTRIES = 16384
"""Most results in the cache; the oldest is dropped first."""

_slot_cache: dict[SlotInputs, Pairs] = {}


def _pair(*inputs: *SlotInputs) -> Pairs:
    """`pair` with a cache, since most changes leave most services' inputs as they are."""
    answer = _slot_cache.get(inputs)
    if answer is None:
        previous, size, by_index, seed = inputs
        answer = pair(previous, size, dict(by_index), seed)
        cache_slots({inputs: answer})
    return answer


def cache_slots(answers: Mapping[SlotInputs, Pairs]) -> None:
    """Adds results that another process computed."""
    _slot_cache.update(answers)
    while len(_slot_cache) > SLOT_CACHE_ENTRIES:
        del _slot_cache[next(iter(_slot_cache))]


def slot_inputs(config: Config, state: State, numbers: Numbers) -> Iterator[SlotInputs]:
    """The inputs of `assign`, service by service."""
    by_name = weights(config, state.decisions)
    maintenance = {r.name for r in config.replicas if r.maintenance}
    for service in config.services:
        indices = numbers.replicas[service.pool_name]
        by_index = {indices[name]: by_name[name] for name in service.replicas if name not in maintenance}
        if by_index and not any(by_index.values()):
            by_index = dict.fromkeys(by_index, 1)
        old = state.slots.get(service.name, ())
        yield old, service.slots, tuple(sorted(by_index.items())), service.name
