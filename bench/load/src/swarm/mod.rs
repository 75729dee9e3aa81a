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

/// The clients' task.
#[derive(Clone, Debug)]
pub struct Swarm {
    /// The server.
    pub server: SocketAddr,
    /// The whole request.
    pub request: Vec<u8>,
    /// Parallel connections.
    pub clients: usize,
    /// No request begins later than this after the start.
    pub until: Duration,
    /// Most requests of all clients together.
    pub requests: u64,
    /// Time after which a request has failed.
    pub timeout: Duration,
    /// Whether address tokens are used again.
    pub token: bool,
    /// The packet I/O.
    pub io: IoChoice,
    /// Whether each connection is kept open after its one request.
    pub hold: bool,
    /// With `hold`: the client closes its window in the middle of the answer, after about this many
    /// bytes of the body (plain).
    pub close_at: Option<u64>,
    /// Local addresses, used in rotation; empty: chosen by the system.
    pub sources: Vec<IpAddr>,
    /// Requests a second of a Poisson process, independent of earlier requests as long as a client
    /// is free; `None`: a request begins when another one ends.
    pub rate: Option<f64>,
    /// Protocol of the request.
    pub ask: Ask,
    /// Expected body of every answer.
    pub expected: Option<Arc<[u8]>>,
    /// Whether every request is logged.
    pub log: bool,
}

/// Counts a complete answer, or a failure with its reason.
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

/// The system's monotonic clock, which other processes on this machine share.
fn monotonic_us() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one timespec that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}

/// Waits until a descriptor is readable, or writable if `writable`, at most `longest`; finer than poll(2).
fn wait(descriptor: &impl AsRawFd, writable: bool, longest: Duration) {
    let events = libc::POLLIN | if writable { libc::POLLOUT } else { 0 };
    let mut entry = libc::pollfd { fd: descriptor.as_raw_fd(), events, revents: 0 };
    let time = libc::timespec { tv_sec: 0, tv_nsec: longest.min(LONGEST).as_nanos() as i64 };
    // SAFETY: one entry, with the matching count; the descriptor is borrowed for the duration of the call.
    unsafe { libc::ppoll(&raw mut entry, 1, &raw const time, std::ptr::null()) };
}

/// Longest wait between two checks of the timeouts.
const LONGEST: Duration = Duration::from_millis(50);
