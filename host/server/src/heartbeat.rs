//! Heartbeats: the packets by which the ToR decides whether a replica is alive.
//!
//! A replica sends one frame per pool and interval, tagged under a key shared with the ToR. The ToR
//! answers each with the set of live members under the same key, so a replica learns of deaths
//! without further queries. A replica reports `ready` only while it has keys, its interface works,
//! and no worker of the packet path has been busy with one task for the whole bound; a replica that
//! is not ready gets no traffic, like an excluded one.

use std::time::{SystemTime, UNIX_EPOCH};

use rivulet_packet::heartbeat::{Answer, ETHER_TYPE, Heartbeat, LENGTH, TorKey};
use rivulet_pktio::filter::Rule;
use rivulet_pktio::{AfPacket, Config, Filter, Interface, IoError, OpenError, PacketIo, TxFrame};

use crate::interface::SEEK;
use crate::keys::KeySet;
use crate::service::Member;

/// Length of a frame in bytes, without the device's padding.
pub const FRAME: usize = 14 + LENGTH;

/// The heartbeat itself within a frame; over UDP only this part is sent.
#[must_use]
pub fn heartbeat_of(frame: &[u8; FRAME]) -> &[u8] {
    &frame[FRAME - LENGTH..]
}

/// Without an answer for this time, microseconds, a process that shares a key with the ToR starts a
/// new incarnation: another process may have used this member's place meanwhile and stopped.
const RENEW: u64 = 1_000_000;

/// Heartbeats with a remembered send time: a hundred times the number within a rack's bound.
const REMEMBERED: usize = 256;
/// Without an answer for this time, microseconds, the set of live members is unknown.
const FORGETS: u64 = 1_000_000;

/// Sends the heartbeats of one member of a pool.
#[derive(Debug)]
pub struct Beat {
    member: Member,
    /// The key, with the low half of its epoch.
    key: Option<(u8, TorKey)>,
    /// The previous key: answers to heartbeats under it may be in flight.
    former: Option<(u8, TorKey)>,
    /// The smallest incarnation to start with.
    incarnation: u32,
    /// Incarnation and sequence number of the next heartbeat.
    number: (u32, u32),
    /// Number and send time (microseconds) of the last heartbeats, indexed by the low bits of the
    /// sequence number.
    sent: [((u32, u32), u64); REMEMBERED],
    /// When the next heartbeat is due, microseconds.
    next: u64,
    /// Time of the last answer, or of the start of this incarnation, microseconds.
    renewed: u64,
    /// The last answer of the rack's ToR.
    live: Option<Live>,
}

impl Beat {
    /// Starts heartbeats with an incarnation of at least `incarnation`.
    #[must_use]
    pub fn new(member: Member, keys: &KeySet, incarnation: u32, now: u64) -> Beat {
        let number = begin(incarnation);
        let key = keys.beat_key();
        let sent = [((0, 0), 0); REMEMBERED];
        Beat { member, key, former: None, incarnation, number, sent, next: now, renewed: now, live: None }
    }

    /// The member that it sends for.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Takes the heartbeat key from new keys.
    pub fn set_keys(&mut self, keys: &KeySet) {
        let key = keys.beat_key();
        if key != self.key {
            self.former = std::mem::replace(&mut self.key, key);
        }
    }

