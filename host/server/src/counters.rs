//! What a server counts.

use rivulet_plain::Cause;
use rivulet_transport::server::Refusal;

use crate::back_end::BackEndCounters;

/// Why a client of stateless TCP is refused by a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// Its SYN offers less than stateless TCP needs.
    Syn,
    /// It speaks to a socket that no kernel has any more, or another one's.
    Stray,
    /// What it asks for is the kernel's, and something was answered without state before.
    Later,
    /// As many connections are held as may be.
    Full,
    /// The kernel does not take it over, or nobody serves what it takes over.
    Kernel,
    /// Its connection began to other content than is in force now.
    Content,
}

impl Unserved {
    /// For metrics, in the order of [`Counters::plain_refused`].
    pub const NAMES: [&'static str; 6] = ["syn", "stray", "later", "full", "kernel", "content"];
}

/// What the kernel's TCP took connections over for, in the order of [`Counters::plain_adopted`].
pub const ADOPTED: [&str; 4] = ["request", "object", "split", "pipelined"];

/// Counters since the start; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames taken.
    pub frames: u64,
    /// Requests that the step accepted.
    pub requests: u64,
    /// Of these, trickles that it terminated.
    pub terminated: u64,
    /// Responses handed to the interface.
    pub responses: u64,
    /// Requests refused, by the index of [`Refusal::NAMES`].
    pub refused: [u64; Refusal::NAMES.len()],
    /// Segments to an address or port that is no service here.
    pub not_ours: u64,
    /// Frames with a wrong checksum.
    pub damaged: u64,
    /// Responses that found no room in the transmit queue.
    pub unsent: u64,
    /// Responses that could not be built.
    pub unbuilt: u64,
    /// Requests that waited long for room to be answered.
    pub late: u64,
    /// Routers said that a response was too big for its path.
    pub too_big: u64,
    /// Heartbeats sent.
    pub heartbeats: u64,
    /// Answers of ToRs to heartbeats.
    pub answers: u64,
    /// Answers that were not believed: another key, another process's, or come twice.
    pub answers_refused: u64,
    /// Requests in tunnels whose ToR block was not believed: no tag, a wrong one, or of long ago.
    pub untagged: u64,
    /// Segments of plain clients that were judged.
    pub plain: u64,
    /// Of these, such that brought an answer or a part of one.
    pub plain_answered: u64,
    /// Connections refused, by the number of [`Unserved`].
    pub plain_refused: [u64; Unserved::NAMES.len()],
    /// Connections that the kernel's TCP took over, by [`ADOPTED`].
    pub plain_adopted: [u64; ADOPTED.len()],
    /// Segments that it was given because the connection is its.
    pub plain_passed: u64,
    /// Such segments that it did not take.
    pub plain_lost: u64,
    /// Segments to sockets of other kernels that went back to the ToR.
    pub plain_handed_on: u64,
    /// What became of those that a back end answers.
    pub back_end: BackEndCounters,
}

impl Counters {
    /// Adds what another worker counted.
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

    /// Counts a segment that was the kernel's.
    pub fn pass(&mut self, passed: bool) {
        *(if passed { &mut self.plain_passed } else { &mut self.plain_lost }) += 1;
    }

    /// Counts a connection that the kernel took over. Nothing is adopted for a cause that has no name.
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

    /// All refusals.
    #[must_use]
    pub fn refused_total(&self) -> u64 {
        self.refused.iter().sum()
    }
}
