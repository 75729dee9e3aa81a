# SPDX-License-Identifier: Apache-2.0
"""Attacks: requests of an attacker next to good traffic, which must pass."""

import itertools
import time
from collections.abc import Iterator

import layout
import packets
from layout import CLIENT, CLOCK_OFFSET, OFF, PATIENCE_S, SLOT, Service
from packets import CHECKED, TIME_VALID, Entry, Request
from rack import RackTest, families, set_tor, variants


class Attack(RackTest):
    """Helpers: sends a flood, then good requests that must pass marked as checked."""

    def flood(self, frames: list[bytes], expected: int = 0) -> int:
        """Sends the frames and returns how many left the switch; waits for `expected` of them.

        If all must pass, no more than 16 are in flight: BMv2's output queues hold 64 packets and drop the rest.
        """
        passed = 0
        for i, frame in enumerate(frames):
            self.send(CLIENT, frame)
            if expected == len(frames) and i % 16 == 15:
                passed += self.drain_until(i + 1 - passed)
            elif i % 32 == 31:
                passed += self.drain(0.0)
        deadline = time.monotonic() + 30
        while passed < expected and time.monotonic() < deadline:
            passed += self.drain(0.1)
        return passed + self.drain(0.5)

    def drain(self, wait: float) -> int:
        count = 0
        while isinstance(self.dataplane.poll(0, timeout=max(wait, 0.001)), self.dataplane.PollSuccess):
            count += 1
        return count

    def drain_until(self, wanted: int) -> int:
        """Counts arriving frames until there are this many, or PATIENCE_S have passed."""
        count, deadline = 0, time.monotonic() + PATIENCE_S
        while count < wanted and time.monotonic() < deadline:
            count += self.drain(0.0)
        return count

    def good_traffic_passes(self, service, count: int = 50) -> None:
        for _ in range(count):
            self.passes(service, self.good_request(service), flags=CHECKED | TIME_VALID)


@families
class WrongSumsOfOneConnection(Attack):
    """The owner of a connection sends requests with wrong sums: none fills the replay sketch."""

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
    """TIMEOUTs without proof fill the sketch of openings, and the meter; proved requests are still checked."""

    def check(self) -> None:
        service = self.add_service()
        set_tor(self.switch, openings_limit=50)
        index = service.id * 8 + 3
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


@variants
class CopiesOfAVictim(Attack):
    """Of verbatim copies of a victim's request one passes.

    Copies with a later number do not use that number up, because the proof does not cover it.
    """

    def check(self) -> None:
        service = self.add_service()
        victim = self.good_request(service, [(0, 3)])
        frame = self.to_service(service, victim)
        self.assertEqual(self.flood([frame] * 200, 1), 1, "more than one use of a continuation passed")
        ahead = [victim.with_(number=victim.number + step) for step in range(1, 60)]
        self.assertEqual(self.flood([self.to_service(service, request) for request in ahead]), 0)
        for step in range(1, 20):
            entry = service.range(0, 3 + step, base=victim.base, tag=victim.tag)
            self.passes(service, victim.with_(number=victim.number + step, entries=(entry,), time=self.clock()))


@families
class NumbersOfAForgedRange(Attack):
    """Four ranges copied from a victim and a fifth with a made-up sum.

    Only the fifth could prove the numbers after the four; they stay unused for the victim's own requests.
    """

    def check(self) -> None:
        service = self.add_service()
        victim = self.good_request(service, [(0, 0), (2, 2), (4, 4), (6, 7)])
        forged = Entry(0, 9, 60, 0x12345678)
        ahead = [victim.with_(number=victim.number + step, entries=(*victim.entries, forged)) for step in range(1, 40)]
        for request in ahead:
            self.passes(service, request.with_(time=self.clock()), flags=TIME_VALID)
        # No range of 16 bits covers these.
        far = victim.with_(number=victim.base + 0x10000, entries=(*victim.entries, forged))
        self.fails(service, far, "RANGE_COVER")
        for step in range(1, 20):
            entry = service.range(0, 7 + step, base=victim.base, tag=victim.tag)
            self.passes(service, victim.with_(number=victim.number + step, entries=(entry,), time=self.clock()))


