"""Checks and plans configurations in worker processes, within bounds of time and size.

A user with the right to read may submit a configuration for a plan, and 80 kB of text can describe
a million entries. So no such work runs in the controller's own process. Plans and changes have
separate processes: plans delay no change.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import Config, ConfigError, SwitchConfig
from .desired import ORDER, Fragment
from .entry import Entry, Item, difference
from .keys import RACK_RING, KeyRing, Kind, Lives
from .local import with_local_parts
from .modes import settled
from .names import Names, program_of
from .placement import SlotInputs, assign, cache_slots, number, slot_inputs
from .rack import NO_FACTS, Rack, SwitchFacts, fragments_of
from .rack_file import parse
from .service_tls import kinds_of
from .state import Pairs
from .switch import SwitchError
from .worker import Worker

LINES_MAX = 100_000
"""Maximum number of lines of a plan; a last line gives the number of lines left out."""

CHUNK = 256
"""Entries pickled at a time: a thread that pickles blocks the event loop for that long."""


@dataclass(frozen=True, slots=True)
class SwitchBaseline:
    """One switch's part of a `Baseline`."""

    known: SwitchFacts | None
    connected: bool
    entries: tuple[bytes, ...] = ()
    """The switch's entries, pickled in chunks of `CHUNK`; only for plans."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The state against which a configuration is checked."""

    rack: Rack
    now: float
    lives: Lives
    switches: Mapping[str, SwitchBaseline]


class Validator:
    """The two worker processes. `baseline` returns the state in force, and the entries that each
    switch holds.
    """

    def __init__(self, baseline: Callable[[], tuple[Baseline, Mapping[str, list[Item]]]]) -> None:
        self._baseline = baseline
        self.plans = Worker("plans")
        self.changes = Worker("changes")

    async def plan(self, text: str, own: Config) -> bytes:
        """The writes that a submitted configuration would cause, as JSON: lines by switch.

        `own` is the configuration of this machine's file. Raises ConfigError, SwitchError,
        OutOfNumbers, NamesError, Overdue, Busy.
        """
        # Copies the rack and its switches only now: plans that wait or are refused must not use
        # memory for it.
        async with self.plans.turn():
            baseline, held = self._baseline()
            entries = await asyncio.to_thread(lambda: {name: _pickled(items) for name, items in held.items()})
            switches = {
                name: SwitchBaseline(there.known, there.connected, entries[name])
                for name, there in baseline.switches.items()
            }
            whole = Baseline(baseline.rack, baseline.now, baseline.lives, switches)
            return await self.plans.run_in_turn(plan, text, own, whole)

    async def change(self, text: str, source: str, own: Config | None = None) -> Config:
        """Parses a configuration and checks that it can be put in force within bounded time.

        With `own` (the configuration of this machine's file) the text was submitted through the
        API. Raises ConfigError, OutOfNumbers, NamesError, Overdue, Busy.
        """
        async with self.changes.turn():
            baseline, _ = self._baseline()
            config, answers = await self.changes.run_in_turn(change, text, source, own, baseline)
        cache_slots(answers)
        return config

    async def stop(self) -> None:
        """Ends the processes."""
        await asyncio.gather(self.plans.stop(), self.changes.stop())


def _pickled(items: list[Item]) -> tuple[bytes, ...]:
    return tuple(pickle.dumps(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK))


# In the worker process


def plan(text: str, own: Config, baseline: Baseline) -> bytes:
    """See `Validator.plan`."""
    config = with_local_parts(parse(text, "config"), own, "config")
    rack, _ = _planned_rack(config, baseline, "config")
    lines: dict[str, list[str]] = {}
    left = LINES_MAX
    for place in config.switches:
        there = baseline.switches.get(place.name)
        if there is None or there.known is None or not there.connected:
            raise SwitchError(f"switch {place.name} is not connected: its entries are not known")
        names = _names(place, config.checks)
        fragments = fragments_of(names, rack, place, there.known)
        _fits(place, names, fragments, "config")
        held = [item for chunk in there.entries for item in pickle.loads(chunk)]
        found = difference((item for f in fragments.values() for item in f), held, ORDER).lines()
        lines[place.name] = found[:left]
        if len(found) > left:
            lines[place.name].append(f"… and {len(found) - left} more writes")
        left = max(left - len(found), 0)
    return json.dumps(lines).encode()


def change(text: str, source: str, own: Config | None, baseline: Baseline) -> tuple[Config, Mapping[SlotInputs, Pairs]]:
    """See `Validator.change`. Also returns the slots, which take longest to compute."""
    config = parse(text, source)
    if own is not None:
        config = with_local_parts(config, own, source)
    rack, answers = _planned_rack(config, baseline, source)
    for place in config.switches:
        there = baseline.switches.get(place.name)
        known = there.known if there is not None else None
        names = _names(place, config.checks)
        _fits(place, names, fragments_of(names, rack, place, known or NO_FACTS), source)
    return config, answers


def _planned_rack(config: Config, baseline: Baseline, source: str) -> tuple[Rack, Mapping[SlotInputs, Pairs]]:
    """The rack as a configuration would make it, after all changes of mode are complete."""
    for place in config.switches:
        _has_room(config, place, source)
    rack = baseline.rack
    rack.config = config
    rack.numbers = number(config, rack.state)
    asked = list(slot_inputs(config, rack.state, rack.numbers))
    assign(config, rack.state, rack.numbers)
    for service in config.services:
        rack.state.set_mode(service.name, settled(service.plain))
        if service.name not in rack.state.rings:
            given = rack.state.given.get(service.name)
            fresh = KeyRing().tick(baseline.now, baseline.lives, _held_by_none, given=given, kinds=kinds_of(service))
            rack.state.set_ring(service.name, fresh)
    if RACK_RING not in rack.state.rings:
        fresh = KeyRing().tick(baseline.now, baseline.lives, _held_by_none, kinds=(Kind.TOR,))
        rack.state.set_ring(RACK_RING, fresh)
    return rack, {inputs: rack.state.slots[inputs[-1]] for inputs in asked}


def _held_by_none(kind: Kind, epoch: int) -> bool:
    return False


def _has_room(config: Config, place: SwitchConfig, source: str) -> None:
    """Cheap check before anything is computed. Raises ConfigError for more slots or members than
    the tables have rows.
    """
    pools = {service.pool_name: service.replicas for service in config.services}
    wanted = {
        "slots": sum(service.slots * (2 if service.policy == "round_robin" else 1) for service in config.services),
        "replicas": sum(len(replicas) for replicas in pools.values()),
    }
    _compare(place, _names(place, config.checks), wanted, source)


def _fits(place: SwitchConfig, names: Names, fragments: Mapping[str, Fragment], source: str) -> None:
    """Raises ConfigError if a table gets more entries than it has rows."""
    entries = (item for f in fragments.values() for item in f if isinstance(item, Entry) and not item.default)
    _compare(place, names, Counter(item.table for item in entries), source)


def _compare(place: SwitchConfig, names: Names, wanted: Mapping[str, int], source: str) -> None:
    sizes = {table.alias: table.size for table in names.schema.tables}
    problems: Sequence[str] = [
        f"{source}: switch {place.name!r}: {count} entries for table `{table}`, which has {sizes[table]} rows:"
        " use fewer services, replicas or `slots`"
        for table, count in sorted(wanted.items())
        if sizes.get(table) and count > sizes[table]
    ]
    if problems:
        raise ConfigError(list(problems))


_programs: dict[Path, Names] = {}


def _names(place: SwitchConfig, checks: str) -> Names:
    return program_of(place, checks, _programs)
