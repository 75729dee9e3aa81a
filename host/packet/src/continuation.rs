//! The transport continuation: the whole TCB, carried by the client.

use core::fmt;

#[cfg(feature = "std")]
use crc32c::crc32c;

use crate::bytes::{Reader, Writer, u16_at, u32_at, u48_at, u64_at};
#[cfg(not(feature = "std"))]
use crate::crc::crc32c;
use crate::error::{BuildError, WireError};

/// Bytes of the sealed head, which switches read too.
pub const HEAD: usize = 20;
/// Bytes of the sealed tail, which only hosts read.
pub const TAIL: usize = 34;
/// Bytes of a continuation without its MAC.
pub const LENGTH: usize = HEAD + TAIL;
/// Bytes of the MAC.
pub const MAC: usize = 12;
/// Flag of the tail: the request that this continuation answered carried an ECN mark.
pub const FLAG_MARKED: u8 = 0x01;
/// Flag of the tail: this number is the first of its generation, with a nonce under K'; that is not
/// a loss.
pub const FLAG_FIRST: u8 = 0x02;
/// Flag of the tail: a newer nonce epoch is usable, and the client must REKEY within the horizon.
pub const FLAG_REKEY_WANTED: u8 = 0x04;

/// Largest gain: with the two packets of slow start, an acknowledgement releases ten.
pub const MAX_GAIN: u8 = 8;
/// Smallest gain that is no gain but the clock of a window by Cubic (RFC 9438): the upper seven
/// bits are the round trip time in eighths of an octave, bit 0 means that `ssthresh` is W_max.
pub const LEAST_CLOCK: u8 = 16;

/// AES-CMAC, first 12 bytes.
pub type Mac = [u8; MAC];

/// The complete state that the server needs for a connection's next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TransportContinuation {
    /// Connection tag; with the nonce epoch it identifies the connection's generation.
    pub tag: u32,
    /// Number of the response that carried this continuation.
    pub number: u32,
    /// The proof starts at this number.
    pub base: u32,
    /// ToR clock of the request that this continuation answered, microseconds, 48 bits.
    pub time: u64,
    /// Epoch of K and K' for this connection.
    pub nonce_epoch: u16,
    /// Epoch of the key of the MAC.
    pub seal_epoch: u16,
    /// Number of TIMEOUTs, RESTARTs and REKEYs.
    pub generation: u16,
    /// ToR that stamped `time`.
    pub tor_id: u16,
    /// TCPBase of section 2.5 of the paper, a response number.
    pub tcp_base: u32,
    /// startCwnd of section 2.5, packets.
    pub start_cwnd: u16,
    /// Slow-start threshold, packets.
    pub ssthresh: u16,
    /// Extra packets that each of the first `start_cwnd` acknowledgements adds beyond slow start,
    /// because the window was retired by another connection: 1 to [`MAX_GAIN`]. 0: none. From
    /// [`LEAST_CLOCK`] on: the window follows Cubic by this clock.
    pub gain: u8,
    /// TCP sequence number of response n is `wire_base + n * mss`.
    pub wire_base: u32,
    /// Bytes of TCP payload per response number in the sequence space.
    pub mss: u16,
    /// The request carried an ECN mark.
    pub marked: bool,
    /// This number is the first of its generation, under K'.
    pub first: bool,
    /// A newer nonce epoch is usable: the client must drain its window and REKEY.
    pub rekey_wanted: bool,
    /// Smoothed round trip time in microseconds, 0 for none; advisory.
    pub srtt: u32,
    /// Tag and first number of generation 0, to which user continuations are bound.
    pub connection: u64,
}

impl TransportContinuation {
    #[inline]
    pub(crate) fn read_head(&mut self, r: &mut Reader<'_>) -> Result<(), WireError> {
        let b: [u8; HEAD] = r.fields(&[4, 4, 4, 6, 2])?;
        (self.tag, self.number, self.base) = (u32_at(&b, 0), u32_at(&b, 4), u32_at(&b, 8));
        (self.time, self.nonce_epoch) = (u48_at(&b, 12), u16_at(&b, 18));
        Ok(())
    }

    #[inline]
    pub(crate) fn read_tail(&mut self, r: &mut Reader<'_>) -> Result<(), WireError> {
        let at = r.pos();
        let b: [u8; 22] = r.fields(&[2, 2, 2, 4, 2, 2, 4, 2, 1, 1])?;
        (self.seal_epoch, self.generation, self.tor_id) = (u16_at(&b, 0), u16_at(&b, 2), u16_at(&b, 4));
        self.tcp_base = u32_at(&b, 6);
        (self.start_cwnd, self.ssthresh) = (u16_at(&b, 10), u16_at(&b, 12));
        (self.wire_base, self.mss) = (u32_at(&b, 14), u16_at(&b, 18));
        let (flags, gain) = (b[20], b[21]);
        if flags & !(FLAG_MARKED | FLAG_FIRST | FLAG_REKEY_WANTED) != 0 {
            return Err(WireError::ContinuationFlags(at + 20));
        }
        if (MAX_GAIN + 1..LEAST_CLOCK).contains(&gain) {
            return Err(WireError::ContinuationGain(at + 21));
        }
        self.gain = gain;
        self.marked = flags & FLAG_MARKED != 0;
        self.first = flags & FLAG_FIRST != 0;
        self.rekey_wanted = flags & FLAG_REKEY_WANTED != 0;
        let b: [u8; 12] = r.fields(&[4, 8])?;
        (self.srtt, self.connection) = (u32_at(&b, 0), u64_at(&b, 4));
        Ok(())
    }

