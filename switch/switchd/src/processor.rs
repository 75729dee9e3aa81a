//! What the loop runs packets through: the engine, or nothing at all.

use rivulet_engine::{DataPath, Output, Trace};

/// A packet path without input and output.
pub trait Processor {
    /// Runs one packet; what comes of it goes to `out`.
    fn process(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output);

    /// The same, and says what happened.
    fn process_traced(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace;

    /// The same, and changes nothing.
    fn dry_run(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace;

    /// Control commands, and packets that were waiting inside; when to be called again because of those.
    fn poll(&mut self, now_us: u64, out: &mut impl Output) -> Option<u64>;
}

impl Processor for DataPath {
    fn process(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) {
        DataPath::process(self, now_us, port, frame, out);
    }

    fn process_traced(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        DataPath::process_traced(self, now_us, port, frame, out)
    }

    fn dry_run(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        DataPath::dry_run(self, now_us, port, frame, out)
    }

    fn poll(&mut self, now_us: u64, out: &mut impl Output) -> Option<u64> {
        DataPath::poll(self, now_us, out)
    }
}

/// The bare forwarder: the same input and output without P4, to measure the engine against.
#[derive(Clone, Debug)]
pub struct Forwarder {
    /// Pairs of port numbers.
    pub pairs: Vec<(u32, u32)>,
}

impl Processor for Forwarder {
    fn process(&mut self, _now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) {
        for (a, b) in &self.pairs {
            if *a == port {
                out.emit(*b, frame, &[]);
            } else if *b == port {
                out.emit(*a, frame, &[]);
            }
        }
    }

    fn process_traced(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        self.process(now_us, port, frame, out);
        Trace { time_us: now_us, ingress_port: port, length: frame.len(), steps: Vec::new() }
    }

    fn dry_run(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        self.process_traced(now_us, port, frame, out)
    }

    fn poll(&mut self, _now_us: u64, _out: &mut impl Output) -> Option<u64> {
        None
    }
}
