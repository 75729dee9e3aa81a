# SPDX-License-Identifier: Apache-2.0
"""The checks of requests: what each refuses, and the modes off, count and enforce."""

import time

import packets
from layout import CLIENT, COUNT, ENFORCE, OFF
from packets import CHECKED, TIME_VALID, Entry, Request
from rack import RackTest, set_tor, variants


@variants
class KeyEpochs(RackTest):
    """An epoch without keys, an unusable epoch, and several usable epochs at once."""

    def check(self) -> None:
        service = self.add_service()
        self.fails(service, self.good_request(service, epoch=service.epoch + 1), "KEY_UNKNOWN")
        self.fails(service, self.good_request(service, epoch=0), "KEY_UNKNOWN")
        # A RESTART is allowed when the epoch is gone, and completes a bare SYN without one.
        for epoch in (service.epoch + 1, 0):
            self.passes(service, self.good_request(service, [], name="RESTART", epoch=epoch), flags=TIME_VALID)
        key = {"service": service.id, "nonce_epoch": service.epoch}
        words = dict(k0=service.key[0], k1=service.key[1], k0_prime=service.key_prime[0], k1_prime=service.key_prime[1])
        self.modify("nonce_keys", key, "set_nonce_keys", usable=0, **words)
        self.fails(service, self.good_request(service), "KEY_NOT_USABLE")
        self.modify("nonce_keys", key, "set_nonce_keys", usable=1, **words)
        self.passes(service, self.good_request(service))
        # Another epoch with other keys: requests verify only under the keys of their epoch.
        other = dict(k0=1, k1=2, k0_prime=3, k1_prime=4)
        self.insert("nonce_keys", {"service": service.id, "nonce_epoch": 9}, "set_nonce_keys", usable=1, **other)
        self.fails(service, self.good_request(service, epoch=9), "SUM")
        entry = packets.good_range("ORIGINAL", (1, 2), 5, 70, 0, 3)
        self.passes(service, self.good_request(service, tag=5, base=70, epoch=9, entries=(entry,)))
        self.passes(service, self.good_request(service))


@variants
class Freshness(RackTest):
    """The time in the continuation is older than the horizon, or ahead of the clock."""

    def check(self) -> None:
        service = self.add_service(horizon=2_000_000)
        now = self.clock
        self.passes(service, self.good_request(service, time=now() - 1_500_000))
        self.passes(service, self.good_request(service, time=now() + 20_000))  # another ToR's clock may be ahead
        self.fails(service, self.good_request(service, time=now() - 2_500_000), "STALE")
        self.fails(service, self.good_request(service, time=now() - (1 << 46)), "STALE")
        self.fails(service, self.good_request(service, time=now() + 1_500_000), "FUTURE")
        self.fails(service, self.good_request(service, time=now() + (1 << 46)), "FUTURE")


@variants
class ClockNotSet(RackTest):
    """Until the clock offset is set, requests pass unmarked, and the host checks freshness; openings pass as usual."""

    def check(self) -> None:
        service = self.add_service(drop_unjudged=1)
        set_tor(self.switch, time_valid=0)
        try:
            with self.counts("suspects", self.reasons["UNJUDGED_CLOCK"]):
                self.passes(service, self.good_request(service, time=1), flags=0)
            bad = self.good_request(service, time=1).with_(entries=(Entry(0, 0, 3, 1),))
            self.fails(service, bad, "SUM")
            self.passes(service, Request(name="SYN"), flags=0)
        finally:
            set_tor(self.switch)
        self.fails(service, self.good_request(service, time=1), "STALE")


