# SPDX-License-Identifier: Apache-2.0
"""The digest `event_t`: which events are sent, their order, and which are metered."""

import time

from layout import CLIENT, PATIENCE_S, ROUND_ROBIN
from packets import Entry, Request
from rack import RackTest, in_time, set_tor
from t04_choice import unchecked
from t05_liveness import BEAT, BOUND, Dying


class EventsOfLife(Dying):
    """Exclusion, return and readmission each send one event, with a sequence number and the common clock."""

    @in_time
    def runTest(self) -> None:
        self.sequence = None
        service, stops = self.start(slots=8, weights=(1, 1, 1))
        pool = service.pool
        self.switch.drop_events()
        stops[1].set()
        time.sleep(BOUND / 1e6 + 0.3)
        for _ in range(24):
            self.one(service)
        self.expect_event("EXCLUDED", pool, 1)
        stops[1] = self.keep_beating(pool, [1], BEAT)
        self.expect_event("RETURNED", pool, 1)
        self.admit(pool, 1, readmitted=1, modify=True)
        self.expect_event("READMITTED", pool, 1)
        time.sleep(0.3)
        self.assertEqual(self.relevant(0.2), [], "an event was sent twice")

    def relevant(self, timeout: float) -> list[dict[str, int]]:
        skip = self.event_kinds["UNKNOWN_SOURCE"]
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            found = [e for e in self.switch.events(left) if e["kind"] != skip]
            if found:
                return found
        return []

    def expect_event(self, kind: str, pool, replica: int) -> None:
        found = self.relevant(PATIENCE_S)
        self.assertEqual(len(found), 1, f"expected one event {kind}, got {found}")
        event = found[0]
        self.assertEqual(
            (event["kind"], event["pool"], event["replica"]), (self.event_kinds[kind], pool.id, replica), f"{event}"
        )
        self.assertLess(abs(event["clock"] - self.clock()), 10_000_000)
        if self.sequence is not None:
            self.assertGreater(event["sequence"], self.sequence)
        self.sequence = event["sequence"]


class EventsOfChecks(EventsOfLife):
    """Failed checks, unchecked requests and NO_REPLICA send events with the reason, metered by kind."""

    def runTest(self) -> None:
        service = self.add_service()
        self.switch.drop_events()
        bad = self.good_request(service).with_(entries=(Entry(0, 0, 3, 1),))
        self.fails(service, bad, "SUM")
        self.reason("CHECK_FAILED", "SUM")
        self.passes(service, self.good_request(service, [(2 * i, 2 * i) for i in range(5)]), flags=2)
        self.reason("UNJUDGED", "UNJUDGED_RANGES")
        dead = self.add_service(self.add_pool([1], alive=False), modes=unchecked())
        self.send(CLIENT, self.to_service(dead, Request(number=1)))
        kinds = [e["kind"] for e in self.relevant(PATIENCE_S)]
        self.assertEqual(kinds, [self.event_kinds["EXCLUDED"]], "the exclusion comes before the drop")
        self.send(CLIENT, self.to_service(dead, Request(number=1)))
        self.reason("NO_REPLICA", "NO_REPLICA")

        kind = self.event_kinds["CHECK_FAILED"]
        self.switch.set_meter("event_meter", kind, 1, burst=2)
        try:
            self.switch.drop_events()
            with self.drops("SUM", count=20):
                for _ in range(20):
                    self.send(CLIENT, self.to_service(service, bad.with_(time=self.clock())))
            # The first event may take long on a loaded machine; the others follow at once.
            events, patience = 0, 10.0
            while found := self.relevant(patience):
                events, patience = events + len(found), 0.3
            self.assertIn(events, range(1, 6), f"a meter of 1 a second, burst 2, sent {events} of 20")
        finally:
            self.switch.set_meter("event_meter", kind, None)

    def reason(self, kind: str, reason: str) -> None:
        found = self.relevant(PATIENCE_S)
        self.assertEqual([(e["kind"], e["reason"]) for e in found], [(self.event_kinds[kind], self.reasons[reason])])


class TorUnset(RackTest):
    """Until the controller has set the ToR's identity, only the controller's packets pass."""

    def runTest(self) -> None:
        service = self.add_service(policy=ROUND_ROBIN)
        self.switch.set_default("tor", "tor_unset")
        try:
            with self.drops("SERVICE_UNCONFIGURED"):
                self.send(CLIENT, self.to_service(service, self.good_request(service)))
            self.switch.packet_out(b"x" * 60, egress_port=3)
            self.expect(3, b"x" * 60)
        finally:
            set_tor(self.switch)
        self.passes(service, self.good_request(service))
