//! The arguments of the kernel programs and the entries of the event ring, as in
//! `host/bpf/src/bpf/calls.h`.

use std::net::SocketAddr;

/// Largest number of operations in a bulk call.
pub const BULK: usize = rivulet_cm::MAX_BULK;
/// Thresholds are multiples of 1 / `ONE`.
pub const ONE: u32 = 65_536;
/// A threshold that is never reached.
pub const NEVER: u32 = u32::MAX;
/// The largest weight.
pub const MAX_WEIGHT: u32 = 65_535;

/// Operation of a call (`enum cm_operation`).
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
    /// The flow.
    pub flow: u64,
    /// An [`Operation`].
    pub op: u32,
    /// 0, or a negative error number.
    pub result: i32,
    /// Arguments before the call, results after it.
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
    /// The client's number.
    pub client: u32,
    /// 0, or a negative error number.
    pub result: i32,
    /// The new flow.
    pub flow: u64,
    /// Source address of the packets; IPv4 addresses are mapped to IPv6.
    pub source: [u8; 16],
    /// Destination address of the packets, likewise.
    pub destination: [u8; 16],
    /// In network byte order.
    pub source_port: [u8; 2],
    /// In network byte order.
    pub destination_port: [u8; 2],
    /// IP protocol: UDP.
    pub protocol: u8,
    /// Differentiated services code point.
    pub dscp: u8,
    /// Padding.
    pub unused: u16,
    /// Payload bytes of the flow's largest packets.
    pub mtu: u32,
    /// Padding.
    pub unused_too: u32,
}

impl Opening {
    /// A request to open a client's flow.
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

/// `struct cm_bulk`: the kernel stops at the first entry without an operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bulk {
    /// The operations, done in this order.
    pub ops: [Op; BULK],
}

/// `struct cm_bulk_for`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BulkFor {
    /// The user.
    pub uid: u32,
    /// Padding.
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
    /// Padding.
    pub unused: u32,
    /// Cookie of the network namespace that sends the packets.
    pub netns: u64,
    /// The flow.
    pub opening: Opening,
}

/// `struct cm_event`: bytes of an entry of the ring.
pub const EVENT: usize = 16;
/// `CM_EVENT_SEND`
pub const SEND: u32 = 0;
/// `CM_EVENT_UPDATE`
pub const UPDATE: u32 = 1;

/// A structure with the kernel's memory layout.
///
/// # Safety
/// All its bytes belong to integer fields, without padding.
pub unsafe trait Plain: Sized {
    /// The structure's bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the implementer promises that there is no padding.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// The structure's bytes, to be written; every value is valid.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the implementer promises that every byte pattern is a valid value.
        unsafe { std::slice::from_raw_parts_mut((&raw mut *self).cast(), size_of::<Self>()) }
    }
}

// SAFETY: integer fields only; the tests add up their sizes.
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
    fn structures_have_no_padding() {
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
