# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: which the ToR accepts, which members they exclude, and the ToR's answers."""

import itertools
import struct
import time

import packets
from layout import CLIENT, FOREVER, PATIENCE_S, TOR, TOR_ID, TOR_MAC, UPLINK, host_mac
from packets import BEAT_KEY, KEY_EPOCH, Request, heartbeat, heartbeat_answer
from rack import families, in_time
from t04_choice import unchecked
from t05_liveness import BEAT, BOUND, Dying
from t08_remote import Remote

SECOND = 1_000_000


class Beating(Dying):
    """Helpers: sends heartbeats as bytes and reads the ToR's answers."""

    def send_heartbeat(self, pool, replica: int, **fields) -> bytes:
        """Sends a heartbeat and returns its bytes."""
        body = heartbeat(pool.id, replica, **fields)
        self.deliver(pool, replica, body)
        return body

    def deliver(self, pool, replica: int, body: bytes) -> None:
        port = pool.ports[replica]
        self.send(port, packets.ethernet(TOR_MAC, host_mac(port), 0x88B5, body, self.rack_vlan()))

    def send_accepted(self, pool, replica: int, **fields) -> bytes:
        """Sends a heartbeat that the switch must accept."""
        with self.counts("heartbeats", pool.member(replica)):
            return self.send_heartbeat(pool, replica, **fields)

    def expect_answer(self, pool, replica: int, beat: bytes, alive: int, plain: int, settled: bool = True) -> None:
        port = pool.ports[replica]
        got = self.answer(port, beat)
        body = heartbeat_answer(beat, TOR_ID, alive, plain, settled)
        self.assertEqual(got[: 14 + 36].hex(), packets.ethernet(host_mac(port), TOR_MAC, 0x88B5, body, pad=False).hex())
        self.assertIn(len(got), (50, 60))

    def expect_event(self, reason: str, pool, replica: int) -> None:
        """Waits for the one event about a refused heartbeat of this replica."""
        skip = self.event_kinds["UNKNOWN_SOURCE"]
        deadline = time.monotonic() + PATIENCE_S
        found = []
        while not found and time.monotonic() < deadline:
            found = [e for e in self.switch.events(0.5) if e["kind"] != skip and e["pool"] == pool.id]
        self.assertEqual(len(found), 1, f"expected one event {reason} of replica {replica}, got {found}")
        (event,) = found
        wanted = (self.event_kinds["CHECK_FAILED"], self.reasons[reason], pool.id, replica)
        self.assertEqual((event["kind"], event["reason"], event["pool"], event["replica"]), wanted)


class TagsAreChecked(Beating):
    """Heartbeats with another key, epoch or byte are refused for that reason, with an event; the replica stays dead."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2], alive=False, settle=FOREVER)
        self.switch.drop_events()
        with self.drops("HEARTBEAT_KEY"):
            self.send_heartbeat(pool, 0, key_epoch=KEY_EPOCH + 1)
        self.expect_event("HEARTBEAT_KEY", pool, 0)
        with self.drops("HEARTBEAT_TAG"):
            self.send_heartbeat(pool, 0, key=(BEAT_KEY[0], BEAT_KEY[1] ^ 1))
        self.expect_event("HEARTBEAT_TAG", pool, 0)
        good = heartbeat(pool.id, 0)
        # Every byte except pool, replica (another replica's heartbeat) and key epoch.
        changed = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in (1, *range(6, 20))]
        with self.drops("HEARTBEAT_TAG", count=len(changed)):
            for body in changed:
                self.deliver(pool, 0, body)
        with self.drops("HEARTBEAT_TAG"):
            self.send_heartbeat(pool, 0, key=(0, 0))
        self.assertEqual(self.counted_heartbeats(pool, 0), 0)
        self.dataplane.poll(0, timeout=0.02)
        self.assertEqual(self.dataplane.answers_of_pool(pool.id), [], "a refused heartbeat was answered")
        self.deliver(pool, 0, good)
        self.expect_answer(pool, 0, good, 0b11, 0b11, settled=False)


class EachReplicaHasItsKey(Beating):
    """With the key of one replica no heartbeat of another can be made."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2], alive=False, settle=FOREVER)
        match = {"pool": pool.id, "replica": 1, "key_epoch": KEY_EPOCH}
        self.modify("heartbeat_keys", match, "set_heartbeat_key", k0=1, k1=2, newest=1)
        with self.drops("HEARTBEAT_TAG"):
            self.send_heartbeat(pool, 1)
        self.send_accepted(pool, 1, key=(1, 2))
        self.send_accepted(pool, 0)


