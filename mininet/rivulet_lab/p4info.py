"""Names, match fields and parameters of a P4Info; an error has the wrong name and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finsy.proto import p4i, p4r
from google.protobuf import text_format

from .binaries import RackError
from .values import encoded, parse, to_bytes

SHOWN = 12
"""Names that an error lists at most."""

EXACT, LPM, TERNARY, RANGE, OPTIONAL = "exact", "lpm", "ternary", "range", "optional"
WITH_PRIORITY = (TERNARY, RANGE, OPTIONAL)
"""Kinds of match whose entries need a priority."""


def kind_of(field: Any) -> str:
    """Kind of match of a field."""
    return str(p4i.MatchField.MatchType.Name(field.match_type)).lower()


def listed(names: Sequence[str]) -> str:
    """Names for an error message."""
    rest = f", … ({len(names)} in all)" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest if names else "none"


def unknown(what: str, name: str, names: Sequence[str]) -> RackError:
    """The error of a name that does not exist."""
    near = difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(
        name, [known.rpartition(".")[2] for known in names], 1
    )
    hint = f" Did you mean {near[0]}?" if near else ""
    return RackError(f'there is no {what} "{name}".{hint} Allowed: {listed(names)}')


class P4Info:
    """The tables, actions, counters and so on of a program."""

    KINDS = ("tables", "actions", "counters", "direct_counters", "meters", "direct_meters", "registers")

    def __init__(self, message: Any) -> None:
        self.message = message
        self._by_id = {
            (kind, entity.preamble.id): entity
            for kind in (*self.KINDS, "action_profiles")
            for entity in getattr(message, kind)
        }

    @classmethod
    def of(cls, path: Path) -> P4Info:
        """Reads a file in protobuf's text format. RackError with the line of an error."""
        try:
            return cls(text_format.Parse(path.read_text(), p4i.P4Info(), allow_unknown_field=True))
        except (OSError, UnicodeDecodeError, text_format.ParseError) as problem:
            raise RackError(f"{path} is no P4Info in text format: {problem}") from None

    def names(self, kind: str) -> list[str]:
        """Full names of all entities of a kind."""
        return [entity.preamble.name for entity in getattr(self.message, kind)]

    def by_id(self, kind: str, number: int) -> Any:
        """The entity of this kind with this id."""
        return self._by_id[kind, number]

    def find(self, kind: str, name: str, among: Sequence[Any] | None = None) -> Any:
        """The entity of a full name, an alias, or the end of one full name. RackError if there is none."""
        entities = list(getattr(self.message, kind)) if among is None else among
        what = kind.replace("_", " ").removesuffix("s")
        for test in (
            lambda preamble: name in (preamble.name, preamble.alias),
            lambda preamble: preamble.name.endswith(f".{name}"),
        ):
            found = [entity for entity in entities if test(entity.preamble)]
            if len(found) > 1:
                raise RackError(
                    f'"{name}" can be {listed([entity.preamble.name for entity in found])}: write one of them'
                )
            if found:
                return found[0]
        raise unknown(what, name, [entity.preamble.name for entity in entities])

    def table(self, name: str) -> Any:
        """A table."""
        return self.find("tables", name)

    def actions_of(self, table: Any, default: bool | None = None) -> list[Any]:
        """Actions of a table; `default`: those allowed as its default action, or those of its entries."""
        refused = {True: p4i.ActionRef.TABLE_ONLY, False: p4i.ActionRef.DEFAULT_ONLY}.get(default)  # type: ignore[arg-type]
        return [self.by_id("actions", ref.id) for ref in table.action_refs if default is None or ref.scope != refused]

    def field(self, table: Any, name: str) -> Any:
        """A match field of a table."""
        found = next((field for field in table.match_fields if field.name == name), None)
        if found is None:
            names = [field.name for field in table.match_fields]
            raise unknown(f"match field of {table.preamble.name}", name, names)
        return found

    @staticmethod
    def match_is_required(field: Any) -> bool:
        """Whether an entry must have this field; an entry without the others matches every value of them."""
        return kind_of(field) == EXACT

    # What the switch takes

    def match(self, field: Any, value: object) -> Any | None:
        """The match of a field; None if it matches every value. RackError for a value that is wrong.

        `value`: one value, and for lpm, ternary and range a pair: (value, prefix length), (value, mask), (low, high).
        """
        kind, bits = kind_of(field), field.bitwidth
        result = p4r.FieldMatch(field_id=field.id)
        try:
            if kind in (EXACT, OPTIONAL):
                getattr(result, kind).value = encoded(value, bits)
                return result
            if not isinstance(value, list | tuple) or len(value) != 2:
                form = {LPM: "[value, prefix length]", TERNARY: "[value, mask]", RANGE: "[low, high]"}[kind]
                raise RackError(f"{value!r} must be {form}")
            first = parse(value[0], bits)
            if kind == LPM:
                length = parse(value[1], 32)
                if length > bits:
                    raise RackError(f"the prefix length {length} is more than its {bits} bits")
                result.lpm.value, result.lpm.prefix_len = to_bytes(first >> bits - length << bits - length), length
                return result if length else None
            second = parse(value[1], bits)
            if kind == TERNARY:
                result.ternary.value, result.ternary.mask = to_bytes(first & second), to_bytes(second)
                return result if second else None
            if first > second:
                raise RackError(f"the range {value[0]} to {value[1]} is empty")
            result.range.low, result.range.high = to_bytes(first), to_bytes(second)
            return result if (first, second) != (0, (1 << bits) - 1) else None
        except RackError as problem:
            raise RackError(f"match field {field.name} ({kind}, {bits} bits): {problem}") from None

    def action(self, action: Any, values: Mapping[str, object]) -> Any:
        """An action with its parameters. RackError if one is missing, unknown or wrong."""
        result = p4r.Action(action_id=action.preamble.id)
        names, name = [param.name for param in action.params], action.preamble.name
        for key in values:
            if key not in names:
                raise unknown(f"parameter of {name}", key, names)
        for param in action.params:
            if param.name not in values:
                raise RackError(f"the parameter {param.name} of {name} is missing; it takes {listed(names)}")
            try:
                data = encoded(values[param.name], param.bitwidth)
            except RackError as problem:
                raise RackError(f"parameter {param.name} of {name}: {problem}") from None
            result.params.add(param_id=param.id, value=data)
        return result

    def implementation(self, table: Any) -> str:
        """Name of a table's action profile ("": none)."""
        profiles = self.message.action_profiles
        found = (p.preamble.name for p in profiles if p.preamble.id == table.implementation_id)
        return str(next(found, ""))

    def priority(self, table: Any, given: int | None) -> int:
        """The priority of an entry. RackError if it is missing, or if the table's entries have none."""
        field = next((field for field in table.match_fields if kind_of(field) in WITH_PRIORITY), None)
        name = table.preamble.name
        if field is None:
            if given:
                raise RackError(f"entries of {name} have no priority, because no field of it is ternary or range")
            return 0
        if not given or not 0 < given < 1 << 31:
            raise RackError(
                f"an entry of {name} needs a priority (1 to 2147483647, the highest wins), because {field.name} is"
                f" {kind_of(field)}"
            )
        return given
