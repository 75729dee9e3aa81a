//! Heartbeats, which a replica sends to the ToR every one or two milliseconds, and the ToR's
//! answers.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::{BuildError, WireError};
use crate::nonce::half_sip_hash_words;

/// EtherType within the rack (IEEE 802 local experimental).
pub const ETHER_TYPE: u16 = 0x88b5;
/// UDP port of the ToR for replicas beyond the rack.
pub const UDP_PORT: u16 = 34997;
/// Length in bytes; a frame's padding may follow.
pub const LENGTH: usize = 20;
/// Length of an answer in bytes; a frame's padding may follow.
pub const ANSWER_LENGTH: usize = 36;
/// Most replicas of a pool.
pub const MAX_REPLICAS: u8 = 64;
const VERSION: u8 = 2;
const FLAG_READY: u8 = 0x01;
const FLAG_SETTLED: u8 = 0x40;
const FLAG_ANSWER: u8 = 0x80;

/// A key that a replica shares with the ToRs, for heartbeats and their answers, or for ToR blocks
/// in tunnels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TorKey([u32; 2]);

impl TorKey {
    /// From the 8 bytes that the controller distributes: both words little-endian.
    pub const fn new(key: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = key;
        Self([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])])
    }

    /// The tag of a message of 32-bit words.
    pub(crate) fn tag(self, words: &[u32]) -> u32 {
        half_sip_hash_words(self.0, words)
    }

    /// The tag of at most 36 bytes, a multiple of four, as big-endian words.
    fn tag_of(self, bytes: &[u8]) -> u32 {
        let mut words = [0; ANSWER_LENGTH / 4];
        let (chunks, _) = bytes.as_chunks::<4>();
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = u32::from_be_bytes(*chunk);
        }
        self.tag(&words[..chunks.len().min(words.len())])
    }
}

impl fmt::Debug for TorKey {
    // Keeps the key out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TorKey(..)")
    }
}

/// One heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Heartbeat {
    /// The replica serves: it has the epochs in use, and no request waits too long.
    pub ready: bool,
    /// Pool of the replica.
    pub pool: u16,
    /// Index in the pool, 0 to 63.
    pub replica: u8,
    /// Low half of the tag's key epoch.
    pub key_epoch: u8,
    /// Requests waiting, saturating.
    pub load: u16,
    /// Start time of the serving process in seconds, so that it grows with every start.
    pub incarnation: u32,
    /// Grows with every heartbeat of an incarnation.
    pub sequence: u32,
    /// HalfSipHash of all fields before it, under the replica's key.
    pub tag: u32,
}

impl Heartbeat {
    /// Parses a heartbeat, ignoring bytes after it (the padding of a short frame). Does not verify
    /// the tag ([`Self::verify`]).
    ///
    /// # Errors
    /// The `Heartbeat` errors.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes, WireError::HeartbeatTruncated);
        let (flags, pool, replica) = read_head(&mut r, FLAG_READY, 0)?;
        let (key_epoch, load) = (r.u8()?, r.u16()?);
        let (incarnation, sequence, tag) = (r.u32()?, r.u32()?, r.u32()?);
        let ready = flags & FLAG_READY != 0;
        Ok(Self { ready, pool, replica, key_epoch, load, incarnation, sequence, tag })
    }

    /// Writes the 20 bytes.
    ///
    /// # Errors
    /// [`BuildError::BufferTooSmall`], or [`BuildError::TooMany`] for a replica index of 64 or more.
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, BuildError> {
        check(self.replica)?;
        let mut w = Writer::new(buf);
        w.u8(VERSION);
        w.u8(if self.ready { FLAG_READY } else { 0 });
        w.u16(self.pool);
        w.u8(self.replica);
        w.u8(self.key_epoch);
        w.u16(self.load);
        w.u32(self.incarnation);
        w.u32(self.sequence);
        w.u32(self.tag);
        w.finish()
    }

    /// Sets the tag under this key; a replica index of 64 or more gets none.
    #[must_use]
    pub fn tagged(self, key: TorKey) -> Self {
        let mut bytes = [0; LENGTH];
        let tag = self.write(&mut bytes).map_or(0, |_| key.tag_of(&bytes[..LENGTH - 4]));
        Self { tag, ..self }
    }

    /// Whether the tag was made with this key.
    pub fn verify(&self, key: TorKey) -> bool {
        self.tagged(key).tag == self.tag
    }
}

