//! The packet processor of a worker: the engine, or a bare forwarder.

use rivulet_engine::{DataPath, Output, Trace};

/// Processes packets without doing I/O.
pub trait Processor {
    /// Processes one packet and passes the resulting packets to `out`.
    fn process(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output);

    /// The same, and returns a trace.
    fn process_traced(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace;

    /// The same, without changing any state.
    fn dry_run(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace;

    /// Executes control commands and continues stored packets; returns when it must be called
    /// again.
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

/// The bare forwarder: the same I/O without P4, as a baseline for the engine's performance.
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