class SequencesOnlyGrow(Beating):
    """A repeated or older heartbeat, or one of an older incarnation, is refused with an event and has no effect."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False, settle=FOREVER)
        self.send_accepted(pool, 0, incarnation=100, sequence=50)
        self.switch.drop_events()
        for sequence in (50, 49, 0):
            with self.drops("HEARTBEAT_REPLAY"):
                self.send_heartbeat(pool, 0, incarnation=100, sequence=sequence)
            self.expect_event("HEARTBEAT_REPLAY", pool, 0)
        for incarnation in (99, 1, 0):
            with self.drops("HEARTBEAT_INCARNATION"):
                self.send_heartbeat(pool, 0, incarnation=incarnation, sequence=1000)
            self.expect_event("HEARTBEAT_INCARNATION", pool, 0)
        self.send_accepted(pool, 0, incarnation=100, sequence=51)
        self.send_accepted(pool, 0, incarnation=100, sequence=0xFFFFFFFF)
        with self.drops("HEARTBEAT_REPLAY"):
            self.send_heartbeat(pool, 0, incarnation=100, sequence=0)


class AnotherIncarnation(Beating):
    """A restarted agent's sequence starts again; heartbeats of its old incarnation are refused from then on."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2], settle=0, alive=False)
        service = self.add_service(pool, modes=unchecked())
        # In this order each has sent a heartbeat before the other's heartbeat can exclude it.
        self.set_pool(pool, settle=FOREVER)
        for replica in (0, 1):
            self.send_accepted(pool, replica, incarnation=7, sequence=900)
        self.set_pool(pool, settle=0)
        old = heartbeat(pool.id, 0, incarnation=7, sequence=901)
        self.send_accepted(pool, 0, incarnation=8, sequence=0)
        with self.drops("HEARTBEAT_INCARNATION"):
            self.deliver(pool, 0, old)
        self.send_accepted(pool, 0, incarnation=8, sequence=1)
        self.send_accepted(pool, 1, incarnation=8, sequence=0)
        self.assertEqual({self.one(service) for _ in range(64)}, {0, 1})
        found = self.switch.counters("replica_exclusions")
        self.assertEqual(
            [found.get(pool.member(r), 0) for r in (0, 1)], [0, 0], "a replica was excluded within a bound of an hour"
        )


class KeysRotate(Beating):
    """The old key is valid until the replica uses the new one, under which its numbers start again."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False, settle=FOREVER)
        self.send_accepted(pool, 0, incarnation=100, sequence=50)
        new = (0x11111111, 0x22222222)
        match = {"pool": pool.id, "replica": 0, "key_epoch": KEY_EPOCH}
        self.share_key(pool, 0, key=new, epoch=KEY_EPOCH + 1)
        self.modify("heartbeat_keys", match, "set_heartbeat_key", k0=BEAT_KEY[0], k1=BEAT_KEY[1], newest=0)
        self.send_accepted(pool, 0, incarnation=100, sequence=51)
        # A host whose clock has gone back is accepted under the new key.
        self.send_accepted(pool, 0, incarnation=3, sequence=1, key=new, key_epoch=KEY_EPOCH + 1)
        with self.drops("HEARTBEAT_INCARNATION"):
            self.send_heartbeat(pool, 0, incarnation=100, sequence=52)
        with self.drops("HEARTBEAT_REPLAY"):
            self.send_heartbeat(pool, 0, incarnation=3, sequence=1, key=new, key_epoch=KEY_EPOCH + 1)
        self.send_accepted(pool, 0, incarnation=3, sequence=2, key=new, key_epoch=KEY_EPOCH + 1)


@families
class ReplayedHeartbeatsHaveNoEffect(Beating):
    """Heartbeats recorded in the rack and sent again from the right port and address do not keep a replica alive."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8)
        pool = service.pool
        record = []
        with pool.lock:
            for _ in range(5):
                pool.last_sequence += 1
                pool.sent[0] += 1
                record.append(heartbeat(pool.id, 0, sequence=pool.last_sequence))
                self.deliver(pool, 0, record[-1])
        stops[0].set()
        end = time.monotonic() + BOUND / 1e6 + 0.3
        for body in itertools.cycle(record):
            self.deliver(pool, 0, body)
            time.sleep(BEAT)
            if time.monotonic() > end:
                break
        for _ in range(24):
            self.assertNotEqual(self.one(service), 0, "replayed heartbeats kept a dead replica alive")


