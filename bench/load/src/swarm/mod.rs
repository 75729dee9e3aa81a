//! Many clients in one thread, with a new connection for each request.

pub mod rivulet;
pub mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use rivulet_pktio::IoChoice;

use crate::report::Outcome;

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
    /// Local addresses, used in turn; empty: the system's choice.
    pub sources: Vec<IpAddr>,
}

/// Counts what was begun, and says whether there is more to begin.
struct Begun {
    began: Instant,
    count: u64,
    /// Answered or failed.
    over: u64,
    most: u64,
    until: Duration,
}

impl Begun {
    fn new(swarm: &Swarm) -> Begun {
        let most = if swarm.hold { swarm.clients as u64 } else { swarm.requests };
        Begun { began: Instant::now(), count: 0, over: 0, most, until: swarm.until }
    }

    /// Whether one more begins now.
    fn more(&mut self) -> bool {
        let more = self.count < self.most && self.began.elapsed() < self.until;
        self.count += u64::from(more);
        more
    }

    fn is_under_way(&self) -> bool {
        self.over < self.count
    }
}

/// Counts an answer that came whole, or why it is none.
fn settle(outcome: &mut Outcome, took: Duration, answer: anyhow::Result<(u16, u64)>) {
    match answer {
        Ok((200, bytes)) => outcome.answered(took, bytes),
        Ok((status, _)) => outcome.fail(&anyhow::anyhow!("status {status}")),
        Err(error) => outcome.fail(&error),
    }
}
