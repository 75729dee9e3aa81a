//! The layouts of `src/bpf/trods.h`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Most bytes of a TCP header.
pub const TCP_HEADER_MAX: usize = 60;
/// Most bytes of a segment that one event carries.
pub const EVENT_OCTETS: usize = 2048;

/// Bytes of `struct event` without its data.
const EVENT_HEADER: usize = KEY + 4 + 4 + 2 + 1 + 1;
/// Bytes of `struct flow_key`.
pub(super) const KEY: usize = 36;
const EVENT_HAS_FIN: u8 = 1 << 0;
const EVENT_OF_DEAD: u8 = 1 << 1;
const HAS_FIN: u32 = 1 << 0;
const HAS_FIN_OF_DEAD: u32 = 1 << 1;
/// Bytes of `struct limits`.
pub(super) const LIMITS: usize = 28;
const RECORDED: u32 = 1 << 0;
const AWAITED: u32 = 1 << 1;
const ADOPTED: u32 = 1 << 2;
/// Kinds of `enum happened`.
pub(super) const HAPPENED_PIN: u32 = 1;
pub(super) const HAPPENED_FREED: u32 = 3;
pub(super) const HAPPENED_BLANKS: u32 = 5;
/// Most fields of one connection that are overwritten in responses.
pub const MAX_FIELDS: usize = 16;
/// Bytes of [`What::Unnamed`].
const UNNAMED: usize = 16;

/// Client and service of a connection, as the maps have them (`struct flow_key`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey([u8; KEY]);

impl FlowKey {
    /// From the addresses of a client and a service, which are of one family.
    #[must_use]
    pub fn new(client: SocketAddr, service: SocketAddr) -> FlowKey {
        let mut key = [0; KEY];
        key[..16].copy_from_slice(&octets(client.ip()));
        key[16..32].copy_from_slice(&octets(service.ip()));
        key[32..34].copy_from_slice(&client.port().to_be_bytes());
        key[34..].copy_from_slice(&service.port().to_be_bytes());
        FlowKey(key)
    }

    /// The client's address and port.
    #[must_use]
    pub fn client(&self) -> SocketAddr {
        self.end(0, 32)
    }

    /// The service's address and port.
    #[must_use]
    pub fn service(&self) -> SocketAddr {
        self.end(16, 34)
    }

    /// Parses a key of a map.
    pub(super) fn read(octets: &[u8]) -> Option<FlowKey> {
        octets.try_into().ok().map(FlowKey)
    }

    pub(super) fn octets(&self) -> &[u8] {
        &self.0
    }

    fn end(&self, address: usize, port: usize) -> SocketAddr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.0[address..address + 16]);
        let address = Ipv6Addr::from(octets);
        let address = address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4);
        SocketAddr::new(address, u16::from_be_bytes([self.0[port], self.0[port + 1]]))
    }
}

/// An address in the form of the maps.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// `struct service_key`
pub(super) fn service_key(service: SocketAddr) -> [u8; 20] {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&octets(service.ip()));
    key[16..18].copy_from_slice(&service.port().to_be_bytes());
    key
}

/// The replica that holds a connection of which segments may arrive here (`struct pin`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The Ethernet address from which the ToR sends. Segments from other addresses are not handed
    /// on.
    pub tor: [u8; 6],
    /// Index of the holder in the pool.
    pub holder: u8,
}

impl Pin {
    pub(super) fn decode(octets: &[u8; 8]) -> Pin {
        let [a, b, c, d, e, f, holder, _] = *octets;
        Pin { tor: [a, b, c, d, e, f], holder }
    }

    pub(super) fn encode(self) -> [u8; 8] {
        let [a, b, c, d, e, f] = self.tor;
        [a, b, c, d, e, f, self.holder, 0]
    }
}

/// Limits of the segments that leave (`struct limits`), as sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Highest acknowledgement that may leave.
    pub ack: u32,
    /// End of the data that may leave.
    pub data: u32,
    /// The only sequence number at which a FIN may leave.
    pub fin_at: Option<u32>,
    /// Whether that FIN may leave even if the connection was closed because the server's process
    /// died.
    pub closes: bool,
    /// Sequence number of the server's first byte of data.
    pub first: u32,
    /// Highest acknowledgement of the client. The program writes it. A value written here may be
    /// older, and the client's next segment corrects it.
    pub acked: u32,
    /// A record is stored. Timestamps of the programs then mark the connection as one that cannot
    /// be resumed by them.
    pub recorded: bool,
    /// The kernel's socket is still being created: the client's segments are dropped until then.
    pub awaited: bool,
    /// Another replica held the connection before, so its client may acknowledge more than was sent
    /// here.
    pub adopted: bool,
}

