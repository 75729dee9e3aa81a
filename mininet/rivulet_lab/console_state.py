"""The console's commands on counters, registers and meters."""

from __future__ import annotations

from typing import Any

from finsy.proto import p4d, p4r

from .binaries import RackError
from .console_base import Base
from .p4runtime import Refused
from .values import of_bytes, parse, to_bytes

MICRO = 1_000_000
"""Rates are written for each microsecond, as in simple_switch_CLI; P4Runtime has them for each second."""


class State(Base):
    """Counters, registers and meters."""

    # Counters

    def do_counter_read(self, line: str) -> None:
        """counter_read COUNTER [INDEX]
        Prints a cell of a counter, or all; of a direct counter INDEX is the handle of an entry."""
        words = self.words(line, "COUNTER [INDEX]")
        counter, table = self._array("counters", words[0])
        for index, data in self._counts(counter, table, words[1:]):
            packets, count = data.packet_count, data.byte_count
            self.print(f"{counter.preamble.name}[{index}]= packets={packets}, bytes={count}")

    def do_counter_write(self, line: str) -> None:
        """counter_write COUNTER INDEX PACKETS BYTES
        Sets a cell of a counter; of a direct counter INDEX is the handle of an entry."""
        name, index, packets, size = self.words(line, "COUNTER INDEX PACKETS BYTES")
        counter, table = self._array("counters", name)
        data = p4r.CounterData(
            packet_count=self.number(packets, "packets", 63), byte_count=self.number(size, "bytes", 63)
        )
        self._write_counts(counter, table, [self._place(counter, table, index)], data)

    def do_counter_reset(self, line: str) -> None:
        """counter_reset COUNTER
        Sets all cells of a counter to zero."""
        counter, table = self._array("counters", self.words(line, "COUNTER")[0])
        places = [entry for _, entry in self.entries(table)] if table else list(range(counter.size))
        self._write_counts(counter, table, places, p4r.CounterData())

    def _counts(self, counter: Any, table: Any, index: list[str]) -> list[tuple[int, Any]]:
        """Indices, or handles, and values."""
        if table:
            entry = self.entry_of(table, index[0]) if index else p4r.TableEntry(table_id=table.preamble.id)
            wanted = p4r.DirectCounterEntry(table_entry=self._key_of(entry))
            read = [item.direct_counter_entry for item in self.connection.read(direct_counter_entry=wanted)]
            return sorted(((self.handle(one.table_entry), one.data) for one in read), key=lambda pair: pair[0])
        entry = p4r.CounterEntry(counter_id=counter.preamble.id)
        if index:
            entry.index.index = self._index(counter, index[0])
        return [
            (one.counter_entry.index.index, one.counter_entry.data) for one in self.connection.read(counter_entry=entry)
        ]

    def _write_counts(self, counter: Any, table: Any, places: list[Any], data: Any) -> None:
        if table:
            entities = [
                p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=self._key_of(entry), data=data))
                for entry in places
            ]
        else:
            # One by one: BMv2 refuses a write to all cells at once.
            entities = [
                p4r.Entity(
                    counter_entry=p4r.CounterEntry(
                        counter_id=counter.preamble.id, index=p4r.Index(index=index), data=data
                    )
                )
                for index in places
            ]
        self.connection.write("MODIFY", *entities)

    # Registers

    def do_register_read(self, line: str) -> None:
        """register_read REGISTER [INDEX]
        Prints a cell of a register, or all. BMv2 has no registers over P4Runtime."""
        words = self.words(line, "REGISTER [INDEX]")
        register = self.info.find("registers", words[0])
        entry = p4r.RegisterEntry(register_id=register.preamble.id)
        name = register.preamble.name
        if words[1:]:
            entry.index.index = self._index(register, words[1])
            (cell,) = self._registers(entry)
            self.print(f"{name}[{words[1]}]= {self._data(cell.data)}")
        else:
            cells = sorted(self._registers(entry), key=lambda cell: cell.index.index)
            self.print(f"{name}= {', '.join(self._data(cell.data) for cell in cells)}")

    def do_register_write(self, line: str) -> None:
        """register_write REGISTER INDEX VALUE
        Sets a cell of a register. BMv2 has no registers over P4Runtime."""
        name, index, value = self.words(line, "REGISTER INDEX VALUE")
        register = self.info.find("registers", name)
        self._write_registers(register, [self._index(register, index)], value)

    def do_register_reset(self, line: str) -> None:
        """register_reset REGISTER
        Sets all cells of a register to zero. BMv2 has no registers over P4Runtime."""
        register = self.info.find("registers", self.words(line, "REGISTER")[0])
        self._write_registers(register, list(range(register.size)), "0")

    def _write_registers(self, register: Any, indices: list[int], value: str) -> None:
        kind = register.type_spec
        if kind.WhichOneof("type_spec") != "bitstring" or kind.bitstring.WhichOneof("type_spec") != "bit":
            raise RackError(
                f"{register.preamble.name} has cells of another type than bit<N>, which cannot be written here"
            )
        bits = kind.bitstring.bit.bitwidth
        try:
            data = p4d.P4Data(bitstring=to_bytes(parse(value, bits)))
        except RackError as problem:
            raise RackError(f"value: {problem}") from None
        entities = [
            p4r.Entity(
                register_entry=p4r.RegisterEntry(
                    register_id=register.preamble.id, index=p4r.Index(index=index), data=data
                )
            )
            for index in indices
        ]
        try:
            self.connection.write("MODIFY", *entities)
        except Refused as problem:
            raise self._no_registers(problem) from None

    def _registers(self, entry: Any) -> list[Any]:
        try:
            return [item.register_entry for item in self.connection.read(register_entry=entry)]
        except Refused as problem:
            raise self._no_registers(problem) from None

    @staticmethod
    def _no_registers(problem: Refused) -> RackError:
        if problem.code != "UNIMPLEMENTED":
            return problem
        return RackError(
            "this switch has no registers over P4Runtime (BMv2 has not): use the embedded switch, or BMv2's own"
            f" simple_switch_CLI over Thrift ({problem})"
        )

    @staticmethod
    def _data(data: Any) -> str:
        """The value of a cell."""
        if data.WhichOneof("data") == "bitstring":
            return str(of_bytes(data.bitstring))
        return " ".join(str(data).split())

    # Meters

    def do_meter_get_rates(self, line: str) -> None:
        """meter_get_rates METER [INDEX]
        Prints the rates of a cell of a meter, or of all that have some, for each microsecond."""
        words = self.words(line, "METER [INDEX]")
        meter = self.info.find("meters", words[0])
        entry = p4r.MeterEntry(meter_id=meter.preamble.id)
        if words[1:]:
            entry.index.index = self._index(meter, words[1])
        for item in self.connection.read(meter_entry=entry):
            cell = item.meter_entry
            if words[1:] or cell.HasField("config"):
                rates = [(cell.config.cir, cell.config.cburst), (cell.config.pir, cell.config.pburst)]
                text = ", ".join(f"{rate / MICRO:g}:{burst}" for rate, burst in rates)
                self.print(
                    f"{meter.preamble.name}[{cell.index.index}]= {text if cell.HasField('config') else 'no limit'}"
                )

    def do_meter_set_rates(self, line: str) -> None:
        """meter_set_rates METER INDEX RATE:BURST RATE:BURST
        Sets committed and peak rate of a cell: packets or bytes a microsecond (0.001 is a thousand a second)."""
        name, index, committed, peak = self.words(line, "METER INDEX RATE:BURST RATE:BURST")
        meter = self.info.find("meters", name)
        (cir, cburst), (pir, pburst) = self._rate(committed), self._rate(peak)
        entry = p4r.MeterEntry(meter_id=meter.preamble.id, index=p4r.Index(index=self._index(meter, index)))
        entry.config.cir, entry.config.cburst, entry.config.pir, entry.config.pburst = cir, cburst, pir, pburst
        self.connection.write("MODIFY", p4r.Entity(meter_entry=entry))

    @staticmethod
    def _rate(word: str) -> tuple[int, int]:
        rate, separator, burst = word.partition(":")
        try:
            found = round(float(rate) * MICRO), int(burst)
        except (ValueError, OverflowError):
            found = -1, -1
        if not separator or not all(0 <= number < 1 << 63 for number in found):
            raise RackError(f'"{word}" must be RATE:BURST, such as 0.001:10')
        return found

    # Cells

    def _array(self, kind: str, name: str) -> tuple[Any, Any]:
        """A counter, and the table of a direct one (else None)."""
        message = self.info.message
        found = self.info.find(kind, name, [*getattr(message, kind), *getattr(message, f"direct_{kind}")])
        direct = any(found is one for one in getattr(message, f"direct_{kind}"))
        return found, self.info.by_id("tables", found.direct_table_id) if direct else None

    def _place(self, array: Any, table: Any, word: str) -> Any:
        return self.entry_of(table, word) if table else self._index(array, word)

    def _index(self, array: Any, word: str) -> int:
        number = self.number(word, "index")
        if number >= array.size:
            raise RackError(f"{array.preamble.name} has the indices 0 to {array.size - 1}, but not {number}")
        return number

    @staticmethod
    def _key_of(entry: Any) -> Any:
        """An entry's table, match and priority alone."""
        return p4r.TableEntry(table_id=entry.table_id, match=entry.match, priority=entry.priority)
