//! The seal of a transport continuation: AES-CMAC over its 60 bytes, the client's address and its port.

use std::net::{IpAddr, SocketAddr};

use rivulet_packet::{SealedContinuation, TransportContinuation};

use crate::keys::{SealKeys, equal_in_constant_time};

/// An address as the MACs cover it: 16 bytes with IPv4 mapped (RFC 4291 section 2.5.5.2).
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

/// Seals `fields` for `client`. The keys must be those of `fields.seal_epoch`.
pub fn seal(keys: &SealKeys, fields: &TransportContinuation, client: SocketAddr) -> SealedContinuation {
    let mac = keys.transport.mac12(&[&fields.to_bytes(), &address_bytes(client)]);
    SealedContinuation { fields: *fields, mac }
}

/// Whether `sealed` was sealed for `client` under `keys`, in constant time.
pub fn is_genuine(keys: &SealKeys, sealed: &SealedContinuation, client: SocketAddr) -> bool {
    let mac = keys.transport.mac12(&[&sealed.fields.to_bytes(), &address_bytes(client)]);
    equal_in_constant_time(&mac, &sealed.mac)
}