@families
class UdpHeartbeatTags(Remote):
    """Heartbeats over UDP: a wrong tag and a replay are refused; a valid one is answered to its source."""

    def check(self) -> None:
        service = self.add_remote("ip_in_ip", self.family)
        pool, (src, tor) = service.pool, (self.far(), TOR[self.family])

        def datagram(body: bytes) -> bytes:
            packet = packets.ip_packet(src, tor, packets.UDP, packets.udp(src, tor, 40000, 34997, body))
            return packets.ethernet(TOR_MAC, host_mac(UPLINK), 0x0800 if self.family == 4 else 0x86DD, packet)

        with self.drops("HEARTBEAT_TAG"):
            self.send(UPLINK, datagram(heartbeat(pool.id, 0, sequence=90, key=(1, 2))))
        with self.drops("HEARTBEAT_REPLAY"):
            self.send(UPLINK, datagram(heartbeat(pool.id, 0, sequence=pool.last_sequence)))
        beat = heartbeat(pool.id, 0, sequence=91)
        self.send(UPLINK, datagram(beat))
        got = self.answer(UPLINK, beat)
        self.assertEqual(got[:12], host_mac(UPLINK) + TOR_MAC)
        frame = packets.parse(got)
        self.assertEqual((frame.src, frame.dst, frame.problems), (tor, src, []))
        self.assertEqual(got[frame.l4 : frame.l4 + 6], struct.pack("!HHH", 34997, 40000, 44))
        self.assertEqual(got[frame.l4 + 8 : frame.end].hex(), heartbeat_answer(beat, TOR_ID, 1, 1).hex())
        if self.family == 6:
            self.assertNotEqual(got[frame.l4 + 6 : frame.l4 + 8], b"\0\0", "over IPv6 there is a checksum")

    def far(self):
        from t08_remote import TUNNEL_DST

        return TUNNEL_DST[self.family]


class AnswersListLiveMembers(Beating):
    """Every answer lists the live members and those that take plain TCP, in the rack, tagged or not."""

    @in_time
    def runTest(self) -> None:
        for vlan in (None, 200):
            self.vlan = vlan
            pool = self.add_pool([1, 2, 3, 4], alive=False, settle=FOREVER)
            beats = [self.send_accepted(pool, r, sequence=1) for r in range(4)]
            for replica, beat in enumerate(beats):
                if vlan is None:
                    self.expect_answer(pool, replica, beat, 0b1111, 0b1111, settled=False)
                else:
                    port = pool.ports[replica]
                    got = self.answer(port, beat)
                    tagged = packets.ethernet(
                        host_mac(port), TOR_MAC, 0x88B5, heartbeat_answer(beat, TOR_ID, 15, 15, False), 100, pad=False
                    )
                    self.assertEqual(got[: len(tagged)].hex(), tagged.hex())
        self.vlan = None
        # Replica 2 stops; after the bound it is in neither set.
        pool = self.add_pool([1, 2, 3], alive=False, settle=FOREVER)
        for replica in range(3):
            self.send_accepted(pool, replica, sequence=1)
        time.sleep(BOUND / 1e6 + 0.1)
        self.set_pool(pool, settle=0)
        before = time.monotonic()
        for replica in (0, 1):
            self.send_accepted(pool, replica, sequence=2)
        self.set_pool(pool, bound=BOUND, settle=0)
        beat = self.send_accepted(pool, 1, sequence=3)
        self.longest_gap = time.monotonic() - before
        self.expect_answer(pool, 1, beat, 0b011, 0b011)
        # It returns after three heartbeats, but without plain TCP. The long bound keeps the others alive meanwhile.
        self.set_pool(pool, bound=60 * SECOND, settle=0)
        for sequence in (4, 5, 6):
            beat = self.send_accepted(pool, 2, sequence=sequence)
        self.expect_answer(pool, 2, beat, 0b111, 0b011)
        # A replica that is not ready counts as dead but gets an answer.
        beat = heartbeat(pool.id, 2, sequence=7, flags=0)
        self.deliver(pool, 2, beat)
        self.expect_answer(pool, 2, beat, 0b111, 0b011)


