# SPDX-License-Identifier: Apache-2.0
"""Mutated packets: switch and model must agree on each, and the switch must keep running."""

import ipaddress
import os
import random
import struct
import time
from collections import Counter

import layout
import packets
import traffic
from layout import CLIENT, CLIENTS, TOR, TOR_MAC, host_mac
from model import Model, ServiceModel, Verdict, mapped
from packets import Entry, Request
from rack import RackTest
from rivulet_wire import internet_checksum

BATCH = 64


class Fuzz(RackTest):
    """RIVULET_FUZZ mutated packets: 5,000 here, 100,000 in `make test-long`."""

    def runTest(self) -> None:
        count = int(os.environ.get("RIVULET_FUZZ", "5000"))
        rng = random.Random(int(os.environ.get("RIVULET_SEED", "1")))
        self.build()
        for kind in ("CHECK_FAILED", "UNKNOWN_SOURCE", "UNJUDGED", "NO_REPLICA"):
            self.switch.set_meter("event_meter", self.event_kinds[kind], 10, burst=10)
        verdicts: Counter[str] = Counter()
        done = 0
        while done < count:
            clock = self.clock()
            frames = [self.mutate(rng, clock) for _ in range(min(BATCH, count - done))]
            for verdict in self.agree(frames, self.clock()):
                verdicts[f"{verdict.kind} {verdict.detail}".strip()] += 1
            done += len(frames)
        print(f"  {done:,} packets: " + ", ".join(f"{n} {name}" for name, n in verdicts.most_common(60)))
        self.assertGreater(len(verdicts), 25, "the mutations reach few verdicts")
        self.family, self.vlan, self.client = 4, None, CLIENTS[4]
        self.passes(self.services[4], self.good_request(self.services[4]))
        for kind in ("CHECK_FAILED", "UNKNOWN_SOURCE", "UNJUDGED", "NO_REPLICA"):
            self.switch.set_meter("event_meter", self.event_kinds[kind], None)

    def build(self) -> None:
        """Installs a service of each family and makes the model of the rack."""
        pool = self.add_pool()
        slots = self.even_slots(pool)
        self.services = {family: self.add_service(pool, family=family, slots=slots) for family in (4, 6)}
        models = [
            ServiceModel(
                mapped(s.address.packed),
                s.port,
                {s.epoch: (s.key, s.key_prime)},
                [pool.ports[first] for first, _ in slots],
                4_000_000,
                s.id,
                s.slot_key,
            )
            for s in self.services.values()
        ]
        self.model = Model(TOR_MAC, {mapped(a.packed) for a in TOR.values()}, models)
        self.model.routes = [
            (ipaddress.ip_network("::ffff:198.51.100.0/120"), CLIENT),
            (ipaddress.ip_network("2001:db8:c::/48"), CLIENT),
        ]

    # ---- mutating ----

    def seed_frame(self, rng: random.Random, clock: int) -> bytes:
        """A valid packet of a random kind."""
        family = rng.choice((4, 6))
        service = self.services[family]
        self.family, self.client = family, CLIENTS[family]
        self.vlan = rng.choice((None, None, 7))
        kind = rng.random()
        if kind < 0.70:
            return self.to_service(service, self.seed_request(rng, service, clock), sport=rng.randrange(1024, 65536))
        if kind < 0.80:
            return self.plain(service, sport=rng.randrange(65536), flags=rng.choice((2, 16, 17, 18)))
        if kind < 0.84:
            option = Request(class_=0x80).option()
            return self.plain(service, options=option, payload=rng.randbytes(60))
        if kind < 0.90:
            return self.seed_icmp(rng, service)
        if kind < 0.93:
            dst = rng.choice((TOR[family], service.address, CLIENTS[family]))
            body = packets.heartbeat(5, 1)
            return self.ip_frame(dst, 17, packets.udp(self.client, dst, 9, rng.choice((34997, 53)), body))
        if kind < 0.95:
            return packets.ethernet(TOR_MAC, host_mac(CLIENT), 0x88B5, packets.heartbeat(5, 1), self.vlan)
        if kind < 0.97:
            body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + host_mac(CLIENT) + CLIENTS[4].packed + bytes(6)
            target = self.services[4].address.packed
            return packets.ethernet(b"\xff" * 6, host_mac(CLIENT), 0x0806, body + target, self.vlan)
        return self.ip_frame(CLIENTS[family], rng.choice((6, 17, 47)), rng.randbytes(40))

    def seed_request(self, rng: random.Random, service, clock: int) -> Request:
        name = rng.choice(("NORMAL",) * 6 + ("PROBE", "TIMEOUT", "RESTART", "REKEY", "CLOSE", "SYN"))
        count = 0 if name in ("RESTART", "SYN") else rng.choice((1, 1, 1, 2, 3, 4, 5, 0))
        tag, base, at, entries = rng.getrandbits(32), rng.getrandbits(32), 0, []
        for _ in range(count):
            first = at + rng.randrange(3)
            last = first + rng.randrange(50)
            kind = rng.choice(("ORIGINAL", "ORIGINAL", "RETRANSMITTED"))
            entries.append(service.range(first, last, base=base, tag=tag, kind=kind))
            at = last + 1
        number = base + (entries[-1].last if entries else 0)
        for _ in range(rng.choice((0, 0, 0, 1, 2))):
            if name not in ("RESTART", "SYN"):
                entries.append(rng.choice((Entry(2, 1, 1, 0), Entry(3, 9, 0, 0))))
        return Request(
            name=name,
            tag=tag,
            number=number & 0xFFFFFFFF,
            base=base,
            time=clock - rng.randrange(1_000_000),
            epoch=service.epoch,
            entries=tuple(entries),
            attempt=rng.choice((0, 1)) if name in ("PROBE", "TIMEOUT") else 0,
            tor_block=rng.randbytes(18),
        )

    def seed_icmp(self, rng: random.Random, service) -> bytes:
        echo, error = ((8, 3), (128, 1))[self.family == 6]
        protocol = packets.icmp_protocol(self.client)
        if rng.random() < 0.4:
            message = packets.icmp(self.client, service.address, echo, 0, rng.randbytes(4), rng.randbytes(20))
            return self.ip_frame(service.address, protocol, message)
        segment = packets.tcp(service.address, self.client, 80, 999, options=Request(class_=0x80).option())
        if rng.random() < 0.5:
            segment = packets.tcp(service.address, self.client, 80, 999, payload=bytes(30))
        quote = packets.ip_packet(service.address, self.client, 6, segment)
        message = packets.icmp(self.client, service.address, error, 0, bytes(4), quote)
        return self.ip_frame(service.address, protocol, message)

    def mutate(self, rng: random.Random, clock: int) -> bytes:
        """A valid packet with nothing, some bits, some bytes, its length or a field changed, not close to the horizon.

        It has at least 20 bytes: Linux drops a shorter tagged frame.
        """
        while True:
            frame = bytearray(self.seed_frame(rng, clock))
            for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
                how = rng.randrange(6)
                at = min(rng.randrange(len(frame)), rng.randrange(len(frame)), 170)
                if how == 0:
                    frame[at] ^= 1 << rng.randrange(8)
                elif how == 1:
                    frame[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
                elif how == 2:
                    frame[at : at + 2] = rng.choice((b"\0\0", b"\xff\xff", rng.randbytes(2)))
                elif how == 3:
                    del frame[max(rng.randrange(len(frame)), 20) :]
                elif how == 4:
                    frame += rng.randbytes(rng.randrange(1, 30))
                else:
                    other = self.seed_frame(rng, clock)
                    length = rng.randrange(1, 17)
                    frame[at : at + length] = other[at : at + length]
            if rng.random() < 0.8:
                self.fix_header(frame)
            if len(frame) >= 20 and not self.borderline(bytes(frame), clock):
                return bytes(frame)

    @staticmethod
    def fix_header(frame: bytearray) -> None:
        """Recomputes the IPv4 checksum of most mutants, so that they are not all dropped for it."""
        at = 18 if frame[12:14] == b"\x81\0" else 14
        if frame[at - 2 : at] == b"\x08\0" and len(frame) >= at + 20:
            header = (frame[at] & 15) * 4
            if 20 <= header <= len(frame) - at:
                frame[at + 10 : at + 12] = b"\0\0"
                frame[at + 10 : at + 12] = struct.pack("!H", internet_checksum(bytes(frame[at : at + header])))

    @staticmethod
    def borderline(frame: bytes, clock: int) -> bool:
        """Whether the verdict depends on the time at which the switch handles the frame."""
        from model import Malformed, parse

        try:
            request = parse(frame).request
        except Malformed:
            return False
        if request is None or request.class_ == 0:
            return False
        age = (clock - request.time + (1 << 47)) % (1 << 48) - (1 << 47)
        return -2_000_000 < age < 0 or 2_500_000 < age < 5_500_000

    # ---- comparing ----

    def agree(self, frames: list[bytes], clock: int) -> list[Verdict]:
        """Sends the frames; the frames that leave and the counters must match the model."""
        verdicts = [self.model.judge(frame, clock) for frame in frames]
        if not self.try_batch(frames, verdicts):
            # Tries the frames one by one to find it; frames that the switch dropped have not used their numbers.
            self.fail("the switch and the model disagree:\n" + self.describe(frames, verdicts))
        return verdicts

    def try_batch(self, frames: list[bytes], verdicts: list[Verdict]) -> bool:
        before = self.switch.counters("drops")
        for frame in frames:
            self.send(CLIENT, frame)
        wanted_drops = Counter(self.reasons[str(v.detail)] for v in verdicts if v.kind == "drop")
        wanted: Counter[tuple[int, bytes]] = Counter()
        punts = 0
        for frame, verdict in zip(frames, verdicts, strict=True):
            if verdict.kind == "request":
                wanted[verdict.port, self.normal(frame, verdict)] += 1
            elif verdict.kind in ("plain", "routed"):
                wanted[verdict.port, self.forwarded(frame, verdict.port)] += 1
            elif verdict.kind == "copies":
                for port in (1, 2, 3):
                    wanted[port, self.forwarded(frame, port)] += 1
            elif verdict.kind == "answer":
                wanted[CLIENT, self.answer(frame)] += 1
            elif verdict.kind == "punt":
                punts += 1
        got: Counter[tuple[int, bytes]] = Counter()
        total = sum(wanted.values())
        while sum(got.values()) < total:
            result = self.dataplane.poll(0, timeout=15)
            if not isinstance(result, self.dataplane.PollSuccess):
                break
            got[result.port, self.unstamped(bytes(result.packet))] += 1
        for _ in range(punts):
            if self.switch.packet_in(15.0) is None:
                self.problem = "a packet-in is missing"
                return False
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            after = self.switch.counters("drops")
            if sum(after.values()) - sum(before.values()) >= sum(wanted_drops.values()):
                break
        drops = Counter({reason: after[reason] - before.get(reason, 0) for reason in after})
        drops = +drops
        traffic.SEEN_REASONS.update(name for name, value in self.reasons.items() if drops.get(value))
        names = {value: name for name, value in self.reasons.items()}
        more, less = ({names[r]: n for r, n in c.items()} for c in (drops - wanted_drops, wanted_drops - drops))
        self.problem = f"drops that the model does not expect: {more}, expected drops that are missing: {less}"
        if got == wanted and drops == wanted_drops:
            return True
        self.missing, self.extra = wanted - got, got - wanted
        return False

    def describe(self, frames: list[bytes], verdicts: list[Verdict]) -> str:
        lines = [self.problem]
        for title in ("missing", "extra"):
            for (port, frame), n in getattr(self, title, Counter()).items():
                lines.append(f"{title} at port {port} ({n}): {frame.hex()}")
        lines += [f"{v.kind} {v.detail} {v.port}: {f.hex()}" for f, v in zip(frames, verdicts, strict=True)]
        return "\n".join(lines)

    def forwarded(self, frame: bytes, port: int) -> bytes:
        return self.unstamped(packets.forwarded(frame, dst=host_mac(port), src=TOR_MAC))

    def normal(self, frame: bytes, verdict: Verdict) -> bytes:
        """The request as forwarded, with the flags of its stamp, without the stamp's clock and the TCP checksum."""
        out = bytearray(packets.forwarded(frame, dst=host_mac(verdict.port), src=TOR_MAC))
        parsed = packets.parse(bytes(out))
        at = parsed.l4 + (out[parsed.l4 + 12] >> 4) * 4
        service = self.services[parsed.dst.version]
        block = packets.stamp(0, layout.TOR_ID, service.seal_epoch, service.epoch, int(verdict.detail))
        out[at : at + 18] = block
        out[parsed.l4 + 16 : parsed.l4 + 18] = b"\0\0"
        return bytes(out)

    @staticmethod
    def unstamped(frame: bytes) -> bytes:
        """A request without its stamp's clock and its TCP checksum, which other tests verify."""
        parsed = packets.parse(frame)
        out = bytearray(frame)
        if parsed.protocol == 6 and parsed.l4 + 28 <= len(frame) and not parsed.fragmented():
            at = parsed.l4
            if frame[at + 20] == 253 and frame[at + 21] == 8 and frame[at + 22 : at + 24] == b"RV":
                header = (frame[at + 12] >> 4) * 4
                if frame[at + 24] < 0x80 and parsed.end >= at + header + 24:
                    out[at + header : at + header + 6] = bytes(6)
                    out[at + 16 : at + 18] = b"\0\0"
        return bytes(out)

    def answer(self, frame: bytes) -> bytes:
        """The ToR's answer to an ARP request, a solicitation or an echo request."""
        parsed = packets.parse(frame)
        out = bytearray(frame)
        out[:12] = frame[6:12] + TOR_MAC
        if frame[12:14] == b"\x81\0" and frame[14] & 15 == 0 and frame[15] == 0:
            del out[12:16]
        at = packets.parse(bytes(out)).l3
        if parsed.ether_type == 0x0806:
            body = bytes(out[at : at + 28])
            out[at : at + 28] = body[:7] + b"\x02" + TOR_MAC + body[24:28] + body[8:18]
            return bytes(out)
        l4 = packets.parse(bytes(out)).l4
        old = out[l4]
        if parsed.ether_type == 0x0800:
            out[at + 8] = 64
            out[at + 12 : at + 20] = out[at + 16 : at + 20] + out[at + 12 : at + 16]
            header = (out[at] & 15) * 4
            out[at + 10 : at + 12] = b"\0\0"
            out[at + 10 : at + 12] = struct.pack("!H", internet_checksum(bytes(out[at : at + header])))
            out[l4] = 0
        else:
            out[at + 7] = 64
            out[at + 8 : at + 40] = out[at + 24 : at + 40] + out[at + 8 : at + 24]
            out[l4] = 129
        # RFC 1141: HC' = HC + m - m' in ones' complement.
        total = int.from_bytes(out[l4 + 2 : l4 + 4], "big") + (old << 8) + (~(out[l4] << 8) & 0xFFFF)
        while total > 0xFFFF:
            total = (total & 0xFFFF) + (total >> 16)
        out[l4 + 2 : l4 + 4] = total.to_bytes(2, "big")
        return bytes(out)
