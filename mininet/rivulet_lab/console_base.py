"""What the console's commands share: words, names, handles of entries, and their text."""

from __future__ import annotations

import cmd
from collections.abc import Sequence
from typing import Any, TextIO

from finsy.proto import p4r

from .binaries import RackError
from .p4info import EXACT, LPM, OPTIONAL, RANGE, TERNARY, kind_of
from .p4runtime import Connection
from .values import parse, shown

FORMS = {EXACT: "value", LPM: "value/length", TERNARY: "value&&&mask", RANGE: "low->high", OPTIONAL: "value or *"}
"""How a match field is written; `*` matches every value."""

Words = list[str]


class Base(cmd.Cmd):
    """The session with a switch, and the handles that this console has given to entries."""

    def __init__(self, connection: Connection, *, prompt: str = "rivulet> ", out: TextIO | None = None) -> None:
        super().__init__(stdout=out)
        self.connection, self.prompt = connection, prompt
        self.handles: dict[int, dict[bytes, int]] = {}
        """For each table the handle of each entry, by its key."""

    @property
    def info(self) -> Any:
        """The P4Info of the program."""
        return self.connection.info

    def print(self, text: str = "") -> None:
        """Prints a line."""
        print(text, file=self.stdout)

    # Words of a command

    def words(self, line: str, names: str) -> Words:
        """The words of a line; RackError unless they are as many as in `names`, where `[x]` may be missing."""
        words, wanted = line.split(), names.split()
        least = sum(not name.startswith("[") for name in wanted)
        if len(words) < least:
            raise RackError(f"the word {wanted[len(words)]} is missing; write {self.usage()}")
        if len(words) > len(wanted):
            raise RackError(f'"{words[len(wanted)]}" is a word too many; write {self.usage()}')
        return words

    def usage(self) -> str:
        """The form of the current command: the first line of its help."""
        function = getattr(self, f"do_{self.command}", None)
        return (function.__doc__ or "").partition("\n")[0].rstrip(".") if function else self.command

    command = ""
    """The command that runs."""

    @staticmethod
    def number(word: str, what: str, bits: int = 32) -> int:
        """A number. RackError that names the word."""
        try:
            return parse(word, bits)
        except RackError as problem:
            raise RackError(f"{what}: {problem}") from None

    # Entries

    def key(self, entry: Any) -> bytes:
        """What identifies an entry in its table."""
        match = sorted(entry.match, key=lambda item: item.field_id)
        key = p4r.TableEntry(table_id=entry.table_id, priority=entry.priority, match=match)
        return bytes(key.SerializeToString(deterministic=True))

    def handle(self, entry: Any) -> int:
        """The handle of an entry; a new one gets the next number: handles rise in the order of the dictionary."""
        table = self.handles.setdefault(entry.table_id, {})
        return table.setdefault(self.key(entry), next(reversed(table.values()), -1) + 1)

    def entries(self, table: Any) -> list[tuple[int, Any]]:
        """Handles and entries of a table, as the switch has them now."""
        read = self.connection.read(table_entry=p4r.TableEntry(table_id=table.preamble.id))
        entries = [item.table_entry for item in read if not item.table_entry.is_default_action]
        known = self.handles.setdefault(table.preamble.id, {})
        present = {self.key(entry) for entry in entries}
        self.handles[table.preamble.id] = {key: number for key, number in known.items() if key in present}
        return sorted(((self.handle(entry), entry) for entry in entries), key=lambda pair: pair[0])

    def entry_of(self, table: Any, word: str) -> Any:
        """The entry of a handle. RackError if there is none."""
        number = self.number(word, "handle")
        entries = dict(self.entries(table))
        if number not in entries:
            has = ", ".join(map(str, list(entries)[:12])) or "no entries"
            raise RackError(f"{table.preamble.name} has no entry of the handle {number}; it has {has} (see table_dump)")
        return entries[number]

    def match(self, table: Any, words: Sequence[str]) -> list[Any]:
        """The match of words, one for each field. RackError if they are too few or too many."""
        fields = table.match_fields
        forms = " ".join(f"{field.name}:{FORMS[kind_of(field)]}" for field in fields)
        if len(words) != len(fields):
            raise RackError(
                f"{table.preamble.name} has {len(fields)} match fields, but there are {len(words)} words for them:"
                f" {forms or 'write none'}"
            )
        found = []
        for field, word in zip(fields, words, strict=True):
            kind = kind_of(field)
            if word == "*" and kind != EXACT:
                continue
            separator = {LPM: "/", TERNARY: "&&&", RANGE: "->"}.get(kind)
            value: object = word
            if separator:
                low, present, high = word.partition(separator)
                if not present:
                    raise RackError(
                        f'"{word}" for the {kind} field {field.name} must have the form {FORMS[kind]}, or *'
                    )
                value = [low, high]
            item = self.info.match(field, value)
            if item is not None:
                found.append(item)
        return found

    def action(self, found: Any, words: Sequence[str]) -> Any:
        """An action with parameters in the order of the program. RackError if they are too few or too many."""
        names = [param.name for param in found.params]
        if len(words) != len(names):
            raise RackError(
                f"{found.preamble.name} has {len(names)} parameters, but there are {len(words)} words for them:"
                f" {self.parameters(found)}"
            )
        return self.info.action(found, dict(zip(names, words, strict=True)))

    # Text

    @staticmethod
    def parameters(action: Any) -> str:
        """Names and widths of parameters."""
        return f"[{', '.join(f'{param.name}({param.bitwidth})' for param in action.params)}]"

    def table_line(self, table: Any) -> str:
        """A table with its match fields."""
        profile = self.info.implementation(table)
        keys = ", ".join(f"{field.name}({kind_of(field)}, {field.bitwidth})" for field in table.match_fields)
        return f"{table.preamble.name} [implementation={profile or None}, mk={keys}]"

    def match_text(self, field: Any, entry: Any) -> str:
        """The value of a field in an entry."""
        bits = field.bitwidth
        item = next((item for item in entry.match if item.field_id == field.id), None)
        if item is None:
            return "*"

        def text(data: bytes) -> str:
            return shown(data, bits)

        match item.WhichOneof("field_match_type"):
            case "lpm":
                return f"{text(item.lpm.value)}/{item.lpm.prefix_len}"
            case "ternary":
                return f"{text(item.ternary.value)} &&& {text(item.ternary.mask)}"
            case "range":
                return f"{text(item.range.low)} -> {text(item.range.high)}"
            case "optional":
                return text(item.optional.value)
            case _:
                return text(item.exact.value)

    def action_text(self, table_action: Any) -> str:
        """The action of an entry, or its member or group of an action profile."""
        match table_action.WhichOneof("type"):
            case "action":
                found = self.info.by_id("actions", table_action.action.action_id)
                bits = {param.id: param.bitwidth for param in found.params}
                values = (shown(p.value, bits[p.param_id]) for p in table_action.action.params)
                return f"{found.preamble.name} - {', '.join(values)}".rstrip()
            case "action_profile_member_id":
                return f"member {table_action.action_profile_member_id}"
            case "action_profile_group_id":
                return f"group {table_action.action_profile_group_id}"
        return "none"
