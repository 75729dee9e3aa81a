//! What differs between clients, and the bytes that follow from it.

use std::ops::Range;

use crate::bits::{Bad, BitWriter, Partial, Window};
use crate::font::MAX_TEXT;
use crate::index::Picture;
use crate::recode::Stretch;

/// Rows of MCUs that a mark can cover.
const MAX_STRETCHES: usize = 23;
/// Longest encoding of [`Places`], bytes.
pub const MAX_PLACES: usize = 1 + MAX_TEXT + 4 + 1 + 4 * MAX_STRETCHES;

/// A client's mark of a picture: the text, and where the entropy coder stands behind each stretch under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    text: Box<[u8]>,
    length: u64,
    ends: Box<[End]>,
}

/// The end of a stretch in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// Whole bytes that it makes.
    bytes: u32,
    /// Bits behind them: the alignment of what follows.
    rest: Partial,
}

/// Why bytes of a marked picture cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError<E> {
    /// The places are not of this picture.
    #[error("the places belong to another picture")]
    Places,
    /// Beyond the end of the marked picture.
    #[error("beyond the end of the picture")]
    Beyond,
    /// The original could not be read.
    #[error("the original cannot be read")]
    Original(E),
}

impl Places {
    /// Bytes of the marked picture.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a picture is never empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Appends the encoding that [`decode`](Self::decode) reads, at most [`MAX_PLACES`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.text.len() as u8);
        out.extend_from_slice(&self.text);
        out.extend_from_slice(&(self.length as u32).to_be_bytes());
        out.push(self.ends.len() as u8);
        for end in &self.ends {
            out.extend_from_slice(&end.bytes.to_be_bytes()[1..]);
            out.push(end.rest.encode());
        }
    }

    /// Reads an encoding from the front of `input`; it and the bytes behind it. `None`: malformed.
    #[must_use]
    pub fn decode(input: &[u8]) -> Option<(Places, &[u8])> {
        let (length, rest) = input.split_first()?;
        let (text, rest) =
            rest.split_at_checked(usize::from(*length)).filter(|_| usize::from(*length) <= MAX_TEXT)?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first()?;
        let count = usize::from(*count);
        let (ends, rest) = rest.split_at_checked(4 * count).filter(|_| count <= MAX_STRETCHES)?;
        let end = |bytes: &[u8]| {
            let rest = Partial::decode(bytes[3])?;
            Some(End { bytes: u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]), rest })
        };
        let ends = ends.chunks_exact(4).map(end).collect::<Option<_>>()?;
        Some((Places { text: text.into(), length: u32::from_be_bytes(*length).into(), ends }, rest))
    }
}

impl Picture {
    /// Computes where the entropy coder stands under this text, of which the first [`MAX_TEXT`] bytes count. Decodes
    /// the coded data under the mark, and reads no file.
    #[must_use]
    pub fn mark(&self, text: &[u8]) -> Places {
        let text = &text[..text.len().min(MAX_TEXT)];
        let mut ends = Vec::with_capacity(self.stretches.len());
        let mut window = Window::new(0, &mut []);
        let mut at = u64::from(self.first_start()) + self.inserted.len() as u64;
        let mut before = Partial::default();
        for (index, stretch) in self.stretches.iter().enumerate() {
            before = self.before(index, stretch, before);
            window.at = 0;
            // Coded data that was read once is read again.
            let rest = self.recode(stretch, text, before, &mut window).unwrap_or_default();
            ends.push(End { bytes: window.at as u32, rest });
            at += window.at;
            let gap = &self.gaps[index];
            let (length, rest) = gap.copied.output(rest);
            at += length;
            before = rest;
            if let Some(marker) = gap.marker {
                at += padding(rest) + u64::from(self.start_behind(index) - marker);
            }
        }
        Places { text: text.into(), length: at, ends: ends.into() }
    }

    /// Fills `out` with bytes of the marked picture from `offset` on. `read` fills its buffer with bytes of the original,
    /// in ascending order and at most a few KiB more than `out` has.
    ///
    /// # Errors
    /// The places are another picture's, the range is not within the picture, or `read` fails.
    pub fn read_marked<E>(
        &self,
        places: &Places,
        offset: u64,
        out: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), ReadError<E>> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > places.length) {
            return Err(ReadError::Beyond);
        }
        if places.ends.len() != self.stretches.len() {
            return Err(ReadError::Places);
        }
        let mut window = Window::new(offset, out);
        let mut read = |at: u64, out: &mut [u8]| match out.is_empty() {
            true => Ok(()),
            false => read(at, out).map_err(ReadError::Original),
        };
        verbatim(&mut window, 0..self.scan, &mut read)?;
        self.inserted.iter().for_each(|byte| window.push(*byte));
        verbatim(&mut window, self.scan..self.first_start(), &mut read)?;
        let mut before = Partial::default();
        for (index, stretch) in self.stretches.iter().enumerate() {
            if window.at >= window.end() {
                break;
            }
            before = self.before(index, stretch, before);
            let end = places.ends[index];
            let behind = window.at + u64::from(end.bytes);
            if behind > window.from() {
                let rest = self.recode(stretch, &places.text, before, &mut window);
                if rest != Ok(end.rest) || window.at != behind {
                    return Err(ReadError::Places);
                }
            }
            window.at = behind;
            let gap = &self.gaps[index];
            before = gap.copied.write(end.rest, &mut window, &mut read)?;
            if let Some(marker) = gap.marker {
                BitWriter::new(&mut window, before).pad();
                verbatim(&mut window, marker..self.start_behind(index), &mut read)?;
            }
        }
        if window.at < window.end() { Err(ReadError::Places) } else { Ok(()) }
    }

    fn recode(
        &self,
        stretch: &Stretch,
        text: &[u8],
        before: Partial,
        window: &mut Window<'_>,
    ) -> Result<Partial, Bad> {
        let mut writer = BitWriter::new(window, before);
        self.coder.recode(stretch, text, &mut writer)?;
        Ok(writer.partial())
    }

    /// The bits before a stretch that fill no byte; `rest` holds the bits left over from the copy before it.
    fn before(&self, index: usize, stretch: &Stretch, rest: Partial) -> Partial {
        let is_joined = index.checked_sub(1).is_some_and(|index| self.gaps[index].marker.is_none());
        if is_joined {
            rest
        } else {
            Partial::first_of(stretch.input.first().copied().unwrap_or(0), stretch.start.bit)
        }
    }

    fn first_start(&self) -> u32 {
        self.stretches.first().map_or(self.size, |stretch| stretch.start.byte)
    }

    /// Where the bytes of the file end that follow stretch `index`.
    fn start_behind(&self, index: usize) -> u32 {
        self.stretches.get(index + 1).map_or(self.size, |stretch| stretch.start.byte)
    }
}

/// Copies bytes of the file.
fn verbatim<E>(
    window: &mut Window<'_>,
    range: Range<u32>,
    read: &mut impl FnMut(u64, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (skipped, out) = window.part(range.len() as u64);
    read(u64::from(range.start) + skipped, out)
}

/// Bytes that filling the last one with ones makes.
fn padding(rest: Partial) -> u64 {
    let is_ones = u32::from(rest.bits) + 1 == 1 << rest.count;
    if rest.count == 0 { 0 } else { 1 + u64::from(is_ones) }
}
