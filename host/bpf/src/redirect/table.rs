//! The frames that the program selects, in the form of its maps (`src/bpf/redirect.h`).

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Half of the map's size, because old and new entries are in the map together during an update.
pub const MAX_ENDPOINTS: usize = 32768 / 2;
/// Half of the map's size, as above.
pub const MAX_TUNNELS: usize = 1024 / 2;
/// Half of the map's size, as above.
pub const MAX_ETHERTYPES: usize = 64 / 2;

const EVERYTHING: u32 = 1 << 0;
const HAS_ETHERTYPES: u32 = 1 << 1;
const HAS_TUNNELS: u32 = 1 << 2;
const PLAIN: u32 = 1 << 3;
const SHAPES_SHIFT: u32 = 4;

const ANY_PORT: u32 = 1 << 16;
const ANY_ADDRESS: u32 = 1 << 17;
const IPV6: u32 = 1 << 18;

const TAKE_ALL: u16 = 1 << 0;
const TAKE_OPTION: u16 = 1 << 1;
const TAKE_LOCAL: u16 = 1 << 2;

/// Which TCP segments to an endpoint are selected. `exid` identifies an experimental option (RFC
/// 6994), which must be the segment's first option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// All segments.
    All,
    /// Segments with the option.
    Option {
        /// Identifies the option.
        exid: u16,
    },
    /// Segments as [`LocalPorts`](super::LocalPorts) selects for their port.
    Local {
        /// Identifies the option, for ports that require one.
        exid: u16,
    },
}

/// Why an entry cannot be added to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Too many entries.
    #[error("AF_XDP takes at most {0} {1}")]
    Full(usize, &'static str),
    /// An endpoint can look for one option only.
    #[error("AF_XDP cannot look for two options (ExID {0:#06x} and {1:#06x}) at one endpoint")]
    Options(u16, u16),
    /// The ends of a tunnel must be of one address family.
    #[error("a tunnel between an IPv4 and an IPv6 address")]
    Families,
}

/// One of the program's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Map {
    Endpoints,
    Tunnels,
    Ethertypes,
}

impl Map {
    pub(super) fn name(self) -> &'static str {
        match self {
            Map::Endpoints => "endpoints",
            Map::Tunnels => "tunnels",
            Map::Ethertypes => "ethertypes",
        }
    }

    fn limit(self) -> (usize, &'static str) {
        match self {
            Map::Endpoints => (MAX_ENDPOINTS, "addresses times ports"),
            Map::Tunnels => (MAX_TUNNELS, "tunnels"),
            Map::Ethertypes => (MAX_ETHERTYPES, "EtherTypes"),
        }
    }
}

type Key = Vec<u8>;
type Value = Vec<u8>;

/// The selected frames; initially none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    everything: bool,
    entries: BTreeMap<(Map, Key), Value>,
}

impl Table {
    /// Selects every frame.
    #[must_use]
    pub fn everything() -> Table {
        Table { everything: true, entries: BTreeMap::new() }
    }

    /// Selects segments to an address and port; `None` stands for any.
    ///
    /// # Errors
    /// The table is full, or the endpoint already has another option.
    pub fn endpoint(
        &mut self,
        address: Option<IpAddr>,
        port: Option<u16>,
        taking: Taking,
    ) -> Result<(), TableError> {
        let (octets, family) = address.map_or(([0; 16], ANY_ADDRESS), octets);
        let port = family | port.map_or(ANY_PORT, u32::from);
        let key = [&octets[..], &port.to_ne_bytes()].concat();
        let (mut how, mut exid) = match taking {
            Taking::All => (TAKE_ALL, None),
            Taking::Option { exid } => (TAKE_OPTION, Some(exid)),
            Taking::Local { exid } => (TAKE_LOCAL, Some(exid)),
        };
        if let Some(value) = self.entries.get(&(Map::Endpoints, key.clone())) {
            let (former, other) = taking_of(value);
            let other = (former & (TAKE_OPTION | TAKE_LOCAL) != 0).then_some(other);
            if let (Some(a), Some(b)) = (other, exid)
                && a != b
            {
                return Err(TableError::Options(a, b));
            }
            (how, exid) = (how | former, exid.or(other));
        }
        let value = [how.to_ne_bytes(), exid.unwrap_or(0).to_ne_bytes()].concat();
        self.put(Map::Endpoints, key, value)
    }

    /// Selects IP-in-IP and GUE packets from one host to another.
    ///
    /// # Errors
    /// The table is full, or the hosts' addresses are of two families.
    pub fn tunnel(&mut self, source: IpAddr, destination: IpAddr) -> Result<(), TableError> {
        let ((source, family), (destination, other)) = (octets(source), octets(destination));
        if family != other {
            return Err(TableError::Families);
        }
        self.put(Map::Tunnels, [&source[..], &destination, &family.to_ne_bytes()].concat(), vec![1])
    }

    /// Selects every frame of an EtherType.
    ///
    /// # Errors
    /// The table is full.
    pub fn ethertype(&mut self, kind: u16) -> Result<(), TableError> {
        self.put(Map::Ethertypes, u32::from(kind).to_ne_bytes().to_vec(), vec![1])
    }

