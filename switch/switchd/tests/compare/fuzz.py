#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The embedded switch and simple_switch_grpc side by side: the same random entries of the ToR program, the same random
packets, the same frames out of the same ports, the same packets to the controller, the same counters.

Not compared are the clock in a request's stamp and the TCP checksum that covers it (the checksum is verified instead),
the order among ports, and digests, because their meters depend on the clock. Liveness bounds are fixed, and choices
depend on a hash or on a round robin.

switch/switchd/tests/compare/fuzz.py --packets 100000 --seed 1      (as root; needs simple_switch_grpc on the PATH)
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import shutil
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "ptf-tests" / part) for part in ("lib", "tests", "")]

import cookies  # noqa: E402
import layout  # noqa: E402
import packets  # noqa: E402
import rack  # noqa: E402
from layout import CLIENT, TOR, TOR_MAC, host_mac  # noqa: E402
from p4rt import Switch  # noqa: E402
from packets import Request  # noqa: E402
from t14_fuzz import Fuzz  # noqa: E402

from rivulet_lab import End, Lab, RackError, standing, switches, veth  # noqa: E402

PORTS = range(1, 9)
BATCH = 32  # BMv2 holds 64 packets in front of a port and drops the rest in silence
ROUND = 1_600  # packets between two sets of entries
FLOOD_VLAN = 4000
FLOOD_GROUP = 31_000
SMALL_COUNTERS = ("drops", "egress_drops", "fates", "suspects")
MARGIN = 400_000  # microseconds around the start of a slot of the replay sketch in which nothing is sent
SOL_PACKET, PACKET_AUXDATA = 263, 8
VLAN_VALID = 0x10


def read(end: socket.socket) -> bytes | None:
    """The next received frame, with the VLAN tag that the kernel removed; `None` for a sent one."""
    frame, ancillary, _, address = end.recvmsg(65536, 256, socket.MSG_DONTWAIT)
    if address[2] == socket.PACKET_OUTGOING:
        return None
    for level, kind, data in ancillary:
        if (level, kind) == (SOL_PACKET, PACKET_AUXDATA):
            status, _, _, _, _, tag, ether_type = struct.unpack("=IIIHHHH", data[:20])
            if status & VLAN_VALID:
                frame = frame[:12] + struct.pack("!HH", ether_type or 0x8100, tag) + frame[12:]
    return frame


class Wire:
    """One switch, its process and the far ends of its ports."""

    def __init__(self, lab: Lab, letter: str, kind: str, binary: str) -> None:
        self.name = Path(binary).name
        grpc = f"127.0.0.1:{9559 + ord(letter) - ord('a')}"
        ports = {port: f"{letter}{port}" for port in PORTS}
        self.process = lab.start(letter, switches.command(kind, ports, grpc, device_id=0, path=binary))
        build = ROOT / "p4src" / "build"
        self.p4 = Switch(grpc, build / "rivulet.p4info.txtpb", build / "rivulet.json")
        self.sockets: dict[int, socket.socket] = {}
        for port in PORTS:
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            end.bind((f"t{letter}{port}", 0))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
            end.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            self.sockets[port] = end
        self.by_fd = {end.fileno(): (port, end) for port, end in self.sockets.items()}

    def receive(self, wanted: set[tuple[int, bytes]], timeout: float) -> list[tuple[int, bytes]]:
        """Receives until all wanted frames have arrived, and returns the other frames."""
        got: list[tuple[int, bytes]] = []
        missing = set(wanted)
        deadline = time.monotonic() + timeout
        while missing:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Different(f"{self.name}: {len(missing)} frames that end a batch did not come back")
            for fd in select.select(list(self.by_fd), [], [], left)[0]:
                port, end = self.by_fd[fd]
                with contextlib.suppress(BlockingIOError):
                    while True:
                        frame = read(end)
                        if frame is None:
                            continue
                        if (port, frame) in missing:
                            missing.discard((port, frame))
                        else:
                            got.append((port, frame))
        return got

    def stop(self) -> None:
        self.p4.close()
        self.process.end()


class Different(Exception):
    """The switches do not agree."""


class Both:
    """Writes the same to both switches; it has no reads."""

    def __init__(self, wires: list[Wire]) -> None:
        self.wires = wires
        self.info = wires[0].p4.info

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple(list(a) if isinstance(a, Iterator) else a for a in args)
            return [getattr(wire.p4, name)(*args, **kwargs) for wire in self.wires].pop()

        return call


