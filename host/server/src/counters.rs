//! What a server counts.

use rivulet_transport::server::Refusal;

use crate::back_end::BackEndCounters;

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
    /// Of these, such that are nothing for stateless TCP, and were refused.
    pub plain_refused: u64,
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
            (&mut self.plain_refused, other.plain_refused),
        ];
        for (sum, more) in sums {
            *sum += more;
        }
        self.back_end.add(&other.back_end);
        for (sum, more) in self.refused.iter_mut().zip(other.refused) {
            *sum += more;
        }
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