@variants
class EmptyAndReversedRanges(Attack):
    """A range whose sum is zero for every tag cannot be encoded: reversed ranges and zero sums are refused."""

    def check(self) -> None:
        service = self.add_service()
        for tag in range(20):
            for first, last in ((1, 0), (4, 3), (65535, 0), (1000, 999)):
                request = self.good_request(service, tag=tag)
                self.fails(service, request.with_(entries=(Entry(0, first, last, 0),)), "RANGE_ORDER")
            self.fails(service, self.good_request(service, tag=tag).with_(entries=(Entry(0, 0, 3, 0),)), "SUM")
        self.good_traffic_passes(service, 10)


@variants
class FieldsAndRangesOfTwoConnections(Attack):
    """Fields of one connection with valid ranges of another are refused: the tag is in every nonce."""

    def check(self) -> None:
        service = self.add_service()
        mine, other = self.good_request(service), self.good_request(service)
        self.fails(service, mine.with_(entries=other.entries), "SUM")
        self.fails(service, mine.with_(entries=other.entries, base=other.base, number=other.number), "SUM")
        # Originals as retransmissions, and the reverse.
        retransmitted = self.good_request(service, kinds=["RETRANSMITTED"])
        flipped = tuple(Entry(0, e.first, e.last, e.sum) for e in retransmitted.entries)
        self.fails(service, retransmitted.with_(entries=flipped), "SUM")
        self.good_traffic_passes(service, 10)


@families
class GuessedSums(Attack):
    """None of 1,000 guessed sums passes (each does with probability 2^-32)."""

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
    """During a flood of SYNs above its meter, requests of open connections pass."""

    def check(self) -> None:
        service = self.add_service()
        index = service.id * 8
        self.switch.set_meter("service_meters", index, 100, burst=20)
        try:
            frames = [self.to_service(service, Request(name="SYN"), sport=1024 + n, sequence=n) for n in range(1500)]
            began = time.monotonic()
            passed = self.flood(frames)
            # SYNs that the meter's rate allowed meanwhile; a machine so slow that this is all of them shows nothing.
            given = 20 + 110 * (time.monotonic() - began)
            self.assertLess(given, len(frames), "the SYNs came too slowly to be a flood")
            self.assertLess(passed, given, f"{passed} of 1,500 SYNs passed a meter of 100 a second")
            self.good_traffic_passes(service)
        finally:
            self.switch.set_meter("service_meters", index, None)


class SketchAttack(Attack):
    """Helpers: many fresh requests of one connection with all its nonces, and waits for the sketch's slots."""

    def setUp(self) -> None:
        super().setUp()
        self.tags = itertools.count(self.random.getrandbits(31))

    def tearDown(self) -> None:
        set_tor(self.switch)
        super().tearDown()

    def fresh(self, service: Service, count: int) -> Iterator[bytes]:
        """Unused requests with right sums, whose time is that at which the iterator yields them."""
        base, tag = 5000, next(self.tags)
        request = Request(
            tag=tag, base=base, epoch=service.epoch, entries=(service.range(0, count, base=base, tag=tag),)
        )
        return (self.to_service(service, request.with_(number=base + n, time=self.clock())) for n in range(count))

    def slot_begins(self) -> None:
        """Waits until a slot begins."""
        into = (self.clock() - CLOCK_OFFSET) % SLOT
        time.sleep((SLOT - into) / 1e6 + 0.05)

    def dropped(self, frames: Iterator[bytes]) -> int:
        """Sends fresh requests and returns how many were dropped.

        No more than 16 are in flight, as in `flood`: the next are sent when each has left or is counted as dropped.
        """
        before = sum(self.switch.counters("drops").values())
        sent = came = dropped = 0
        while batch := list(itertools.islice(frames, 16)):
            for frame in batch:
                self.send(CLIENT, frame)
            sent, deadline = sent + len(batch), time.monotonic() + PATIENCE_S
            while (came := came + self.drain(0.0)) + dropped < sent and time.monotonic() < deadline:
                dropped = sum(self.switch.counters("drops").values()) - before
            self.assertEqual(came + dropped, sent, f"of {sent} frames {came} left and {dropped} were dropped")
        return sent - came


