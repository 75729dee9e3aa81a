"""Entries of a switch as plain values: desired entries, actual entries, and their difference.

Values are integers, as the tables hold them; names are the P4Info's. Everything is hashable and
prints in one readable line, so that a switch's state can be compared as a set of strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import finsy as fy

MatchValue = int | tuple[int, int]
"""Exact and optional: an integer. LPM: (value, prefix length). Ternary: (value, mask). Range: (low,
high)."""


SECRET_PARAMS = frozenset(
    {
        "k0",
        "k1",
        "k0_prime",
        "k1_prime",
        "sketch_key0",
        "sketch_key1",
        "slot_key0",
        "slot_key1",
        "current0",
        "current1",
        "other0",
        "other1",
        "block_key0",
        "block_key1",
    }
)
"""Action parameters that are keys: never printed."""


@dataclass(frozen=True, slots=True, repr=False)
class Entry:
    """A table entry, or a table's default action."""

    table: str
    match: tuple[tuple[str, MatchValue], ...]
    action: str
    params: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    default: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the row: two entries with this key cannot both be in the table."""
        return ("entry", self.table, self.match, self.priority, self.default)

    def entity(self) -> fy.P4TableEntry:
        """The entry as a finsy object."""
        return fy.P4TableEntry(
            self.table,
            match=fy.P4TableMatch(dict(self.match)) if self.match else None,
            action=fy.P4TableAction(self.action, **dict(self.params)),
            priority=self.priority,
            is_default_action=self.default,
        )

    def __str__(self) -> str:
        match = " ".join(f"{name}={_text(value)}" for name, value in self.match)
        params = ", ".join(f"{n}={'…' if n in SECRET_PARAMS else f'{value:#x}'}" for n, value in self.params)
        where = "default" if self.default else match or "any"
        rank = f" @{self.priority}" if self.priority else ""
        return f"{self.table}[{where}{rank}] {self.action}({params})"

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class Multicast:
    """A multicast group: one copy to each (port, instance), in ascending order."""

    group: int
    copies: tuple[tuple[int, int], ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the group."""
        return ("multicast", self.group)

    def entity(self) -> fy.P4MulticastGroupEntry:
        """The group as a finsy object."""
        return fy.P4MulticastGroupEntry(self.group, replicas=self.copies)

    def __str__(self) -> str:
        copies = " ".join(f"{port}#{instance}" if instance else str(port) for port, instance in self.copies)
        return f"multicast[{self.group}] {copies}"


@dataclass(frozen=True, slots=True)
class Meter:
    """Configuration of one cell of an indirect meter (RFC 2698): rates a second, bursts."""

    meter: str
    index: int
    cir: int
    cburst: int
    pir: int
    pburst: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the cell."""
        return ("meter", self.meter, self.index)

    def entity(self) -> fy.P4MeterEntry:
        """The cell's configuration as a finsy object."""
        config = fy.P4MeterConfig(cir=self.cir, cburst=self.cburst, pir=self.pir, pburst=self.pburst)
        return fy.P4MeterEntry(self.meter, index=self.index, config=config)

    def reset(self) -> fy.P4MeterEntry:
        """The finsy object that makes the cell unlimited again (P4Runtime 9.5: a cell without
        configuration is unlimited).
        """
        return fy.P4MeterEntry(self.meter, index=self.index)

    def __str__(self) -> str:
        return f"meter {self.meter}[{self.index}] {self.cir}/{self.cburst} {self.pir}/{self.pburst}"


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest that the switch must send at once, one in each message (docs/dataplane.md)."""

    name: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifies the digest."""
        return ("digest", self.name)

    def entity(self) -> fy.P4DigestEntry:
        """The digest as a finsy object. finsy omits an all-zero configuration; the list size of 1
        keeps it non-zero.
        """
        return fy.P4DigestEntry(self.name, max_list_size=1, max_timeout_ns=0, ack_timeout_ns=0)

    def __str__(self) -> str:
        return f"digest {self.name}"


