//! A frame on its way in or out, and what is known about it beyond its octets.

/// What is known about a frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// It stands in the frame; nobody has looked at it.
    #[default]
    Unknown,
    /// It stands in the frame and was verified below us, or the frame never left this machine's memory.
    Verified,
    /// The field holds only the pseudo-header's sum: everything from `start` to the end of the frame
    /// is still to be added (RFC 1071), the result written at `start + offset`. Both in octets,
    /// `start` from the beginning of the frame, `offset` from `start`.
    Partial {
        /// First octet summed.
        start: u16,
        /// The checksum field, from `start`.
        offset: u16,
    },
}

/// A received frame, in receive memory; it may be changed in place.
#[derive(Debug)]
pub struct RxFrame<'a> {
    /// The frame from the destination address on, VLAN tag in place, without frame check sequence.
    pub data: &'a mut [u8],
    /// Never [`Checksum::Partial`] under [`ChecksumPolicy::Complete`](crate::ChecksumPolicy::Complete).
    pub checksum: Checksum,
    /// When the kernel took it in, microseconds of the real-time clock, if that was
    /// [asked for](crate::PacketIo::set_stamps).
    pub came: Option<u64>,
}

/// How the kernel is to cut a frame longer than the MTU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// The protocol that is cut.
    pub kind: SegmentationKind,
    /// Payload octets of each piece.
    pub size: u16,
    /// Octets of all headers, Ethernet's included, repeated before each piece.
    pub header_len: u16,
}

/// Protocols which the kernel cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of equal length over either.
    Udp,
}

/// A frame to be sent from the caller's memory: `head` followed by `body`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TxFrame<'a> {
    /// The first octets; holds at least the Ethernet header.
    pub head: &'a [u8],
    /// The rest, so that payload need not be copied behind a header; may be empty.
    pub body: &'a [u8],
    /// [`Checksum::Partial`] leaves the sum to the kernel (AF_XDP completes it here).
    pub checksum: Checksum,
    /// Has the kernel cut the frame; requires a partial checksum. AF_XDP refuses it.
    pub segmentation: Option<Segmentation>,
}

impl<'a> TxFrame<'a> {
    /// A frame in one piece whose checksums are complete.
    #[must_use]
    pub fn new(frame: &'a [u8]) -> Self {
        TxFrame { head: frame, ..TxFrame::default() }
    }

    /// Octets of the whole frame.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// True if there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
