"""A synchronous P4Runtime client: one session with one switch."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_code, rpc_status

from .binaries import RackError
from .p4info import P4Info

CONNECT_S = 10.0
"""Time limit to connect and to become primary."""
CALL_S = 60.0
"""Time limit of a request."""
BATCH = 500
"""Updates in a request: stays below gRPC's limit of 4 MiB."""


class Refused(RackError):
    """The switch refused a request; `code` is the name of gRPC's code."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def refusal(problem: grpc.RpcError) -> Refused:
    """The reason of a refused request; of a batch, that of its first refused update."""
    code, text = problem.code().name, problem.details() or ""
    metadata: Any = problem.trailing_metadata() or ()
    for key, value in metadata:
        if key != "grpc-status-details-bin":
            continue
        for detail in rpc_status.Status.FromString(value).details:
            error = p4r.Error()
            if detail.Unpack(error) and error.canonical_code != rpc_code.OK:
                name = rpc_code.Code.Name(error.canonical_code)  # type: ignore[arg-type]
                return Refused(name, f"{name}{f': {error.message}' if error.message else ''}")
    return Refused(code, f"{code}{f': {text}' if text else ''}")


def require_listening(address: str) -> None:
    """RackError if no server listens; gRPC itself would try until its time limit."""
    try:
        if address.startswith("unix:"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit():
                raise RackError(f'"{address}" is no address: write HOST:PORT or unix:PATH')
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError) as problem:
        raise RackError(f"no P4Runtime server listens at {address} ({problem}): does the switch run?") from None


class Connection:
    """A session with one switch. It asks to be the primary client, which alone may write."""

    def __init__(self, address: str, device_id: int = 0, election_id: int = 1) -> None:
        self.address, self.device_id = address, device_id
        self.election_id = p4r.Uint128(high=election_id >> 64, low=election_id & (1 << 64) - 1)
        self.primary_id = 0
        """Election id of the primary client."""
        self._info: P4Info | None = None
        self._requests: queue.Queue[Any] = queue.Queue()
        self._arbitrated = threading.Event()
        self._end = ""
        # No proxy: gRPC takes the environment's for 127.0.0.1 too.
        options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", 64 << 20), ("grpc.enable_http_proxy", 0)]
        if address.startswith("unix:"):
            # gRPC would send the path as the authority, which the embedded switch refuses.
            options.append(("grpc.default_authority", "localhost"))
        require_listening(address)
        self._channel = grpc.insecure_channel(address, options=options)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError:
            self._channel.close()
            raise RackError(f"no P4Runtime server listens at {address}: does the switch run?") from None
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        arbitration = p4r.MasterArbitrationUpdate(device_id=device_id, election_id=self.election_id)
        self._requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        threading.Thread(target=self._receive, daemon=True).start()
        if not self._arbitrated.wait(CONNECT_S) or self._end:
            self.close()
            raise RackError(f"device {device_id} at {address}: {self._end or 'no answer to the arbitration'}")

    def _receive(self) -> None:
        try:
            for response in self._stub.StreamChannel(iter(self._requests.get, None)):
                if response.WhichOneof("update") == "arbitration":
                    primary = response.arbitration.election_id
                    self.primary_id = primary.high << 64 | primary.low
                    self._arbitrated.set()
        except grpc.RpcError as problem:
            self._end = str(refusal(problem))
        self._arbitrated.set()

    def close(self) -> None:
        """Ends the session."""
        self._requests.put(None)
        self._channel.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The program

    def push(self, info: P4Info, program: bytes) -> None:
        """Loads a program, which clears all state. Refused if the switch does not accept it."""
        config = p4r.ForwardingPipelineConfig(p4info=info.message, p4_device_config=program)
        request = p4r.SetForwardingPipelineConfigRequest(
            device_id=self.device_id,
            election_id=self.election_id,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
            config=config,
        )
        self._call(self._stub.SetForwardingPipelineConfig, request)
        self._info = info

    @property
    def info(self) -> P4Info:
        """The P4Info: of the program that was pushed, or as the switch reports it."""
        if self._info is None:
            request = p4r.GetForwardingPipelineConfigRequest(
                device_id=self.device_id, response_type=p4r.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE
            )
            self._info = P4Info(self._call(self._stub.GetForwardingPipelineConfig, request).config.p4info)
        return self._info

    @info.setter
    def info(self, info: P4Info) -> None:
        self._info = info

    # Entities

    def write(self, kind: str, *entities: Any) -> None:
        """Writes entities; `kind` is INSERT, MODIFY or DELETE. Refused with the first reason."""
        updates = [p4r.Update(type=p4r.Update.Type.Value(kind), entity=entity) for entity in entities]
        for at in range(0, len(updates), BATCH):
            request = p4r.WriteRequest(
                device_id=self.device_id, election_id=self.election_id, updates=updates[at : at + BATCH]
            )
            self._call(self._stub.Write, request)

    def insert_or_modify(self, entity: Any) -> None:
        """Inserts an entity, or changes the one that exists."""
        try:
            self.write("INSERT", entity)
        except Refused as problem:
            if problem.code != "ALREADY_EXISTS":
                raise
            self.write("MODIFY", entity)

    def read(self, **entity: Any) -> Sequence[Any]:
        """Reads entities like this one: `read(table_entry=TableEntry(table_id=...))`."""
        request = p4r.ReadRequest(device_id=self.device_id, entities=[p4r.Entity(**entity)])

        def answers(request: Any, timeout: float) -> list[Any]:
            return [item for response in self._stub.Read(request, timeout=timeout) for item in response.entities]

        return self._call(answers, request)  # type: ignore[no-any-return]

    def _call(self, call: Any, request: Any) -> Any:
        try:
            return call(request, timeout=CALL_S)
        except grpc.RpcError as problem:
            refused = refusal(problem)
            if refused.code == "PERMISSION_DENIED" and self.primary_id != self.election_id.low:
                raise Refused(
                    refused.code,
                    f"another client (election id {self.primary_id}) is the primary one and alone may write: end it, or"
                    f" take over with --election-id {self.primary_id + 1}",
                ) from None
            raise refused from None