Item = Entry | Multicast | Meter | Digest


def _text(value: MatchValue) -> str:
    return f"{value:#x}" if isinstance(value, int) else f"{value[0]:#x}/{value[1]:#x}"


def entry(
    table: str,
    match: Mapping[str, MatchValue],
    action: str,
    params: Mapping[str, int] | None = None,
    priority: int = 0,
) -> Entry:
    """Builds an entry from dictionaries in any order."""
    return Entry(table, tuple(sorted(match.items())), action, tuple(sorted((params or {}).items())), priority)


def default(table: str, action: str, params: Mapping[str, int] | None = None) -> Entry:
    """Builds a table's default action."""
    return Entry(table, (), action, tuple(sorted((params or {}).items())), default=True)


def from_entity(entity: Any) -> Item | None:
    """Converts what finsy read; None for entities that the controller does not manage."""
    match entity:
        case fy.P4TableEntry() if isinstance(entity.action, fy.P4TableAction) and not entity.is_const:
            match_fields = tuple(sorted((entity.match or {}).items()))
            params = tuple(sorted(entity.action.args.items()))
            return Entry(
                entity.table_id,
                match_fields,
                entity.action.name,
                params,
                entity.priority,
                entity.is_default_action,
            )
        case fy.P4MulticastGroupEntry():
            return Multicast(entity.multicast_group_id, tuple(sorted(_copy(replica) for replica in entity.replicas)))
        case fy.P4MeterEntry() if entity.config is not None:
            c = entity.config
            return Meter(entity.meter_id, int(entity.index or 0), c.cir, c.cburst, c.pir, c.pburst)
        case fy.P4DigestEntry():
            return Digest(entity.digest_id)
    return None


def _copy(replica: Any) -> tuple[int, int]:
    """Port and instance; finsy gives a bare port number where the instance is 0."""
    return (replica, 0) if isinstance(replica, int) else (replica.port, replica.instance)


@dataclass(frozen=True, slots=True)
class Difference:
    """Writes that turn the switch's entries into the desired ones."""

    insert: tuple[Item, ...] = ()
    modify: tuple[Item, ...] = ()
    delete: tuple[Item, ...] = ()

    def __len__(self) -> int:
        return len(self.insert) + len(self.modify) + len(self.delete)

    def lines(self) -> list[str]:
        """One line for each write, as `rivuletctl plan` prints them."""
        return (
            [f"+ {item}" for item in self.insert]
            + [f"~ {item}" for item in self.modify]
            + [f"- {item}" for item in self.delete]
        )


def difference(desired: Iterable[Item], actual: Iterable[Item], order: Sequence[str]) -> Difference:
    """The fewest writes that turn `actual` into `desired`.

    `order` lists tables in the order of insertion; deletion is in reverse order. A default action
    or digest that is not desired stays as it is; a meter becomes unlimited.
    """
    rank = {name: place for place, name in enumerate(order)}

    def place(item: Item) -> int:
        match item:
            case Entry():
                return rank.get(item.table, len(rank))
            case Multicast():
                return -1
        return -2

    want = {item.key: item for item in desired}
    have = {item.key: item for item in actual}
    insert: list[Item] = []
    modify: list[Item] = []
    for key, item in want.items():
        if key not in have:
            settable = isinstance(item, Meter) or (isinstance(item, Entry) and item.default)
            (modify if settable else insert).append(item)
        elif have[key] != item:
            modify.append(item)
    delete = [
        item
        for key, item in have.items()
        if key not in want and (isinstance(item, Multicast | Meter) or (isinstance(item, Entry) and not item.default))
    ]
    return Difference(
        tuple(sorted(insert, key=place)),
        tuple(sorted(modify, key=place)),
        tuple(sorted(delete, key=place, reverse=True)),
    )
