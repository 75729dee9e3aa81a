//! Leases of protected connections in the maps of the programs.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::entry::update;
use crate::Error;
use crate::object::missing;

/// Bytes of `struct lease`.
const LEASE: usize = 24;

/// Times until which a lease has effect, nanoseconds of `CLOCK_MONOTONIC` (`struct lease`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Until then, the replica may send on protected connections.
    pub until: u64,
    /// Until then, no RST is sent for unknown connections.
    pub settling: u64,
    /// Ethernet address of the ToR. A segment with another source was handed on, so an answer to
    /// that source would not reach the client. 0: unknown.
    pub tor: [u8; 6],
}

/// The leases of loaded programs.
#[derive(Debug)]
pub struct Leases(pub(super) MapHandle);

impl Leases {
    /// Sets the lease with this number.
    ///
    /// # Errors
    /// The number is not below [`MAX_LEASES`](super::MAX_LEASES).
    pub fn set(&self, number: u32, lease: Lease) -> Result<(), Error> {
        let mut value = [0; LEASE];
        value[..8].copy_from_slice(&lease.until.to_ne_bytes());
        value[8..16].copy_from_slice(&lease.settling.to_ne_bytes());
        value[16..22].copy_from_slice(&lease.tor);
        update(&self.0, &number.to_ne_bytes(), &value, MapFlags::ANY)
    }

    /// The lease with this number.
    ///
    /// # Errors
    /// The number is not below [`MAX_LEASES`](super::MAX_LEASES).
    pub fn get(&self, number: u32) -> Result<Lease, Error> {
        let mut value = [0; LEASE];
        let found = self.0.lookup_into(&number.to_ne_bytes(), &mut value, MapFlags::ANY);
        if !found.map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))? {
            return Err(missing("leases"));
        }
        let at = |from: usize| value[from..].first_chunk().map_or(0, |octets| u64::from_ne_bytes(*octets));
        let tor = value[16..].first_chunk().copied().unwrap_or_default();
        Ok(Lease { until: at(0), settling: at(8), tor })
    }
}
