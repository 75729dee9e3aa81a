//! What the kernel's programs are called with, and what is in a ring: `host/bpf/src/bpf/calls.h`.

use std::net::SocketAddr;

/// Operations of a bulk call.
pub const BULK: usize = rivulet_cm::MAX_BULK;
/// Factors of thresholds are multiples of 1 / this.
pub const ONE: u32 = 65_536;
/// A factor that is never reached.
pub const NEVER: u32 = u32::MAX;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 65_535;

/// What is asked (`enum cm_operation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Operation {
    None,
    Close,
    Mtu,
    Request,
    Notify,
    Update,
    Query,
    Take,
    Watch,
    Thresh,
    SetMtu,
    Weigh,
    Macroflow,
    Move,
}

/// `struct cm_op`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Op {
    /// Of which flow.
    pub flow: u64,
    /// An [`Operation`].
    pub op: u32,
    /// 0, or a negative error number.
    pub result: i32,
    /// Arguments, then results.
    pub v: [u64; 4],
}

impl Op {
    /// An operation that was not done yet.
    #[must_use]
    pub fn new(flow: u64, operation: Operation, v: [u64; 4]) -> Op {
        Op { flow, op: operation as u32, result: 0, v }
    }
}

/// `struct cm_opening`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Opening {
    /// Whose.
    pub client: u32,
    /// 0, or a negative error number.
    pub result: i32,
    /// The new flow.
    pub flow: u64,
    /// Address that packets come from, IPv4 mapped into IPv6.
    pub source: [u8; 16],
    /// Address that they go to.
    pub destination: [u8; 16],
    /// In network byte order.
    pub source_port: [u8; 2],
    /// In network byte order.
    pub destination_port: [u8; 2],
    /// IP protocol: UDP's.
    pub protocol: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// Nothing.
    pub unused: u16,
    /// Octets of payload of its largest packets.
    pub mtu: u32,
    /// Nothing.
    pub unused_too: u32,
}

impl Opening {
    /// For a client's flow.
    #[must_use]
    pub fn new(client: u32, key: &rivulet_cm::Key, mtu: u32) -> Opening {
        let (source, destination) = (mapped(key.source), mapped(key.destination));
        Opening {
            client,
            source,
            destination,
            source_port: key.source.port().to_be_bytes(),
            destination_port: key.destination.port().to_be_bytes(),
            protocol: key.protocol,
            dscp: key.dscp,
            mtu,
            ..Opening::default()
        }
    }
}

fn mapped(address: SocketAddr) -> [u8; 16] {
    match address {
        SocketAddr::V4(four) => four.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(six) => six.ip().octets(),
    }
}

/// `struct cm_bulk`: ends at the first entry without an operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bulk {
    /// They are done in their order.
    pub ops: [Op; BULK],
}

/// `struct cm_bulk_for`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BulkFor {
    /// The user.
    pub uid: u32,
    /// Nothing.
    pub unused: u32,
    /// The operations.
    pub bulk: Bulk,
}

/// `struct cm_opening_for`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OpeningFor {
    /// The user.
    pub uid: u32,
    /// Nothing.
    pub unused: u32,
    /// Cookie of the network namespace in which its packets begin.
    pub netns: u64,
    /// The flow.
    pub opening: Opening,
}

/// `struct cm_event`: octets of an entry of the ring.
pub const EVENT: usize = 16;
/// `CM_EVENT_SEND`
pub const SEND: u32 = 0;
/// `CM_EVENT_UPDATE`
pub const UPDATE: u32 = 1;

/// Something that is the kernel's as it lies in memory.
///
/// # Safety
/// All its octets are fields of whole numbers.
pub unsafe trait Plain: Sized {
    /// Its octets.
    fn octets(&self) -> &[u8] {
        // SAFETY: as the trait says, without gaps.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// Its octets, any of which may be written.
    fn octets_mut(&mut self) -> &mut [u8] {
        // SAFETY: as the trait says, any value is one.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: so they are: the tests count their fields' sizes.
unsafe impl Plain for Op {}
// SAFETY: as above.
unsafe impl Plain for Opening {}
// SAFETY: as above.
unsafe impl Plain for Bulk {}
// SAFETY: as above.
unsafe impl Plain for BulkFor {}
// SAFETY: as above.
unsafe impl Plain for OpeningFor {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_gaps() {
        assert_eq!(size_of::<Op>(), 8 + 4 + 4 + 32);
        assert_eq!(size_of::<Opening>(), 4 + 4 + 8 + 32 + 4 + 1 + 1 + 2 + 4 + 4);
        assert_eq!(size_of::<Bulk>(), 64 * size_of::<Op>());
        assert_eq!(size_of::<BulkFor>(), 8 + size_of::<Bulk>());
        assert_eq!(size_of::<OpeningFor>(), 16 + size_of::<Opening>());
    }

    #[test]
    fn addresses_are_as_on_the_wire() {
        let key = rivulet_cm::Key {
            source: "192.0.2.1:258".parse().unwrap(),
            destination: "[2001:db8::7]:53".parse().unwrap(),
            protocol: 17,
            dscp: 46,
        };
        let opening = Opening::new(3, &key, 1472);
        assert_eq!(opening.source, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 1]);
        assert_eq!((opening.source_port, opening.destination_port), ([1, 2], [0, 53]));
        assert_eq!((opening.destination[0], opening.destination[15]), (0x20, 7));
        assert_eq!((opening.client, opening.protocol, opening.dscp, opening.mtu), (3, 17, 46, 1472));
    }
}
