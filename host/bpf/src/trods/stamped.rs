//! Connections with handshakes and timestamps that the programs make (`src/bpf/ts.h`): services and
//! responses that the process configures, and the state of connections.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys::{bpf_map_get_next_key, bpf_map_lookup_elem};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapInfo, Object};

use super::entry::{delete, update};
use super::layout::{self, FlowKey, LIMITS, Limits};
use crate::Error;
use crate::object::map;

/// Most services that issue handshakes.
pub const MAX_ISSUERS: u32 = 16;
/// Most bytes of the head of a table's response.
pub const HEAD_MAX: usize = 1024;
/// Bytes of a date, which is not compared between heads.
pub const DATE: usize = 29;
/// Most heads of one target.
pub const HEADS: usize = 2;
/// Bytes of `struct stamped`, and the offset of its limits.
const STAMPED: usize = HEAD + LIMITS + 4 * 32 + 4;
const HEAD: usize = 56;
const CLIENT_FIN: u8 = 1 << 0;
const ADOPTED: u8 = 1 << 2;
/// First bit of the number of adoptions, in the field whose lower bits are flags.
const GENERATION: u8 = 3;
const GENERATIONS: u8 = 1 << (8 - GENERATION);

/// Number of a connection's adoptions, modulo 32. Of two replicas that have a connection, the one
/// that adopted it later keeps it, by serial number arithmetic (RFC 1982).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation(u8);

impl Generation {
    /// The number modulo 32.
    #[must_use]
    pub fn new(number: u8) -> Generation {
        Generation(number % GENERATIONS)
    }

    /// The number after a further adoption.
    #[must_use]
    pub fn next(self) -> Generation {
        Generation::new(self.0 + 1)
    }

    /// Whether this number stands for a later adoption than the other.
    #[must_use]
    pub fn is_after(self, other: Generation) -> bool {
        (1..GENERATIONS / 2).contains(&(self.0.wrapping_sub(other.0) % GENERATIONS))
    }

    /// From the lowest five bits.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

/// An issuer of the ISNs of a service's connections (`struct issuer`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issuer {
    /// The key of the epoch.
    pub key: [u32; 2],
    /// Lowest bit of the epoch's number.
    pub odd: bool,
    /// Number of the table that the service uses.
    pub table: u32,
    /// Until when segments of unknown connections go to the process, nanoseconds of `CLOCK_MONOTONIC`.
    pub hunting: u64,
    /// MSS that we announce, over IPv4 and IPv6.
    pub mss: [u16; 2],
}

impl Issuer {
    fn encode(&self) -> [u8; 32] {
        let mut octets = [0; 32];
        let words = [self.key[0], self.key[1], self.odd.into(), self.table];
        for (to, word) in octets.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        octets[16..24].copy_from_slice(&self.hunting.to_ne_bytes());
        octets[24..26].copy_from_slice(&self.mss[0].to_ne_bytes());
        octets[26..28].copy_from_slice(&self.mss[1].to_ne_bytes());
        octets
    }
}

/// A response that the programs recognise by its head (`struct head`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownHead {
    /// Sum of the head's bytes without the date ([`sum_words`]).
    pub sum: u64,
    /// Bytes of the head.
    pub length: u32,
    /// Offset of the date; 0: the head has none.
    pub date: u32,
    /// Bytes of head and body.
    pub total: u32,
    /// Number of the object in timestamps.
    pub object: u32,
}

/// The sum of a head. `date`: the offset of its date, if any.
#[must_use]
pub fn head_sum(head: &[u8], date: usize) -> u64 {
    let mut octets = head.to_vec();
    if date > 0 {
        octets.iter_mut().skip(date).take(DATE).for_each(|octet| *octet = 0);
    }
    let mut sum = octets.len() as u64;
    for word in octets.chunks(8) {
        let mut octets = [0; 8];
        octets[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(octets)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^= sum >> 29;
    }
    sum
}

/// The hash by which the programs look up a target: FNV-1a over the target, a space, and the value
/// of `Host` in lower case.
#[must_use]
pub fn target_hash(host: &[u8], target: &[u8]) -> u64 {
    let host = host.to_ascii_lowercase();
    [target, b" ", &host]
        .concat()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, octet| (hash ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3))
}

/// Progress of a connection (`enum stamped_phase`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No request yet.
    Setup,
    /// A request for an object of the table.
    Asked,
    /// The response began, and timestamps name it.
    Named,
    /// The client has echoed such a timestamp.
    Echoed,
    /// No replica can resume it.
    Free,
    /// The process records the connection. Its timestamps name no object once a record is stored.
    Recorded,
}

