//! Counters of the programs.

use libbpf_rs::{MapCore, MapFlags};

use super::Trods;
use crate::Error;
use crate::object::map;

/// What the programs have counted since they were loaded. The unit is segments unless a field has
/// another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that got limits.
    pub opened: u64,
    /// Connections for which the maps had no room.
    pub full: u64,
    /// Segments that were given to the TAP.
    pub held: u64,
    /// Withheld acknowledgements.
    pub acks: u64,
    /// Segments with data and a lowered acknowledgement.
    pub clamped: u64,
    /// Withheld FINs.
    pub fins: u64,
    /// Withheld RSTs.
    pub resets: u64,
    /// Segments that were dropped because a lease had ended.
    pub muted: u64,
    /// Segments of parked connections, which only the process got.
    pub parked: u64,
    /// Segments of clients that were dropped because there was no room for their copy.
    pub lost: u64,
    /// Segments of clients that were handed on to the holder.
    pub handed_on: u64,
    /// Connections with a handshake that the programs answered.
    pub issued: u64,
    /// Connections among these with a response that timestamps name.
    pub named: u64,
    /// Connections among these whose response timestamps do not name, by cause.
    pub unnamed: Unnamed,
    /// Acknowledgements of requests that were made from the client's segments, where no other
    /// segment would carry them.
    pub reflected: u64,
    /// Segments of clients outside of the server's window, which change no state.
    pub outside: u64,
    /// Connections whose handshake the programs did not see, or whose entry was evicted. They are
    /// unprotected.
    pub handshake: u64,
    /// Names of the field X-TRODS that were changed in requests of clients.
    pub inputs: u64,
}

/// Why timestamps do not name the response of a connection: connections by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unnamed {
    /// The client's SYN lacks timestamps, SACK or a window scale.
    pub options: u64,
    /// The kernel still had a connection between the same ports.
    pub ports: u64,
    /// The request is not a GET in one whole segment, or the server sends first.
    pub asking: u64,
    /// The request has credentials, a cookie, a range or a condition.
    pub fields: u64,
    /// The table does not have the requested object.
    pub unlisted: u64,
    /// The head of the response is not that of the table.
    pub head: u64,
    /// The client sent a second request.
    pub second: u64,
    /// The maps had no room.
    pub full: u64,
}

impl Trods {
    /// The counters.
    ///
    /// # Errors
    /// An operating system error.
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
