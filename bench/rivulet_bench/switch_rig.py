"""Parts of the switch's bench: veth pairs, controller, rate tool."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4i, p4r, p4r_grpc
from google.protobuf import text_format

from rivulet_lab import End, Lab, Namespace, Process, RackError, prompt, veth

PORTS = (1, 2, 3, 5)
"""Replicas at ports 1 to 3, the client at 5, as in the packet tests. sN is the switch's end, hN the other."""
GRPC = "127.0.0.1:9559"
START_S = 20.0
ATTEMPT_S = 120.0


def connect(space: Namespace) -> None:
    """Makes the veth pairs without offloads, which AF_XDP requires, and all switches get the same."""
    for port in PORTS:
        veth(End(space, f"s{port}"), End(space, f"h{port}"))


@contextmanager
def running(lab: Lab, name: str, command: Sequence[str], ready: Callable[[], bool]) -> Iterator[Process]:
    """Runs a switch until the end of the block. RackError with its last output if it does not start."""
    process = lab.start(name, [*prompt(), *command])
    try:
        lab.until(ready, f"{name} starts", START_S, process)
        yield process
    finally:
        process.end()


def listening() -> bool:
    """Whether a server accepts connections at the P4Runtime address."""
    host, port = GRPC.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=0.5).close()
    except OSError:
        return False
    return True


def send(interface: str, frame: bytes) -> None:
    """Sends one frame into an interface."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((interface, 0))
        raw.send(frame)


@dataclass
class Trace:
    """Output of `switch/engine/benches/tor_trace.py`: entries, heartbeats, and frames by kind."""

    lines: list[list[str]] = field(default_factory=list)
    packets: dict[str, list[bytes]] = field(default_factory=dict)
    beats: list[tuple[int, bytes]] = field(default_factory=list)

    @staticmethod
    def read(text: str) -> Trace:
        """Parses the text."""
        trace = Trace()
        for words in (line.split() for line in text.splitlines()):
            if words[0] != "packet":
                trace.lines.append(words)
            elif words[1] == "beat":
                trace.beats.append((int(words[2]), bytes.fromhex(words[4])))
            else:
                trace.packets.setdefault(words[1], []).append(bytes.fromhex(words[4]))
        return trace


def canonical(value: int) -> bytes:
    """A number as P4Runtime's canonical bytestring."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Control:
    """The only controller of the switch under test."""

    def __init__(self, p4info: str, program: Path) -> None:
        self._info = text_format.Parse(p4info, p4i.P4Info())
        self._tables = {t.preamble.alias: t for t in self._info.tables}
        self._actions = {a.preamble.alias: a for a in self._info.actions}
        self._channel = grpc.insecure_channel(GRPC)
        grpc.channel_ready_future(self._channel).result(timeout=START_S)
        self._stub = p4r_grpc.P4RuntimeStub(self._channel)
        self._election = p4r.Uint128(high=0, low=1)
        self._requests: queue.Queue[Any] = queue.Queue()
        first = threading.Event()

        def listen() -> None:
            try:
                for _ in self._stub.StreamChannel(iter(self._requests.get, None)):
                    first.set()
            except grpc.RpcError:
                pass  # the switch has ended; the next call raises the error

        threading.Thread(target=listen, daemon=True).start()
        arbitration = p4r.MasterArbitrationUpdate(device_id=0, election_id=self._election)
        self._requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        if not first.wait(START_S):
            raise RackError("the switch does not answer the controller")
        config = p4r.ForwardingPipelineConfig(p4info=self._info, p4_device_config=program.read_bytes())
        action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        self._stub.SetForwardingPipelineConfig(
            p4r.SetForwardingPipelineConfigRequest(
                device_id=0, election_id=self._election, action=action, config=config
            ),
            timeout=60,
        )

    def close(self) -> None:
        """Ends the session."""
        self._requests.put(None)
        self._channel.close()

    def has(self, table: str) -> bool:
        """Whether the program has this table."""
        return table in self._tables

    def _entry(self, table: str, match: dict[str, str], action: str, params: dict[str, str]) -> Any:
        info = self._tables[table]
        entry = p4r.TableEntry(table_id=info.preamble.id)
        for key in info.match_fields if match else ():
            value, _, length = match[key.name].partition("/")
            item = entry.match.add(field_id=key.id)
            if length:
                item.lpm.value, item.lpm.prefix_len = canonical(int(value, 16)), int(length)
            else:
                item.exact.value = canonical(int(value, 16))
        entry.action.action.action_id = self._actions[action].preamble.id
        for param in self._actions[action].params:
            text = params.get(param.name, "")
            if param.name == "plain_tcp":
                # Programs without TRODS know only two kinds of plain TCP.
                text = "1" if params["plain"] == "1" else "0"
            entry.action.action.params.add(param_id=param.id, value=canonical(int(text, 16)))
        return entry

    def install(self, lines: Sequence[Sequence[str]]) -> None:
        """Installs the entries of a trace in one write, except those of tables that an earlier program lacks."""
        request = p4r.WriteRequest(device_id=0, election_id=self._election)
        for kind, *words in (line for line in lines if line[0] == "group" or self.has(line[1])):
            if kind == "group":
                group = p4r.MulticastGroupEntry(multicast_group_id=int(words[0]))
                for port, instance in (word.split(":") for word in words[1:]):
                    group.replicas.add(egress_port=int(port), instance=int(instance))
                packet = p4r.PacketReplicationEngineEntry(multicast_group_entry=group)
                entity = p4r.Entity(packet_replication_engine_entry=packet)
            elif kind == "default":
                entry = self._entry(words[0], {}, words[1], dict(w.split("=") for w in words[2:]))
                entry.is_default_action = True
                entity = p4r.Entity(table_entry=entry)
            else:
                arrow = words.index("->")
                match = dict(w.split("=") for w in words[1:arrow])
                params = dict(w.split("=") for w in words[arrow + 2 :])
                entity = p4r.Entity(table_entry=self._entry(words[0], match, words[arrow + 1], params))
            kinds = {"insert": p4r.Update.INSERT, "group": p4r.Update.INSERT, "delete": p4r.Update.DELETE}
            update = kinds.get(kind, p4r.Update.MODIFY)
            request.updates.append(p4r.Update(type=update, entity=entity))
        self._stub.Write(request, timeout=60)


def pps(
    binary: Path, source: str, sinks: Sequence[str], frames: Path, *flags: str, patience: float = ATTEMPT_S
) -> dict[str, Any]:
    """Runs the rate tool once; returns its output."""
    command = [*prompt(), str(binary), source, *sinks, "--frames", str(frames), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
    if done.returncode != 0:
        raise RackError(f"the rate tool failed: {done.stderr.strip()[-400:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result
