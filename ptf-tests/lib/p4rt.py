# SPDX-License-Identifier: Apache-2.0
"""Small synchronous P4Runtime client for the packet tests; names are those of the P4Info."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format

Match = dict[str, Any]


def encode(value: int) -> bytes:
    """Canonical bytestring: big-endian without leading zeros, at least one byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class P4Info:
    """Entities of a P4Info by alias, and the program's enumerations."""

    def __init__(self, path: Path) -> None:
        self.message = text_format.Parse(path.read_text(), p4i.P4Info())
        self.tables = self._by_alias(self.message.tables)
        self.actions = self._by_alias(self.message.actions)
        self.counters = self._by_alias(self.message.counters)
        self.meters = self._by_alias(self.message.meters)
        self.digests = self._by_alias(self.message.digests)
        self.packet_metadata = self._by_alias(self.message.controller_packet_metadata)
        self.action_names = {action.preamble.id: alias for alias, action in self.actions.items()}

    @staticmethod
    def _by_alias(entities: Iterable[Any]) -> dict[str, Any]:
        return {entity.preamble.alias: entity for entity in entities}

    def enum(self, name: str) -> dict[str, int]:
        """Members of a serializable enum with their numbers."""
        members = self.message.type_info.serializable_enums[name].members
        return {member.name: int.from_bytes(member.value, "big") for member in members}


