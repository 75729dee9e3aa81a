//! The packet path.

use crate::trace::Trace;

/// Takes the packets that come out. The two slices are one packet, the rewritten headers and the untouched
/// rest, and are valid during the call only: copy both, one after the other, to where the packet is sent from.
///
/// Packets for the CPU port come out here like any other, with the header the program put in front.
pub trait Output {
    /// One packet for a port.
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]);
}

impl<F: FnMut(u32, &[u8], &[u8])> Output for F {
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]) {
        self(port, head, rest)
    }
}

/// The packet path of a switch, owned by one thread.
///
/// [`process`](Self::process) runs a packet through the whole switch and returns when it and all that came
/// of it (clones, copies, resubmissions, recirculations) have been emitted or dropped; only packets in a queue
/// with a rate (see [`Switch::set_queue`](crate::Switch::set_queue)) stay inside and come out of a later
/// [`poll`](Self::poll). In the steady state it allocates nothing, takes no lock and makes no system call.
/// Control commands are taken before each packet; call [`poll`](Self::poll) when no packet comes, every
/// millisecond or so, so that they are taken then too.
///
/// Time is what the caller says: microseconds since the switch started, never going back (an earlier value
/// counts as the latest seen). A CPU packet-out is `process` with the CPU port as ingress port and the
/// packet-out header in front; a packet-in is what is emitted to the CPU port.
pub struct DataPath {}

impl DataPath {
    /// Runs one packet. `frame` begins with the Ethernet header (or whatever the program parses first) and is
    /// at most [`MAX_FRAME`](Self::MAX_FRAME) bytes, else it is dropped and counted.
    pub fn process(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut impl Output) {
        let _ = (now_us, ingress_port, frame, out);
        todo!()
    }

    /// Like [`process`](Self::process), and says what happened. Slower.
    pub fn process_traced(
        &mut self,
        now_us: u64,
        ingress_port: u32,
        frame: &[u8],
        out: &mut impl Output,
    ) -> Trace {
        let _ = (now_us, ingress_port, frame, out);
        todo!()
    }

    /// Takes control commands and sends what is due from queues with a rate. Returns when to call again at the
    /// latest because of such a queue (microseconds on the switch's clock), if any packet waits in one.
    pub fn poll(&mut self, now_us: u64, out: &mut impl Output) -> Option<u64> {
        let _ = (now_us, out);
        todo!()
    }

    /// Longest frame taken, bytes: BMv2's own limit is an interface's MTU, this one leaves room for jumbo
    /// frames and GRO.
    pub const MAX_FRAME: usize = 65_535;
}
