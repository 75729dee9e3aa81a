//! The seal of a transport continuation: AES-CMAC over its 60 bytes and the client's address and
//! port.

use core::net::{IpAddr, SocketAddr};

use rivulet_packet::continuation::LENGTH;
use rivulet_packet::{SealedContinuation, TransportContinuation};

use crate::keys::{SealKeys, equal_in_constant_time};

/// An address as the MACs cover it: 16 bytes, IPv4 mapped (RFC 4291 section 2.5.5.2).
pub fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Address and port as the MACs cover them.
pub fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let mut out = [0; 18];
    out[..16].copy_from_slice(&ip_bytes(address.ip()));
    out[16..].copy_from_slice(&address.port().to_be_bytes());
    out
}

/// The MAC of `fields` for `client`.
fn mac(keys: &SealKeys, fields: &TransportContinuation, client: SocketAddr) -> [u8; 12] {
    // In one piece, so that the MAC reads whole blocks.
    let mut message = [0; LENGTH + 18];
    message[..LENGTH].copy_from_slice(&fields.to_bytes());
    message[LENGTH..].copy_from_slice(&address_bytes(client));
    keys.transport.mac12(&[&message])
}

/// Seals `fields` for `client`. The keys must be those of `fields.seal_epoch`.
pub fn seal_continuation(
    keys: &SealKeys,
    fields: &TransportContinuation,
    client: SocketAddr,
) -> SealedContinuation {
    SealedContinuation { fields: *fields, mac: mac(keys, fields, client) }
}

/// Whether `sealed` was sealed for `client` under `keys`, in constant time.
pub fn is_genuine(keys: &SealKeys, sealed: &SealedContinuation, client: SocketAddr) -> bool {
    equal_in_constant_time(&mac(keys, &sealed.fields, client), &sealed.mac)
}