    fn put(&mut self, map: Map, key: Key, value: Value) -> Result<(), TableError> {
        self.entries.insert((map, key), value);
        let (limit, what) = map.limit();
        if self.of(map).count() > limit { Err(TableError::Full(limit, what)) } else { Ok(()) }
    }

    fn of(&self, map: Map) -> impl Iterator<Item = (&Key, &Value)> {
        self.entries.iter().filter(move |((m, _), _)| *m == map).map(|((_, key), value)| (key, value))
    }

    /// The bits of `enum redirect_settings`.
    pub(super) fn settings(&self) -> u32 {
        let bit = |condition: bool, bit: u32| if condition { bit } else { 0 };
        let some = bit(self.everything, EVERYTHING)
            | bit(self.of(Map::Ethertypes).next().is_some(), HAS_ETHERTYPES)
            | bit(self.of(Map::Tunnels).next().is_some(), HAS_TUNNELS);
        self.of(Map::Endpoints).fold(some, |settings, (key, value)| {
            let port = key.last_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
            let shape = bit(port & ANY_PORT != 0, 1) + bit(port & ANY_ADDRESS != 0, 2);
            let plain = taking_of(value).0 & (TAKE_ALL | TAKE_LOCAL) != 0;
            settings | 1 << (SHAPES_SHIFT + shape) | bit(plain, PLAIN)
        })
    }

    /// Entries that another table lacks, or has with another value.
    pub(super) fn missing_in(&self, other: &Table) -> Vec<(Map, Key, Value)> {
        let new = self.entries.iter().filter(|(key, value)| other.entries.get(key) != Some(value));
        new.map(|((map, key), value)| (*map, key.clone(), value.clone())).collect()
    }

    /// Keys that another table lacks.
    pub(super) fn not_in(&self, other: &Table) -> Vec<(Map, Key)> {
        self.entries.keys().filter(|key| !other.entries.contains_key(key)).cloned().collect()
    }

    pub(super) fn note(&mut self, map: Map, key: Key, value: Value) {
        self.entries.insert((map, key), value);
    }

    pub(super) fn forget(&mut self, map: Map, key: &Key) {
        self.entries.remove(&(map, key.clone()));
    }
}

/// Parses `struct taking`.
fn taking_of(value: &[u8]) -> (u16, u16) {
    match value {
        [a, b, c, d] => (u16::from_ne_bytes([*a, *b]), u16::from_ne_bytes([*c, *d])),
        _ => (0, 0),
    }
}

/// An address in the form of the maps, and the bit of its family.
fn octets(address: IpAddr) -> ([u8; 16], u32) {
    match address {
        IpAddr::V4(a) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&a.octets());
            (octets, 0)
        }
        IpAddr::V6(a) => (a.octets(), IPV6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_name_maps_with_entries() {
        let host = IpAddr::from([10, 0, 0, 1]);
        let address = Some(host);
        let of = |address, port, taking| {
            let mut table = Table::default();
            table.endpoint(address, port, taking).unwrap();
            table.settings()
        };
        let option = Taking::Option { exid: 1 };
        assert_eq!(Table::default().settings(), 0);
        assert_eq!(Table::everything().settings(), 1);
        assert_eq!(of(address, Some(1), option), 16);
        assert_eq!(of(address, None, option), 32);
        assert_eq!(of(None, Some(1), option), 64);
        assert_eq!(of(None, None, Taking::All), 128 | PLAIN);
        assert_eq!(of(address, None, Taking::Local { exid: 1 }), 32 | PLAIN);
        let mut table = Table::default();
        table.ethertype(1).unwrap();
        assert_eq!(table.settings(), 2);
        table.tunnel(host, host).unwrap();
        assert_eq!(table.settings(), 6);
    }

    #[test]
    fn second_option_at_an_endpoint_is_refused() {
        let mut table = Table::default();
        table.endpoint(None, Some(80), Taking::All).unwrap();
        table.endpoint(None, Some(80), Taking::Option { exid: 7 }).unwrap();
        table.endpoint(None, Some(80), Taking::Local { exid: 7 }).unwrap();
        table.endpoint(None, Some(80), Taking::All).unwrap();
        let value = table.of(Map::Endpoints).next().unwrap().1;
        assert_eq!(taking_of(value), (7, 7));
        let other = table.endpoint(None, Some(80), Taking::Option { exid: 8 });
        assert_eq!(other, Err(TableError::Options(7, 8)));
        table.endpoint(None, Some(81), Taking::Option { exid: 8 }).unwrap();
    }

    #[test]
    fn full_table_refuses_entries() {
        let mut table = Table::default();
        for port in 0..MAX_ENDPOINTS as u16 {
            table.endpoint(None, Some(port), Taking::All).unwrap();
        }
        table.endpoint(None, Some(0), Taking::All).unwrap();
        let full = TableError::Full(MAX_ENDPOINTS, "addresses times ports");
        assert_eq!(table.endpoint(None, None, Taking::All), Err(full));
        let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0; 16]));
        assert_eq!(table.tunnel(v4, v6), Err(TableError::Families));
    }
}
