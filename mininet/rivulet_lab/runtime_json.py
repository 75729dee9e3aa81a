"""Loads the runtime JSON of p4lang/tutorials (`s1-runtime.json`) into a switch over P4Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from finsy.proto import p4r

from .binaries import RackError
from .p4info import P4Info, listed, unknown
from .p4runtime import Connection

KEYS = ("target", "p4info", "bmv2_json", "table_entries", "multicast_group_entries", "clone_session_entries")
ENTRY_KEYS = ("table", "match", "action_name", "action_params", "default_action", "priority")
REPLICA_KEYS = ("egress_port", "instance")


def load_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. RackError with the line of an error."""
    try:
        found = json.loads(path.read_text())
    except OSError as problem:
        raise RackError(f"{path} cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise RackError(f"{path} is no JSON: {problem}") from None
    if not isinstance(found, dict):
        raise RackError(f"{path} must be a JSON object in braces")
    return found


def checked(found: object, keys: Sequence[str], required: Sequence[str] = ()) -> Mapping[str, Any]:
    """An object with these keys. RackError for an unknown or a missing one."""
    if not isinstance(found, dict):
        raise RackError(f"{found!r} must be an object in braces")
    for key in found:
        if key not in keys:
            raise unknown("key", key, keys)
    for key in required:
        if key not in found:
            raise RackError(f'the key "{key}" is missing; the keys are {listed(keys)}')
    return found


def number(found: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A number of 32 bits in an object."""
    value = found.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
        raise RackError(f'"{key}" must be a number from 0 to 4294967295, not {value!r}')
    return value


def table_entry(info: P4Info, found: object) -> Any:
    """A table entry, as P4Runtime has it."""
    entry = checked(found, ENTRY_KEYS, ("table",))
    table, default = info.table(str(entry["table"])), bool(entry.get("default_action", False))
    result = p4r.TableEntry(table_id=table.preamble.id, is_default_action=default)
    match = entry.get("match") or {}
    if not isinstance(match, dict):
        raise RackError(f'"match" must be an object in braces, not {match!r}')
    if default and match:
        raise RackError('a default action has no "match"')
    for name, value in match.items():
        item = info.match(info.field(table, name), value)
        if item is not None:
            result.match.append(item)
    if not default:
        for field in table.match_fields:
            if field.name not in match and info.match_is_required(field):
                raise RackError(f"the exact match field {field.name} of {table.preamble.name} is missing")
        given = entry.get("priority")
        result.priority = info.priority(table, None if given is None else number(entry, "priority"))
    if "action_name" in entry:
        among = info.actions_of(table, default)
        action = info.find("actions", str(entry["action_name"]), among)
        result.action.action.CopyFrom(info.action(action, entry.get("action_params") or {}))
    elif not default:
        raise RackError('the key "action_name" is missing')
    return p4r.Entity(table_entry=result)


def _replicas(found: Mapping[str, Any]) -> list[Any]:
    items = found["replicas"]
    if not isinstance(items, list):
        raise RackError(f'"replicas" must be a list, not {items!r}')
    checked_items = [checked(item, REPLICA_KEYS, ("egress_port",)) for item in items]
    # BMv2 identifies copies by port and instance; the tutorials always give both.
    return [p4r.Replica(egress_port=number(i, "egress_port"), instance=number(i, "instance", 1)) for i in checked_items]


def group_entry(info: P4Info, found: object) -> Any:
    """A multicast group."""
    entry = checked(found, ("multicast_group_id", "replicas"), ("multicast_group_id", "replicas"))
    group = p4r.MulticastGroupEntry(multicast_group_id=number(entry, "multicast_group_id"), replicas=_replicas(entry))
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=group))


def clone_entry(info: P4Info, found: object) -> Any:
    """A clone session."""
    keys = ("clone_session_id", "replicas", "packet_length_bytes")
    entry = checked(found, keys, keys[:2])
    session = p4r.CloneSessionEntry(
        session_id=number(entry, "clone_session_id"),
        replicas=_replicas(entry),
        packet_length_bytes=number(entry, "packet_length_bytes", 0),
    )
    return p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=session))


LISTS: dict[str, Callable[[P4Info, object], Any]] = {
    "table_entries": table_entry,
    "multicast_group_entries": group_entry,
    "clone_session_entries": clone_entry,
}


class Runtime:
    """A runtime JSON whose files and entries have been checked. `find` gives the path of a file that it names."""

    def __init__(self, path: Path, find: Callable[[str], Path]) -> None:
        try:
            found = checked(load_json(path), KEYS, ("target", "p4info", "bmv2_json"))
            if found["target"] != "bmv2":
                raise RackError(f'"target" must be "bmv2", not {found["target"]!r}')
            self.info = P4Info.of(find(str(found["p4info"])))
            program = find(str(found["bmv2_json"]))
            load_json(program)
            self.program = program.read_bytes()
            self.entities: list[tuple[str, Any]] = []
            for key, build in LISTS.items():
                items = found.get(key, [])
                if not isinstance(items, list):
                    raise RackError(f'"{key}" must be a list')
                for at, item in enumerate(items):
                    try:
                        self.entities.append((f"{key}[{at}]", build(self.info, item)))
                    except RackError as problem:
                        raise RackError(f"{key}[{at}]: {problem}") from None
        except RackError as problem:
            raise RackError(f"{path}: {problem}" if not str(problem).startswith(str(path)) else str(problem)) from None
        self.path = path

    def load(self, connection: Connection) -> None:
        """Loads the program and the entries. RackError with the place of an entry that the switch refuses."""
        connection.push(self.info, self.program)
        for place, entity in self.entities:
            default = entity.table_entry.is_default_action
            try:
                connection.write("MODIFY" if default else "INSERT", entity)
            except RackError as problem:
                session = entity.packet_replication_engine_entry.clone_session_entry
                hint = (
                    " (BMv2 does not cut copies: set packet_length_bytes to 0)" if session.packet_length_bytes else ""
                )
                raise RackError(f"{self.path}: {place}: the switch refused it: {problem}{hint}") from None
