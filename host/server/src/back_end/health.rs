//! Whether the back end answers. If it does not, its replica is not ready, so that the ToR sends
//! clients to other replicas.
//!
//! Any answer to any request shows it. Without one for a while, a probe is sent: a query for the
//! root's SOA record, or a HEAD of `/`. The content of the answer does not matter.

use std::io;
use std::net::UdpSocket;

use rivulet_plain::{Protocol, dns};

use super::lane::open;
use super::{BackEnd, BackEndCounters};

/// Interval between two probes, microseconds; any answer within it replaces a probe.
const INTERVAL: u64 = 500_000;
/// Consecutive probes without an answer before the back end counts as dead.
const TRIES: u32 = 3;
/// Datagrams read at a time.
const READS: usize = 4;

/// A query for the root's SOA record, without its id.
const DNS: [u8; 15] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 1];
const HTTP: &[u8] = b"HEAD / HTTP/1.1\r\nHost: back-end\r\nConnection: close\r\n\r\n";

/// State of the back end. It is unknown at first, and counts as dead until the first answer.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) socket: UdpSocket,
    back_end: BackEnd,
    /// Number of the last probe. It changes, because a name server may treat a repeat as an attack.
    number: u16,
    /// Probes since the last answer.
    unanswered: u32,
    /// An answer was received since the last check.
    answered: bool,
    /// Time of the next check, microseconds.
    next: u64,
    alive: bool,
}

impl Health {
    pub(super) fn open(back_end: BackEnd) -> io::Result<Health> {
        let socket = open(&back_end)?;
        Ok(Health { socket, back_end, number: 0, unanswered: 0, answered: false, next: 0, alive: false })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Records an answer of the back end.
    pub(super) fn record_answer(&mut self) {
        (self.answered, self.unanswered) = (true, 0);
        if !self.alive {
            tracing::info!(back_end = %self.back_end.address, "the back end answers");
            self.alive = true;
        }
    }

    /// Sends a probe, if it is time and there was no answer since the last check.
    pub(super) fn check(&mut self, now: u64, counters: &mut BackEndCounters) {
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        if std::mem::take(&mut self.answered) {
            return;
        }
        if self.alive && self.unanswered >= TRIES {
            tracing::warn!(back_end = %self.back_end.address, "the back end does not answer: not ready");
            self.alive = false;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.number = self.number.wrapping_add(1);
        counters.probes += 1;
        // The error is about the previous datagram, to a closed port. This probe is sent at the
        // next check.
        let _ = match self.back_end.protocol {
            Protocol::Dns => {
                let mut query = [0; 2 + DNS.len()];
                query[..2].copy_from_slice(&self.number.to_be_bytes());
                query[2..].copy_from_slice(&DNS);
                self.socket.send(&query)
            }
            Protocol::Http => self.socket.send(HTTP),
        };
    }

    /// Reads answers to the probes. Late answers count too.
    pub(super) fn read(&mut self) {
        let mut datagram = [0; 64];
        for _ in 0..READS {
            // Longer ones are truncated.
            match self.socket.recv(&mut datagram) {
                Ok(length) if self.answers(datagram.get(..length).unwrap_or_default()) => {
                    self.record_answer()
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
        }
    }

    fn answers(&self, datagram: &[u8]) -> bool {
        match self.back_end.protocol {
            Protocol::Dns => dns::number(datagram).is_some(),
            Protocol::Http => datagram.starts_with(b"HTTP/1."),
        }
    }
}
