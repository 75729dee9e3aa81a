# SPDX-License-Identifier: Apache-2.0
"""Attacks: each against a rack with good traffic, which passes."""

import time

import packets
import rack
from packets import CHECKED, TIME_VALID, Entry, Request
from rack import CLIENT, OFF, REPLAY_LIMIT, RackTest, families, set_tor


class Attack(RackTest):
    """Helpers: a flood nobody waits for, then good requests that must pass marked."""

    def flood(self, frames: list[bytes], expected: int = 0) -> int:
        """Sends all, throws away what comes out, says how much that was; waits long for what is expected.

        Where all are expected no more than 16 are under way: BMv2's output queues hold 64 packets and drop the rest.
        """
        passed = 0
        for i, frame in enumerate(frames):
            self.send(CLIENT, frame)
            if expected == len(frames) and i % 16 == 15:
                passed += self.drain_until(i + 1 - passed)
            elif i % 32 == 31:
                passed += self.drain(0.0)
        deadline = time.monotonic() + 10
        while passed < expected and time.monotonic() < deadline:
            passed += self.drain(0.1)
        return passed + self.drain(0.5)

    def drain(self, wait: float) -> int:
        count = 0
        while isinstance(self.dataplane.poll(0, timeout=max(wait, 0.001)), self.dataplane.PollSuccess):
            count += 1
        return count

    def drain_until(self, wanted: int) -> int:
        """Waits for this many, at most 5 seconds."""
        count, deadline = 0, time.monotonic() + 5
        while count < wanted and time.monotonic() < deadline:
            count += self.drain(0.0)
        return count

    def good_traffic_passes(self, service, count: int = 50) -> None:
        for _ in range(count):
            self.passes(service, self.good_request(service), flags=CHECKED | TIME_VALID)


@families
class GarbageOfOneConnection(Attack):
    """Whoever owns one connection sends requests with wrong sums: none is counted, so none fills the sketch."""

    def check(self) -> None:
        service = self.add_service()
        set_tor(self.switch, replay_limit=20)
        try:
            time.sleep(0.01)
            before = self.switch.counter("suspects", self.reasons["UNJUDGED_REPLAY"])
            tag = 77
            frames = [
                self.to_service(
                    service,
                    self.good_request(service, tag=tag, base=n).with_(entries=(Entry(0, 0, 3, n),)),
                )
                for n in range(2000)
            ]
            self.assertEqual(self.flood(frames), 0, "garbage reached a replica")
            self.assertEqual(self.switch.counter("suspects", self.reasons["UNJUDGED_REPLAY"]), before)
        finally:
            set_tor(self.switch)
        self.good_traffic_passes(service)


@families
class UnprovedTimeouts(Attack):
    """TIMEOUTs without proof fill the sketch of the openings, and the meter; proved requests are judged as ever."""

    def check(self) -> None:
        service = self.add_service()
        set_tor(self.switch, openings_limit=50)
        index = service.id * 4 + 1
        self.switch.set_meter("service_meters", index, 500, burst=100)
        try:
            frames = [
                self.to_service(service, self.good_request(service, [], name="TIMEOUT", tag=n)) for n in range(2000)
            ]
            self.flood(frames)
            request = self.good_request(service)
            self.passes(service, request)
            self.fails(service, request, "REPLAY")
            self.good_traffic_passes(service)
        finally:
            set_tor(self.switch)
            self.switch.set_meter("service_meters", index, None)


@families
class CopiesOfAVictim(Attack):
    """Verbatim copies of a victim's request: one use passes. Copies with another number, ahead of the victim, do not
    use up the numbers to come: the proof does not reach them."""

    def check(self) -> None:
        service = self.add_service()
        victim = self.good_request(service, [(0, 3)])
        frame = self.to_service(service, victim)
        self.assertEqual(self.flood([frame] * 200, 1), 1, "one use of a continuation")
        ahead = [victim.with_(number=victim.number + step) for step in range(1, 60)]
        self.assertEqual(self.flood([self.to_service(service, request) for request in ahead]), 0)
        for step in range(1, 20):
            entry = service.range(0, 3 + step, base=victim.base, tag=victim.tag)
            self.passes(service, victim.with_(number=victim.number + step, entries=(entry,), time=self.clock()))


