# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: which are believed, whom they judge, and what the ToR answers."""

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
    """Helpers: heartbeats as bytes, and what the ToR says to them."""

    def say(self, pool, replica: int, **fields) -> bytes:
        """Sends a heartbeat; as it was sent."""
        body = heartbeat(pool.id, replica, **fields)
        self.deliver(pool, replica, body)
        return body

    def deliver(self, pool, replica: int, body: bytes) -> None:
        port = pool.ports[replica]
        self.send(port, packets.ethernet(TOR_MAC, host_mac(port), 0x88B5, body, self.rack_vlan()))

    def taken_one(self, pool, replica: int, **fields) -> bytes:
        """Sends a heartbeat that must be taken."""
        with self.counts("heartbeats", pool.member(replica)):
            return self.say(pool, replica, **fields)

    def expect_answer(self, pool, replica: int, beat: bytes, alive: int, plain: int, settled: bool = True) -> None:
        port = pool.ports[replica]
        got = self.answer(port, beat)
        body = heartbeat_answer(beat, TOR_ID, alive, plain, settled)
        self.assertEqual(got[: 14 + 36].hex(), packets.ethernet(host_mac(port), TOR_MAC, 0x88B5, body, pad=False).hex())
        self.assertIn(len(got), (50, 60))

    def told(self, reason: str, pool, replica: int) -> None:
        """An event tells of this refused heartbeat, and no other."""
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
    """Another key, another epoch, another octet: refused for its reason, told, and the replica stays silent."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2], alive=False, settle=FOREVER)
        self.switch.drop_events()
        with self.drops("HEARTBEAT_KEY"):
            self.say(pool, 0, key_epoch=KEY_EPOCH + 1)
        self.told("HEARTBEAT_KEY", pool, 0)
        with self.drops("HEARTBEAT_TAG"):
            self.say(pool, 0, key=(BEAT_KEY[0], BEAT_KEY[1] ^ 1))
        self.told("HEARTBEAT_TAG", pool, 0)
        good = heartbeat(pool.id, 0)
        # All behind pool and replica, which would be somebody else's, and the key's epoch.
        changed = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in (1, *range(6, 20))]
        with self.drops("HEARTBEAT_TAG", count=len(changed)):
            for body in changed:
                self.deliver(pool, 0, body)
        with self.drops("HEARTBEAT_TAG"):
            self.say(pool, 0, key=(0, 0))
        self.assertEqual(self.taken(pool, 0), 0)
        self.dataplane.poll(0, timeout=0.02)
        self.assertEqual(self.dataplane.answers_of_pool(pool.id), [], "a refused heartbeat was answered")
        self.deliver(pool, 0, good)
        self.expect_answer(pool, 0, good, 0b11, 0b11, settled=False)


class EachReplicaHasItsKey(Beating):
    """Who knows the key of one replica cannot speak for another."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2], alive=False, settle=FOREVER)
        match = {"pool": pool.id, "replica": 1, "key_epoch": KEY_EPOCH}
        self.modify("heartbeat_keys", match, "set_heartbeat_key", k0=1, k1=2, newest=1)
        with self.drops("HEARTBEAT_TAG"):
            self.say(pool, 1)
        self.taken_one(pool, 1, key=(1, 2))
        self.taken_one(pool, 0)