    /// When the next heartbeat is due, microseconds.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.next
    }

    /// The last answer of the rack's ToR; `None` before the first.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    /// The frame that is due at `now`; `None` if it is too early. `oldest`: how long a worker has
    /// been busy with one task, microseconds; 0 if none is. After a pause the schedule restarts at
    /// `now` instead of catching up.
    pub fn frame(
        &mut self,
        now: u64,
        source: [u8; 6],
        keys: bool,
        load: usize,
        oldest: u64,
    ) -> Option<[u8; FRAME]> {
        if now < self.next {
            return None;
        }
        let interval = self.member.heartbeat.as_micros() as u64;
        if self.key.is_some() && now > self.renewed + RENEW {
            self.number = begin(self.incarnation).max(self.number);
            self.renewed = now;
        }
        self.next = if self.next + interval > now { self.next + interval } else { now + interval };
        let ready = keys && u128::from(oldest) < self.member.bound.as_micros();
        let (key_epoch, key) = self.key.unzip();
        let beat = Heartbeat {
            ready,
            pool: self.member.pool,
            // Below 64, which `Service::check` ensures.
            replica: self.member.replica as u8,
            key_epoch: key_epoch.unwrap_or(0),
            load: u16::try_from(load).unwrap_or(u16::MAX),
            incarnation: self.number.0,
            sequence: self.number.1,
            tag: 0,
        };
        self.sent[self.number.1 as usize % REMEMBERED] = (self.number, now);
        self.number = match self.number.1.checked_add(1) {
            Some(sequence) => (self.number.0, sequence),
            None => (self.number.0.saturating_add(1), 0),
        };
        let beat = key.map_or(beat, |key| beat.tagged(key));
        let mut frame = [0; FRAME];
        frame[..6].copy_from_slice(&self.member.tor_mac);
        frame[6..12].copy_from_slice(&source);
        frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        // Fails only for an index that `Service::check` refuses; then no heartbeat is sent, and the
        // ToR excludes the replica.
        beat.write(&mut frame[14..]).ok()?;
        Some(frame)
    }

    /// Handles a frame that may be the answer of the rack's ToR. Returns whether it is one, and
    /// whether it is authentic.
    pub fn answered(&mut self, frame: &[u8], now: u64) -> bool {
        let from_tor = frame.get(6..12) == Some(&self.member.tor_mac[..]);
        let answer = frame.get(14..).filter(|_| from_tor && frame[12..14] == ETHER_TYPE.to_be_bytes());
        match answer.and_then(|bytes| self.judge(bytes, self.live.as_ref(), now)) {
            Some(live) => {
                (self.live, self.renewed) = (Some(live), now);
                true
            }
            None => false,
        }
    }

    /// Parses an answer to a heartbeat of this process under its key, if it is newer than `before`.
    pub(crate) fn judge(&self, bytes: &[u8], before: Option<&Live>, now: u64) -> Option<Live> {
        let answer = Answer::parse(bytes).ok()?;
        let keys = [self.key, self.former];
        let (_, key) = keys.into_iter().flatten().find(|(epoch, _)| *epoch == answer.key_epoch)?;
        let number = (answer.incarnation, answer.sequence);
        let right = (answer.pool, u16::from(answer.replica)) == (self.member.pool, self.member.replica)
            && number < self.number
            && before.is_none_or(|before| before.number < number)
            && answer.verify(key);
        let Answer { tor_id, settled, alive, plain, .. } = answer;
        // A heartbeat that is no longer remembered was sent before all that are.
        let (last, sent) = self.sent[answer.sequence as usize % REMEMBERED];
        let sent = if last == number { sent } else { 0 };
        let after =
            before.filter(|before| settled && before.settled && now.saturating_sub(before.at) < FORGETS);
        let since = after.filter(|before| before.alive == alive).map_or(now, |before| before.since);
        let died = after.map_or(0, |before| before.alive & !alive).count_ones();
        let died = before.map_or(0, |before| before.died).wrapping_add(died);
        right.then_some(Live { number, tor_id, settled, alive, plain, sent, at: now, since, died })
    }
}

/// The set of live members in a ToR's last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Number of the heartbeat that it answers.
    number: (u32, u32),
    /// Switch number and incarnation of the ToR.
    pub tor_id: u16,
    /// The ToR has known the pool for at least the bound. Before that it reports every member as
    /// live.
    pub settled: bool,
    /// Bit r: replica r is not excluded.
    pub alive: u64,
    /// Bit r: replica r also takes plain TCP.
    pub plain: u64,
    /// When the answered heartbeat was sent, microseconds of the process's clock; 0 if it is no
    /// longer remembered.
    pub sent: u64,
    /// When the answer was received, same clock.
    pub at: u64,
    /// Since when all answers have reported the same live set, same clock.
    pub since: u64,
    /// How many members have died so far.
    pub died: u32,
}

