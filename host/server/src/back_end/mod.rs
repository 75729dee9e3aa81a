//! A back end: a program that answers plain clients' requests by UDP, a datagram each way (`docs/plain.md`).

mod by_tcp;
mod exchanges;
mod health;
mod lane;

use std::net::SocketAddr;
use std::str::FromStr;

use rivulet_plain::Protocol;

pub(crate) use exchanges::{Answered, Exchanges};

/// A back end, and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackEnd {
    /// What it speaks.
    pub protocol: Protocol,
    /// Where it is.
    pub address: SocketAddr,
    /// It answers the same octets to the same request, whichever replica asks, now and a minute later: then an answer may have
    /// more than one segment.
    pub deterministic: bool,
}

impl FromStr for BackEnd {
    type Err = String;

    fn from_str(text: &str) -> Result<BackEnd, String> {
        let read = || {
            let (scheme, address) = text.split_once("://")?;
            let protocol = match scheme {
                "dns" => Protocol::Dns,
                "udp" => Protocol::Http,
                _ => return None,
            };
            let address: SocketAddr = address.parse().ok()?;
            (address.port() != 0).then_some(BackEnd { protocol, address, deterministic: false })
        };
        read().ok_or_else(|| {
            "want dns://ADDR:PORT (DNS) or udp://ADDR:PORT (HTTP in datagrams), such as dns://127.0.0.1:5300".into()
        })
    }
}

/// What became of requests to a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackEndCounters {
    /// Requests and queries sent as datagrams, repeated ones too.
    pub queries: u64,
    /// Datagrams that answered one.
    pub answers: u64,
    /// Datagrams that nobody waited for, or that answered something else.
    pub late: u64,
    /// Requests that were given up without an answer.
    pub timeouts: u64,
    /// Requests that were dropped: as many are under way as may be, or the back end's socket takes none.
    pub dropped: u64,
    /// Queries that were asked again by TCP, as no datagram holds the answer.
    pub by_tcp: u64,
    /// Of these, such that TCP brought no answer to.
    pub tcp_failed: u64,
    /// Answers under way that the back end gives otherwise now: it is not deterministic.
    pub changed: u64,
    /// What it was asked only to see whether it answers.
    pub probes: u64,
}

impl BackEndCounters {
    /// Names, as metrics have them, and values.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("queries", self.queries),
            ("answers", self.answers),
            ("late", self.late),
            ("timeouts", self.timeouts),
            ("dropped", self.dropped),
            ("by_tcp", self.by_tcp),
            ("tcp_failed", self.tcp_failed),
            ("changed", self.changed),
            ("probes", self.probes),
        ]
    }

    /// Adds what another worker counted.
    pub fn add(&mut self, other: &BackEndCounters) {
        let sums = [
            (&mut self.queries, other.queries),
            (&mut self.answers, other.answers),
            (&mut self.late, other.late),
            (&mut self.timeouts, other.timeouts),
            (&mut self.dropped, other.dropped),
            (&mut self.by_tcp, other.by_tcp),
            (&mut self.tcp_failed, other.tcp_failed),
            (&mut self.changed, other.changed),
            (&mut self.probes, other.probes),
        ];
        for (sum, more) in sums {
            *sum += more;
        }
    }
}

#[cfg(test)]
mod tests;