class NumbersOnlyGrow(Beating):
    """The same heartbeat again, a former one, or one of an older incarnation: refused, told, and nothing changes."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False, settle=FOREVER)
        self.taken_one(pool, 0, incarnation=100, sequence=50)
        self.switch.drop_events()
        for sequence in (50, 49, 0):
            with self.drops("HEARTBEAT_REPLAY"):
                self.say(pool, 0, incarnation=100, sequence=sequence)
            self.told("HEARTBEAT_REPLAY", pool, 0)
        for incarnation in (99, 1, 0):
            with self.drops("HEARTBEAT_INCARNATION"):
                self.say(pool, 0, incarnation=incarnation, sequence=1000)
            self.told("HEARTBEAT_INCARNATION", pool, 0)
        self.taken_one(pool, 0, incarnation=100, sequence=51)
        self.taken_one(pool, 0, incarnation=100, sequence=0xFFFFFFFF)
        with self.drops("HEARTBEAT_REPLAY"):
            self.say(pool, 0, incarnation=100, sequence=0)


class AnotherIncarnation(Beating):
    """A new start begins its sequence anew; what the old one sent is refused from then on. Nobody was silent."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2], settle=0, alive=False)
        service = self.add_service(pool, modes=unchecked())
        # In this order: each is heard before the other's heartbeat judges it again.
        self.set_pool(pool, settle=FOREVER)
        for replica in (0, 1):
            self.taken_one(pool, replica, incarnation=7, sequence=900)
        self.set_pool(pool, settle=0)
        old = heartbeat(pool.id, 0, incarnation=7, sequence=901)
        self.taken_one(pool, 0, incarnation=8, sequence=0)
        with self.drops("HEARTBEAT_INCARNATION"):
            self.deliver(pool, 0, old)
        self.taken_one(pool, 0, incarnation=8, sequence=1)
        self.taken_one(pool, 1, incarnation=8, sequence=0)
        self.assertEqual({self.one(service) for _ in range(64)}, {0, 1})
        found = self.switch.counters("replica_exclusions")
        self.assertEqual(
            [found.get(pool.member(r), 0) for r in (0, 1)], [0, 0], "with a bound of an hour nobody is silent"
        )