    fn flags(&self) -> u8 {
        let flag = |set, bit| if set { bit } else { 0 };
        flag(self.marked, FLAG_MARKED)
            | flag(self.first, FLAG_FIRST)
            | flag(self.rekey_wanted, FLAG_REKEY_WANTED)
    }

    #[inline]
    fn put(&self, out: &mut [u8; LENGTH]) {
        out[0..4].copy_from_slice(&self.tag.to_be_bytes());
        out[4..8].copy_from_slice(&self.number.to_be_bytes());
        out[8..12].copy_from_slice(&self.base.to_be_bytes());
        out[12..18].copy_from_slice(&self.time.to_be_bytes()[2..]);
        out[18..20].copy_from_slice(&self.nonce_epoch.to_be_bytes());
        out[20..22].copy_from_slice(&self.seal_epoch.to_be_bytes());
        out[22..24].copy_from_slice(&self.generation.to_be_bytes());
        out[24..26].copy_from_slice(&self.tor_id.to_be_bytes());
        out[26..30].copy_from_slice(&self.tcp_base.to_be_bytes());
        out[30..32].copy_from_slice(&self.start_cwnd.to_be_bytes());
        out[32..34].copy_from_slice(&self.ssthresh.to_be_bytes());
        out[34..38].copy_from_slice(&self.wire_base.to_be_bytes());
        out[38..40].copy_from_slice(&self.mss.to_be_bytes());
        (out[40], out[41]) = (self.flags(), self.gain);
        out[42..46].copy_from_slice(&self.srtt.to_be_bytes());
        out[46..54].copy_from_slice(&self.connection.to_be_bytes());
    }

    /// Writes the sealed head, which a request carries in the part that switches read.
    pub(crate) fn write_head(&self, w: &mut Writer<'_>) {
        w.bytes(&self.to_bytes()[..HEAD]);
    }

    /// The sealed tail.
    pub(crate) fn write_tail(&self, w: &mut Writer<'_>) {
        w.bytes(&self.to_bytes()[HEAD..]);
    }

    /// Head and tail: the bytes under the MAC, before the client's address.
    pub fn to_bytes(&self) -> [u8; LENGTH] {
        let mut out = [0; LENGTH];
        self.put(&mut out);
        out
    }

    /// Decodes head and tail.
    ///
    /// # Errors
    /// [`WireError::ContinuationFlags`] and [`WireError::ContinuationGain`].
    pub fn from_bytes(bytes: &[u8; LENGTH]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes, WireError::TailTruncated);
        let mut c = Self::default();
        c.read_head(&mut r)?;
        c.read_tail(&mut r)?;
        Ok(c)
    }

    /// TCP sequence number of the response with this number.
    pub fn wire_sequence(&self, number: u32) -> u32 {
        self.wire_base.wrapping_add(number.wrapping_mul(u32::from(self.mss)))
    }

    /// Check value of a delta-encoded continuation: the low half of CRC-32C over head and tail.
    pub fn check(&self) -> u16 {
        crc32c(&self.to_bytes()) as u16
    }
}

impl fmt::Display for TransportContinuation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:08x}/{} #{} base {} tcp_base {} cwnd {} gain {} ssthresh {} srtt {} us",
            self.tag,
            self.generation,
            self.number,
            self.base,
            self.tcp_base,
            self.start_cwnd,
            self.gain,
            self.ssthresh,
            self.srtt
        )
    }
}

/// A continuation and the MAC that seals it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SealedContinuation {
    /// The fields.
    pub fields: TransportContinuation,
    /// AES-CMAC over the fields and the client's address and port.
    pub mac: Mac,
}

impl SealedContinuation {
    /// Bytes of head, tail and MAC.
    pub const LENGTH: usize = LENGTH + MAC;

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let mut fields = TransportContinuation::default();
        fields.read_head(r)?;
        fields.read_tail(r)?;
        Ok(Self { fields, mac: r.array()? })
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>) {
        w.bytes(&self.fields.to_bytes());
        w.bytes(&self.mac);
    }

    /// The bytes in which a client saves a suspended continuation.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        let mut w = Writer::new(&mut out);
        self.write(&mut w);
        out
    }

    /// Reads what [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`WireError::ContinuationFlags`] and [`WireError::ContinuationGain`].
    pub fn from_bytes(bytes: &[u8; Self::LENGTH]) -> Result<Self, WireError> {
        Self::read(&mut Reader::new(bytes, WireError::TailTruncated))
    }
}

/// Refuses a time of more than 48 bits: its high part would be lost.
pub(crate) fn check_time(time: u64) -> Result<(), BuildError> {
    if time >> 48 != 0 {
        return Err(BuildError::Inconsistent { what: "a time of more than 48 bits" });
    }
    Ok(())
}
