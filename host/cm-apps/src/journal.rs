//! A stream's events as JSON lines, for figures, tests and debugging.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, so the lines of both ends can be merged on one
//! machine.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::Nanos;
use crate::source::Dropped;

/// An event at the server.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Served {
    /// A stream to a receiver was opened.
    Open {
        /// Bytes of a datagram, header and content.
        // The JSON keeps the name `octets` for programs that read the journal.
        #[serde(rename = "octets")]
        bytes: u32,
        /// Packets per report, as the receiver requested.
        every: u16,
        /// Longest delay of a report in ms, as the receiver requested.
        delay_ms: u16,
    },
    /// The stream's layer changed: the first datagram of the new layer was sent.
    Layer {
        /// The previous layer; `None` for the first.
        from: Option<u8>,
        /// The new one.
        to: u8,
        /// The flow's share as the manager reports it, bits a second; `None` before the first round
        /// trip time sample.
        rate: Option<u64>,
        /// Smoothed round trip time, ms.
        rtt_ms: Option<f64>,
        /// The last round trip time sample, ms.
        sample_ms: f64,
    },
    /// The flow's present share.
    Share {
        /// Bits a second.
        rate: u64,
        /// Smoothed round trip time, ms.
        rtt_ms: f64,
        /// The last round trip time sample, ms.
        sample_ms: f64,
        /// Recently lost bytes per million.
        loss: u32,
        /// Datagrams sent so far.
        sent: u64,
        /// Their bytes.
        #[serde(rename = "octets")]
        bytes: u64,
        /// Datagrams that wait for grants.
        ready: u32,
        /// Datagrams that were never sent.
        dropped: Dropped,
    },
    /// No feedback arrived for the timeout: everything outstanding counts as lost.
    Silence {
        /// Outstanding bytes.
        #[serde(rename = "octets")]
        bytes: u64,
    },
    /// The stream ended.
    Close {
        /// The reason.
        why: &'static str,
        /// Datagrams sent, by layer.
        layers: Vec<u64>,
        /// Their bytes.
        #[serde(rename = "octets")]
        bytes: u64,
        /// Reports with new information.
        reports: u64,
        /// Packets reported as lost.
        lost: u64,
        /// Changes of the layer.
        switches: u64,
        /// Datagrams that were never sent.
        dropped: Dropped,
    },
}

/// An event at the receiver.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Received {
    /// Packets of another layer arrive.
    Layer {
        /// The previous layer; `None` for the first.
        from: Option<u8>,
        /// The new one.
        to: u8,
        /// Number of the layer's first packet.
        number: u64,
        /// When that packet was sent, by the sender's clock.
        sent: Nanos,
    },
    /// Packets that arrived since the last event of this kind.
    Arrived {
        /// Layer of the last one.
        layer: u8,
        /// Datagrams.
        packets: u64,
        /// Their bytes.
        #[serde(rename = "octets")]
        bytes: u64,
        /// Bits a second.
        rate: u64,
        /// Mean queueing delay, ms: transit time beyond the shortest one measured so far.
        delay_ms: f64,
        /// The longest queueing delay, ms.
        longest_ms: f64,
    },
    /// The stream ended.
    End {
        /// Datagrams, without duplicates.
        packets: u64,
        /// Their bytes.
        #[serde(rename = "octets")]
        bytes: u64,
        /// Missing numbers below the highest that arrived.
        missing: u64,
        /// Duplicates, and datagrams too old to be told from duplicates.
        again: u64,
        /// Datagrams by layer.
        layers: Vec<u64>,
        /// Changes of the layer.
        switches: u64,
        /// Reports sent.
        reports: u64,
    },
}

#[derive(Serialize)]
struct Line<'a, T> {
    at: Nanos,
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'a str>,
    #[serde(flatten)]
    what: &'a T,
}

/// Destination of the lines.
pub struct Journal(Box<dyn Write + Send>);

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}

impl Journal {
    /// Creates a journal that writes to `to`.
    #[must_use]
    pub fn new(to: Box<dyn Write + Send>) -> Journal {
        Journal(to)
    }

    /// Writes a line and flushes it, so that a reader can follow.
    ///
    /// # Errors
    /// The line cannot be written.
    pub fn write<T: Serialize>(&mut self, at: Nanos, who: Option<&str>, what: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(&Line { at, who, what })?;
        line.push(b'\n');
        self.0.write_all(&line)?;
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_a_line_of_json() {
        let kept = Kept::default();
        let mut journal = Journal::new(Box::new(kept.clone()));
        journal.write(5, Some("[::1]:9"), &Served::Silence { bytes: 7 }).unwrap();
        journal.write(6, None, &Received::Layer { from: None, to: 2, number: 0, sent: 4 }).unwrap();
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let expected = "{\"at\":5,\"who\":\"[::1]:9\",\"event\":\"silence\",\"octets\":7}\n\
                        {\"at\":6,\"event\":\"layer\",\"from\":null,\"to\":2,\"number\":0,\"sent\":4}\n";
        assert_eq!(text, expected);
    }
}