@variants
class FormOfTheProof(RackTest):
    """Ranges reversed, out of order, overlapping, missing, or not covering the answered packet; marks with sums."""

    def check(self) -> None:
        service = self.add_service()
        for ranges in (
            [(3, 0)],
            [(0, 3), (3, 5)],
            [(0, 3), (2, 2)],
            [(5, 6), (0, 1)],
            [(0, 1), (3, 4), (2, 9), (11, 12)],
        ):
            # Every sum is right; only the order is wrong.
            self.fails(service, self.good_request(service, ranges), "RANGE_ORDER")
        four = [(0, 1), (3, 4), (6, 7), (7, 9)]
        self.fails(service, self.good_request(service, four), "RANGE_ORDER")
        for name in ("NORMAL", "PROBE", "REKEY"):
            self.fails(service, self.good_request(service, [], name=name), "RANGE_MISSING")
            marks_only = self.good_request(service, [], name=name, entries=(Entry(2, 0, 0, 0),))
            self.fails(service, marks_only, "RANGE_MISSING")
            request = self.good_request(service, [(0, 3)], name=name)
            for number in (request.base + 4, request.base - 1, request.base + 0x10000, request.base + 0x80000000):
                self.fails(service, request.with_(number=number & 0xFFFFFFFF), "RANGE_COVER")
        for entry in (Entry(2, 1, 2, 0), Entry(2, 1, 1, 5), Entry(3, 1, 1, 0), Entry(3, 1, 0, 5)):
            good = self.good_request(service, [(0, 3)])
            self.fails(service, good.with_(entries=(*good.entries, entry)), "ENTRY_FORM")


@variants
class Sums(RackTest):
    """One wrong bit in any sum; a wrong end, base, tag, key or kind."""

    def check(self) -> None:
        service = self.add_service()
        ranges = [(0, 1), (3, 3), (5, 6), (8, 9)]
        for count in range(1, 5):
            for at in range(count):
                request = self.good_request(service, ranges[:count])
                entries = list(request.entries)
                entry = entries[at]
                entries[at] = Entry(entry.kind, entry.first, entry.last, entry.sum ^ 1 << self.random.randrange(32))
                self.fails(service, request.with_(entries=tuple(entries), time=self.clock()), "SUM")
                entries[at] = Entry(1, entry.first, entry.last, entry.sum)  # the other key
                self.fails(service, request.with_(entries=tuple(entries), time=self.clock()), "SUM")
        request = self.good_request(service, [(0, 3)])
        self.fails(service, request.with_(tag=request.tag ^ 0x8000, time=self.clock()), "SUM")
        lower = request.with_(base=request.base - 1, number=request.number - 1, time=self.clock())
        self.fails(service, lower, "SUM")
        self.fails(service, self.good_request(service, entries=(Entry(0, 0, 4, request.entries[0].sum),)), "SUM")
        self.fails(service, self.good_request(service, entries=(Entry(0, 0, 3, 0),)), "SUM")
        # The sums of another service's keys do not verify.
        other = self.add_service(service.pool)
        stolen = self.good_request(other).with_(epoch=service.epoch, time=self.clock())
        self.fails(service, stolen, "SUM")


@variants
class OneUsePerNumber(RackTest):
    """A number passes once; PROBE, TIMEOUT, RESTART, CLOSE and a SYN four times; other keys are independent."""

    def check(self) -> None:
        service = self.add_service()
        request = self.good_request(service, [(0, 3)])
        self.passes(service, request)
        self.fails(service, request, "REPLAY")
        # Another proof of the same number counts as the same use.
        whole = service.range(0, 9, base=request.base, tag=request.tag)
        self.fails(service, request.with_(entries=(whole,), time=self.clock()), "REPLAY")
        self.fails(service, request.with_(number=request.number, tail=bytes(120), time=self.clock()), "REPLAY")
        # The next number is unused.
        self.passes(service, request.with_(number=request.number - 1, time=self.clock()))
        self.passes(service, self.good_request(service, tag=request.tag + 1, base=request.base))
        other = self.add_service(service.pool)
        self.passes(other, self.good_request(other, tag=request.tag, base=request.base))
        # Each class counts its own uses.
        rekey = request.with_(name="REKEY", time=self.clock())
        self.passes(service, rekey)
        self.fails(service, rekey, "REPLAY")
        for name in ("PROBE", "TIMEOUT", "CLOSE"):
            again = request.with_(name=name, time=self.clock())
            for attempt in range(4):
                self.passes(service, again.with_(attempt=0 if name == "CLOSE" else attempt))
            self.fails(service, again, "REPLAY")
        timeout = self.good_request(service, [], name="TIMEOUT")
        restart = self.good_request(service, [], name="RESTART")
        for opening, reason in ((timeout, "REPLAY"), (restart, "REPLAY"), (Request(name="SYN"), "REPLAY")):
            for _ in range(4):
                self.passes(service, opening, flags=TIME_VALID)
            self.fails(service, opening, reason)
        # A RESTART is counted by its generation, whatever continuation it carries.
        self.fails(service, restart.with_(number=restart.number + 5), "REPLAY")
        # A request that completes a bare SYN has neither tag nor number; it is counted by client, ports and ISN.
        completion = Request(name="RESTART", epoch=0, tag=0, number=0, base=0)
        for isn in (7, 8):
            for _ in range(4):
                self.passes(service, completion, flags=TIME_VALID, sequence=isn)
            self.fails(service, completion, "REPLAY", sequence=isn)
        # Another ISN or port is another opening.
        self.passes(service, Request(name="SYN"), flags=TIME_VALID, sequence=9)
        self.passes(service, Request(name="SYN"), flags=TIME_VALID, sport=40001)


