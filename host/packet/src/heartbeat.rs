//! What a replica tells the ToR every millisecond or two.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::{BuildError, WireError};

/// EtherType within the rack (IEEE 802 local experimental).
pub const ETHER_TYPE: u16 = 0x88b5;
/// UDP port of the ToR for replicas beyond the rack.
pub const UDP_PORT: u16 = 34997;
/// Length in bytes; a frame's padding may follow.
pub const LENGTH: usize = 16;
/// Most replicas of a pool.
pub const MAX_REPLICAS: u16 = 64;
const VERSION: u8 = 1;
const FLAG_READY: u8 = 0x01;

/// One heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Heartbeat {
    /// The replica serves: it holds the epochs in use and no request waits too long.
    pub ready: bool,
    /// Pool of the replica.
    pub pool: u16,
    /// Index in the pool, 0 to 63.
    pub replica: u16,
    /// Changes with every start of the serving process.
    pub incarnation: u16,
    /// Requests waiting, saturating.
    pub load: u16,
    /// Grows by one a heartbeat.
    pub sequence: u32,
}

impl Heartbeat {
    /// Reads a heartbeat; bytes behind it (the padding of a short frame) are ignored.
    ///
    /// # Errors
    /// The `Heartbeat` errors.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes, WireError::HeartbeatTruncated);
        let (version, flags, pool) = (r.u8()?, r.u8()?, r.u16()?);
        if version != VERSION {
            return Err(WireError::HeartbeatVersion(0));
        }
        if flags & !FLAG_READY != 0 {
            return Err(WireError::HeartbeatFlags(1));
        }
        let replica = r.u16()?;
        if replica >= MAX_REPLICAS {
            return Err(WireError::HeartbeatReplica(4));
        }
        let (incarnation, load, reserved) = (r.u16()?, r.u16()?, r.u16()?);
        if reserved != 0 {
            return Err(WireError::HeartbeatReserved(10));
        }
        let sequence = r.u32()?;
        Ok(Self { ready: flags & FLAG_READY != 0, pool, replica, incarnation, load, sequence })
    }

    /// Writes the 16 bytes.
    ///
    /// # Errors
    /// [`BuildError::BufferTooSmall`], or [`BuildError::TooMany`] for a replica index of 64 or more.
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, BuildError> {
        if self.replica >= MAX_REPLICAS {
            let (have, most) = (usize::from(self.replica) + 1, usize::from(MAX_REPLICAS));
            return Err(BuildError::TooMany { what: "replicas", have, most });
        }
        let mut w = Writer::new(buf);
        w.u8(VERSION);
        w.u8(if self.ready { FLAG_READY } else { 0 });
        w.u16(self.pool);
        w.u16(self.replica);
        w.u16(self.incarnation);
        w.u16(self.load);
        w.u16(0);
        w.u32(self.sequence);
        w.finish()
    }
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
