//! What the records of a protected connection carried: where the client's end, and where each response lies.

use std::collections::VecDeque;

use rivulet_tls::{Place as StatePlace, Position, Response, State};
use rivulet_trods::record::MAX_RESPONSES;

/// Ends of the client's records that are remembered: those since the last record that was stored, and each store takes all.
const MAX_MARKS: usize = 64;
/// Responses that are remembered: more than a record has.
const MAX_PLACES: usize = 2 * MAX_RESPONSES;

/// Where a record of the client ends.
#[derive(Debug)]
pub(crate) struct Mark {
    /// The client's plaintext before it.
    pub(crate) plaintext: u64,
    pub(crate) position: Position,
}

/// Where a response lies.
#[derive(Debug)]
pub(crate) struct Place {
    /// Plaintext of the service before it.
    pub(crate) plaintext: u64,
    /// Its first byte in the stream, behind the KeyUpdate.
    pub(crate) offset: u64,
    /// Where it begins, with the KeyUpdate before it if there is one.
    pub(crate) begin: Position,
    pub(crate) place: StatePlace,
}

impl Place {
    pub(crate) fn response(&self) -> Response {
        self.place.response
    }

    /// The service's plaintext up to its end.
    pub(crate) fn plaintext_end(&self) -> u64 {
        self.plaintext + self.response().plaintext_bytes()
    }

    /// The end of its last byte in the stream.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.response().ciphertext_bytes()
    }
}

/// The numbers of plaintext that belong to the records of both directions.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) received: u64,
    pub(crate) marks: VecDeque<Mark>,
    pub(crate) sent: u64,
    pub(crate) places: VecDeque<Place>,
    /// The service's plaintext from this byte on is kept for the flow.
    kept_from: u64,
    kept: Vec<u8>,
    /// Something was sent that the record rule does not describe.
    pub(crate) is_unplaced: bool,
}

impl Track {
    /// Of a connection after its handshake; the client's first record begins here.
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

    /// Of an adopted connection; `offset` is where its state begins in the stream. `None` if a response has no known length.
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

    /// A record of the client with this many bytes of plaintext was opened, and ends here.
    pub(crate) fn receive(&mut self, plaintext: usize, position: Position) {
        self.received += plaintext as u64;
        if self.marks.back().is_some_and(|last| last.plaintext == self.received) {
            self.marks.pop_back();
        } else if self.marks.len() >= MAX_MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark { plaintext: self.received, position });
    }

    /// A response begins.
    pub(crate) fn begin_response(&mut self, begin: Position, place: StatePlace, offset: u64) {
        if self.places.len() >= MAX_PLACES {
            self.places.pop_front();
        }
        self.places.push_back(Place { plaintext: self.sent, offset, begin, place });
    }

    /// Plaintext of the service was sealed.
    pub(crate) fn send(&mut self, plaintext: &[u8]) {
        self.keep(self.sent, plaintext);
        self.sent += plaintext.len() as u64;
    }

    /// Keeps plaintext of the service at this place, as far as the flow has not read it.
    pub(crate) fn keep(&mut self, at: u64, plaintext: &[u8]) {
        let next = self.kept_from + self.kept.len() as u64;
        let skip = usize::try_from(next.saturating_sub(at)).unwrap_or(usize::MAX);
        if at <= next
            && let Some(new) = plaintext.get(skip..)
        {
            self.kept.extend_from_slice(new);
        }
    }

    /// The plaintext that was kept, and its place.
    pub(crate) fn kept(&self) -> (u64, &[u8]) {
        (self.kept_from, &self.kept)
    }

    /// The flow has read everything before this number, of which the low bits are given.
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

    /// The end of the plaintext's byte before this number in the stream; `None` if no place has it.
    pub(crate) fn stream_end(&self, plaintext: u64) -> Option<u64> {
        let place = self.places.iter().rev().find(|place| place.plaintext < plaintext)?;
        let last = (plaintext - place.plaintext).min(place.response().plaintext_bytes()).checked_sub(1)?;
        Some(place.offset + place.response().record_with(last)?.end())
    }

    /// The service's plaintext that a client has which has this many bytes of the stream.
    pub(crate) fn plaintext_before(&self, offset: u64) -> Option<u64> {
        self.places.iter().rev().find(|place| place.end() <= offset).map(Place::plaintext_end)
    }

    /// A number of the service's plaintext from its low bits, near the sent bytes.
    pub(crate) fn near_sent(&self, low: u32) -> u64 {
        let ahead = low.wrapping_sub(self.sent as u32) as i32;
        self.sent.saturating_add_signed(ahead.into())
    }
}