class ReplayPastTheHorizon(RackTest):
    """A replay is refused as a replay until the horizon, and as stale after it, with no gap between."""

    def runTest(self) -> None:
        service = self.add_service(horizon=4_000_000)
        requests = [self.good_request(service, time=self.clock()) for _ in range(40)]
        for request in requests:
            self.passes(service, request)
        for i, request in enumerate(requests):
            # Ages from 0 to 6 seconds, so that the test crosses a change of the sketch's slot.
            while self.clock() < request.time + i * 150_000:
                time.sleep(0.01)
            age = self.clock() - request.time
            # Near the horizon either reason is right: the switch handles the request a little later.
            near = -1_500_000 < age - 4_000_000 < 100_000
            late = "STALE" if age > 4_000_000 else "REPLAY"
            self.fails(service, request, *(("REPLAY", "STALE") if near else (late,)))


@variants
class Modes(RackTest):
    """Off: not checked. Count: an event, forwarded unmarked, later checks still enforced. Enforce: dropped."""

    def check(self) -> None:
        service = self.add_service()
        faults = {
            "key": ("KEY_UNKNOWN", lambda r: r.with_(epoch=1)),
            "time": ("STALE", lambda r: r.with_(time=5)),
            "range": ("RANGE_COVER", lambda r: r.with_(number=r.number + 1)),
            "sum": ("SUM", lambda r: r.with_(entries=(Entry(0, 0, 3, 1),))),
        }
        for check, (reason, spoil) in faults.items():
            self.set_checks(service, **{f"{check}_mode": ENFORCE})
            self.fails(service, spoil(self.good_request(service)), reason)
            self.set_checks(service, **{f"{check}_mode": COUNT})
            with self.counts("suspects", self.reasons[reason]):
                self.passes(service, spoil(self.good_request(service)), flags=TIME_VALID)
            with self.counts("suspects", self.reasons[reason], 0):
                self.passes(service, self.good_request(service))
            if check != "sum":
                # A fault that is only counted does not bypass the other checks. (Without a key there are no sums.)
                bad = spoil(self.good_request(service)).with_(entries=(Entry(0, 0, 3, 1),))
                if check != "key":
                    self.fails(service, bad, "SUM")
            self.set_checks(service, **{f"{check}_mode": OFF})
            with self.counts("suspects", self.reasons[reason], 0):
                marked = CHECKED if check in ("time", "range") else 0
                self.passes(service, spoil(self.good_request(service)), flags=TIME_VALID | marked)
            self.set_checks(service, **{f"{check}_mode": ENFORCE})
        request = self.good_request(service)
        self.passes(service, request)
        self.fails(service, request, "REPLAY")
        self.set_checks(service, replay_mode=COUNT)
        with self.counts("suspects", self.reasons["REPLAY"]):
            self.passes(service, request, flags=TIME_VALID)
        self.set_checks(service, replay_mode=OFF)
        with self.counts("suspects", self.reasons["REPLAY"], 0):
            self.passes(service, request)


