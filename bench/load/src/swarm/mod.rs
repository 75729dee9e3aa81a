//! Many clients in one thread, with a new connection for each request.

mod arrivals;
pub mod plain;
pub mod rivulet;
pub mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use rivulet_pktio::IoChoice;

use crate::report::{Outcome, Row};
use crate::target::Ask;

use arrivals::Arrivals;

/// What the clients do.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// Where.
    pub server: SocketAddr,
    /// The request, whole.
    pub request: Vec<u8>,
    /// Connections at a time.
    pub clients: usize,
    /// No request begins later than this after the start.
    pub until: Duration,
    /// Requests at most, of all clients together.
    pub requests: u64,
    /// A request that takes longer has failed.
    pub timeout: Duration,
    /// Address tokens are given back.
    pub token: bool,
    /// What moves the packets.
    pub io: IoChoice,
    /// Each connection is kept after its one request.
    pub hold: bool,
    /// With that, in the middle of an answer: the window closes when about so many octets of the body have come (plain).
    pub close_at: Option<u64>,
    /// Local addresses, used in turn; empty: the system's choice.
    pub sources: Vec<IpAddr>,
    /// Requests begin by chance, so many a second on average (a Poisson process), whatever became of those before, as far as
    /// `clients` reach; none: one begins where one is over.
    pub rate: Option<f64>,
    /// What is asked for.
    pub ask: Ask,
    /// What every answer's body is to be.
    pub expected: Option<Arc<[u8]>>,
    /// Every request is noted.
    pub log: bool,
}

/// Counts an answer that came whole, or why it is none.
fn settle(outcome: &mut Outcome, took: Duration, answer: anyhow::Result<(u16, u64)>) {
    let problem = match answer {
        Ok((200, bytes)) => {
            outcome.answered(took, bytes);
            None
        }
        Ok((status, _)) => Some(anyhow::anyhow!("status {status}")),
        Err(error) => Some(error),
    };
    if let Some(error) = &problem {
        outcome.fail(error);
    }
    if let Some(log) = &mut outcome.log {
        let took_us = took.as_micros() as u64;
        let problem = problem.map(|error| format!("{error:#}")).unwrap_or_default();
        log.push(Row { began_us: monotonic_us().saturating_sub(took_us), took_us, problem });
    }
}

/// The system's monotonic clock, which other processes can be asked for too.
fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one timespec that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Waits until a descriptor is readable, or writable if that is asked for, `longest` at most: finer than poll(2) does.
fn wait(descriptor: &impl AsRawFd, writable: bool, longest: Duration) {
    let events = libc::POLLIN | if writable { libc::POLLOUT } else { 0 };
    let mut entry = libc::pollfd { fd: descriptor.as_raw_fd(), events, revents: 0 };
    let time = libc::timespec { tv_sec: 0, tv_nsec: longest.min(LONGEST).as_nanos() as i64 };
    // SAFETY: one entry, as the count says; what has the descriptor is borrowed for as long as this takes.
    unsafe { libc::ppoll(&raw mut entry, 1, &raw const time, std::ptr::null()) };
}

/// Between two looks at what is overdue.
const LONGEST: Duration = Duration::from_millis(50);
