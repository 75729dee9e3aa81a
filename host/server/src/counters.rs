//! Counters of a server.

use rivulet_plain::Cause;
use rivulet_transport::server::Refusal;

use crate::back_end::BackEndCounters;

/// Why a client of stateless TCP is refused with an RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The SYN lacks an option that stateless TCP needs.
    Syn,
    /// The segment belongs to a socket that is closed, or is another kernel's.
    Stray,
    /// The request needs the kernel's TCP, but an answer was sent without state before.
    Later,
    /// The maximum number of connections is held.
    Full,
    /// The kernel cannot take it over, or no application serves adopted connections.
    Kernel,
    /// The connection began with content that is no longer in force.
    Content,
}

impl Unserved {
    /// Names for metrics, in the order of [`Counters::plain_refused`].
    pub const NAMES: [&'static str; 6] = ["syn", "stray", "later", "full", "kernel", "content"];
}

/// Causes of adoptions by the kernel's TCP, in the order of [`Counters::plain_adopted`].
pub const ADOPTED: [&str; 4] = ["request", "object", "split", "pipelined"];

/// Counters since the start; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken.
    pub frames: u64,
    /// Requests accepted by the step.
    pub requests: u64,
    /// Requests that terminated their trickle.
    pub terminated: u64,
    /// Responses given to the interface.
    pub responses: u64,
    /// Requests refused, by the index of [`Refusal::NAMES`].
    pub refused: [u64; Refusal::NAMES.len()],
    /// Segments to an address or port without a service.
    pub not_ours: u64,
    /// Frames with a wrong checksum.
    pub damaged: u64,
    /// Responses dropped because the transmit queue was full.
    pub unsent: u64,
    /// Responses that could not be built.
    pub unbuilt: u64,
    /// Requests that waited long for room to answer.
    pub late: u64,
    /// ICMP errors: a response was too big for its path.
    pub too_big: u64,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// Authentic answers of ToRs to heartbeats.
    pub answers: u64,
    /// Other answers: another key, another process's heartbeat, or a repeat.
    pub answers_refused: u64,
    /// Requests in tunnels with an untrusted ToR block: no tag, a wrong one, or an old block.
    pub untagged: u64,
    /// Segments of plain clients.
    pub plain: u64,
    /// Those of them that were answered.
    pub plain_answered: u64,
    /// Connections refused, indexed by [`Unserved`].
    pub plain_refused: [u64; Unserved::NAMES.len()],
    /// Connections taken over by the kernel's TCP, by [`ADOPTED`].
    pub plain_adopted: [u64; ADOPTED.len()],
    /// Segments passed to the kernel for its connections.
    pub plain_passed: u64,
    /// Such segments that it did not accept.
    pub plain_lost: u64,
    /// Segments for sockets of other kernels, forwarded back to the ToR.
    pub plain_handed_on: u64,
    /// Counters of requests to a back end.
    pub back_end: BackEndCounters,
}

impl Counters {
    /// Adds another worker's counters.
    pub fn add(&mut self, other: &Counters) {
        let sums = [
            (&mut self.frames, other.frames),
            (&mut self.requests, other.requests),
            (&mut self.terminated, other.terminated),
            (&mut self.responses, other.responses),
            (&mut self.not_ours, other.not_ours),
            (&mut self.damaged, other.damaged),
            (&mut self.unsent, other.unsent),
            (&mut self.unbuilt, other.unbuilt),
            (&mut self.late, other.late),
            (&mut self.too_big, other.too_big),
            (&mut self.heartbeats, other.heartbeats),
            (&mut self.answers, other.answers),
            (&mut self.answers_refused, other.answers_refused),
            (&mut self.untagged, other.untagged),
            (&mut self.plain, other.plain),
            (&mut self.plain_answered, other.plain_answered),
            (&mut self.plain_passed, other.plain_passed),
            (&mut self.plain_lost, other.plain_lost),
            (&mut self.plain_handed_on, other.plain_handed_on),
        ];
        for (sum, more) in sums {
            *sum += more;
        }
        self.back_end.add(&other.back_end);
        let rows = [
            (&mut self.refused[..], &other.refused[..]),
            (&mut self.plain_refused, &other.plain_refused),
            (&mut self.plain_adopted, &other.plain_adopted),
        ];
        for (sums, more) in rows {
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum += more;
            }
        }
    }

    /// Counts a client of stateless TCP that is refused.
    pub fn refuse_plain(&mut self, why: Unserved) {
        self.plain_refused[why as usize] += 1;
    }

    /// Counts a segment for the kernel.
    pub fn pass(&mut self, passed: bool) {
        *(if passed { &mut self.plain_passed } else { &mut self.plain_lost }) += 1;
    }

    /// Counts a connection taken over by the kernel. Every cause of an adoption has a name.
    pub fn adopt(&mut self, cause: Cause) {
        let index = match cause {
            Cause::Request => 0,
            Cause::Object => 1,
            Cause::Split => 2,
            Cause::Pipelined => 3,
            Cause::Syn | Cause::Adopted => return,
        };
        self.plain_adopted[index] += 1;
    }

    /// Counts a refusal under its name.
    pub fn refuse(&mut self, refusal: &Refusal) {
        let name = refusal.name();
        if let Some(i) = Refusal::NAMES.iter().position(|n| *n == name) {
            self.refused[i] += 1;
        }
    }

    /// The sum of all refusals.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }
}
