"""A console with the words of simple_switch_CLI for every switch with P4Runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from finsy.proto import p4r

from .binaries import RackError
from .console_replication import Replication
from .console_state import State
from .p4info import P4Info, kind_of, unknown
from .p4runtime import Connection

THRIFT_ONLY = {
    **dict.fromkeys(
        ("load_new_config_file", "swap_configs", "write_config_to_file"),
        "P4Runtime sets a program together with its P4Info: `rivulet-lab run` does, or a controller",
    ),
    **dict.fromkeys(
        ("port_add", "port_remove", "show_ports"),
        "P4Runtime has no ports: they are flags of the switch (-i PORT@DEVICE)",
    ),
    **dict.fromkeys(("set_queue_rate", "set_queue_depth"), "P4Runtime has no queues"),
    **dict.fromkeys(("set_crc16_parameters", "set_crc32_parameters"), "P4Runtime has no parameters of checksums"),
    **dict.fromkeys(("get_time_elapsed", "get_time_since_epoch", "switch_info"), "P4Runtime reports no such thing"),
    **dict.fromkeys(("reset_state", "serialize_state"), "P4Runtime has no call for all state: see table_clear"),
    "mirroring_add_mc": "a clone session of P4Runtime lists ports: write mirroring_add ID PORT PORT ...",
    "table_set_timeout": "P4Runtime sets a timeout together with the entry",
}
"""Commands of simple_switch_CLI that have no counterpart, and the reason."""


class Console(State, Replication):
    """The commands on tables, and the loop that reads commands."""

    # Tables

    def do_show_tables(self, line: str) -> None:
        """show_tables
        Prints each table with its match fields."""
        self.words(line, "")
        for table in self.info.message.tables:
            self.print(self.table_line(table))

    def do_show_actions(self, line: str) -> None:
        """show_actions
        Prints each action with its parameters and their bits."""
        self.words(line, "")
        for action in self.info.message.actions:
            self.print(f"{action.preamble.name:30} {self.parameters(action)}")

    def do_table_info(self, line: str) -> None:
        """table_info TABLE
        Prints match fields, actions and size of a table."""
        table = self.info.table(self.words(line, "TABLE")[0])
        self.print(self.table_line(table))
        self.print("*" * 80)
        for action in self.info.actions_of(table):
            self.print(f"{action.preamble.name:30} {self.parameters(action)}")
        self.print(f"size {table.size}")

    do_table_show_actions = do_table_info

    def do_table_add(self, line: str) -> None:
        """table_add TABLE ACTION MATCH ... => PARAMETER ... [PRIORITY]
        Adds an entry. Matches are written value (exact), value/length (lpm), value&&&mask (ternary) and low->high
        (range); * matches every value. Tables with a ternary or range field need a priority, and the HIGHEST wins, as
        in P4Runtime (in simple_switch_CLI the lowest does)."""
        table, found, words = self._table_and_action(line, default=False)
        match, separated, rest = self._split(words)
        if not separated:
            wanted = len(table.match_fields)
            # Without parameters `=>` may be missing.
            match, rest = match[:wanted], match[wanted:]
        entry = p4r.TableEntry(table_id=table.preamble.id, match=self.match(table, match))
        priority = None
        if len(rest) == len(found.params) + 1:
            priority, rest = self.number(rest[-1], "priority"), rest[:-1]
        entry.action.action.CopyFrom(self.action(found, rest))
        entry.priority = self.info.priority(table, priority)
        self.connection.write("INSERT", p4r.Entity(table_entry=entry))
        self.print(f"Entry has been added with handle {self.handle(entry)}")

    def do_table_set_default(self, line: str) -> None:
        """table_set_default TABLE ACTION [PARAMETER ...]
        Sets the action of packets that match no entry."""
        table, found, words = self._table_and_action(line, default=True)
        entry = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        entry.action.action.CopyFrom(self.action(found, [word for word in words if word != "=>"]))
        self.connection.write("MODIFY", p4r.Entity(table_entry=entry))

    def do_table_reset_default(self, line: str) -> None:
        """table_reset_default TABLE
        Sets the default action of the program again."""
        table = self.info.table(self.words(line, "TABLE")[0])
        entry = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        self.connection.write("MODIFY", p4r.Entity(table_entry=entry))

    def do_table_modify(self, line: str) -> None:
        """table_modify TABLE ACTION HANDLE [=>] PARAMETER ...
        Sets another action of an entry; table_dump prints the handles."""
        table, found, words = self._table_and_action(line, default=False)
        words = [word for word in words if word != "=>"]
        if not words:
            raise RackError(f"the word HANDLE is missing; write {self.usage()}")
        action = self.action(found, words[1:])
        entry = p4r.TableEntry()
        entry.CopyFrom(self.entry_of(table, words[0]))
        entry.action.action.CopyFrom(action)
        self.connection.write("MODIFY", p4r.Entity(table_entry=self._written(entry)))

    def do_table_delete(self, line: str) -> None:
        """table_delete TABLE HANDLE
        Deletes an entry; table_dump prints the handles."""
        name, handle = self.words(line, "TABLE HANDLE")
        table = self.info.table(name)
        self.connection.write("DELETE", p4r.Entity(table_entry=self._written(self.entry_of(table, handle))))

    def do_table_clear(self, line: str) -> None:
        """table_clear TABLE
        Deletes all entries of a table."""
        table = self.info.table(self.words(line, "TABLE")[0])
        found = [p4r.Entity(table_entry=self._written(entry)) for _, entry in self.entries(table)]
        self.connection.write("DELETE", *found)

    def do_table_num_entries(self, line: str) -> None:
        """table_num_entries TABLE
        Prints the number of entries, without the default action."""
        self.print(str(len(self.entries(self.info.table(self.words(line, "TABLE")[0])))))

    def do_table_dump(self, line: str) -> None:
        """table_dump TABLE
        Prints all entries with their handles, and the default action."""
        table = self.info.table(self.words(line, "TABLE")[0])
        self.print("==========\nTABLE ENTRIES")
        for handle, entry in self.entries(table):
            self._dump(table, handle, entry)
        self.print("==========\nDumping default entry")
        request = p4r.TableEntry(table_id=table.preamble.id, is_default_action=True)
        default = [item.table_entry for item in self.connection.read(table_entry=request)]
        self.print(f"Action entry: {self.action_text(default[0].action) if default else 'none'}\n==========")

    def do_table_dump_entry(self, line: str) -> None:
        """table_dump_entry TABLE HANDLE
        Prints one entry."""
        name, handle = self.words(line, "TABLE HANDLE")
        table = self.info.table(name)
        self._dump(table, int(handle, 0), self.entry_of(table, handle))

    def _dump(self, table: Any, handle: int, entry: Any) -> None:
        self.print(f"**********\nDumping entry {handle:#x}\nMatch key:")
        for field in table.match_fields:
            self.print(f"* {field.name:20}: {kind_of(field).upper():9} {self.match_text(field, entry)}")
        if entry.priority:
            self.print(f"Priority: {entry.priority}")
        self.print(f"Action entry: {self.action_text(entry.action)}")

    @staticmethod
    def _written(entry: Any) -> Any:
        """An entry that was read, as it may be written."""
        action = entry.action
        result = p4r.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority, action=action)
        result.idle_timeout_ns, result.metadata = entry.idle_timeout_ns, entry.metadata
        return result

    def _table_and_action(self, line: str, default: bool) -> tuple[Any, Any, list[str]]:
        """The first two words of a line as a table and one of its actions, and the words after them."""
        words = line.split()
        if not words:
            raise RackError(f"the word TABLE is missing; write {self.usage()}")
        table = self.info.table(words[0])
        among = self.info.actions_of(table, default)
        if len(words) < 2:
            names = ", ".join(action.preamble.name for action in among)
            raise RackError(f"the word ACTION is missing; {table.preamble.name} has {names}")
        return table, self.info.find("actions", words[1], among), words[2:]

    @staticmethod
    def _split(words: list[str]) -> tuple[list[str], bool, list[str]]:
        """The words before and after `=>`, and whether it is there."""
        if "=>" not in words:
            return words, False, []
        at = words.index("=>")
        return words[:at], True, words[at + 1 :]

    # The loop

    def do_help(self, line: str) -> None:
        """help [COMMAND]
        Lists the commands, or explains one."""
        words = self.words(line, "[COMMAND]")
        if not words:
            for name in self.commands():
                self.print(f"  {(getattr(self, f'do_{name}').__doc__ or '').partition(chr(10))[0]}")
            return
        if words[0] in THRIFT_ONLY:
            raise self._thrift_only(words[0])
        if words[0] not in self.commands():
            raise unknown("command", words[0], self.commands())
        usage, _, text = (getattr(self, f"do_{words[0]}").__doc__ or "").partition("\n")
        self.print(usage)
        self.print("  " + " ".join(text.split()))

    def do_exit(self, line: str) -> bool:
        """exit
        Ends the console; so does the end of the input (Ctrl-D)."""
        self.words(line, "")
        return True

    do_quit = do_exit

    def commands(self) -> list[str]:
        """Names of all commands."""
        return sorted(name[3:] for name in self.get_names() if name.startswith("do_"))

    @staticmethod
    def _thrift_only(name: str) -> RackError:
        return RackError(f'there is no "{name}" over P4Runtime: {THRIFT_ONLY[name]}')

    def run_line(self, line: str) -> bool:
        """Runs a command; True if it ends the console. RackError if it is wrong or refused."""
        # A line of a script may end with a comment.
        line = line.partition("#")[0].strip()
        if not line:
            return False
        name, _, rest = line.partition(" ")
        if name == "EOF":
            name = "exit"
        if name in THRIFT_ONLY:
            raise self._thrift_only(name)
        if name not in self.commands():
            raise unknown("command", name, self.commands())
        self.command = name
        return bool(getattr(self, f"do_{name}")(rest))

    def onecmd(self, line: str) -> bool:
        """Runs a line of the prompt and prints an error."""
        try:
            return self.run_line(line)
        except RackError as problem:
            print(f"error: {problem}", file=sys.stderr)
            return False

    def emptyline(self) -> bool:
        """An empty line does nothing, while cmd.Cmd would repeat the command before."""
        return False

    def run(self) -> None:
        """Reads commands from the terminal until `exit`."""
        while True:
            try:
                self.cmdloop()
                return
            except KeyboardInterrupt:
                self.print("^C")

    # Completion

    def completenames(self, text: str, *ignored: Any) -> list[str]:
        """Commands that begin with this text."""
        return [f"{name} " for name in self.commands() if name.startswith(text)]

    def completedefault(self, text: str, line: str, begidx: int, endidx: int) -> list[str]:
        """Tables, actions of the table, counters, registers and meters at their places in a command."""
        before = line[:begidx].split()
        kinds = {"table": "tables", "counter": "counters", "register": "registers", "meter": "meters"}
        kind = kinds.get(before[0].partition("_")[0], "")
        names: list[str] = []
        if before[0] == "help":
            names = self.commands()
        elif len(before) == 1 and kind:
            names = self.info.names(kind)
            names += self.info.names(f"direct_{kind}") if kind in ("counters", "meters") else []
        elif len(before) == 2 and before[0] in ("table_add", "table_set_default", "table_modify"):
            table = self.info.table(before[1])
            actions = self.info.actions_of(table, before[0] == "table_set_default")
            names = [action.preamble.name for action in actions]
        return [f"{name} " for name in names if name.startswith(text) or name.rpartition(".")[2].startswith(text)]


def main(address: str, device_id: int, election_id: int, p4info: Path | None) -> int:
    """The console at a terminal, or of commands from a pipe; returns the exit code."""
    with Connection(address, device_id, election_id) as connection:
        if p4info is not None:
            connection.info = P4Info.of(p4info)
        console = Console(connection)
        if sys.stdin.isatty():
            connection.info  # noqa: B018 (a switch without a program is an error at once)
            try:
                import readline
            except ImportError:
                pass
            else:
                # Names have dots, and matches have slashes and colons.
                readline.set_completer_delims(" ")
            console.run()
            return 0
        for number, line in enumerate(sys.stdin, 1):
            try:
                if console.run_line(line):
                    break
            except RackError as problem:
                raise RackError(f"line {number}: {line.strip()}: {problem}") from None
    return 0