/// A connection with timestamps of the programs (`struct stamped`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// Time of the client's last segment, nanoseconds of `CLOCK_MONOTONIC`.
    pub heard: u64,
    /// One less than the sequence number of the response's first byte.
    pub isn: u32,
    /// End of the client's data that was, or may be, acknowledged.
    pub client_next: u32,
    /// The bits that all timestamps of the connection share.
    pub base: u32,
    /// The object that the timestamps name. Before [`Phase::Named`]: the only object that they may
    /// name, because the client holds bytes of it behind a hole, or 0.
    pub object: u32,
    /// Bytes of the response.
    pub total: u32,
    /// Progress of the connection.
    pub phase: Phase,
    /// Whether the client has sent its FIN.
    pub client_fin: bool,
    /// Another replica held the connection before.
    pub adopted: bool,
    /// Number of adoptions.
    pub generation: Generation,
    /// Index of the timestamps that are being sent.
    pub index: u8,
    /// Newest index that the client echoed.
    pub echo: u8,
    /// Limits of the connection before [`Phase::Free`]. For a recorded connection
    /// [`Trods::limits`](super::Trods::limits) has them.
    pub limits: Limits,
}

impl Stamped {
    fn encode(&self) -> [u8; STAMPED] {
        let mut octets = [0; STAMPED];
        octets[8..16].copy_from_slice(&self.heard.to_ne_bytes());
        let words = [0, self.isn, self.client_next, self.base, self.object, self.total, 0];
        for (to, word) in octets[24..].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        octets[52] = self.phase as u8;
        octets[53] = if self.client_fin { CLIENT_FIN } else { 0 }
            | if self.adopted { ADOPTED } else { 0 }
            | self.generation.number() << GENERATION;
        (octets[54], octets[55]) = (self.index, self.echo);
        octets[HEAD..HEAD + LIMITS].copy_from_slice(&self.limits.encode());
        octets
    }

    fn decode(octets: &[u8; STAMPED]) -> Stamped {
        let word =
            |n: usize| octets[24 + 4 * n..HEAD].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        Stamped {
            heard: octets[8..].first_chunk().map_or(0, |octets| u64::from_ne_bytes(*octets)),
            isn: word(1),
            client_next: word(2),
            base: word(3),
            object: word(4),
            total: word(5),
            phase: match octets[52] {
                0 => Phase::Setup,
                1 => Phase::Asked,
                2 => Phase::Named,
                3 => Phase::Echoed,
                5 => Phase::Recorded,
                _ => Phase::Free,
            },
            client_fin: octets[53] & CLIENT_FIN != 0,
            adopted: octets[53] & ADOPTED != 0,
            generation: Generation::new(octets[53] >> GENERATION),
            index: octets[54],
            echo: octets[55],
            limits: octets[HEAD..].first_chunk().map(Limits::decode).unwrap_or_default(),
        }
    }
}

/// The maps of `src/bpf/ts.h`.
#[derive(Debug)]
pub struct Stamps {
    issuers: MapHandle,
    heads: MapHandle,
    stamped: MapHandle,
}

impl Stamps {
    pub(super) fn of(object: &Object) -> Result<Stamps, Error> {
        let handle =
            |name| MapHandle::try_from(&map(object, name)?).map_err(Error::of("BPF_OBJ_GET_INFO_BY_FD"));
        Ok(Stamps { issuers: handle("issuers")?, heads: handle("heads")?, stamped: handle("stamped")? })
    }

    pub(super) fn map(&self) -> &MapHandle {
        &self.stamped
    }

    /// Sets the issuer with this number, from 1 on.
    ///
    /// # Errors
    /// The number is above [`MAX_ISSUERS`].
    pub fn set_issuer(&self, number: u32, issuer: &Issuer) -> Result<(), Error> {
        update(&self.issuers, &number.to_ne_bytes(), &issuer.encode(), MapFlags::ANY)
    }

    /// Adds the head of the response to a request for this target with this `Host`.
    ///
    /// # Errors
    /// The map has no room.
    pub fn add(
        &self,
        table: u32,
        host: &[u8],
        target: &[u8],
        heads: &[KnownHead; HEADS],
    ) -> Result<(), Error> {
        let mut value = [0; 24 * HEADS];
        for (to, head) in value.chunks_exact_mut(24).zip(heads) {
            to[..8].copy_from_slice(&head.sum.to_ne_bytes());
            let words = [head.length, head.date, head.total, head.object];
            for (to, word) in to[8..].chunks_exact_mut(4).zip(words) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        update(&self.heads, &head_key(table, host, target), &value, MapFlags::ANY)
    }

    /// Removes the heads of a target of a host.
    ///
    /// # Errors
    /// An operating system error.
    pub fn remove(&self, table: u32, host: &[u8], target: &[u8]) -> Result<(), Error> {
        delete(&self.heads, &head_key(table, host, target))
    }

    /// The state of a connection.
    ///
    /// # Errors
    /// An operating system error.
    pub fn get(&self, key: &FlowKey) -> Result<Option<Stamped>, Error> {
        let mut octets = [0; STAMPED];
        let found = self.stamped.lookup_into(key.octets(), &mut octets, MapFlags::ANY);
        Ok(found.map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?.then(|| Stamped::decode(&octets)))
    }

    /// Like [`get`](Stamps::get), but `None` for a recorded connection, whose state the process
    /// has.
    ///
    /// # Errors
    /// An operating system error.
    pub fn named(&self, key: &FlowKey) -> Result<Option<Stamped>, Error> {
        Ok(self.get(key)?.filter(|stamped| stamped.phase != Phase::Recorded))
    }

    /// Adds a connection; the programs write its timestamps from now on.
    ///
    /// # Errors
    /// The map has no room.
    pub fn put(&self, key: &FlowKey, stamped: &Stamped) -> Result<(), Error> {
        update(&self.stamped, key.octets(), &stamped.encode(), MapFlags::ANY)
    }

    /// Replaces the state of a connection. False: the connection has ended.
    pub(super) fn replace(&self, key: &FlowKey, stamped: &Stamped) -> Result<bool, Error> {
        match self.stamped.update(key.octets(), &stamped.encode(), MapFlags::EXIST) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::of("BPF_MAP_UPDATE_ELEM")(e)),
        }
    }

    /// Removes a connection; the programs no longer write its timestamps.
    ///
    /// # Errors
    /// An operating system error.
    pub fn forget(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.stamped, key.octets())
    }

    /// Calls `take` for each connection. They may change during the iteration.
    pub fn each(&self, mut take: impl FnMut(FlowKey, Stamped)) {
        for key in self.stamped.keys() {
            let Some(key) = FlowKey::read(&key) else { continue };
            if let Ok(Some(stamped)) = self.get(&key) {
                take(key, stamped);
            }
        }
    }
}

