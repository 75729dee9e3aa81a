//! A mark of each client's own in a baseline JPEG, made while the picture is sent (Trickles paper, section 6.2).
//!
//! The mark changes the brightness (the DC coefficients) of the 8 by 8 blocks under the letters of a short text. All
//! other coefficients stay as they are, but behind a changed block the bits of the coded data move, by another amount
//! for each client. This crate makes any range of the marked picture without keeping the picture of any client:
//!
//! - [`Picture`] is what all clients share: an index of about 1 % of the file, computed from the file alone. It has the
//!   place and the DC predictors of each stretch of coded data under the mark, and the number of bytes that
//!   the data between two such stretches grows by at each of the eight bit alignments.
//! - [`Places`] is what differs between clients: the text, and the length and the last bits of each stretch once it is
//!   marked. It takes tens of bytes and fits into a user continuation, so any replica with the same file makes the same
//!   bytes.
//!
//! Nothing here reads files or allocates in proportion to its input: [`Picture::read`] asks its caller for the bytes
//! of the original that it needs.
//!
//! No crate gives both the Huffman tables and the place of each code: `zune-jpeg` and `jpeg-decoder` give pixels,
//! `img-parts` whole segments, and `jfifdump` misreads 16-bit quantization tables. So the headers are read here.

#![forbid(unsafe_code)]

mod bits;
mod codes;
mod copied;
mod font;
mod header;
mod index;
mod layout;
mod places;
mod recode;

pub use font::MAX_TEXT;
pub use index::Picture;
pub use places::{MAX_PLACES, Places, ReadError};

/// Longest file that is indexed, bytes.
pub const MAX_FILE: usize = 64 << 20;

/// Why a file cannot be marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not begin with the marker SOI.
    #[error("not a JPEG: it does not begin with FF D8")]
    NotJpeg,
    /// The file is longer than [`MAX_FILE`].
    #[error("longer than {} MiB", MAX_FILE >> 20)]
    TooLong,
    /// Another process than baseline, or a kind of baseline that cannot be marked.
    #[error("{0}: only baseline pictures are marked")]
    Unsupported(&'static str),
    /// A header or the coded data break a rule of the format.
    #[error("damaged at byte {at}: {what}")]
    Damaged {
        /// Offset in the file.
        at: usize,
        /// The broken rule.
        what: &'static str,
    },
    /// No letter fits.
    #[error("{0} by {1} pixels: a letter of the mark needs 24 by 40")]
    TooSmall(u16, u16),
    /// A Huffman table uses each of its codes, so that none is left for the mark.
    #[error("the Huffman table for brightness has no free code")]
    FullTable,
    /// The coded data under one row of the mark is longer than a replica would decode for a packet.
    #[error("more than {} KiB of coded data under a row of the mark", index::MAX_STRETCH >> 10)]
    TooDense,
}