impl Live {
    /// Since when the set of live replicas, `own` and others, is unchanged, as known at `now`.
    pub(crate) fn others_since(&self, own: u16, now: u64) -> Option<u64> {
        // Below 64, which `Service::check` ensures.
        let others = self.alive & !(1 << own);
        (self.settled && others != 0 && now < self.at + FORGETS).then_some(self.since)
    }
}

/// The first incarnation and sequence number: larger than any that an earlier process of this
/// replica sent, unless the host's clock went back. The incarnation is a time in seconds. The
/// sequence starts at the position within that second, which no process can have reached yet.
fn begin(least: u32) -> (u32, u32) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let second = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
    (second.max(least), since.subsec_micros() << 11)
}

/// The socket for heartbeats. It bypasses the interface's queueing discipline, because a heartbeat
/// behind a shaper's queue could wait longer than the ToR's bound.
#[derive(Default)]
pub(crate) struct Sender {
    socket: Option<AfPacket>,
    /// Frames that the interface accepted from this socket.
    taken: u64,
    /// When to retry opening the socket, microseconds.
    next: u64,
}

impl Sender {
    /// Sends a frame; returns whether the interface accepted it. [`IoError::Gone`] once when the
    /// interface was deleted.
    pub(crate) fn send(&mut self, interface: &Interface, frame: &[u8], now: u64) -> Result<bool, IoError> {
        if self.socket.is_none() && now >= self.next {
            self.next = now + SEEK;
            match open(interface) {
                Ok(socket) => (self.socket, self.taken) = (Some(socket), 0),
                Err(e) => tracing::debug!(error = %e, "cannot open the heartbeat socket"),
            }
        }
        let Some(socket) = &mut self.socket else { return Ok(false) };
        match socket.send(&[TxFrame::new(frame)]) {
            // A frame that a full device refuses counts as handled.
            Ok(_) => {
                let taken = socket.stats().tx_frames;
                Ok(std::mem::replace(&mut self.taken, taken) < taken)
            }
            Err(IoError::Gone(name)) => {
                self.socket = None;
                Err(IoError::Gone(name))
            }
            Err(_) => Ok(false),
        }
    }

    /// Passes the frames received from the ToR to `take`.
    pub(crate) fn receive(&mut self, mut take: impl FnMut(&[u8])) {
        let Some(socket) = &mut self.socket else { return };
        // Bounded, so that a flood costs no more than that many heartbeats. Errors are found on
        // sending.
        for _ in 0..MAX_BATCHES {
            let count = socket.recv().unwrap_or(0);
            for index in 0..count {
                take(socket.frame(index).data);
            }
            if count < BATCH {
                break;
            }
        }
    }
}

/// Answers read in one batch.
const BATCH: usize = 16;
/// Batches read before the next heartbeat.
const MAX_BATCHES: usize = 4;