impl Limits {
    pub(super) fn encode(&self) -> [u8; LIMITS] {
        let words = [
            self.ack,
            self.data,
            self.fin_at.unwrap_or(0),
            self.fin_at.map_or(0, |_| if self.closes { HAS_FIN | HAS_FIN_OF_DEAD } else { HAS_FIN }),
            self.first,
            self.acked,
            if self.recorded { RECORDED } else { 0 }
                | if self.awaited { AWAITED } else { 0 }
                | if self.adopted { ADOPTED } else { 0 },
        ];
        let mut octets = [0; LIMITS];
        for (to, word) in octets.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        octets
    }

    pub(super) fn decode(octets: &[u8; LIMITS]) -> Limits {
        let word = |n: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&octets[4 * n..4 * n + 4]);
            u32::from_ne_bytes(word)
        };
        let fin_at = (word(3) != 0).then_some(word(2));
        let closes = word(3) & HAS_FIN_OF_DEAD != 0;
        let flag = |flag| word(6) & flag != 0;
        Limits {
            ack: word(0),
            data: word(1),
            fin_at,
            closes,
            first: word(4),
            acked: word(5),
            recorded: flag(RECORDED),
            awaited: flag(AWAITED),
            adopted: flag(ADOPTED),
        }
    }
}

/// Encodes `struct blanks`, with at most [`MAX_FIELDS`] fields.
pub(super) fn blanks(fields: &[(u32, u32)]) -> [u8; 4 + 8 * MAX_FIELDS] {
    let mut octets = [0; 4 + 8 * MAX_FIELDS];
    let fields = &fields[..fields.len().min(MAX_FIELDS)];
    octets[..4].copy_from_slice(&(fields.len() as u32).to_ne_bytes());
    for (to, (from, end)) in octets[4..].chunks_exact_mut(8).zip(fields) {
        to[..4].copy_from_slice(&from.to_ne_bytes());
        to[4..].copy_from_slice(&end.to_ne_bytes());
    }
    octets
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The connection.
    pub key: FlowKey,
    /// Acknowledgement of the segment that caused the event.
    pub ack: u32,
    /// The kind of event, with its data.
    pub what: What<'a>,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// The handshake is complete. The first limits of the connection let nothing leave beyond the
    /// SYNs.
    Opened {
        /// TCP header of the client's SYN.
        syn: &'a [u8],
        /// TCP header of the server's SYN-ACK.
        syn_ack: &'a [u8],
    },
    /// The client sent data, possibly for the second time. The server gets it, too.
    Request {
        /// Sequence number of the data.
        seq: u32,
        /// The data; may be empty before a FIN.
        octets: &'a [u8],
        /// Whether a FIN follows the data.
        fin: bool,
    },
    /// The client reset the connection, if the server's TCP accepts the sequence number.
    Reset {
        /// Sequence number of the RST.
        seq: u32,
    },
    /// The client acknowledged the FIN that left.
    Ended,
    /// A FIN of the server was withheld.
    Fin {
        /// Sequence number of the FIN.
        seq: u32,
        /// The connection was closed because its process died.
        of_dead: bool,
    },
    /// A RST of the server was withheld.
    Aborted {
        /// The connection was closed because its process died.
        of_dead: bool,
    },
    /// A segment of an orphan, which the kernel did not get. Its checksum was right or partial. A
    /// segment longer than [`EVENT_OCTETS`] makes no event.
    Parked {
        /// The IP packet.
        packet: &'a [u8],
    },
    /// A client requested a long response that is in the table.
    Stamped {
        /// Sequence number after the request.
        seq: u32,
    },
    /// Timestamps of the programs cannot name the connection's next response. From here on it has
    /// limits like any other.
    Unnamed {
        /// The client's next sequence number.
        seq: u32,
        /// The server's next sequence number: the client has everything before it.
        end: u32,
        /// The server's initial sequence number.
        isn: u32,
        /// The bits that all timestamps of the connection share.
        base: u32,
        /// Another replica held the connection before.
        adopted: bool,
    },
    /// Another connection begins between the same ports.
    Replaced,
    /// The kernel does not know the connection, and its RST was withheld.
    Refused {
        /// Acknowledgement of the segment that the RST answers.
        seq: u32,
    },
}

