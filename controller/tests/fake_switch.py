"""A P4Runtime server that stores entities and forwards nothing, for tests of reconciliation.

>>> async with FakeSwitch() as switch:
...     link = SwitchLink(config(address=switch.address), ...)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from finsy.p4entity import decode_entity
from finsy.proto import p4r, p4r_grpc, rpc_code, rpc_status
from google.protobuf import any_pb2

from rivulet_controller.entry import from_entity
from rivulet_controller.names import Names

Key = tuple[Any, ...]


class FakeSwitch(p4r_grpc.P4RuntimeServicer):
    """One device. Writes fail as P4Runtime specifies, or at will through `refuse`."""

    def __init__(self, names: Names, capacity: int = 100_000) -> None:
        self.names = names
        self.capacity = capacity
        self.address = ""
        self.credentials: grpc.ServerCredentials | None = None
        self.pipeline: p4r.ForwardingPipelineConfig | None = None
        self.pipelines_set = 0
        self.entities: dict[Key, p4r.Entity] = {}
        self.writes: list[tuple[str, str]] = []
        self.batches = 0
        self.refuse: Callable[[p4r.Update], int] = lambda update: 0
        self.refuse_pipeline = ""
        self.slow = 0.0
        self.answering = asyncio.Event()
        """While cleared, writes and reads of counters hang."""
        self.answering.set()
        self.counters: dict[tuple[str, int], int] = {}
        """Packets, by counter and cell."""
        self.packets: list[tuple[int, bytes]] = []
        """Packet-outs of the controller, with their ports."""
        self._clients: dict[asyncio.Queue[p4r.StreamMessageResponse], int] = {}
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> FakeSwitch:
        await self.listen("127.0.0.1:0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def listen(self, address: str) -> None:
        """Starts to serve; 127.0.0.1:0 picks a free port."""
        self._server = grpc.aio.server()
        p4r_grpc.add_P4RuntimeServicer_to_server(self, self._server)
        if self.credentials is not None:
            port = self._server.add_secure_port(address, self.credentials)
        else:
            port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Ends every session."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self._clients.clear()

    async def restart(self) -> None:
        """Restarts like a switch that was power-cycled: no pipeline, entries or sessions, but the
        same address.
        """
        address = self.address
        await self.stop()
        self.pipeline = None
        self.entities.clear()
        self.writes.clear()
        await self.listen(address)

    def lines(self) -> set[str]:
        """The entries as readable lines."""
        found = set()
        for entity in self.entities.values():
            item = from_entity(decode_entity(entity, self.names.schema))
            assert item is not None
            found.add(str(item))
        return found

    def demote(self) -> None:
        """Makes another controller, with a higher election id, primary."""
        self._clients[asyncio.Queue()] = 1 << 62
        self._arbitrate()

    def send_digest(self, **fields: int) -> None:
        """Sends an event to the primary."""
        digest = next(iter(self.names.schema.digests))
        blank = dict.fromkeys(("kind", "reason", "pool", "replica", "sequence", "clock", "mac", "port", "vlan"), 0)
        spec: Any = digest.type_spec
        data = spec.encode_data({**blank, **fields})
        self._tell(p4r.StreamMessageResponse(digest=p4r.DigestList(digest_id=digest.id, list_id=1, data=[data])))

    def send_packet(self, frame: bytes, **metadata: int) -> None:
        """Sends a packet-in to the primary."""
        encoded = self.names.schema.controller_packet_metadata["packet_in"].encode({"reason": 2, **metadata})
        self._tell(p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=frame, metadata=encoded)))

    def _tell(self, message: p4r.StreamMessageResponse) -> None:
        best = max(self._clients.values(), default=0)
        for outbox, election in self._clients.items():
            if election == best:
                outbox.put_nowait(message)

    # P4Runtime

    def _arbitrate(self) -> None:
        best = max(self._clients.values(), default=0)
        for outbox, election in self._clients.items():
            code = rpc_code.OK if election == best else rpc_code.ALREADY_EXISTS
            update = p4r.MasterArbitrationUpdate(
                device_id=1, election_id=p4r.Uint128(low=best), status=rpc_status.Status(code=code)
            )
            outbox.put_nowait(p4r.StreamMessageResponse(arbitration=update))

    async def StreamChannel(
        self, requests: AsyncIterator[p4r.StreamMessageRequest], context: Any
    ) -> AsyncIterator[p4r.StreamMessageResponse]:
        outbox: asyncio.Queue[p4r.StreamMessageResponse] = asyncio.Queue()

        async def listen() -> None:
            async for request in requests:
                if request.WhichOneof("update") == "arbitration":
                    self._clients[outbox] = request.arbitration.election_id.low
                    self._arbitrate()
                elif request.WhichOneof("update") == "packet":
                    port = int.from_bytes(request.packet.metadata[0].value, "big")
                    self.packets.append((port, request.packet.payload))

        reader = asyncio.create_task(listen())
        try:
            while True:
                getter = asyncio.ensure_future(outbox.get())
                await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
                if not getter.done():
                    getter.cancel()
                    return
                yield getter.result()
        finally:
            reader.cancel()
            if self._clients.pop(outbox, None) is not None:
                self._arbitrate()

    async def Capabilities(self, request: Any, context: Any) -> p4r.CapabilitiesResponse:
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    async def GetForwardingPipelineConfig(self, request: Any, context: Any) -> p4r.GetForwardingPipelineConfigResponse:
        if self.pipeline is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )
        return p4r.GetForwardingPipelineConfigResponse(config=self.pipeline)

    async def SetForwardingPipelineConfig(self, request: Any, context: Any) -> p4r.SetForwardingPipelineConfigResponse:
        if self.refuse_pipeline:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse_pipeline)
        self.pipeline = request.config
        self.pipelines_set += 1
        self.entities.clear()
        return p4r.SetForwardingPipelineConfigResponse()

    async def Write(self, request: Any, context: Any) -> p4r.WriteResponse:
        await asyncio.sleep(self.slow)
        await self.answering.wait()
        if request.election_id.low != max(self._clients.values(), default=0):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not primary")
        self.batches += 1
        codes = [self._one(update) for update in request.updates]
        if any(codes):
            details = []
            for code in codes:
                name = next((n for n, value in rpc_code.Code.items() if value == code), "")
                packed = any_pb2.Any()
                packed.Pack(p4r.Error(canonical_code=code, message=name if code else ""))
                details.append(packed)
            status = rpc_status.Status(code=rpc_code.UNKNOWN, message="Write failure.", details=details)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            await context.abort(grpc.StatusCode.UNKNOWN, "Write failure.")
        return p4r.WriteResponse()

    def _one(self, update: p4r.Update) -> int:
        key, entity = _key(update.entity), update.entity
        kind = p4r.Update.Type.Name(update.type)
        settable = key[0] in ("default", "meter")
        if code := self.refuse(update):
            return code
        if kind == "INSERT":
            if key in self.entities or settable:
                return int(rpc_code.ALREADY_EXISTS)
            table = sum(1 for other in self.entities if other[:2] == key[:2])
            if table >= self.capacity:
                return int(rpc_code.RESOURCE_EXHAUSTED)
        elif key not in self.entities and not settable:
            return int(rpc_code.NOT_FOUND)
        reset = key[0] == "meter" and not entity.meter_entry.HasField("config")
        self.writes.append(("RESET" if reset else kind, str(from_entity(decode_entity(entity, self.names.schema)))))
        if reset:
            self.entities.pop(key, None)
        elif kind == "DELETE":
            del self.entities[key]
        else:
            self.entities[key] = entity
        return 0

    async def Read(self, request: Any, context: Any) -> AsyncIterator[p4r.ReadResponse]:
        found = []
        for wanted in request.entities:
            which = wanted.WhichOneof("entity")
            if which == "counter_entry":
                await self.answering.wait()
                cell = wanted.counter_entry
                name = next(c.alias for c in self.names.schema.counters if c.id == cell.counter_id)
                cell.data.packet_count = self.counters.get((name, cell.index.index), 0)
                found.append(wanted)
            elif which == "table_entry":
                name = "default" if wanted.table_entry.is_default_action else "entry"
                prefix: Key = (name, wanted.table_entry.table_id)
                found += [e for k, e in self.entities.items() if k[: len(prefix)] == prefix]
            elif which == "packet_replication_engine_entry":
                found += [e for k, e in self.entities.items() if k[0] == "multicast"]
            elif _key(wanted) in self.entities:
                found.append(self.entities[_key(wanted)])
            elif which == "digest_entry":
                await context.abort(grpc.StatusCode.NOT_FOUND, "no such digest, as BMv2 says")
        for start in range(0, len(found), 100):
            yield p4r.ReadResponse(entities=found[start : start + 100])


def _key(entity: p4r.Entity) -> Key:
    match entity.WhichOneof("entity"):
        case "table_entry":
            row = entity.table_entry
            if row.is_default_action:
                return ("default", row.table_id)
            return ("entry", row.table_id, *sorted(match.SerializeToString() for match in row.match))
        case "packet_replication_engine_entry":
            group = entity.packet_replication_engine_entry.multicast_group_entry
            return ("multicast", group.multicast_group_id)
        case "meter_entry":
            return ("meter", entity.meter_entry.meter_id, entity.meter_entry.index.index)
        case "digest_entry":
            return ("digest", entity.digest_entry.digest_id)
    raise AssertionError(f"not held: {entity}")