class Plane:
    """Frames for both, as the packet tests send them."""

    def __init__(self, wires: list[Wire]) -> None:
        self.wires = wires

    def send(self, _device: int, port: int, frame: bytes) -> None:
        for wire in self.wires:
            wire.sockets[port].send(frame)


class Compare(Fuzz):
    """The packets of the fuzz test of the ToR program, judged by two switches instead of a model."""

    def prepare(self, wires: list[Wire], seed: int) -> None:
        self.wires = wires
        self.switch = Both(wires)
        self.dataplane = Plane(wires)
        self.random = random.Random(seed)
        self.reasons = self.switch.info.enum("drop_reason_t")
        self.entries, self.groups = [], []
        self.cookies: dict[int, list[cookies.Key]] = {}
        self.trods: set[int] = set()
        self.port = CLIENT
        self.sentinel = 0
        self.seen: Counter[str] = Counter()
        for wire in wires:
            rack.install_rack(wire.p4)
        for kind in self.switch.info.enum("event_kind_t").values():
            self.switch.set_meter("event_meter", kind, 10, burst=10)
        self.switch.insert_group(FLOOD_GROUP, [(port, 0) for port in PORTS])
        self.switch.insert("floods", {"vlan": FLOOD_VLAN}, "flood", group=FLOOD_GROUP)
        self.align()

    def align(self) -> None:
        """Sets both clocks to the same time."""
        self.family, self.vlan, self.client = 4, None, layout.CLIENTS[4]
        service = self.add_service()
        self.settle()
        deltas = []
        for wire in self.wires:
            best = None
            for sport in range(2000, 2020):
                frame = self.to_service(service, Request(name="SYN"), sport=sport)
                before = time.monotonic_ns() // 1000
                wire.sockets[CLIENT].send(frame)
                got = self.one(wire)
                after = time.monotonic_ns() // 1000
                stamped = int.from_bytes(packets.tor_block(got)[:6], "big")
                if best is None or after - before < best[0]:
                    best = (after - before, stamped - (before + after) // 2)
            assert best is not None
            deltas.append(best[1])
        rack._clock_delta = deltas[0]
        rack.set_tor(self.wires[1].p4, clock_offset=(layout.CLOCK_OFFSET + deltas[0] - deltas[1]) % (1 << 48))
        self.clear()

    def one(self, wire: Wire) -> bytes:
        """The next frame from any port."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for fd in select.select(list(wire.by_fd), [], [], 1)[0]:
                if (frame := read(wire.by_fd[fd][1])) is not None:
                    return frame
        raise Different(f"{wire.name} does not forward a request")

    def clear(self) -> None:
        self.switch.delete(list(reversed(self.entries)))
        for group in self.groups:
            self.switch.delete_group(group)
        self.entries, self.groups, self.cookies, self.trods = [], [], {}, set()

    # ---- random entries ----

    def build_at_random(self) -> None:
        rng = self.random
        self.vlan = rng.choice((None, None, 7))
        pools = []
        for _ in range(rng.randrange(1, 4)):
            ports = rng.sample(range(1, 5), rng.randrange(1, 5))
            pool = self.add_pool(ports, alive=False)
            for replica, port in enumerate(ports):
                key = {"pool": pool.id, "ingress_port": port, "mac": int.from_bytes(host_mac(port), "big")}
                self.insert("second_chances", key, "handed_on_by", replica=replica)
                if rng.random() < 0.85:
                    self.beat(pool, replica, load=rng.randrange(4))
            pools.append(pool)
        self.all_services = {
            family: [self.random_service(rng.choice(pools), family) for _ in range(rng.randrange(1, 4))]
            for family in (4, 6)
        }
        for port in rng.sample(PORTS, 3):
            action = rng.choice(("set_port", "set_filtered_port"))
            guarded = int(rng.random() < 0.8)
            self.insert("ports", {"ingress_port": port}, action, pvid=rng.choice((1, 7, FLOOD_VLAN)), guarded=guarded)
            # The frames that end a batch are in the flooded VLAN.
            for vlan in (FLOOD_VLAN, rng.choice((1, 7, 100))):
                self.insert("vlan_members", {"ingress_port": port, "vlan": vlan}, "member")
        for port in PORTS:
            for vlan in rng.sample((0, 1, 7, 100), 2):
                action = rng.choice(("send_untagged", "send_tagged"))
                self.insert("port_vlans", {"egress_port": port, "vlan": vlan}, action)
            for vlan in (0, 7):
                key = {"vlan": vlan, "mac": int.from_bytes(host_mac(port), "big")}
                self.insert("bridges", key, "bridge_to", port=port)
                if rng.random() < 0.5:
                    self.insert("known_sources", key | {"ingress_port": port}, "source_known")
        for ether_type in rng.sample((0x88CC, 0x88B5, 0x86DD, 0x0806), 1):
            if rng.random() < 0.3:
                self.insert("punts", {"ether_type": ether_type}, "punt", reason=rng.randrange(1, 255))
        for _ in range(rng.randrange(4)):
            length = rng.randrange(1, 129)
            value = rng.getrandbits(128) >> (128 - length) << (128 - length)
            self.insert("routes", {"destination": (value, length)}, "route_to", next_hop=rng.choice(PORTS))
        for hop in rng.sample(PORTS, 2):
            self.switch.modify(
                "next_hops", {"next_hop": hop}, "set_next_hop", port=hop, mtu=rng.choice((576, 1280, 1500))
            )
        # Members that never sent a heartbeat are detected one packet at a time, so that the order is deterministic.
        for services in self.all_services.values():
            for service in services:
                self.family, self.client = service.address.version, layout.CLIENTS[service.address.version]
                for _ in range(5):
                    self.send(CLIENT, self.plain(service, sport=rng.randrange(1024, 65536), flags=packets.SYN))
                    self.settle()

    def random_service(self, pool: Any, family: int) -> Any:
        rng = self.random
        modes = {
            check: rng.choices((layout.OFF, layout.COUNT, layout.ENFORCE), (1, 2, 7))[0] for check in layout.ALL_CHECKS
        }
        plain = rng.choices((layout.NO_PLAIN, layout.KERNEL, layout.STATELESS, layout.TRODS), (1, 2, 3, 2))[0]
        keys = [(rng.getrandbits(32), rng.getrandbits(32)) for _ in range(rng.randrange(1, 3))]
        service = self.add_service(
            pool,
            family=family,
            policy=rng.choice((layout.BLOCK, layout.ROUND_ROBIN, layout.ROUND_ROBIN)),
            slots=self.even_slots(pool, 1 << rng.randrange(7)),
            plain=plain,
            cookies=keys if plain == layout.STATELESS else (),
            mtu=rng.choice((1280, 1500, 9000)),
            drop_unjudged=rng.randrange(2),
            usable=int(rng.random() < 0.9),
            modes=modes,
        )
        if plain == layout.STATELESS:
            self.cookies[service.id] = keys
        if plain == layout.TRODS:
            self.trods.add(service.id)
            for replica, port in enumerate(pool.ports):
                mac, address = int.from_bytes(host_mac(port), "big"), packets.number(service.address)
                key = {"ingress_port": port, "mac": mac, "address": address, "port": service.port}
                self.insert("plain_sources", key, "speaks_for", pool=pool.id, replica=replica)
        return service

    def of_member(self, rng: random.Random, service: Any) -> bytes:
        """A member's answer to a client, or a segment that it forwards to the connection's holder."""
        source = host_mac(self.port if rng.random() < 0.8 else rng.choice(service.pool.ports))
        self.family, self.client = service.address.version, layout.CLIENTS[service.address.version]
        if rng.random() < 0.5:
            holder = b"\x02\x52\x56\0\0" + bytes([rng.choice((0, 1, 2, 3, 63, 64))])
            return holder + source + self.plain(service, rng.randrange(1024, 65536))[12:]
        segment = packets.tcp(service.address, self.client, service.port, 40000, payload=b"HTTP/1.1 200 OK\r\n\r\n")
        packet = packets.ip_packet(service.address, self.client, packets.TCP, segment)
        return packets.ethernet(TOR_MAC, source, 0x0800 if self.family == 4 else 0x86DD, packet, self.vlan)

    # ---- batches ----

    def seed_frame(self, rng: random.Random, clock: int) -> bytes:
        """Also what clients of stateless services send, and members of pools with TRODS."""
        service = self.services[rng.choice((4, 6))]
        if service.id in self.trods and rng.random() < 0.5:
            return self.of_member(rng, service)
        keys = self.cookies.get(service.id)
        if keys is None or rng.random() < 0.5:
            return super().seed_frame(rng, clock)
        self.family, self.client = service.address.version, layout.CLIENTS[service.address.version]
        sport = rng.randrange(1024, 65536)
        if rng.random() < 0.4:
            layout_ = rng.choice([*cookies.LAYOUTS.values(), "mss", "mss sack ts ws nop"])
            options = cookies.options(layout_, rng.choice((500, 1000, 1300, 1448, 1460)), rng.randrange(16), 1, 2)
            sequence = rng.getrandbits(32)
            return self.plain(service, sport, flags=packets.SYN, sequence=sequence, options=options)
        flow, key = cookies.words(self.client, sport, service.port), rng.choice(keys)
        flags = rng.choice((packets.ACK, packets.ACK, packets.ACK | packets.FIN, packets.RST))
        fields: dict[str, Any] = {"flags": flags, "payload": rng.choice((b"", b"GET / HTTP/1.1\r\n\r\n"))}
        at = rng.choice((0, 8, 1448, 17_000, 537_000, 538_000, 1 << 30))
        if rng.random() < 0.7:
            echo = rng.choice((cookies.answer_value(at % 522_000), cookies.kernel_value(rng.randrange(256)), 77))
            acknowledgement = cookies.stamped_isn(key, flow, 1460) + 1 + at
            fields["options"] = cookies.stamps(1, echo)
        else:
            acknowledgement, fields["options"] = cookies.bare_isn(key, flow, rng.getrandbits(32)) + 1 + at, b""
        return self.plain(service, sport, acknowledgement=acknowledgement % (1 << 32), **fields)

    def marks(self, port: int) -> tuple[list[bytes], set[tuple[int, bytes]]]:
        """Frames that end a batch, sent into a port, and how each port shows that it is through."""
        self.sentinel += 1
        mark = struct.pack("!Q", self.sentinel)
        flood = packets.ethernet(b"\x02\xff" + mark[-4:], b"\x02\xee" + mark[-4:], 0x88B7, mark * 8, FLOOD_VLAN)
        host = b"\x02\xdd" + mark[-4:]
        body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + host + mark[-4:] + bytes(6) + TOR[4].packed + bytes(18)
        answer = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 2) + TOR_MAC + TOR[4].packed + host + mark[-4:] + bytes(18)
        ask = packets.ethernet(b"\xff" * 6, host, 0x0806, body, FLOOD_VLAN)
        back = packets.ethernet(host, TOR_MAC, 0x0806, answer, FLOOD_VLAN)
        return [flood, ask], {(p, flood) for p in PORTS if p != port} | {(port, back)}

    def exchange(self, port: int, frames: list[bytes]) -> list[list[tuple[int, bytes]]]:
        """What each switch makes of frames on a port."""
        ends, wanted = self.marks(port)
        for frame in [*frames, *ends]:
            self.send(port, frame)
        return [wire.receive(wanted, 10) for wire in self.wires]

    def settle(self) -> None:
        """Waits on every port until earlier frames have passed."""
        for port in PORTS:
            self.exchange(port, [])

    def comparable(self, frames: list[tuple[int, bytes]]) -> Counter[tuple[int, bytes, str]]:
        """Frames without the clock, each with its checksum errors."""
        return Counter((port, self.unstamped(f), "; ".join(packets.parse(f).problems)) for port, f in frames)

    def wait_for_slot(self) -> None:
        """Waits so that the replay sketch does not change its time slot within a batch."""
        at = self.clock() % layout.SLOT
        if at < MARGIN or at > layout.SLOT - MARGIN:
            time.sleep(
                ((2 * MARGIN if at > MARGIN else MARGIN) - (at if at < MARGIN else at - layout.SLOT + MARGIN)) / 1e6
            )

    def batch(self, size: int) -> None:
        rng = self.random
        self.services = {family: rng.choice(services) for family, services in self.all_services.items()}
        self.wait_for_slot()
        clock = self.clock()
        port = self.port = CLIENT if rng.random() < 0.6 else rng.choice(PORTS)
        frames = [self.mutate(rng, clock) for _ in range(size)]
        ours, theirs = map(self.comparable, self.exchange(port, frames))
        if ours != theirs:
            lines = [f"packets into port {port}"]
            for name, more in ((self.wires[0].name, ours - theirs), (self.wires[1].name, theirs - ours)):
                for (at, frame, problems), n in more.items():
                    lines.append(f"only {name}: {n} out of port {at} {problems}: {frame.hex()}")
            raise Different("\n".join([*lines, *(f"sent {f.hex()}" for f in frames)]))
        self.seen["frames out"] += sum(ours.values())
        self.same_packet_ins(frames)

    def same_packet_ins(self, frames: list[bytes]) -> None:
        """Compares the packets to the controller, which may arrive late."""
        got: list[Counter[Any]] = [Counter(), Counter()]
        deadline = time.monotonic() + 5
        while True:
            for wire, counter in zip(self.wires, got, strict=True):
                while (packet := wire.p4.packet_in(0)) is not None:
                    counter[packet[0], tuple(sorted(packet[1].items()))] += 1
            if got[0] == got[1]:
                break
            if time.monotonic() > deadline:
                raise Different(f"packets to the controller: {got[0] - got[1]} and {got[1] - got[0]}")
            time.sleep(0.01)
        self.seen["packets to the controller"] += sum(got[0].values())

    def same_counters(self, names: Any) -> None:
        deadline = time.monotonic() + 5
        for name in names:
            while True:
                ours, theirs = (wire.p4.counters(name) for wire in self.wires)
                if ours == theirs:
                    break
                if time.monotonic() > deadline:
                    differing = {
                        i: (ours.get(i, 0), theirs.get(i, 0)) for i in ours | theirs if ours.get(i) != theirs.get(i)
                    }
                    raise Different(f"counter {name}: {differing} (cell: ours, theirs)")
                time.sleep(0.05)

    def run_all(self, count: int) -> None:
        done = 0
        while done < count:
            self.build_at_random()
            for at in range(0, min(ROUND, count - done), BATCH):
                size = min(BATCH, count - done)
                self.batch(size)
                done += size
                if at % (BATCH * 10) == 0:
                    self.same_counters(SMALL_COUNTERS)
            self.same_counters(self.switch.info.counters)
            self.clear()
            self.seen["sets of entries"] += 1
            if done % (10 * ROUND) == 0:
                print(f"  {done:,} packets", flush=True)
        drops = self.wires[0].p4.counters("drops")
        self.seen["drop reasons"] = len(drops)
        self.seen["drops"] = sum(drops.values())


def inside(args: argparse.Namespace) -> int:
    lab = Lab(ROOT / "build" / "compare")
    wires: list[Wire] = []
    try:
        for letter, kind, binary in (("a", "embedded", args.binary), ("b", "bmv2", args.bmv2)):
            wires.append(Wire(lab, letter, kind, binary))
        compare = Compare()
        started = time.monotonic()
        try:
            compare.prepare(wires, args.seed)
            compare.run_all(args.packets)
        except Different as difference:
            print(f"seed {args.seed}: the switches differ\n{difference}", file=sys.stderr)
            return 1
        told = ", ".join(f"{n:,} {what}" for what, n in compare.seen.items())
        print(f"{args.packets:,} packets, seed {args.seed}, {time.monotonic() - started:.0f} s: no difference; {told}")
        return 0
    finally:
        for wire in wires:
            wire.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--binary", help="the embedded switch")
    parser.add_argument("--bmv2", default=shutil.which("simple_switch_grpc"))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bmv2 is None:
        print("SKIPPED: simple_switch_grpc is not installed")
        return 0
    if args.inside:
        return inside(args)
    with standing(Lab(ROOT / "build" / "compare")) as lab:
        space = lab.namespace("compare")
        for letter in "ab":
            for port in PORTS:
                veth(End(space, f"{letter}{port}"), End(space, f"t{letter}{port}"), mtu=9000)
        again = [sys.executable, *sys.argv, "--inside", "--binary", args.binary or switches.program("embedded")]
        command = [*again, "--bmv2", args.bmv2]
        return lab.start("inside", command, space, stdout=None, stderr=None).popen.wait()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RackError as error:
        sys.exit(str(error))
