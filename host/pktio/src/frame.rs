//! A frame to send or received, with its metadata.

/// State of a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum is in the frame and was not verified.
    #[default]
    Unknown,
    /// The checksum is in the frame and was verified below us, or the frame never left this
    /// machine's memory.
    Verified,
    /// The checksum field holds only the pseudo-header's sum. Still to do: add everything from
    /// `start` to the end of the frame (RFC 1071) and write the result at `start + offset`. Both
    /// are in bytes, `start` from the beginning of the frame, `offset` from `start`.
    Partial {
        /// First byte summed.
        start: u16,
        /// Position of the checksum field, relative to `start`.
        offset: u16,
    },
}

/// A received frame in receive memory; it may be changed in place.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// The frame from the destination address on, VLAN tag in place, without frame check sequence.
    pub data: &'a mut [u8],
    /// Never [`Checksum::Partial`] under [`ChecksumPolicy::Complete`](crate::ChecksumPolicy::Complete).
    pub checksum: Checksum,
    /// When the kernel received it, in microseconds of the real-time clock, if
    /// [timestamps](crate::PacketIo::set_stamps) are on.
    pub came: Option<u64>,
}

/// How the kernel must cut a frame longer than the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// The protocol to cut.
    pub kind: SegmentationKind,
    /// Payload bytes of each piece.
    pub size: u16,
    /// Bytes of all headers, including Ethernet's, repeated before each piece.
    pub header_len: u16,
}

/// Protocols that the kernel can cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal length over either.
    Udp,
}

/// A frame to send from the caller's memory: `head` followed by `body`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxFrame<'a> {
    /// The first bytes; contains at least the Ethernet header.
    pub head: &'a [u8],
    /// The rest, so that payload need not be copied behind a header; may be empty.
    pub body: &'a [u8],
    /// [`Checksum::Partial`] leaves the sum to the kernel (AF_XDP completes it here).
    pub checksum: Checksum,
    /// Makes the kernel cut the frame; requires a partial checksum. AF_XDP refuses it.
    pub segmentation: Option<Segmentation>,
}

impl<'a> TxFrame<'a> {
    /// A frame in one piece with complete checksums.
    #[must_use]
    pub fn new(frame: &'a [u8]) -> Self {
        TxFrame { head: frame, ..TxFrame::default() }
    }

    /// Bytes of the whole frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether the frame is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