class AnswersAreMatchedToHeartbeats(Beating):
    """The answer to one heartbeat is found whichever answers arrive before it."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False)
        beats = [self.send_accepted(pool, 0, sequence=sequence) for sequence in (1, 2, 3)]
        for beat in reversed(beats):
            self.expect_answer(pool, 0, beat, 1, 1)


class DeathsAreFoundWithoutTraffic(Beating):
    """Heartbeats of the others find the deaths of two neighbours of five, once each, without other traffic."""

    @in_time
    def runTest(self) -> None:
        pool = self.add_pool([1, 2, 3, 4, 7], bound=BOUND)
        stops = [self.keep_beating(pool, [r], BEAT) for r in range(5)]
        time.sleep(BOUND / 1e6 + 0.2)
        self.switch.drop_events()
        before = [self.switch.counter("replica_exclusions", pool.member(r)) for r in range(5)]
        self.assertEqual(before, [0] * 5)
        for victim in (2, 3):
            stops[victim].set()
        found, deadline = [], time.monotonic() + BOUND / 1e6 + PATIENCE_S
        while len(found) < 2 and time.monotonic() < deadline:
            found += [e for e in self.switch.events(0.5) if e["kind"] == self.event_kinds["EXCLUDED"]]
        self.assertEqual(sorted((e["pool"], e["replica"]) for e in found), [(pool.id, 2), (pool.id, 3)])
        time.sleep(4 * BEAT)
        late = [e for e in self.switch.events(0.1) if e["kind"] == self.event_kinds["EXCLUDED"]]
        self.assertEqual(late, [], "an exclusion sent two events")
        after = [self.switch.counter("replica_exclusions", pool.member(r)) for r in range(5)]
        self.assertEqual(after, [0, 0, 1, 1, 0])


class OneHeartbeatFindsSixtyThreeDeaths(Beating):
    """One heartbeat is resubmitted until it has found all 63 deaths of a pool of 64, then it is answered."""

    def runTest(self) -> None:
        for alive in (0, 31, 63):
            pool = self.add_pool([1], alive=False)
            self.set_pool(pool, members=(1 << 64) - 1)
            pool.ports = [1] * 64
            if alive:
                self.admit(pool, alive)
            beat = self.send_accepted(pool, alive)
            self.expect_answer(pool, alive, beat, 1 << alive, 1 << alive)
            found = self.switch.counters("replica_exclusions")
            others = [r for r in range(64) if r != alive]
            self.assertEqual([found.get(pool.member(r), 0) for r in others], [1] * 63)
            self.assertNotIn(pool.member(alive), found)


class NewTorExcludesNoReplica(Beating):
    """A ToR that has known the pool for less than the settle time excludes no member, by heartbeat or packet."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2, 3], alive=False, bound=1, settle=0xFFFFFFFF)
        service = self.add_service(pool, modes=unchecked())
        beat = self.send_accepted(pool, 0, sequence=1)
        self.expect_answer(pool, 0, beat, 0b111, 0b111, settled=False)
        self.assertEqual({self.one(service) for _ in range(64)}, {0, 1, 2}, "packets go to all")
        found = self.switch.counters("replica_exclusions")
        self.assertEqual([found.get(pool.member(r), 0) for r in range(3)], [0, 0, 0])
        # It has known the pool since the first heartbeat, so the shorter settle time is already over.
        self.set_pool(pool, bound=60 * SECOND, settle=1)
        beat = self.send_accepted(pool, 0, sequence=2)
        self.expect_answer(pool, 0, beat, 0b001, 0b001)
        self.send(CLIENT, self.to_service(service, Request(number=1)))
        self.assertEqual(self.receive()[0], 1)
