"""Judges configurations in processes apart: parses, checks and plans them, within bounds of time
and size.

A reader may send a configuration for a plan, and 80 kB of it can ask for a million entries. None of
that work runs in the controller's own process. Plans and changes have a process each, so that
readers' plans delay no change.
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
from .names import ARTIFACTS, Names
from .placement import SlotInputs, assign, cache_slots, number, slot_inputs
from .rack import NO_FACTS, Rack, SwitchFacts, fragments_of
from .rack_file import parse
from .state import Pairs
from .switch import SwitchError
from .worker import Worker

LINES_MAX = 100_000
"""Most lines of a plan; how many more there are is its last line."""

CHUNK = 256
"""Entries that are pickled in one go: a thread that pickles keeps the event loop waiting for as
long."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a configuration is judged against, of one switch."""

    known: SwitchFacts | None
    connected: bool
    entries: tuple[bytes, ...] = ()
    """What it holds, pickled, `CHUNK` entries each; for plans."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a configuration is judged against."""

    rack: Rack
    now: float
    lives: Lives
    switches: Mapping[str, Standing]


class Judge:
    """The two processes. `situation` gives what is in force, and what each switch holds."""

    def __init__(self, situation: Callable[[], tuple[Situation, Mapping[str, list[Item]]]]) -> None:
        self._situation = situation
        self.plans = Worker("plans")
        self.changes = Worker("changes")

    async def plan(self, text: str, own: Config) -> bytes:
        """What a configuration from elsewhere would write to each switch, as JSON: lines by switch.

        `own` is the configuration of this machine's file. Raises ConfigError, SwitchError,
        OutOfNumbers, NamesError, Overdue, Busy.
        """
        # The copy of the rack and its switches is made in the turn: plans that wait, or are
        # refused, cost none.
        async with self.plans.turn():
            situation, held = self._situation()
            entries = await asyncio.to_thread(lambda: {name: _pickled(items) for name, items in held.items()})
            switches = {
                name: Standing(there.known, there.connected, entries[name])
                for name, there in situation.switches.items()
            }
            whole = Situation(situation.rack, situation.now, situation.lives, switches)
            return await self.plans.run_in_turn(plan, text, own, whole)

    async def change(self, text: str, source: str, own: Config | None = None) -> Config:
        """The configuration in a text, once it is certain that it can be brought into force in
        bounded time.

        With `own` (the configuration of this machine's file) the text is from elsewhere. Raises
        ConfigError, OutOfNumbers, NamesError, Overdue, Busy.
        """
        async with self.changes.turn():
            situation, _ = self._situation()
            config, answers = await self.changes.run_in_turn(change, text, source, own, situation)
        cache_slots(answers)
        return config

    async def stop(self) -> None:
        """Ends the processes."""
        await asyncio.gather(self.plans.stop(), self.changes.stop())


def _pickled(items: list[Item]) -> tuple[bytes, ...]:
    return tuple(pickle.dumps(items[start : start + CHUNK]) for start in range(0, len(items), CHUNK))


# In a worker's process


def plan(text: str, own: Config, situation: Situation) -> bytes:
    """See `Judge.plan`."""
    config = with_local_parts(parse(text, "config"), own, "config")
    rack, _ = _trial(config, situation, "config")
    lines: dict[str, list[str]] = {}
    left = LINES_MAX
    for place in config.switches:
        there = situation.switches.get(place.name)
        if there is None or there.known is None or not there.connected:
            raise SwitchError(f"switch {place.name} is not connected: what it has is not known")
        fragments = fragments_of(_names(place), rack, place, there.known)
        _fits(place, fragments, "config")
        held = [item for chunk in there.entries for item in pickle.loads(chunk)]
        found = difference((item for f in fragments.values() for item in f), held, ORDER).lines()
        lines[place.name] = found[:left]
        if len(found) > left:
            lines[place.name].append(f"… and {len(found) - left} more writes")
        left = max(left - len(found), 0)
    return json.dumps(lines).encode()


def change(
    text: str, source: str, own: Config | None, situation: Situation
) -> tuple[Config, Mapping[SlotInputs, Pairs]]:
    """See `Judge.change`; with the slots, which take longest to find."""
    config = parse(text, source)
    if own is not None:
        config = with_local_parts(config, own, source)
    rack, answers = _trial(config, situation, source)
    for place in config.switches:
        there = situation.switches.get(place.name)
        known = there.known if there is not None else None
        _fits(place, fragments_of(_names(place), rack, place, known or NO_FACTS), source)
    return config, answers


def _trial(config: Config, situation: Situation, source: str) -> tuple[Rack, Mapping[SlotInputs, Pairs]]:
    """The rack as it would be with a configuration, once all changes of it have come to their end."""
    for place in config.switches:
        _has_room(config, place, source)
    rack = situation.rack
    rack.config = config
    rack.numbers = number(config, rack.state)
    asked = list(slot_inputs(config, rack.state, rack.numbers))
    assign(config, rack.state, rack.numbers)
    for service in config.services:
        rack.state.set_mode(service.name, settled(service.plain))
        if service.name not in rack.state.rings:
            given = rack.state.given.get(service.name)
            fresh = KeyRing().tick(situation.now, situation.lives, _held_by_none, given=given)
            rack.state.set_ring(service.name, fresh)
    if RACK_RING not in rack.state.rings:
        fresh = KeyRing().tick(situation.now, situation.lives, _held_by_none, kinds=(Kind.TOR,))
        rack.state.set_ring(RACK_RING, fresh)
    return rack, {inputs: rack.state.slots[inputs[-1]] for inputs in asked}


def _held_by_none(kind: Kind, epoch: int) -> bool:
    return False


def _has_room(config: Config, place: SwitchConfig, source: str) -> None:
    """What needs no computing: raises ConfigError for more slots or members than the switch's
    tables have rows.
    """
    pools = {service.pool_name: service.replicas for service in config.services}
    wanted = {
        "slots": sum(service.slots * (2 if service.policy == "round_robin" else 1) for service in config.services),
        "replicas": sum(len(replicas) for replicas in pools.values()),
    }
    _compare(place, wanted, source)


def _fits(place: SwitchConfig, fragments: Mapping[str, Fragment], source: str) -> None:
    """Raises ConfigError for more entries than the switch's tables have rows."""
    entries = (item for f in fragments.values() for item in f if isinstance(item, Entry) and not item.default)
    _compare(place, Counter(item.table for item in entries), source)


def _compare(place: SwitchConfig, wanted: Mapping[str, int], source: str) -> None:
    sizes = {table.alias: table.size for table in _names(place).schema.tables}
    problems: Sequence[str] = [
        f"{source}: switch {place.name!r}: {count} entries for table `{table}`, which has room for {sizes[table]}:"
        " use fewer services, replicas or `slots`"
        for table, count in sorted(wanted.items())
        if sizes.get(table) and count > sizes[table]
    ]
    if problems:
        raise ConfigError(list(problems))


_programs: dict[Path, Names] = {}


def _names(place: SwitchConfig) -> Names:
    folder = place.pipeline or ARTIFACTS
    if folder not in _programs:
        _programs[folder] = Names(folder)
    return _programs[folder]
