//! Counters of the programs.

use libbpf_rs::{MapCore, MapFlags};

use super::Trods;
use crate::Error;
use crate::object::map;

/// What the programs counted since they were loaded: segments, but for the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that got limits.
    pub opened: u64,
    /// Connections for which there was no room.
    pub full: u64,
    /// Given to the TAP.
    pub held: u64,
    /// Acknowledgements not let through.
    pub acks: u64,
    /// Data with a lowered acknowledgement.
    pub clamped: u64,
    /// FINs not let through.
    pub fins: u64,
    /// RSTs not let through.
    pub resets: u64,
    /// Muted by a lease.
    pub muted: u64,
    /// Of orphans, given to the process alone.
    pub parked: u64,
    /// From clients, dropped since there was no room for their copy.
    pub lost: u64,
    /// From clients, handed on to the holder.
    pub handed_on: u64,
    /// Connections with a handshake that the programs answered.
    pub issued: u64,
    /// Of these, connections with a response that timestamps name.
    pub named: u64,
    /// Those that go on unprotected, by cause.
    pub unnamed: Unnamed,
    /// Acknowledgements of requests that were made from the client's segments, where no other
    /// segment would carry them.
    pub reflected: u64,
    /// From clients, outside of what the server's window accepts: they change nothing.
    pub outside: u64,
    /// Connections with a handshake that the programs did not see, or with an evicted entry: they
    /// are unprotected.
    pub handshake: u64,
    /// Names of the field X-TRODS in requests of clients, which were changed.
    pub inputs: u64,
}

/// Why timestamps do not name the response of a connection: connections by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unnamed {
    /// The client's SYN lacks timestamps, SACK or a window scale.
    pub options: u64,
    /// The kernel still had one between the same ports.
    pub ports: u64,
    /// No GET in one whole segment, or the server sends first.
    pub asking: u64,
    /// With credentials, a cookie, for a part, or under a condition.
    pub fields: u64,
    /// For nothing that is in the table.
    pub unlisted: u64,
    /// The head of the response is not the table's.
    pub head: u64,
    /// It asked once more.
    pub second: u64,
    /// There was no room.
    pub full: u64,
}

impl Trods {
    /// The counters.
    ///
    /// # Errors
    /// The system's.
    pub fn counters(&self) -> Result<Counters, Error> {
        let counters = map(&self.object, "counters")?;
        let mut sums = [0u64; 25];
        for (key, sum) in (0u32..).zip(&mut sums) {
            let values = counters.lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY);
            for value in values.map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?.into_iter().flatten() {
                *sum += value.first_chunk().map_or(0, |octets| u64::from_ne_bytes(*octets));
            }
        }
        let [opened, full, held, acks, clamped, fins, resets, muted, parked, lost, handed_on, rest @ ..] =
            sums;
        let [issued, named, options, ports, asking, fields, unlisted, head, second, no_room, rest @ ..] =
            rest;
        let [reflected, outside, handshake, inputs] = rest;
        let unnamed = Unnamed { options, ports, asking, fields, unlisted, head, second, full: no_room };
        Ok(Counters {
            opened,
            full,
            held,
            acks,
            clamped,
            fins,
            resets,
            muted,
            parked,
            lost,
            handed_on,
            issued,
            named,
            unnamed,
            reflected,
            outside,
            handshake,
            inputs,
        })
    }
}