/// The ToR's answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Answer {
    /// The ToR has had the pool long enough to detect missing heartbeats. Before that all replicas
    /// count as alive.
    pub settled: bool,
    /// The heartbeat's pool.
    pub pool: u16,
    /// The heartbeat's replica.
    pub replica: u8,
    /// The heartbeat's key epoch; the answer's tag uses the same key.
    pub key_epoch: u8,
    /// Switch number and incarnation of the ToR.
    pub tor_id: u16,
    /// The heartbeat's incarnation.
    pub incarnation: u32,
    /// The heartbeat's sequence number.
    pub sequence: u32,
    /// Bit r: replica r is not excluded.
    pub alive: u64,
    /// Bit r: replica r also accepts plain TCP.
    pub plain: u64,
    /// HalfSipHash of all fields before it.
    pub tag: u32,
}

impl Answer {
    /// Parses an answer, ignoring bytes after it. Does not verify the tag ([`Self::verify`]).
    ///
    /// # Errors
    /// The `Heartbeat` errors.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes, WireError::HeartbeatTruncated);
        let (flags, pool, replica) = read_head(&mut r, FLAG_SETTLED | FLAG_ANSWER, FLAG_ANSWER)?;
        let (key_epoch, tor_id) = (r.u8()?, r.u16()?);
        let (incarnation, sequence) = (r.u32()?, r.u32()?);
        let (alive, plain, tag) = (r.u64()?, r.u64()?, r.u32()?);
        let settled = flags & FLAG_SETTLED != 0;
        Ok(Self { settled, pool, replica, key_epoch, tor_id, incarnation, sequence, alive, plain, tag })
    }

    /// Writes the 36 bytes.
    ///
    /// # Errors
    /// [`BuildError::BufferTooSmall`], or [`BuildError::TooMany`] for a replica index of 64 or more.
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, BuildError> {
        check(self.replica)?;
        let mut w = Writer::new(buf);
        w.u8(VERSION);
        w.u8(FLAG_ANSWER | if self.settled { FLAG_SETTLED } else { 0 });
        w.u16(self.pool);
        w.u8(self.replica);
        w.u8(self.key_epoch);
        w.u16(self.tor_id);
        w.u32(self.incarnation);
        w.u32(self.sequence);
        w.u64(self.alive);
        w.u64(self.plain);
        w.u32(self.tag);
        w.finish()
    }

    /// Sets the tag under this key; a replica index of 64 or more gets none.
    #[must_use]
    pub fn tagged(self, key: TorKey) -> Self {
        let mut bytes = [0; ANSWER_LENGTH];
        let tag = self.write(&mut bytes).map_or(0, |_| key.tag_of(&bytes[..ANSWER_LENGTH - 4]));
        Self { tag, ..self }
    }

    /// Whether the tag was made with this key.
    pub fn verify(&self, key: TorKey) -> bool {
        self.tagged(key).tag == self.tag
    }
}

/// Reads version, flags (only `known` ones, with all of `must`), pool and replica.
fn read_head(r: &mut Reader<'_>, known: u8, must: u8) -> Result<(u8, u16, u8), WireError> {
    let (version, flags, pool) = (r.u8()?, r.u8()?, r.u16()?);
    if version != VERSION {
        return Err(WireError::HeartbeatVersion(0));
    }
    if flags & !known != 0 || flags & must != must {
        return Err(WireError::HeartbeatFlags(1));
    }
    let replica = r.u8()?;
    if replica >= MAX_REPLICAS {
        return Err(WireError::HeartbeatReplica(4));
    }
    Ok((flags, pool, replica))
}

fn check(replica: u8) -> Result<(), BuildError> {
    if replica < MAX_REPLICAS {
        return Ok(());
    }
    let (have, most) = (usize::from(replica) + 1, usize::from(MAX_REPLICAS));
    Err(BuildError::TooMany { what: "replicas", have, most })
}

impl fmt::Display for Heartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready = if self.ready { "ready" } else { "not ready" };
        write!(
            f,
            "heartbeat {} of {}/{}: {ready}, load {}",
            self.sequence, self.pool, self.replica, self.load
        )
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, pool, replica, alive, tor_id, .. } = self;
        write!(f, "answer to heartbeat {sequence} of {pool}/{replica}: alive {alive:x}, ToR {tor_id:04x}")
    }
}
