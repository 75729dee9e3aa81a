//! Reassembles the bytes of one direction, up to a limit.

/// Limit on the pieces that wait for earlier bytes.
const MAX_AHEAD: usize = 8;

/// The bytes of one direction from a sequence number on.
#[derive(Debug)]
pub(super) struct Stream {
    /// Sequence number of the first byte of `have`.
    start: u32,
    have: Vec<u8>,
    /// Pieces behind a hole, each with its distance from `start`. No two of them touch.
    ahead: Vec<(usize, Vec<u8>)>,
    limit: usize,
    fin: Option<u32>,
}

impl Stream {
    pub fn new(start: u32, limit: usize) -> Stream {
        Stream { start, have: Vec::new(), ahead: Vec::new(), limit, fin: None }
    }

    /// Sequence number of the first byte.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The contiguous bytes before the first hole.
    pub fn octets(&self) -> &[u8] {
        &self.have
    }

    /// Sequence number after [`octets`](Self::octets).
    pub fn end(&self) -> u32 {
        self.start.wrapping_add(self.have.len() as u32)
    }

    /// Whether a FIN follows [`octets`](Self::octets).
    pub fn is_ended(&self) -> bool {
        self.fin == Some(self.end())
    }

    /// Whether the stream holds as many bytes as its limit allows.
    pub fn is_full(&self) -> bool {
        self.have.len() >= self.limit
    }

    /// Adds bytes within the limit. Where copies differ, the first one is kept.
    pub fn insert(&mut self, seq: u32, octets: &[u8], fin: bool) {
        let distance = seq.wrapping_sub(self.start) as i32;
        let end = i64::from(distance) + octets.len() as i64;
        if fin && self.fin.is_none() && end >= 0 {
            self.fin = Some(seq.wrapping_add(octets.len() as u32));
        }
        let (at, octets) = match usize::try_from(distance) {
            Ok(at) => (at, octets),
            Err(_) => (0, octets.get(distance.unsigned_abs() as usize..).unwrap_or_default()),
        };
        let octets = &octets[..octets.len().min(self.limit.saturating_sub(at))];
        if at <= self.have.len() {
            self.append(at, octets);
            self.close_holes();
        } else if !octets.is_empty() {
            self.keep(at, octets);
        }
    }

    /// Drops the first `count` bytes, of which some may not have arrived yet.
    pub fn advance(&mut self, count: u64) {
        self.start = self.start.wrapping_add(count as u32);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count >= self.have.len() {
            let rest = count - self.have.len();
            // Frees the buffer, so that an idle connection holds no memory.
            let gone = std::mem::take(&mut self.have).len();
            self.ahead.retain_mut(|(at, octets)| {
                let skipped = (gone + rest).saturating_sub(*at).min(octets.len());
                octets.drain(..skipped);
                *at = (*at + skipped).saturating_sub(count);
                !octets.is_empty()
            });
            self.close_holes();
        } else {
            self.have.drain(..count);
            self.ahead.iter_mut().for_each(|(at, _)| *at -= count);
        }
    }

    fn append(&mut self, at: usize, octets: &[u8]) {
        if let Some(new) = octets.get(self.have.len() - at..) {
            self.have.extend_from_slice(new);
        }
    }

    /// Keeps a piece behind a hole, merged with those that it touches.
    fn keep(&mut self, at: usize, octets: &[u8]) {
        let (mut at, mut octets) = (at, octets.to_vec());
        let touches = |at: usize, octets: &[u8], other: &(usize, Vec<u8>)| {
            other.0 <= at + octets.len() && at <= other.0 + other.1.len()
        };
        while let Some(n) = self.ahead.iter().position(|other| touches(at, &octets, other)) {
            let (first, mut merged) = self.ahead.swap_remove(n);
            let behind = octets.get(first + merged.len() - at..).unwrap_or_default();
            merged.extend_from_slice(behind);
            if at < first {
                octets.truncate(first - at);
                octets.append(&mut merged);
            } else {
                (at, octets) = (first, merged);
            }
        }
        if self.ahead.len() < MAX_AHEAD {
            self.ahead.push((at, octets));
        }
    }

    fn close_holes(&mut self) {
        while let Some(next) = self.ahead.iter().position(|(at, _)| *at <= self.have.len()) {
            let (at, octets) = self.ahead.swap_remove(next);
            self.append(at, &octets);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stream_keeps_at_most_its_limit() {
        let mut stream = Stream::new(u32::MAX - 1, 4);
        stream.insert(u32::MAX - 1, b"abcdef", false);
        stream.insert(3, b"zz", false);
        stream.insert(5, b"zz", false);
        assert_eq!((stream.octets(), stream.end(), stream.is_full()), (&b"abcd"[..], 2, true));
        assert!(stream.ahead.is_empty());
        stream.advance(3);
        stream.insert(2, b"ef", true);
        assert_eq!((stream.octets(), stream.is_ended()), (&b"def"[..], true));
        for n in 0..100 {
            stream.insert(6 + n % 2, b"x", false);
            assert!(stream.ahead.len() <= MAX_AHEAD);
        }
    }

    #[test]
    fn advance_may_exceed_received_bytes() {
        let mut stream = Stream::new(0, 100);
        stream.insert(10, b"abcdef", false);
        stream.insert(0, b"x", false);
        stream.advance(12);
        assert_eq!((stream.start(), stream.octets()), (12, &b"cdef"[..]));
        stream.insert(20, b"later", false);
        stream.advance(6);
        assert_eq!((stream.start(), stream.octets(), stream.ahead.len()), (18, &b""[..], 1));
        stream.advance(1000);
        assert_eq!((stream.start(), stream.octets(), stream.ahead.len()), (1018, &b""[..], 0));
    }

    proptest! {
        /// Pieces of a text in any order, with repetitions, are reassembled to the text.
        #[test]
        fn pieces_in_any_order_reassemble(
            start: u32,
            text in prop::collection::vec(any::<u8>(), 1..300),
            pieces in prop::collection::vec((0usize..300, 1usize..60), 0..40),
            given_up in prop::collection::vec(1u64..9, 40),
        ) {
            let mut stream = Stream::new(start, 300);
            let (mut base, mut next) = (0, given_up.into_iter());
            let mut offer = |stream: &mut Stream, from: usize, length: usize| {
                let from = from.min(text.len());
                let to = (from + length).min(text.len());
                stream.insert(start.wrapping_add(from as u32), &text[from..to], to == text.len());
                let have = stream.octets();
                assert_eq!(have, &text[base..base + have.len()]);
                if have.len() > 50 {
                    let count = next.next().unwrap_or(1);
                    stream.advance(count);
                    base += count as usize;
                }
                base
            };
            for (from, length) in pieces {
                offer(&mut stream, from, length);
            }
            let mut base = 0;
            for from in 0..text.len() {
                base = offer(&mut stream, from, 1);
            }
            prop_assert!(stream.is_ended());
            prop_assert_eq!(stream.octets(), &text[base..]);
        }
    }
}