class Switch:
    """One switch, with this client as its primary controller."""

    def __init__(self, address: str, p4info: Path, device_config: Path, device_id: int = 0) -> None:
        self.device_id = device_id
        self.info = P4Info(p4info)
        self.device_config = device_config
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 64 << 20)])
        grpc.channel_ready_future(self.channel).result(timeout=30)
        self.stub = p4r_grpc.P4RuntimeStub(self.channel)
        self.election_id = p4r.Uint128(high=0, low=1)
        self._requests: queue.Queue[Any] = queue.Queue()
        self.packet_ins: queue.Queue[Any] = queue.Queue()
        self.digest_lists: queue.Queue[Any] = queue.Queue()
        self._arbitrated = threading.Event()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()
        arbitration = p4r.MasterArbitrationUpdate(device_id=device_id, election_id=self.election_id)
        self._requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        if not self._arbitrated.wait(timeout=10):
            raise TimeoutError("the switch did not make this client its primary controller within 10 s")

    def _receive(self) -> None:
        try:
            for response in self.stub.StreamChannel(iter(self._requests.get, None)):
                kind = response.WhichOneof("update")
                if kind == "arbitration":
                    self._arbitrated.set()
                elif kind == "packet":
                    self.packet_ins.put(response.packet)
                elif kind == "digest":
                    self.digest_lists.put(response.digest)
        except grpc.RpcError:
            pass  # the switch has ended; the next call raises the error

    def close(self) -> None:
        self._requests.put(None)
        self.channel.close()

    def push(self) -> None:
        """Installs the program, which clears every table, counter and register."""
        self.stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=self.device_id,
                election_id=self.election_id,
                action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
                config=p4r.ForwardingPipelineConfig(
                    p4info=self.info.message, p4_device_config=self.device_config.read_bytes()
                ),
            ),
            timeout=60,
        )

    # ---- writing ----

    def write(self, *updates: Any) -> None:
        request = p4r.WriteRequest(device_id=self.device_id, election_id=self.election_id, updates=updates)
        self.stub.Write(request, timeout=60)

    def table_entry(self, table: str, match: Match, action: str, **params: int) -> Any:
        info = self.info.tables[table]
        entry = p4r.TableEntry(table_id=info.preamble.id)
        unknown = set(match) - {field.name for field in info.match_fields}
        if unknown:
            raise KeyError(f"{table} has no key {sorted(unknown)}")
        for field in info.match_fields:
            value = match[field.name]
            kind = p4i.MatchField.MatchType.Name(field.match_type)
            item = p4r.FieldMatch(field_id=field.id)
            if kind == "EXACT":
                item.exact.value = encode(value)
            elif kind == "LPM":
                address, length = value
                if length == 0:
                    continue
                item.lpm.value, item.lpm.prefix_len = encode(address), length
            else:
                raise NotImplementedError(f"{table}.{field.name} is {kind}")
            entry.match.append(item)
        action_info = self.info.actions[action]
        wanted = {param.name for param in action_info.params}
        if wanted != set(params):
            raise KeyError(f"{action} takes {sorted(wanted)}, not {sorted(params)}")
        entry.action.action.action_id = action_info.preamble.id
        for param in action_info.params:
            entry.action.action.params.add(param_id=param.id, value=encode(params[param.name]))
        return entry

    @staticmethod
    def _update(kind: str, **entity: Any) -> Any:
        return p4r.Update(type=p4r.Update.Type.Value(kind), entity=p4r.Entity(**entity))

    def insert(self, table: str, match: Match, action: str, **params: int) -> Any:
        entry = self.table_entry(table, match, action, **params)
        self.write(self._update("INSERT", table_entry=entry))
        return entry

    def insert_all(self, table: str, action: str, rows: Iterable[tuple[Match, dict[str, int]]]) -> list[Any]:
        entries = [self.table_entry(table, match, action, **params) for match, params in rows]
        for i in range(0, len(entries), 500):
            self.write(*(self._update("INSERT", table_entry=entry) for entry in entries[i : i + 500]))
        return entries

    def modify(self, table: str, match: Match, action: str, **params: int) -> None:
        self.write(self._update("MODIFY", table_entry=self.table_entry(table, match, action, **params)))

    def delete(self, entries: Iterable[Any]) -> None:
        entries = list(entries)
        for i in range(0, len(entries), 500):
            self.write(*(self._update("DELETE", table_entry=entry) for entry in entries[i : i + 500]))

    def set_default(self, table: str, action: str, **params: int) -> None:
        entry = self.table_entry(table, {}, action, **params)
        entry.is_default_action = True
        self.write(self._update("MODIFY", table_entry=entry))

    def set_meter(self, meter: str, index: int, per_second: int | None, burst: int = 1) -> None:
        """Sets the rate in packets per second above which the meter is red; None removes the limit."""
        entry = p4r.MeterEntry(meter_id=self.info.meters[meter].preamble.id, index=p4r.Index(index=index))
        if per_second is not None:
            entry.config.cir = entry.config.pir = per_second
            entry.config.cburst = entry.config.pburst = burst
        self.write(self._update("MODIFY", meter_entry=entry))

    def insert_group(self, group: int, copies: Iterable[tuple[int, int]]) -> None:
        """`copies`: (egress port, instance)."""
        entry = p4r.MulticastGroupEntry(multicast_group_id=group)
        for port, instance in copies:
            entry.replicas.add(egress_port=port, instance=instance)
        update = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
        self.write(self._update("INSERT", packet_replication_engine_entry=update))

    def delete_group(self, group: int) -> None:
        entry = p4r.MulticastGroupEntry(multicast_group_id=group)
        update = p4r.PacketReplicationEngineEntry(multicast_group_entry=entry)
        self.write(self._update("DELETE", packet_replication_engine_entry=update))

    def enable_digest(self, digest: str) -> None:
        entry = p4r.DigestEntry(digest_id=self.info.digests[digest].preamble.id)
        entry.config.max_list_size = 1
        self.write(self._update("INSERT", digest_entry=entry))

    def packet_out(self, payload: bytes, **metadata: int) -> None:
        packet = p4r.PacketOut(payload=payload)
        for field in self.info.packet_metadata["packet_out"].metadata:
            packet.metadata.add(metadata_id=field.id, value=encode(metadata[field.name]))
        self._requests.put(p4r.StreamMessageRequest(packet=packet))

    # ---- reading ----

    def read(self, **entity: Any) -> list[Any]:
        request = p4r.ReadRequest(device_id=self.device_id, entities=[p4r.Entity(**entity)])
        return [item for response in self.stub.Read(request, timeout=60) for item in response.entities]

    def counter(self, name: str, index: int) -> int:
        """Packets counted in one cell."""
        entry = p4r.CounterEntry(counter_id=self.info.counters[name].preamble.id, index=p4r.Index(index=index))
        return int(self.read(counter_entry=entry)[0].counter_entry.data.packet_count)

    def counters(self, name: str) -> dict[int, int]:
        """All cells of a counter that are not zero."""
        entry = p4r.CounterEntry(counter_id=self.info.counters[name].preamble.id)
        cells = (item.counter_entry for item in self.read(counter_entry=entry))
        return {int(c.index.index): int(c.data.packet_count) for c in cells if c.data.packet_count}

    def table_count(self) -> int:
        """Number of entries in all tables without const entries."""
        total = 0
        for table in self.info.tables.values():
            if not table.is_const_table:
                total += len(self.read(table_entry=p4r.TableEntry(table_id=table.preamble.id)))
        return total

    def packet_in(self, timeout: float) -> tuple[bytes, dict[str, int]] | None:
        """The next packet to the controller with its metadata, or None."""
        try:
            packet = self.packet_ins.get(timeout=timeout)
        except queue.Empty:
            return None
        names = {field.id: field.name for field in self.info.packet_metadata["packet_in"].metadata}
        return packet.payload, {names[m.metadata_id]: int.from_bytes(m.value, "big") for m in packet.metadata}

    def events(self, timeout: float, wanted: int = 1) -> list[dict[str, int]]:
        """Events (digests) until `wanted` have come or `timeout` seconds are over."""
        (members,) = [s.members for name, s in self.info.message.type_info.structs.items() if name == "event_t"]
        names = [member.name for member in members]
        found: list[dict[str, int]] = []
        end = time.monotonic() + timeout
        while len(found) < wanted and (left := end - time.monotonic()) > 0:
            try:
                digest = self.digest_lists.get(timeout=left)
            except queue.Empty:
                break
            for data in digest.data:
                values = [int.from_bytes(member.bitstring, "big") for member in data.struct.members]
                found.append(dict(zip(names, values, strict=True)))
        return found

    def drop_events(self) -> None:
        """Discards the events received so far."""
        while not self.digest_lists.empty():
            self.digest_lists.get_nowait()
