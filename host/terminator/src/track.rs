//! Positions of the records of a protected connection: where the client's records end, and where
//! each response begins.

use std::collections::VecDeque;

use rivulet_tls::{Place as StatePlace, Position, Response, State};
use rivulet_trods::record::MAX_RESPONSES;

/// Most ends of client records that are kept: those since the last store, and each store removes
/// them.
const MAX_MARKS: usize = 64;
/// Most responses that are kept: more than a flow's record holds.
const MAX_PLACES: usize = 2 * MAX_RESPONSES;

/// Where a record of the client ends.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Bytes of the client's plaintext before the end.
    pub(crate) plaintext: u64,
    pub(crate) position: Position,
}

/// Position of a response.
#[derive(Debug)]
pub(crate) struct Place {
    /// Bytes of the service's plaintext before it.
    pub(crate) plaintext: u64,
    /// Stream offset of its first byte, after a KeyUpdate if there is one.
    pub(crate) offset: u64,
    /// Position at which it begins, including a KeyUpdate before it.
    pub(crate) begin: Position,
    pub(crate) place: StatePlace,
}

impl Place {
    pub(crate) fn response(&self) -> Response {
        self.place.response
    }

    /// Bytes of the service's plaintext up to its end.
    pub(crate) fn plaintext_end(&self) -> u64 {
        self.plaintext + self.response().plaintext_bytes()
    }

    /// Stream offset of its end.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.response().ciphertext_bytes()
    }
}

/// Maps positions in the plaintext to records, in both directions.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) received: u64,
    pub(crate) marks: VecDeque<Mark>,
    pub(crate) sent: u64,
    pub(crate) places: VecDeque<Place>,
    /// Offset from which on the service's plaintext is kept for the flow.
    kept_from: u64,
    kept: Vec<u8>,
    /// Whether data was sent that the record rule does not describe.
    pub(crate) is_unplaced: bool,
}

impl Track {
    /// For a connection after its handshake; the client's first record is at this position.
    pub(crate) fn new(read: Position) -> Self {
        Self {
            received: 0,
            marks: VecDeque::from([Mark { plaintext: 0, position: read }]),
            sent: 0,
            places: VecDeque::new(),
            kept_from: 0,
            kept: Vec::new(),
            is_unplaced: false,
        }
    }

    /// For an adopted connection. `offset`: stream offset at which its state begins. `None` if the
    /// length of a response is unknown.
    pub(crate) fn of_state(state: &State, offset: u64) -> Option<Self> {
        let http = &state.http;
        let received = u64::from(http.request_at) + http.requests.len() as u64;
        let mut track = Self::new(state.read.clone());
        (track.received, track.sent) = (received, http.response_at.into());
        track.marks[0].plaintext = received;
        let (mut begin, mut offset) = (state.write.clone(), offset);
        for place in state.places()? {
            offset += if place.is_updated { StatePlace::KEY_UPDATE_BYTES } else { 0 };
            let plaintext = track.sent;
            track.sent += place.response.plaintext_bytes();
            let next = place.end();
            let placed = Place { plaintext, offset, begin, place };
            offset = placed.end();
            track.places.push_back(placed);
            begin = next;
        }
        track.kept_from = http.response_at.into();
        Some(track)
    }

    /// Records that a client's record with this many bytes of plaintext was opened, and ends at
    /// this position.
    pub(crate) fn receive(&mut self, plaintext: usize, position: Position) {
        self.received += plaintext as u64;
        if self.marks.back().is_some_and(|last| last.plaintext == self.received) {
            self.marks.pop_back();
        } else if self.marks.len() >= MAX_MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark { plaintext: self.received, position });
    }

    /// Records that a response begins.
    pub(crate) fn begin_response(&mut self, begin: Position, place: StatePlace, offset: u64) {
        if self.places.len() >= MAX_PLACES {
            self.places.pop_front();
        }
        self.places.push_back(Place { plaintext: self.sent, offset, begin, place });
    }

    /// Records plaintext of the service that was sealed.
    pub(crate) fn send(&mut self, plaintext: &[u8]) {
        self.keep(self.sent, plaintext);
        self.sent += plaintext.len() as u64;
    }

    /// Keeps the service's plaintext from offset `at` on, unless the flow has already read it.
    pub(crate) fn keep(&mut self, at: u64, plaintext: &[u8]) {
        let next = self.kept_from + self.kept.len() as u64;
        let skip = usize::try_from(next.saturating_sub(at)).unwrap_or(usize::MAX);
        if at <= next
            && let Some(new) = plaintext.get(skip..)
        {
            self.kept.extend_from_slice(new);
        }
    }

    /// The plaintext that was kept, and its offset.
    pub(crate) fn kept(&self) -> (u64, &[u8]) {
        (self.kept_from, &self.kept)
    }

    /// Drops kept plaintext before an offset, which the flow has read. `reads` has the offset's low
    /// bits.
    pub(crate) fn forget_before(&mut self, reads: u32) {
        let count = reads.wrapping_sub(self.kept_from as u32);
        if count as i32 > 0 {
            let had = self.kept.len().min(count as usize);
            self.kept.drain(..had);
            self.kept_from += u64::from(count);
        }
        if self.kept.is_empty() {
            self.kept = Vec::new();
        }
    }

    /// Stream offset of the end of the plaintext byte before this offset; `None` if no response has
    /// that byte.
    pub(crate) fn stream_end(&self, plaintext: u64) -> Option<u64> {
        let place = self.places.iter().rev().find(|place| place.plaintext < plaintext)?;
        let last = (plaintext - place.plaintext).min(place.response().plaintext_bytes()).checked_sub(1)?;
        Some(place.offset + place.response().record_with(last)?.end())
    }

    /// Number of plaintext bytes that a client has if it has this many bytes of the stream.
    pub(crate) fn plaintext_before(&self, offset: u64) -> Option<u64> {
        self.places.iter().rev().find(|place| place.end() <= offset).map(Place::plaintext_end)
    }

    /// A plaintext offset near the sent bytes, from its low bits.
    pub(crate) fn near_sent(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.sent as u32) as i32;
        self.sent.saturating_add_signed(ahead.into())
    }
}
