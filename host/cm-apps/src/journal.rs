//! What happened to a stream, one JSON object a line: for figures, tests and who debugs an application of his own.
//!
//! Times are of `CLOCK_MONOTONIC`, nanoseconds, so that both ends' lines can be laid beside each other on one machine.

use std::fmt;
use std::io::{self, Write};

use serde::Serialize;

use crate::Nanos;
use crate::source::Dropped;

/// A line of the server's.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Served {
    /// A receiver has a stream.
    Open {
        /// Octets of a datagram, headers of ours with content.
        octets: u32,
        /// Packets a report, and its longest delay in ms, as the receiver said.
        every: u16,
        /// See `every`.
        delay_ms: u16,
    },
    /// The stream's layer is another one now: the first datagram of it leaves.
    Layer {
        /// None: it is the first of all.
        from: Option<u8>,
        /// The new one.
        to: u8,
        /// Share of the flow by the manager, bits a second; none as long as it knows no round trip time.
        rate: Option<u64>,
        /// Smoothed round trip time, ms.
        rtt_ms: Option<f64>,
        /// The last round trip time as such, ms.
        sample_ms: f64,
    },
    /// What the flow has now.
    Share {
        /// Bits a second.
        rate: u64,
        /// Smoothed round trip time, ms.
        rtt_ms: f64,
        /// The last round trip time as such, ms.
        sample_ms: f64,
        /// Parts of a million that were lost lately.
        loss: u32,
        /// Datagrams that left so far.
        sent: u64,
        /// Octets of them.
        octets: u64,
        /// Datagrams that wait for grants.
        ready: u32,
        /// Those that never left.
        dropped: Dropped,
    },
    /// Nothing was heard for so long that all that is outstanding counts as lost.
    Silence {
        /// Octets of it.
        octets: u64,
    },
    /// The stream ended.
    Close {
        /// Why.
        why: &'static str,
        /// Datagrams that left, by layer.
        layers: Vec<u64>,
        /// Octets of them.
        octets: u64,
        /// Reports that said something new.
        reports: u64,
        /// Packets that they told lost.
        lost: u64,
        /// Changes of the layer.
        switches: u64,
        /// Those that never left.
        dropped: Dropped,
    },
}

/// A line of the receiver's.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Received {
    /// Another layer arrives.
    Layer {
        /// None: it is the first of all.
        from: Option<u8>,
        /// The new one.
        to: u8,
        /// The number of the first of its packets.
        number: u64,
        /// When that was sent, by the sender's clock.
        sent: Nanos,
    },
    /// What arrived since the last line of this kind.
    Arrived {
        /// The last one's layer.
        layer: u8,
        /// Datagrams.
        packets: u64,
        /// Octets of them.
        octets: u64,
        /// Bits a second.
        rate: u64,
        /// Mean time that they took beyond the shortest that any took so far, ms: what they stood in queues.
        delay_ms: f64,
        /// The longest of them.
        longest_ms: f64,
    },
    /// The stream ended.
    End {
        /// Datagrams, each counted once.
        packets: u64,
        /// Octets of them.
        octets: u64,
        /// Numbers that did not arrive, below the highest that did.
        missing: u64,
        /// Datagrams that arrived again, or too late to be known from those.
        again: u64,
        /// Datagrams by layer.
        layers: Vec<u64>,
        /// Changes of the layer.
        switches: u64,
        /// Reports that left.
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

/// Where lines go.
pub struct Journal(Box<dyn Write + Send>);

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Journal")
    }
}

impl Journal {
    /// To this.
    #[must_use]
    pub fn new(to: Box<dyn Write + Send>) -> Journal {
        Journal(to)
    }

    /// A line, which is there at once for who reads along.
    ///
    /// # Errors
    /// It cannot be written.
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
        fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(octets);
            Ok(octets.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_a_line_of_json() {
        let kept = Kept::default();
        let mut journal = Journal::new(Box::new(kept.clone()));
        journal.write(5, Some("[::1]:9"), &Served::Silence { octets: 7 }).unwrap();
        journal.write(6, None, &Received::Layer { from: None, to: 2, number: 0, sent: 4 }).unwrap();
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let expected = "{\"at\":5,\"who\":\"[::1]:9\",\"event\":\"silence\",\"octets\":7}\n\
                        {\"at\":6,\"event\":\"layer\",\"from\":null,\"to\":2,\"number\":0,\"sent\":4}\n";
        assert_eq!(text, expected);
    }
}