@variants
class MoreRangesThanTheSwitchSees(RackTest):
    """Requests with five ranges pass unmarked, or are dropped if the service demands it.

    The first four ranges are checked as usual, and a number that they prove is counted like any other.
    """

    def check(self) -> None:
        service = self.add_service()
        ranges = [(2 * i, 2 * i) for i in range(16)]
        for count in (5, 16):
            with self.counts("suspects", self.reasons["UNJUDGED_RANGES"]):
                self.passes(service, self.good_request(service, ranges[:count]), flags=TIME_VALID)
        # The four ranges must still be in order, and their sums right.
        self.fails(service, self.good_request(service, [(4, 5), (1, 2), *ranges[4:8]]), "RANGE_ORDER")
        for at in range(4):
            wrong = list(self.good_request(service, ranges[:5]).entries)
            wrong[at] = Entry(0, wrong[at].first, wrong[at].last, wrong[at].sum ^ 0x100)
            self.fails(service, self.good_request(service, ranges[:5], entries=tuple(wrong)), "SUM")
        # A number that the first four prove is counted with those of requests of four ranges.
        five = self.good_request(service, ranges[:5])
        proved = five.with_(number=five.base + 6)
        self.passes(service, proved, flags=TIME_VALID)
        self.fails(service, proved.with_(entries=five.entries[:4], time=self.clock()), "REPLAY")
        # A number that only the fifth proves is also used once.
        self.passes(service, five.with_(time=self.clock()), flags=TIME_VALID)
        self.fails(service, five.with_(time=self.clock()), "REPLAY")
        self.set_checks(service, drop_unjudged=1)
        self.fails(service, self.good_request(service, ranges[:5]), "UNJUDGED_RANGES")


@variants
class SketchFull(RackTest):
    """Above its limit of first uses per slot the sketch checks no more requests: event, unmarked or dropped."""

    def check(self) -> None:
        self.clock()  # calibrates with an opening, which must not count below
        service = self.add_service()
        set_tor(self.switch, replay_limit=0, openings_limit=0)
        try:
            with self.counts("suspects", self.reasons["UNJUDGED_REPLAY"], 3):
                request = self.good_request(service)
                self.passes(service, request, flags=TIME_VALID)
                self.passes(service, request, flags=TIME_VALID)  # not in the sketch, so not refused
                self.passes(service, Request(name="SYN", tag=77), flags=TIME_VALID, sport=41111)
            self.set_checks(service, drop_unjudged=1)
            self.fails(service, self.good_request(service), "UNJUDGED_REPLAY")
            # A full sketch of openings does not fill the sketch of proved requests.
            set_tor(self.switch, openings_limit=0)
            self.fails(service, Request(name="SYN"), "UNJUDGED_REPLAY", sport=42222)
            self.passes(service, self.good_request(service))
        finally:
            set_tor(self.switch)


@variants
class MetersOfUnprovedRequests(RackTest):
    """Each class without a checked proof has its own meter, and no other request is metered.

    The classes: SYN, RESTART, TIMEOUT with a proof, TIMEOUT and CLOSE without one, and more than four ranges.
    """

    def of_kind(self, service, name: str) -> Request:
        if name == "SYN":
            return Request(name="SYN")
        if name == "RANGES":
            return self.good_request(service, [(2 * i, 2 * i) for i in range(5)])
        if name == "TIMEOUT":
            return self.good_request(service, name="TIMEOUT")
        return self.good_request(service, [], name="CLOSE" if name == "UNPROVED" else name)

    def check(self) -> None:
        service = self.add_service()
        kinds = {"SYN": 0, "TIMEOUT": 1, "RESTART": 2, "UNPROVED": 3, "RANGES": 4}
        for name, kind in kinds.items():
            index = service.id * 8 + kind
            self.switch.set_meter("service_meters", index, 1, burst=2)
            try:
                frames = [self.to_service(service, self.of_kind(service, name), sport=41000 + i) for i in range(12)]
                passed = self.metered(f"METER_{name}", frames)
                self.assertIn(passed, range(1, 6), f"{name}: a meter of 1 a second, burst 2, passed {passed} of 12")
                # Requests of the other classes pass.
                self.passes(service, self.good_request(service))
                others = [other for other in kinds if other != name]
                for other in others:
                    marked = CHECKED | TIME_VALID if other == "TIMEOUT" else TIME_VALID
                    self.passes(service, self.of_kind(service, other), flags=marked, sport=42000 + kind)
                if name == "UNPROVED":
                    timeouts = [self.good_request(service, [], name="TIMEOUT") for _ in range(12)]
                    passed = self.metered("METER_UNPROVED", [self.to_service(service, t) for t in timeouts])
                    self.assertIn(passed, range(6), f"TIMEOUT and CLOSE share a meter, {passed} of 12 passed")
                # In the mode count they are forwarded.
                self.set_checks(service, meter_mode=COUNT)
                for i in range(3):
                    self.send(CLIENT, self.to_service(service, self.of_kind(service, name), sport=43000 + i))
                    self.assertIn(self.receive()[0], service.pool.ports)
                self.set_checks(service, meter_mode=ENFORCE)
            finally:
                self.switch.set_meter("service_meters", index, None)
