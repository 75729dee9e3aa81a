//! Heartbeats: what the ToR believes a replica by.
//!
//! One frame a pool and interval. `ready` only while keys are held, the interface works and no worker of the packet path
//! has been at one thing for as long as the bound; a replica that cannot say so is as good as silent.

use rivulet_packet::heartbeat::{ETHER_TYPE, Heartbeat, LENGTH};

use rivulet_pktio::{AfPacket, Config, Filter, Interface, IoError, OpenError, PacketIo, TxFrame};

use crate::interface::SEEK;
use crate::service::Member;

/// Octets of a frame, without the padding that the device adds.
pub const FRAME: usize = 14 + LENGTH;

/// The heartbeat itself within a frame: what goes by UDP.
#[must_use]
pub fn heartbeat_of(frame: &[u8; FRAME]) -> &[u8] {
    &frame[FRAME - LENGTH..]
}

/// The beat of one place in a pool.
#[derive(Debug)]
pub struct Beat {
    member: Member,
    incarnation: u16,
    sequence: u32,
    /// When the next is due, microseconds.
    next: u64,
}

impl Beat {
    /// Beats from now on.
    #[must_use]
    pub fn new(member: Member, incarnation: u16, now: u64) -> Beat {
        Beat { member, incarnation, sequence: 0, next: now }
    }

    /// The place that it is for.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// When the next heartbeat is due, microseconds.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.next
    }

    /// The frame that is due at `now`, none if it is too early. `oldest`: for how long, in microseconds, a worker has been
    /// at one thing, 0 if none is at any. After a pause it goes on from now instead of catching up.
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
        self.next = if self.next + interval > now { self.next + interval } else { now + interval };
        let ready = keys && u128::from(oldest) < self.member.bound.as_micros();
        let beat = Heartbeat {
            ready,
            pool: self.member.pool,
            replica: self.member.replica,
            incarnation: self.incarnation,
            load: u16::try_from(load).unwrap_or(u16::MAX),
            sequence: self.sequence,
        };
        self.sequence = self.sequence.wrapping_add(1);
        let mut frame = [0; FRAME];
        frame[..6].copy_from_slice(&self.member.tor_mac);
        frame[6..12].copy_from_slice(&source);
        frame[12..14].copy_from_slice(&ETHER_TYPE.to_be_bytes());
        // Fails only for an index that `Service::check` refuses; then the replica is silent, as it should be.
        beat.write(&mut frame[14..]).ok()?;
        Some(frame)
    }
}

/// The socket that heartbeats leave by. One of its own, around the interface's queueing discipline, so that they are not
/// late whatever waits to be sent: behind a shaper's queue alone a heartbeat would wait longer than the ToR's bound.
#[derive(Default)]
pub(crate) struct Sender {
    socket: Option<AfPacket>,
    /// Frames that the interface took from it.
    taken: u64,
    /// When a socket that could not be opened is tried again, microseconds.
    next: u64,
}

impl Sender {
    /// Whether the interface took it. [`IoError::Gone`] once when the interface was deleted.
    pub(crate) fn send(&mut self, interface: &Interface, frame: &[u8], now: u64) -> Result<bool, IoError> {
        if self.socket.is_none() && now >= self.next {
            self.next = now + SEEK;
            match open(interface) {
                Ok(socket) => (self.socket, self.taken) = (Some(socket), 0),
                Err(e) => tracing::debug!(error = %e, "no heartbeats"),
            }
        }
        let Some(socket) = &mut self.socket else { return Ok(false) };
        match socket.send(&[TxFrame::new(frame)]) {
            // One that a full device refuses is done with, too.
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
}

/// A packet socket that receives nothing.
fn open(interface: &Interface) -> Result<AfPacket, OpenError> {
    let filter = Some(Filter::new(&[])?);
    let config = Config { batch: 1, promiscuous: false, qdisc_bypass: true, filter, ..Config::default() };
    AfPacket::open(interface, config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn beat() -> Beat {
        let member = Member {
            pool: 3,
            replica: 7,
            tor_mac: [2, 0, 0, 0, 0, 1],
            heartbeat: Duration::from_millis(2),
            bound: Duration::from_millis(20),
        };
        Beat::new(member, 99, 1000)
    }

    fn read(frame: &[u8; FRAME]) -> Heartbeat {
        Heartbeat::parse(&frame[14..]).unwrap()
    }

    #[test]
    fn pace_and_sequence() {
        let mut beat = beat();
        let mac = [2, 0, 0, 0, 0, 9];
        assert_eq!(beat.frame(999, mac, true, 0, 0), None);
        let first = beat.frame(1000, mac, true, 5, 0).unwrap();
        assert_eq!((&first[..6], &first[6..12]), (&[2, 0, 0, 0, 0, 1][..], &mac[..]));
        assert_eq!(
            read(&first),
            Heartbeat { ready: true, pool: 3, replica: 7, incarnation: 99, load: 5, sequence: 0 }
        );
        assert_eq!(beat.frame(2999, mac, true, 0, 0), None);
        assert_eq!(read(&beat.frame(3001, mac, true, 0, 0).unwrap()).sequence, 1);
        assert_eq!(beat.due(), 5000, "no drift");
        assert_eq!(read(&beat.frame(50_000, mac, true, 70_000, 0).unwrap()).load, u16::MAX);
        assert_eq!(beat.due(), 52_000, "no catching up");
    }

    #[test]
    fn ready_needs_keys_and_young_requests() {
        let cases = [(true, 0, true), (true, 19_999, true), (true, 20_000, false), (false, 0, false)];
        for (keys, oldest, ready) in cases {
            let frame = beat().frame(1000, [0; 6], keys, 0, oldest).unwrap();
            assert_eq!(read(&frame).ready, ready, "{keys} {oldest}");
        }
    }
}
