//! A back end: a program that answers plain clients' requests by UDP, a datagram each way (`docs/plain.md`).

mod by_tcp;
mod exchanges;
mod health;
mod lane;

use std::net::SocketAddr;
use std::str::FromStr;

use rivulet_plain::Protocol;

pub(crate) use exchanges::{Answered, Exchanges};

/// A back end and its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackEnd {
    /// Its protocol.
    pub protocol: Protocol,
    /// Address and port of the back end.
    pub address: SocketAddr,
    /// It sends the same bytes for the same request on every replica, now and a minute later. Only
    /// then may an answer have more than one segment.
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

/// Counters of requests to a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackEndCounters {
    /// Datagrams sent with requests and queries, repeats included.
    pub queries: u64,
    /// Datagrams that answered one.
    pub answers: u64,
    /// Datagrams without a waiting request, or that answered something different.
    pub late: u64,
    /// Requests abandoned without an answer.
    pub timeouts: u64,
    /// Requests dropped, because too many are in progress or the back end's socket is full.
    pub dropped: u64,
    /// Queries sent again by TCP, because the answer does not fit a datagram.
    pub by_tcp: u64,
    /// Queries by TCP that got no answer.
    pub tcp_failed: u64,
    /// Answers in progress for which the back end now sends other bytes: it is not deterministic.
    pub changed: u64,
    /// Probes sent.
    pub probes: u64,
}

impl BackEndCounters {
    /// Names for metrics, with values.
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

    /// Adds another worker's counters.
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