impl Event<'_> {
    /// Parses an event of the program; `None` if it is malformed.
    pub(super) fn parse(octets: &[u8]) -> Option<Event<'_>> {
        let (header, octets) = octets.split_at_checked(EVENT_HEADER)?;
        let (key, rest) = header.split_first_chunk::<KEY>()?;
        let (seq, rest) = rest.split_first_chunk::<4>()?;
        let (ack, rest) = rest.split_first_chunk::<4>()?;
        let &[length, more, kind, flags] = rest else { return None };
        let octets = octets.get(..usize::from(u16::from_ne_bytes([length, more])))?;
        let (seq, fin) = (u32::from_ne_bytes(*seq), flags & EVENT_HAS_FIN != 0);
        let of_dead = flags & EVENT_OF_DEAD != 0;
        let what = match kind {
            1 => {
                let (syn, syn_ack) = octets.split_at_checked(TCP_HEADER_MAX)?;
                What::Opened { syn: header_of(syn)?, syn_ack: header_of(syn_ack)? }
            }
            2 => What::Request { seq, octets, fin },
            3 => What::Reset { seq },
            4 => What::Ended,
            5 => What::Fin { seq, of_dead },
            6 => What::Aborted { of_dead },
            7 => What::Parked { packet: octets },
            8 => What::Stamped { seq },
            9 => {
                let (words, _) = octets.split_first_chunk::<UNNAMED>()?.0.as_chunks::<4>();
                let word = |n: usize| words.get(n).map_or(0, |word| u32::from_ne_bytes(*word));
                What::Unnamed { seq, end: word(2), isn: word(0), base: word(1), adopted: word(3) != 0 }
            }
            10 => What::Replaced,
            11 => What::Refused { seq },
            _ => return None,
        };
        Some(Event { key: FlowKey(*key), ack: u32::from_ne_bytes(*ack), what })
    }
}

/// A TCP header; its data offset has its length.
fn header_of(octets: &[u8]) -> Option<&[u8]> {
    octets.get(..4 * usize::from(octets.get(12)? >> 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_holds_client_and_service() {
        for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:65535", "[fd00:9::1]:1")]
        {
            let (client, service) = (client.parse().unwrap(), service.parse().unwrap());
            let key = FlowKey::new(client, service);
            assert_eq!((key.client(), key.service()), (client, service));
        }
    }

    #[test]
    fn limits_survive_encoding() {
        for (fin_at, closes) in [(None, false), (Some(0), false), (Some(u32::MAX), true)] {
            for n in 0..8 {
                let [recorded, awaited, adopted] = [1, 2, 4].map(|flag| n & flag != 0);
                let first = Limits { ack: 1, data: 2, fin_at, closes, first: 3, ..Limits::default() };
                let limits = Limits { acked: 4, recorded, awaited, adopted, ..first };
                assert_eq!(Limits::decode(&limits.encode()), limits);
            }
        }
    }

    #[test]
    fn malformed_event_parses_to_none() {
        let key = FlowKey::new("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let event = |length: u16, kind: u8, octets: usize| {
            [&key.0[..], &[0; 8], &length.to_ne_bytes(), &[kind, 1], &vec![0x50; octets]].concat()
        };
        let whole = event(3, 2, 3);
        let request = What::Request { seq: 0, octets: &[0x50; 3], fin: true };
        assert_eq!(Event::parse(&whole), Some(Event { key, ack: 0, what: request }));
        for short in 0..whole.len() {
            assert_eq!(Event::parse(&whole[..short]), None, "{short} bytes");
        }
        for kind in [0, 12, 255] {
            assert_eq!(Event::parse(&event(0, kind, 0)), None);
        }
        assert!(Event::parse(&event(120, 1, 120)).is_some());
        assert_eq!([15, 16].map(|n| Event::parse(&event(n, 9, n.into())).is_some()), [false, true]);
        // Both headers have a data offset of 20 bytes.
        for short in 0..80 {
            assert_eq!(Event::parse(&event(short, 1, short.into())), None, "{short} bytes of two headers");
        }
    }
}
