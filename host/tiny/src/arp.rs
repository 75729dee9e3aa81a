//! Answers to ARP requests (RFC 826), so that neighbours find the server's Ethernet address.

use core::net::Ipv4Addr;

/// EtherType of ARP.
pub(crate) const ETHER_TYPE: [u8; 2] = [0x08, 0x06];
/// Ethernet header, and an ARP message for Ethernet and IPv4.
pub(crate) const LENGTH: usize = 14 + 28;
/// Ethernet, IPv4, the lengths of their addresses, and a request.
const REQUEST: [u8; 8] = [0, 1, 0x08, 0x00, 6, 4, 0, 1];

/// The answer to a frame, if the frame asks for `address`.
pub(crate) fn answer(frame: &[u8], mac: [u8; 6], address: Ipv4Addr) -> Option<[u8; LENGTH]> {
    let frame = frame.get(..LENGTH)?;
    if frame[12..14] != ETHER_TYPE || frame[14..22] != REQUEST || frame[38..42] != address.octets() {
        return None;
    }
    let mut answer = [0; LENGTH];
    answer[..6].copy_from_slice(&frame[22..28]);
    answer[6..12].copy_from_slice(&mac);
    answer[12..14].copy_from_slice(&ETHER_TYPE);
    answer[14..22].copy_from_slice(&REQUEST);
    answer[21] = 2;
    answer[22..28].copy_from_slice(&mac);
    answer[28..32].copy_from_slice(&address.octets());
    answer[32..42].copy_from_slice(&frame[22..32]);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_for_the_address_are_answered() {
        let (mac, address) = ([2, 0, 10, 9, 0, 1], Ipv4Addr::new(10, 9, 0, 1));
        let neighbour = [[2u8, 1, 1, 1, 1, 1].as_slice(), &[10, 9, 0, 7]].concat();
        let request = |wanted: [u8; 4]| {
            [&[0xff; 6], &neighbour[..6], &ETHER_TYPE, &REQUEST, &neighbour, &[0; 6], &wanted].concat()
        };
        let answer_of = |frame: &[u8]| answer(frame, mac, address);
        let reply = answer_of(&request([10, 9, 0, 1])).unwrap();
        assert_eq!((&reply[..6], &reply[6..12]), (&neighbour[..6], &mac[..]));
        assert_eq!(reply[20..22], [0, 2]);
        assert_eq!(reply[22..32], [&mac[..], &[10, 9, 0, 1]].concat());
        assert_eq!(reply[32..42], neighbour);
        assert_eq!(answer_of(&request([10, 9, 0, 2])), None);
        assert_eq!(answer_of(&reply), None, "an answer");
        assert_eq!(answer_of(&request([10, 9, 0, 1])[..41]), None, "cut short");
    }
}