@families
class EmptyAndReversedRanges(Attack):
    """A range that sums to zero for every tag cannot be written: reversed ones are refused, zero sums too."""

    def check(self) -> None:
        service = self.add_service()
        for tag in range(20):
            for first, last in ((1, 0), (4, 3), (65535, 0), (1000, 999)):
                request = self.good_request(service, tag=tag)
                self.fails(service, request.with_(entries=(Entry(0, first, last, 0),)), "RANGE_ORDER")
            self.fails(service, self.good_request(service, tag=tag).with_(entries=(Entry(0, 0, 3, 0),)), "SUM")
        self.good_traffic_passes(service, 10)


@families
class FieldsOfOneRangesOfAnother(Attack):
    """One connection's fields with another's good ranges: the tag is in every nonce."""

    def check(self) -> None:
        service = self.add_service()
        mine, other = self.good_request(service), self.good_request(service)
        self.fails(service, mine.with_(entries=other.entries), "SUM")
        self.fails(service, mine.with_(entries=other.entries, base=other.base, number=other.number), "SUM")
        # Originals shown as retransmissions and the other way round.
        retransmitted = self.good_request(service, kinds=["RETRANSMITTED"])
        flipped = tuple(Entry(0, e.first, e.last, e.sum) for e in retransmitted.entries)
        self.fails(service, retransmitted.with_(entries=flipped), "SUM")
        self.good_traffic_passes(service, 10)


@families
class GuessedSums(Attack):
    """1,000 guesses of a sum: none passes (the odds are 2^-32 a try)."""

    def check(self) -> None:
        service = self.add_service()
        frames = []
        for _ in range(1000):
            request = self.good_request(service)
            guess = Entry(0, 0, 3, self.random.getrandbits(32))
            if guess != request.entries[0]:
                frames.append(self.to_service(service, request.with_(entries=(guess,))))
        self.assertEqual(self.flood(frames), 0)
        self.good_traffic_passes(service, 10)


@families
class SynFlood(Attack):
    """A flood of SYNs above its meter: requests of open connections pass."""

    def check(self) -> None:
        service = self.add_service()
        index = service.id * 4
        self.switch.set_meter("service_meters", index, 100, burst=20)
        try:
            frames = [self.to_service(service, Request(name="SYN"), sport=1024 + n, sequence=n) for n in range(1500)]
            passed = self.flood(frames)
            self.assertLess(passed, 600, f"{passed} of 1,500 SYNs passed a meter of 100 a second")
            self.good_traffic_passes(service)
        finally:
            self.switch.set_meter("service_meters", index, None)


@families
class SketchOverflow(Attack):
    """More proved first uses than the limit, by a connection that has all its nonces: the sketch opens instead of
    refusing good requests, says so, and closes again two slots later."""

    def check(self) -> None:
        service = self.add_service()
        limit = 300
        set_tor(self.switch, replay_limit=limit)
        try:
            base, tag = 5000, 9
            entry = service.range(0, 4000, base=base, tag=tag)
            frames = []
            for n in range(2 * limit):
                request = Request(
                    tag=tag, number=base + n, base=base, time=self.clock(), epoch=service.epoch, entries=(entry,)
                )
                frames.append(self.to_service(service, request))
            self.assertEqual(self.flood(frames, 2 * limit), 2 * limit, "good requests were refused")
            self.assertGreater(self.switch.counter("suspects", self.reasons["UNJUDGED_REPLAY"]), 0)
            self.passes(service, self.good_request(service), flags=TIME_VALID)
            time.sleep(8.6)  # two slots of 4.19 s
            request = self.good_request(service)
            self.passes(service, request)
            self.fails(service, request, "REPLAY")
        finally:
            set_tor(self.switch)
        self.assertGreater(REPLAY_LIMIT, limit)


@families
class ForgedMark(Attack):
    """A client that sends the checked mark itself, to a service that checks nothing."""

    def check(self) -> None:
        service = self.add_service(modes=dict.fromkeys(rack.ALL_CHECKS, OFF))
        marked = self.good_request(service, tor_block=bytes(14) + b"\x03\x00", entries=(Entry(0, 0, 3, 1),))
        self.passes(service, marked, flags=TIME_VALID)
        self.passes(service, Request(name="SYN", tor_block=bytes(14) + b"\x03\x00"), flags=TIME_VALID)
        # What carries no ToR block has none to believe.
        frame = self.plain(service, options=b"", payload=bytes(range(48)))
        self.send(CLIENT, frame)
        self.expect_plain(service, frame)
        self.assertEqual(packets.parse(frame).problems, [])
