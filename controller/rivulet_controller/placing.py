"""Numbers and slots for a configuration, taken from and kept in the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .config import Config
from .desired import Numbers
from .l2 import next_hops
from .slots import pair
from .state import Decision, Pairs, State


def weights(config: Config, decisions: Mapping[str, Decision]) -> dict[str, int]:
    """The weights in force: the operators' where there is one, else the configuration's."""
    return {
        r.name: r.weight if (chosen := decisions.get(r.name, Decision()).weight) is None else chosen
        for r in config.replicas
    }


def number(config: Config, state: State) -> Numbers:
    """Numbers of everything that tables name. Raises OutOfNumbers."""
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
    """Slots by weight, with few moves. A draining replica keeps its slots, so that coming back moves nothing."""
    for question in list(questions(config, state, numbers)):
        state.set_slots(question[-1], _pair(*question))


Question = tuple[Pairs, int, tuple[tuple[int, int], ...], str]
"""What a service's slots depend on: those of before, how many, weights by index, the service's name."""

KNOWN_MAX = 16384
"""Most answers that are remembered; the oldest is forgotten first."""

_known: dict[Question, Pairs] = {}


def _pair(*question: *Question) -> Pairs:
    """`pair`, remembered: most changes leave most services' slots as they are."""
    answer = _known.get(question)
    if answer is None:
        previous, size, by_index, seed = question
        answer = pair(previous, size, dict(by_index), seed)
        remember({question: answer})
    return answer


def remember(answers: Mapping[Question, Pairs]) -> None:
    """Takes answers that another process computed."""
    _known.update(answers)
    while len(_known) > KNOWN_MAX:
        del _known[next(iter(_known))]


def questions(config: Config, state: State, numbers: Numbers) -> Iterator[Question]:
    """What `assign` asks, service by service."""
    by_name = weights(config, state.decisions)
    maintenance = {r.name for r in config.replicas if r.maintenance}
    for service in config.services:
        indices = numbers.replicas[service.pool_name]
        by_index = {indices[name]: by_name[name] for name in service.replicas if name not in maintenance}
        if by_index and not any(by_index.values()):
            by_index = dict.fromkeys(by_index, 1)
        old = state.slots.get(service.name, ())
        yield old, service.slots, tuple(sorted(by_index.items())), service.name