@families
class SketchOverflow(SketchAttack):
    """Above the limit of first uses proved requests pass unchecked, with an event.

    Requests within the limit are still refused a second time, and two slots later all are checked again.
    """

    def check(self) -> None:
        service = self.add_service()
        limit = 300
        self.clock()
        self.slot_begins()
        set_tor(self.switch, replay_limit=limit)
        first = self.good_request(service)
        self.passes(service, first)
        self.assertEqual(self.dropped(self.fresh(service, 2 * limit)), 0, "good requests were refused")
        self.assertGreater(self.switch.counter("suspects", self.reasons["UNJUDGED_REPLAY"]), 0)
        late = self.good_request(service)
        self.passes(service, late, flags=TIME_VALID)
        self.passes(service, late, flags=TIME_VALID)  # not in the sketch, so not refused
        self.fails(service, first.with_(time=self.clock()), "REPLAY")
        # In the next slot the sketch lacks the requests above the limit.
        self.slot_begins()
        self.passes(service, late.with_(time=self.clock()), flags=TIME_VALID)
        time.sleep(8.6)  # two slots of 4.19 s
        request = self.good_request(service)
        self.passes(service, request)
        self.fails(service, request, "REPLAY")


class AfterASaturatedSlot(SketchAttack):
    """After a slot far above the limit and one below it, no fresh request is refused as a replay.

    The sketch has 128 cells a row, so that a thousand requests are eight times its size.
    """

    def runTest(self) -> None:
        service = self.add_service()
        self.clock()
        set_tor(self.switch, sketch_mask=15, replay_limit=4)
        for count in (1024, 256, 256):
            self.slot_begins()
            self.assertEqual(self.dropped(self.fresh(service, count)), 0, f"fresh ones of {count} were refused")


class UsesAreKnownInTheNextSlot(SketchAttack):
    """A use in one slot is known in the next; repeatable requests are put into the next slot as well."""

    def runTest(self) -> None:
        service = self.add_service()
        self.clock()
        set_tor(self.switch, replay_limit=100)
        once = self.good_request(service)
        probes = [self.good_request(service, name="PROBE") for _ in range(60)]
        for attempt in range(2):
            self.slot_begins()
            if attempt == 0:
                self.passes(service, once.with_(time=self.clock()))
            else:
                self.fails(service, once.with_(time=self.clock()), "REPLAY")
            again = (p.with_(attempt=attempt, time=self.clock()) for p in probes)
            self.assertEqual(self.dropped(self.to_service(service, p) for p in again), 0)
        self.assertEqual(self.dropped(self.fresh(service, 50)), 0)
        self.passes(service, self.good_request(service), flags=TIME_VALID)


class OddsOfAFalseReplay(SketchAttack):
    """With the sketch at its limit, half its cells here, at most 2 (limit / cells)^6 = 1 in 32 fresh requests are
    refused as replays, however many arrive, because requests above the limit are not put in.
    """

    def runTest(self) -> None:
        service = self.add_service()
        self.clock()
        limit = 64
        set_tor(self.switch, sketch_mask=15, replay_limit=limit)
        for count in (1000, 600):
            self.slot_begins()
            before = self.switch.counter("drops", self.reasons["REPLAY"])
            dropped = self.dropped(self.fresh(service, count))
            self.assertEqual(self.switch.counter("drops", self.reasons["REPLAY"]) - before, dropped)
            # Expected are 1 in 270 in the first slot and 1 in 135 in the second, so 4 and 4.
            self.assertLess(dropped, count / 32, f"{dropped} of {count} fresh requests were refused")


@families
class ForgedMark(Attack):
    """A client sets the checked mark in requests to a service without checks."""

    def check(self) -> None:
        service = self.add_service(modes=dict.fromkeys(layout.ALL_CHECKS, OFF))
        marked = self.good_request(service, tor_block=bytes(12) + b"\x03" + bytes(5), entries=(Entry(0, 0, 3, 1),))
        self.passes(service, marked, flags=TIME_VALID)
        self.passes(service, Request(name="SYN", tor_block=bytes(12) + b"\x03" + bytes(5)), flags=TIME_VALID)
        # A segment without a ToR block has no mark.
        frame = self.plain(service, options=b"", payload=bytes(range(48)))
        self.send(CLIENT, frame)
        self.expect_plain(service, frame)
        self.assertEqual(packets.parse(frame).problems, [])
