//! Whether the back end answers: what is not, makes its replica not ready, so that clients are sent to those whose back end does.
//!
//! Any answer to any request tells so. Where there is none for a while, a probe asks for one: a query for the root's SOA record, or
//! the head of `/`. What the answer says does not matter.

use std::io;
use std::net::UdpSocket;

use rivulet_plain::{Protocol, dns};

use super::lane::open;
use super::{BackEnd, BackEndCounters};

/// Between two probes, microseconds, and how long an answer to anything takes the place of one.
const INTERVAL: u64 = 500_000;
/// Probes on end without an answer: then it is taken for dead.
const TRIES: u32 = 3;
/// Datagrams read at a time.
const READS: usize = 4;

/// A query for the root's SOA record, without its number.
const DNS: [u8; 15] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 1];
const HTTP: &[u8] = b"HEAD / HTTP/1.1\r\nHost: back-end\r\nConnection: close\r\n\r\n";

/// What is known of the back end. Nobody knows anything at first, so it counts as dead until it answers.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) socket: UdpSocket,
    back_end: BackEnd,
    /// Of the last probe: a name server may take one that comes twice for an attack.
    number: u16,
    /// Probes since the last answer.
    unanswered: u32,
    /// Something was answered since the last look.
    heard: bool,
    /// When it is looked next, microseconds.
    next: u64,
    alive: bool,
}

impl Health {
    pub(super) fn open(back_end: BackEnd) -> io::Result<Health> {
        let socket = open(&back_end)?;
        Ok(Health { socket, back_end, number: 0, unanswered: 0, heard: false, next: 0, alive: false })
    }

    pub(super) fn is_alive(&self) -> bool {
        self.alive
    }

    /// The back end answered something.
    pub(super) fn heard(&mut self) {
        (self.heard, self.unanswered) = (true, 0);
        if !self.alive {
            tracing::info!(back_end = %self.back_end.address, "the back end answers");
            self.alive = true;
        }
    }

    /// Asks, if it is time and nothing was answered since it was last time.
    pub(super) fn look(&mut self, now: u64, counters: &mut BackEndCounters) {
        if now < self.next {
            return;
        }
        self.next = now + INTERVAL;
        if std::mem::take(&mut self.heard) {
            return;
        }
        if self.alive && self.unanswered >= TRIES {
            tracing::warn!(back_end = %self.back_end.address, "the back end does not answer: not ready");
            self.alive = false;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.number = self.number.wrapping_add(1);
        counters.probes += 1;
        // An error is of the datagram before: nobody listened. This one is sent the next time.
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

    /// Takes what came to the probes. Late is as good as in time: it answers.
    pub(super) fn read(&mut self) {
        let mut datagram = [0; 64];
        for _ in 0..READS {
            // What is longer is cut.
            match self.socket.recv(&mut datagram) {
                Ok(length) if self.answers(datagram.get(..length).unwrap_or_default()) => self.heard(),
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