class KeysRotate(Beating):
    """A second key: until the replica uses it the first is good, from then on only the second; numbers begin anew."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False, settle=FOREVER)
        self.taken_one(pool, 0, incarnation=100, sequence=50)
        new = (0x11111111, 0x22222222)
        match = {"pool": pool.id, "replica": 0, "key_epoch": KEY_EPOCH}
        self.share_key(pool, 0, key=new, epoch=KEY_EPOCH + 1)
        self.modify("heartbeat_keys", match, "set_heartbeat_key", k0=BEAT_KEY[0], k1=BEAT_KEY[1], newest=0)
        self.taken_one(pool, 0, incarnation=100, sequence=51)
        # A host whose clock went back: the new key lets it in.
        self.taken_one(pool, 0, incarnation=3, sequence=1, key=new, key_epoch=KEY_EPOCH + 1)
        with self.drops("HEARTBEAT_INCARNATION"):
            self.say(pool, 0, incarnation=100, sequence=52)
        with self.drops("HEARTBEAT_REPLAY"):
            self.say(pool, 0, incarnation=3, sequence=1, key=new, key_epoch=KEY_EPOCH + 1)
        self.taken_one(pool, 0, incarnation=3, sequence=2, key=new, key_epoch=KEY_EPOCH + 1)


@families
class ReplaysKeepNobodyAlive(Beating):
    """Somebody recorded heartbeats in the rack, and sends them again from the right port and address: in vain."""

    @in_time
    def check(self) -> None:
        service, stops = self.start(slots=8)
        pool = service.pool
        record = []
        with pool.lock:
            for _ in range(5):
                pool.heard += 1
                pool.sent[0] += 1
                record.append(heartbeat(pool.id, 0, sequence=pool.heard))
                self.deliver(pool, 0, record[-1])
        stops[0].set()
        end = time.monotonic() + BOUND / 1e6 + 0.3
        for body in itertools.cycle(record):
            self.deliver(pool, 0, body)
            time.sleep(BEAT)
            if time.monotonic() > end:
                break
        for _ in range(24):
            self.assertNotEqual(self.one(service), 0, "heartbeats that were sent again kept a silent replica alive")


@families
class TagsFromOutside(Remote):
    """By UDP too: a wrong tag and a replay are refused, and the right one is answered from where it was sent to."""

    def check(self) -> None:
        service = self.add_remote("ip_in_ip", self.family)
        pool, (src, tor) = service.pool, (self.far(), TOR[self.family])

        def datagram(body: bytes) -> bytes:
            packet = packets.ip_packet(src, tor, packets.UDP, packets.udp(src, tor, 40000, 34997, body))
            return packets.ethernet(TOR_MAC, host_mac(UPLINK), 0x0800 if self.family == 4 else 0x86DD, packet)

        with self.drops("HEARTBEAT_TAG"):
            self.send(UPLINK, datagram(heartbeat(pool.id, 0, sequence=90, key=(1, 2))))
        with self.drops("HEARTBEAT_REPLAY"):
            self.send(UPLINK, datagram(heartbeat(pool.id, 0, sequence=pool.heard)))
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


class AnswersSayWhoIsAlive(Beating):
    """Each heartbeat is answered with who is alive and who takes plain TCP, in the rack, tagged or not."""

    @in_time
    def runTest(self) -> None:
        for vlan in (None, 200):
            self.vlan = vlan
            pool = self.add_pool([1, 2, 3, 4], alive=False, settle=FOREVER)
            beats = [self.taken_one(pool, r, sequence=1) for r in range(4)]
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
        # Replica 2 is heard no more; a short bound finds it out, and it is gone from both sets.
        pool = self.add_pool([1, 2, 3], alive=False, settle=FOREVER)
        for replica in range(3):
            self.taken_one(pool, replica, sequence=1)
        time.sleep(BOUND / 1e6 + 0.1)
        self.set_pool(pool, settle=0)
        before = time.monotonic()
        for replica in (0, 1):
            self.taken_one(pool, replica, sequence=2)
        self.set_pool(pool, bound=BOUND, settle=0)
        beat = self.taken_one(pool, 1, sequence=3)
        self.longest_gap = time.monotonic() - before
        self.expect_answer(pool, 1, beat, 0b011, 0b011)
        # Back after three, but plain TCP waits for the controller. The others shall not be silent meanwhile.
        self.set_pool(pool, bound=60 * SECOND, settle=0)
        for sequence in (4, 5, 6):
            beat = self.taken_one(pool, 2, sequence=sequence)
        self.expect_answer(pool, 2, beat, 0b111, 0b011)
        # Not ready: as good as silent, but told all the same.
        beat = heartbeat(pool.id, 2, sequence=7, flags=0)
        self.deliver(pool, 2, beat)
        self.expect_answer(pool, 2, beat, 0b111, 0b011)


class AnswersAreMatchedToHeartbeats(Beating):
    """The answer to one heartbeat is found whichever answers arrive before it."""

    def runTest(self) -> None:
        pool = self.add_pool([1], alive=False)
        beats = [self.taken_one(pool, 0, sequence=sequence) for sequence in (1, 2, 3)]
        for beat in reversed(beats):
            self.expect_answer(pool, 0, beat, 1, 1)


class SilenceIsFoundWithoutTraffic(Beating):
    """Two neighbours of five fall silent: the heartbeats of the others find both, once each, and no packet is sent."""

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
        self.assertEqual(late, [], "an exclusion is told once")
        after = [self.switch.counter("replica_exclusions", pool.member(r)) for r in range(5)]
        self.assertEqual(after, [0, 0, 1, 1, 0])


class OneHeartbeatFindsAllOfSixtyThree(Beating):
    """A heartbeat goes on while it finds silent ones: one that is alone finds 63, and is answered."""

    def runTest(self) -> None:
        for alive in (0, 31, 63):
            pool = self.add_pool([1], alive=False)
            self.set_pool(pool, members=(1 << 64) - 1)
            pool.ports = [1] * 64
            if alive:
                self.admit(pool, alive)
            beat = self.taken_one(pool, alive)
            self.expect_answer(pool, alive, beat, 1 << alive, 1 << alive)
            found = self.switch.counters("replica_exclusions")
            others = [r for r in range(64) if r != alive]
            self.assertEqual([found.get(pool.member(r), 0) for r in others], [1] * 63)
            self.assertNotIn(pool.member(alive), found)


class AYoungTorGivesNoVerdict(Beating):
    """Before it has known the pool for long enough: nobody is silent, neither to heartbeats nor to packets."""

    def runTest(self) -> None:
        pool = self.add_pool([1, 2, 3], alive=False, bound=1, settle=0xFFFFFFFF)
        service = self.add_service(pool, modes=unchecked())
        beat = self.taken_one(pool, 0, sequence=1)
        self.expect_answer(pool, 0, beat, 0b111, 0b111, settled=False)
        self.assertEqual({self.one(service) for _ in range(64)}, {0, 1, 2}, "packets go to all")
        found = self.switch.counters("replica_exclusions")
        self.assertEqual([found.get(pool.member(r), 0) for r in range(3)], [0, 0, 0])
        # It knows the pool since its first heartbeat, so that this is over at once.
        self.set_pool(pool, bound=60 * SECOND, settle=1)
        beat = self.taken_one(pool, 0, sequence=2)
        self.expect_answer(pool, 0, beat, 0b001, 0b001)
        self.send(CLIENT, self.to_service(service, Request(number=1)))
        self.assertEqual(self.receive()[0], 1)
