"""The controller's durable state: key rings, operators' decisions, numbers of names, slots.

`State` holds it in memory, and `changes` returns what the store has to save. A service, pool,
replica or next hop keeps its number as long as the state exists, so a changed configuration
renumbers nothing that did not change.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

from .content import Content
from .keys import RACK_RING, Key, KeyRing, Kind
from .keys import State as KeyState
from .modes import Mode

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Decision:
    """An operator's decision about a replica; None means the configuration's value."""

    draining: bool = False
    weight: int | None = None


class OutOfNumbers(Exception):
    """A table has fewer numbers than names."""


def allocate(known: Mapping[str, int], names: Iterable[str], low: int, high: int) -> dict[str, int]:
    """Numbers from `low` to `high` for `names`: known names keep theirs, new names get unused
    numbers.

    Numbers of names that are gone are reused only when no unused one is left. Raises OutOfNumbers.
    """
    wanted = list(dict.fromkeys(names))
    result = {name: known[name] for name in wanted if name in known}
    fresh = max([low - 1, *known.values()]) + 1
    free = iter(sorted(set(known.values()) - set(result.values())))
    for name in wanted:
        if name in result:
            continue
        if fresh <= high:
            result[name], fresh = fresh, fresh + 1
            continue
        number = next(free, None)
        if number is None:
            raise OutOfNumbers(f"{len(wanted)} names and {high - low + 1} numbers")
        result[name] = number
    return result


GIVEN_MAX = 1 << 16
"""Services (removed ones included) with last epochs kept; the oldest are dropped first."""

SECRET_BYTES = 32

Pairs = tuple[tuple[int, int], ...]
"""By slot: the replica indices in first and second place."""


class State:
    """The state in memory, and the changes not yet saved."""

    def __init__(self, stored: Mapping[str, bytes] | None = None) -> None:
        """`stored` is what a store loaded. Raises ValueError for a value that cannot be parsed."""
        self.rings: dict[str, KeyRing] = {}
        self.given: dict[str, dict[Kind, int]] = {}
        """By service, the last epoch of each kind that was ever used, kept after its keys are
        dropped."""
        self.decisions: dict[str, Decision] = {}
        self.numbers: dict[str, dict[str, int]] = {}
        self.slots: dict[str, Pairs] = {}
        self.modes: dict[str, Mode] = {}
        """By service, the mode of plain TCP at replicas and ToRs."""
        self.contents: dict[str, Content] = {}
        """By service, the content in force for plain clients without connection state."""
        self.counters: dict[str, int] = {}
        self.documents: dict[str, str] = {}
        self.secret = b""
        """Created once and never changed: keys that must not change with an epoch are derived from
        it (keys.py)."""
        self.macs: dict[str, str] = {}
        """MAC addresses of replicas as their agents reported them."""
        self.incarnations: dict[str, int] = {}
        """Incarnations of replicas' TRODS records as last reported; kept while an agent is
        absent."""
        self.time: tuple[float, float] | None = None
        """The controller's clock and the wall clock at the same moment, in seconds."""
        self._changes: dict[str, bytes | None] = {}
        for key, value in (stored or {}).items():
            kind, _, name = key.partition("/")
            try:
                self._read(kind, name, value)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"the stored state {key!r} cannot be read: {error}") from None

    def _read(self, kind: str, name: str, value: bytes) -> None:
        match kind:
            case "keys":
                self.rings[name] = KeyRing(tuple(_key(item) for item in json.loads(value)))
                self.given.setdefault(name, {}).update(_newest(self.rings[name]))
            case "given":
                self.given[name] = {Kind(kind): int(epoch) for kind, epoch in json.loads(value).items()}
            case "decision":
                self.decisions[name] = Decision(**json.loads(value))
            case "numbers":
                self.numbers[name] = {str(k): int(v) for k, v in json.loads(value).items()}
            case "slots":
                self.slots[name] = tuple(zip(value[::2], value[1::2], strict=True))
            case "mode":
                self.modes[name] = Mode(**json.loads(value))
            case "content":
                self.contents[name] = Content(**json.loads(value))
            case "document":
                self.documents[name] = value.decode()
            case "clock":
                steady, wall = json.loads(value)
                self.time = (float(steady), float(wall))
            case "mac":
                self.macs[name] = bytes.fromhex(value.decode()).hex(":")
            case "incarnation":
                self.incarnations[name] = int(value)
            case "counter":
                self.counters[name] = int(value)
            case "secret":
                self.secret = bytes.fromhex(value.decode())

    def make_secret(self) -> None:
        """Creates the secret if there is none."""
        if not self.secret:
            self.secret = secrets.token_bytes(SECRET_BYTES)
            self._changes["secret/derive"] = self.secret.hex().encode()

    def set_ring(self, service: str, ring: KeyRing) -> None:
        """Replaces the keys of a service."""
        if self.rings.get(service) == ring:
            return
        self.rings[service] = ring
        self._changes[f"keys/{service}"] = _ring(ring)
        self._give(service, _newest(ring))

    def _give(self, service: str, newest: Mapping[Kind, int]) -> None:
        """Stores the newest epochs of a service; services are ordered by their last change."""
        known = self.given.pop(service, {})
        self.given[service] = {**known, **newest}
        if self.given[service] != known:
            self._changes[f"given/{service}"] = _json(self.given[service])
        if len(self.given) > GIVEN_MAX:
            gone = next(name for name in self.given if name not in self.rings)
            del self.given[gone]
            self._changes[f"given/{gone}"] = None

    def set_decision(self, replica: str, decision: Decision) -> None:
        """Replaces the decision about a replica."""
        self.decisions[replica] = decision
        self._changes[f"decision/{replica}"] = _json(asdict(decision))

    def number(self, kind: str, names: Iterable[str], low: int, high: int) -> dict[str, int]:
        """Numbers for these names; known names keep theirs. Raises OutOfNumbers."""
        known = self.numbers.get(kind, {})
        wanted = allocate(known, names, low, high)
        # A name that is gone keeps its number until the number is needed.
        taken = set(wanted.values())
        merged = {**{name: n for name, n in known.items() if n not in taken}, **wanted}
        if merged != known:
            self.numbers[kind] = merged
            self._changes[f"numbers/{kind}"] = _json(merged)
        return wanted

    def set_slots(self, service: str, pairs: Pairs) -> None:
        """Replaces the slots of a service."""
        if self.slots.get(service) == pairs:
            return
        self.slots[service] = pairs
        self._changes[f"slots/{service}"] = _flat(pairs)

    def set_mode(self, service: str, mode: Mode) -> None:
        """Replaces a service's mode of plain TCP."""
        if self.modes.get(service) != mode:
            self.modes[service] = mode
            self._changes[f"mode/{service}"] = _json(asdict(mode))

    def set_content(self, service: str, content: Content | None) -> None:
        """Replaces a service's content in force; None if it is not served without state."""
        if self.contents.get(service) == content:
            return
        if content is None:
            del self.contents[service]
        else:
            self.contents[service] = content
        self._changes[f"content/{service}"] = None if content is None else _json(asdict(content))

    def set_document(self, name: str, text: str) -> None:
        """Replaces a document, such as the configuration that several controllers share."""
        if self.documents.get(name) == text:
            return
        self.documents[name] = text
        self._changes[f"document/{name}"] = text.encode()

    def drop_document(self, name: str) -> None:
        """Deletes a document."""
        if self.documents.pop(name, None) is not None:
            self._changes[f"document/{name}"] = None

    def set_mac(self, replica: str, mac: str) -> None:
        """Replaces the MAC address that a replica's agent reported."""
        if self.macs.get(replica) != mac:
            self.macs[replica] = mac
            self._changes[f"mac/{replica}"] = _mac(mac)

    def set_incarnation(self, replica: str, incarnation: int) -> None:
        """Replaces the incarnation of a replica's records."""
        if self.incarnations.get(replica) != incarnation:
            self.incarnations[replica] = incarnation
            self._changes[f"incarnation/{replica}"] = str(incarnation).encode()

    def set_time(self, steady: float, wall: float) -> None:
        """Records both clocks for the next controller."""
        self.time = (steady, wall)
        self._changes["clock/steady"] = _json(self.time)

    def next_counter(self, name: str, floor: int = 1) -> int:
        """Increments a durable counter and returns it, at least `floor`: runs of ToRs, election
        ids.
        """
        self.counters[name] = max(self.counters.get(name, 0) + 1, floor)
        self._changes[f"counter/{name}"] = str(self.counters[name]).encode()
        return self.counters[name]

    def forget_services(self, live: Iterable[str]) -> None:
        """Drops keys, slots, modes and contents of services that no longer exist."""
        keep = {*live, RACK_RING}
        for name in [n for n in self.rings if n not in keep]:
            del self.rings[name]
            self._changes[f"keys/{name}"] = None
        for name in [n for n in self.slots if n not in keep]:
            del self.slots[name]
            self._changes[f"slots/{name}"] = None
        for name in [n for n in self.modes if n not in keep]:
            del self.modes[name]
            self._changes[f"mode/{name}"] = None
        for name in [n for n in self.contents if n not in keep]:
            self.set_content(name, None)

    def copy(self) -> State:
        """A copy, for trying a change."""
        other = State()
        other.rings, other.decisions = dict(self.rings), dict(self.decisions)
        other.given = {service: dict(epochs) for service, epochs in self.given.items()}
        other.numbers = {kind: dict(names) for kind, names in self.numbers.items()}
        other.slots, other.counters, other.macs = dict(self.slots), dict(self.counters), dict(self.macs)
        other.documents, other.modes = dict(self.documents), dict(self.modes)
        other.incarnations = dict(self.incarnations)
        other.contents = dict(self.contents)
        other.secret = self.secret
        return other

    def roll_back(self, before: State) -> None:
        """Restores numbers, slots, modes, decisions and documents, and drops keys of services that
        `before` lacks.

        Keys of other services and contents stay, since time has passed. Last epochs stay, so that
        none is reused.
        """
        for kind in {*self.numbers, *before.numbers}:
            self._replace(self.numbers, before.numbers, "numbers", kind, _json)
        for service in {*self.slots, *before.slots}:
            self._replace(self.slots, before.slots, "slots", service, _flat)
        for service in {*self.modes, *before.modes}:
            self._replace(self.modes, before.modes, "mode", service, lambda mode: _json(asdict(mode)))
        for replica in {*self.decisions, *before.decisions}:
            self._replace(self.decisions, before.decisions, "decision", replica, lambda d: _json(asdict(d)))
        for name in {*self.documents, *before.documents}:
            self._replace(self.documents, before.documents, "document", name, str.encode)
        for service in [name for name in self.rings if name not in before.rings]:
            del self.rings[service]
            self._changes[f"keys/{service}"] = None

    def _replace(
        self, now: dict[str, Value], before: dict[str, Value], kind: str, name: str, stored: Callable[[Value], bytes]
    ) -> None:
        """Restores one value, or its absence."""
        if now.get(name) == before.get(name):
            return
        if name in before:
            now[name] = before[name]
            self._changes[f"{kind}/{name}"] = stored(before[name])
        else:
            del now[name]
            self._changes[f"{kind}/{name}"] = None

    def stored(self) -> dict[str, bytes]:
        """All values as a store holds them after a save."""
        parts: tuple[tuple[str, Mapping[str, bytes]], ...] = (
            ("keys", {name: _ring(ring) for name, ring in self.rings.items()}),
            ("given", {name: _json(epochs) for name, epochs in self.given.items()}),
            ("decision", {name: _json(asdict(decision)) for name, decision in self.decisions.items()}),
            ("numbers", {kind: _json(names) for kind, names in self.numbers.items()}),
            ("slots", {name: _flat(pairs) for name, pairs in self.slots.items()}),
            ("mode", {name: _json(asdict(mode)) for name, mode in self.modes.items()}),
            ("content", {name: _json(asdict(content)) for name, content in self.contents.items()}),
            ("document", {name: text.encode() for name, text in self.documents.items()}),
            ("mac", {name: _mac(mac) for name, mac in self.macs.items()}),
            ("incarnation", {name: str(number).encode() for name, number in self.incarnations.items()}),
            ("counter", {name: str(number).encode() for name, number in self.counters.items()}),
            ("clock", {"steady": _json(self.time)} if self.time is not None else {}),
            ("secret", {"derive": self.secret.hex().encode()} if self.secret else {}),
        )
        return {f"{kind}/{name}": value for kind, values in parts for name, value in values.items()}

    def digest(self) -> str:
        """SHA-256 over `stored`, to compare two states without showing a key."""
        whole = hashlib.sha256()
        for key, value in sorted(self.stored().items()):
            whole.update(b"%d %s %d " % (len(key), key.encode(), len(value)) + value)
        return whole.hexdigest()

    def unsaved(self) -> int:
        """Number of values not yet saved, without those of a save under way."""
        return len(self._changes)

    def changes(self) -> dict[str, bytes | None]:
        """Returns the unsaved values and forgets them; a caller that fails to save gives them back
        with `retry`.
        """
        changes, self._changes = self._changes, {}
        return changes

    def retry(self, changes: Mapping[str, bytes | None]) -> None:
        """Takes back changes that could not be saved; newer changes win."""
        self._changes = {**changes, **self._changes}


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _ring(ring: KeyRing) -> bytes:
    return _json([{**asdict(key), "secret": key.secret.hex()} for key in ring.keys])


def _mac(mac: str) -> bytes:
    return mac.replace(":", "").encode()


def _flat(pairs: Pairs) -> bytes:
    return bytes(index for pair in pairs for index in pair)


def _newest(ring: KeyRing) -> dict[Kind, int]:
    """The last epoch of each kind in a ring."""
    return {kind: keys[-1].epoch for kind in Kind if (keys := ring.of(kind))}


def _key(item: dict[str, object]) -> Key:
    return Key(
        kind=Kind(str(item["kind"])),
        epoch=int(str(item["epoch"])),
        secret=bytes.fromhex(str(item["secret"])),
        created=float(str(item["created"])),
        state=KeyState(str(item["state"])),
        since=float(str(item["since"])),
    )