/// All connections of another process's map; empty unless the map has the layout of these programs.
pub(super) fn all_of(map: BorrowedFd<'_>) -> Vec<(FlowKey, Stamped)> {
    let mut all = Vec::new();
    let Ok(MapInfo { info, .. }) = MapInfo::new(map) else { return all };
    if (info.key_size as usize, info.value_size as usize) != (layout::KEY, STAMPED) {
        return all;
    }
    let map = map.as_raw_fd();
    let (mut before, mut key, mut value) = (None, [0; layout::KEY], [0; STAMPED]);
    // After a key that was deleted meanwhile the iteration restarts.
    for _ in 0..info.max_entries {
        let last = before.as_ref().map_or(std::ptr::null(), |key: &[u8; layout::KEY]| key.as_ptr());
        // SAFETY: keys and values have the sizes of the map's; a null key selects the first one.
        let found = unsafe { bpf_map_get_next_key(map, last.cast(), key.as_mut_ptr().cast()) };
        if found != 0 {
            break;
        }
        // SAFETY: as above. An entry that was deleted meanwhile is skipped.
        if unsafe { bpf_map_lookup_elem(map, key.as_ptr().cast(), value.as_mut_ptr().cast()) } == 0 {
            all.extend(FlowKey::read(&key).map(|key| (key, Stamped::decode(&value))));
        }
        before = Some(key);
    }
    all
}

fn head_key(table: u32, host: &[u8], target: &[u8]) -> [u8; 16] {
    let mut key = [0; 16];
    key[..4].copy_from_slice(&table.to_ne_bytes());
    key[8..].copy_from_slice(&target_hash(host, target).to_ne_bytes());
    key
}

/// Encodes `struct service`.
pub(super) fn service_value(lease: u32, issuer: u16, records: bool) -> [u8; 8] {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&lease.to_ne_bytes());
    value[4..6].copy_from_slice(&issuer.to_ne_bytes());
    value[6..].copy_from_slice(&u16::from(records).to_ne_bytes());
    value
}

/// Checks that the kernel takes over connections from handshakes that a program made.
///
/// # Errors
/// It does not: this needs Linux 6.8 with BTF and SYN cookies.
pub fn can_issue() -> Result<(), Error> {
    Ok(crate::kernel::require(crate::kernel::Feature::Handshakes)?)
}

impl super::Trods {
    /// Protects the connections of this address from now on, under the lease with this number, with
    /// handshakes and timestamps of this issuer. `records`: connections whose responses timestamps
    /// cannot name get limits and are recorded.
    ///
    /// # Errors
    /// There are already [`MAX_SERVICES`](super::MAX_SERVICES).
    pub fn issue(&self, service: SocketAddr, lease: u32, issuer: u32, records: bool) -> Result<(), Error> {
        // Fits, because numbers are at most MAX_ISSUERS.
        let value = service_value(lease, issuer as u16, records);
        update(&self.services, &layout::service_key(service), &value, MapFlags::ANY)
    }

    /// The maps of connections with timestamps of the programs.
    #[must_use]
    pub fn stamps(&self) -> &Stamps {
        &self.stamps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_adoption_wins_across_wraparound() {
        let mut generation = Generation::default();
        for _ in 0..100 {
            let (next, third) = (generation.next(), generation.next().next());
            assert!(next.is_after(generation) && third.is_after(generation) && third.is_after(next));
            assert!(!generation.is_after(next) && !generation.is_after(third) && !next.is_after(next));
            generation = next;
        }
        assert_eq!(generation.number(), 100 % GENERATIONS);
        let stamped = Stamped { generation, ..Stamped::decode(&[0; STAMPED]) };
        assert_eq!(Stamped::decode(&stamped.encode()).generation, generation);
    }
}