/// A packet socket for heartbeats and their answers.
pub fn open(interface: &Interface) -> Result<AfPacket, OpenError> {
    let (filter, ether_type) = (Some(Filter::new(&[Rule::EtherType(ETHER_TYPE)])?), Some(ETHER_TYPE));
    let config = Config { batch: BATCH, promiscuous: false, qdisc_bypass: true, ..Config::default() };
    AfPacket::open(interface, Config { filter, ether_type, ..config })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Secret, TorKeys};
    use std::time::Duration;

    const TOR: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn keys(epoch: u16) -> KeySet {
        let tor = TorKeys { epoch, heartbeat: Secret([epoch as u8; 8]), block: Secret([1; 8]) };
        KeySet { tor: vec![tor], usable_tor: epoch, ..KeySet::generate(1).unwrap() }
    }

    fn key(epoch: u16) -> TorKey {
        TorKey::new([epoch as u8; 8])
    }

    fn beat() -> Beat {
        let (heartbeat, bound) = (Duration::from_millis(2), Duration::from_millis(20));
        let member = Member { pool: 3, replica: 7, tor_mac: TOR, heartbeat, bound };
        Beat::new(member, &keys(5), 0, 1000)
    }

    fn read(frame: &[u8; FRAME]) -> Heartbeat {
        Heartbeat::parse(&frame[14..]).unwrap()
    }

    #[test]
    fn heartbeats_keep_their_interval_and_count_up() {
        let mut beat = beat();
        assert_eq!(beat.frame(999, OWN, true, 0, 0), None);
        let frame = beat.frame(1000, OWN, true, 5, 0).unwrap();
        assert_eq!((&frame[..6], &frame[6..12]), (&TOR[..], &OWN[..]));
        let first = read(&frame);
        assert!(first.verify(key(5)));
        let Heartbeat { incarnation, sequence, tag, .. } = first;
        assert_eq!(
            first,
            Heartbeat { ready: true, pool: 3, replica: 7, key_epoch: 5, load: 5, incarnation, sequence, tag }
        );
        assert_eq!(beat.frame(2999, OWN, true, 0, 0), None);
        assert_eq!(read(&beat.frame(3001, OWN, true, 0, 0).unwrap()).sequence, sequence + 1);
        assert_eq!(beat.due(), 5000, "no drift");
        let late = read(&beat.frame(50_000, OWN, true, 70_000, 0).unwrap());
        assert_eq!(late.load, u16::MAX);
        assert_eq!((late.incarnation, late.sequence), (incarnation, sequence + 2));
        assert_eq!(beat.due(), 52_000, "no catching up");
    }

    #[test]
    fn incarnation_and_sequence_only_grow() {
        let mut beat = beat();
        beat.number = (9, u32::MAX);
        let number = |frame: &[u8; FRAME]| (read(frame).incarnation, read(frame).sequence);
        assert_eq!(number(&beat.frame(1000, OWN, true, 0, 0).unwrap()), (9, u32::MAX));
        assert_eq!(number(&beat.frame(3000, OWN, true, 0, 0).unwrap()), (10, 0), "the sequence wrapped");
        let (one, other) = (begin(0), begin(0));
        assert!(one <= other);
        assert_eq!(begin(u32::MAX).0, u32::MAX, "not below what the process says it is");
    }

    #[test]
    fn ready_needs_keys_and_young_requests() {
        let cases = [(true, 0, true), (true, 19_999, true), (true, 20_000, false), (false, 0, false)];
        for (keys, oldest, ready) in cases {
            let frame = beat().frame(1000, [0; 6], keys, 0, oldest).unwrap();
            assert_eq!(read(&frame).ready, ready, "{keys} {oldest}");
        }
    }

    /// The answer to a heartbeat, with a change before the tag is made, and one after.
    fn answer(to: &Heartbeat, change: impl Fn(&mut Answer), key: TorKey, damage: Option<usize>) -> Vec<u8> {
        let Heartbeat { pool, replica, key_epoch, incarnation, sequence, .. } = *to;
        let (settled, tor_id, alive, plain, tag) = (true, 0x0102, 0b1101, 0b1001, 0);
        let mut answer =
            Answer { settled, pool, replica, key_epoch, tor_id, incarnation, sequence, alive, plain, tag };
        change(&mut answer);
        let mut frame = vec![0; 14 + 36];
        frame[..6].copy_from_slice(&OWN);
        frame[6..12].copy_from_slice(&TOR);
        frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        answer.tagged(key).write(&mut frame[14..]).unwrap();
        if let Some(at) = damage {
            frame[at] ^= 1;
        }
        frame
    }

    #[test]
    fn answer_needs_the_key_and_a_sent_heartbeat_once() {
        let mut beat = beat();
        let sent = read(&beat.frame(1000, OWN, true, 0, 0).unwrap());
        for damage in (6..12).chain(12..14).chain(14..50) {
            assert!(!beat.answered(&answer(&sent, |_| {}, key(5), Some(damage)), 1500), "octet {damage}");
        }
        type Change = fn(&mut Answer);
        let changes: [Change; 5] = [
            |a| a.pool += 1,
            |a| a.replica += 1,
            |a| a.incarnation += 1,
            |a| a.sequence += 1,
            |a| a.key_epoch += 1,
        ];
        for (n, change) in changes.iter().enumerate() {
            assert!(!beat.answered(&answer(&sent, change, key(5), None), 1500), "change {n}");
        }
        assert!(!beat.answered(&answer(&sent, |_| {}, key(6), None), 1500), "another key");
        assert!(!beat.answered(&[], 1500) && !beat.answered(&[0; 14], 1500));
        assert_eq!(beat.live(), None);
        assert!(beat.answered(&answer(&sent, |_| {}, key(5), None), 1500));
        let live = *beat.live().unwrap();
        assert_eq!((live.alive, live.plain, live.settled), (0b1101, 0b1001, true));
        assert_eq!((live.sent, live.at), (1000, 1500));
        assert!(!beat.answered(&answer(&sent, |a| a.alive = 0, key(5), None), 1600), "answered before");
        // After a change of keys, answers under the old key are accepted too.
        let old = read(&beat.frame(3000, OWN, true, 0, 0).unwrap());
        beat.set_keys(&keys(6));
        let new = read(&beat.frame(5000, OWN, true, 0, 0).unwrap());
        assert!(new.key_epoch == 6 && new.verify(key(6)));
        assert!(beat.answered(&answer(&old, |_| {}, key(5), None), 5100));
        assert!(beat.answered(&answer(&new, |_| {}, key(6), None), 5200));
        assert_eq!(beat.live().unwrap().sent, 5000);
        // An answer after so many heartbeats gives no send time.
        let late = read(&beat.frame(7000, OWN, true, 0, 0).unwrap());
        for n in 0..REMEMBERED as u64 {
            beat.frame(9000 + 2000 * n, OWN, true, 0, 0).unwrap();
        }
        assert!(beat.answered(&answer(&late, |_| {}, key(6), None), 600_000));
        assert_eq!(beat.live().unwrap().sent, 0);
    }

    #[test]
    fn age_of_the_live_set_is_tracked() {
        let mut beat = beat();
        let mut hear = |now: u64, alive: u64, settled: bool| {
            let sent = read(&beat.frame(now, OWN, true, 0, 0).unwrap());
            let change = |a: &mut Answer| (a.alive, a.settled) = (alive, settled);
            assert!(beat.answered(&answer(&sent, change, key(5), None), now + 100));
            let live = beat.live().unwrap();
            (live.others_since(0, now + 100), live.died)
        };
        assert_eq!(hear(100_000, 0b111, false), (None, 0), "the ToR does not know");
        assert_eq!(hear(200_000, 0b111, true), (Some(200_100), 0));
        assert_eq!(hear(300_000, 0b111, true), (Some(200_100), 0));
        assert_eq!(hear(400_000, 0b101, true), (Some(400_100), 1), "one died");
        assert_eq!(hear(500_000, 0b111, true), (Some(500_100), 1), "and is back");
        assert_eq!(hear(600_000, 0b001, true), (None, 3), "alone");
        assert_eq!(hear(700_000, 0b011, true), (Some(700_100), 3));
        // A member that died meanwhile may have returned.
        assert_eq!(hear(700_000 + FORGETS, 0b011, true), (Some(700_100 + FORGETS), 3));
        assert_eq!(beat.live().unwrap().others_since(0, 700_100 + 2 * FORGETS), None, "no answers");
    }

    #[test]
    fn unanswered_process_starts_a_new_incarnation() {
        let mut beat = beat();
        let sent = read(&beat.frame(1000, OWN, true, 0, 0).unwrap());
        assert!(beat.answered(&answer(&sent, |_| {}, key(5), None), 1500));
        let (mut now, mut last) = (1000, sent);
        while now < 3_000_000 {
            now += 2000;
            let next = read(&beat.frame(now, OWN, true, 0, 0).unwrap());
            if (next.incarnation, next.sequence) != (last.incarnation, last.sequence + 1) {
                assert!(now > 1500 + RENEW);
                assert!((next.incarnation, next.sequence) > (last.incarnation, last.sequence));
                return;
            }
            last = next;
        }
        panic!("it went on as if it were answered");
    }
}
