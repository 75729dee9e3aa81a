# SPDX-License-Identifier: Apache-2.0
"""The program without checks at the ToR (`checks: host`): what the other program drops reaches a replica unmarked."""

import cookies
from layout import RANDOM, STATELESS
from packets import ACK, RST, SYN, TIME_VALID, Entry
from program import CHECKS_AT_TOR
from rack import RackTest, families, variants
from t18_cookies import Stateless


def host_only(make):  # type: ignore[no-untyped-def]
    """Makes tests of a class where the program under test has no checks, else none."""
    return (lambda cls: cls) if CHECKS_AT_TOR else make


@host_only(variants)
class RequestsAreNotChecked(RackTest):
    """Wrong sums, stale times, unknown epochs, copies and disordered ranges reach a replica without the mark."""

    def check(self) -> None:
        service = self.add_service()
        good = self.good_request(service, [(0, 3)])
        entry = good.entries[0]
        unchecked = self.outcome(service, "UNCHECKED")
        with self.counts("service_outcomes", unchecked, 7):
            for request in (
                good,
                good,
                good.with_(entries=(Entry(entry.kind, entry.first, entry.last, entry.sum ^ 1),)),
                good.with_(time=self.clock() - 60_000_000),
                good.with_(epoch=service.epoch + 1),
                good.with_(entries=(Entry(entry.kind, 3, 0, entry.sum),)),
                good.with_(entries=()),
            ):
                self.passes(service, request, flags=TIME_VALID)


@host_only(families)
class StatelessSprayWithoutCookies(Stateless):
    """A stateless service's segments go by flow or to any replica as with cookies, whatever they acknowledge."""

    def check(self) -> None:
        service = self.add_service(plain=STATELESS, policy=RANDOM)
        self.keys = [(1, 2)]
        all_replicas = set(range(len(service.pool.ports)))
        for sport in range(36000, 36004):
            sprayed = {self.comes(service, self.stamped(service, sport, 0, cookies.answer_value(0))) for _ in range(40)}
            self.assertEqual(sprayed, all_replicas, "acknowledgements within an answer must reach every replica")
            home = {self.comes(service, self.stamped(service, sport, 0))}
            for frame in (
                self.syn(service, sport, cookies.options("mss sack ts nop ws", 1460, 7, 1)),
                self.stamped(service, sport, 1 << 30),
                self.stamped(service, sport, 0, payload=b"", flags=ACK),
                self.stamped(service, sport, 77, cookies.kernel_value(255)),
                self.bare(service, sport, 0),
                self.bare(service, sport, 0, flags=RST, payload=b""),
                self.bare(service, sport, 0, flags=SYN, payload=b""),
            ):
                self.comes(service, frame, replicas=list(home))


@host_only(families)
class BlocksWithoutCookies(Stateless):
    """A block of a large answer has one replica, and the blocks are spread."""

    def check(self) -> None:
        service = self.add_service(plain=STATELESS)
        self.keys = [(1, 2)]
        sport, homes = 38500, []
        start = -(cookies.stamped_isn(self.keys[0], self.flow(service, sport), 1460) + 1) % cookies.LARGE_BLOCK
        for block in range(32):
            first = start + block * cookies.LARGE_BLOCK
            reached = {
                self.comes(
                    service, self.stamped(service, sport, at, cookies.large_value(at, cookies.STEADY), payload=b"")
                )
                for at in (first + 8, first + 1448 * 8, first + cookies.LARGE_BLOCK - 8)
            }
            self.assertEqual(len(reached), 1, "a block went to several replicas")
            homes.append(reached.pop())
        self.assertEqual(set(homes), set(range(len(service.pool.ports))))
