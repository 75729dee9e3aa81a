//! The format between sender and receiver. Each datagram, and each TCP connection, begins with a head
//! of 16 bytes in network byte order:
//!
//! | bytes | |
//! |---|---|
//! | 4 | "cmud" |
//! | 1 | kind: 0 the receiver acknowledges it, 1 the receiver returns it whole, 2 an answer |
//! | 3 | zero |
//! | 8 | number of the datagram, from 0; on a TCP connection: bytes that follow; in its answer: bytes received |
//!
//! An acknowledgement is the head alone. The receiver never answers an answer: otherwise two receivers
//! could answer each other without end.

/// Length of a datagram's head, bytes.
pub(super) const HEAD: usize = 16;
/// Bytes of the largest UDP payload over IPv4.
pub(super) const LARGEST: usize = 65_507;
const MAGIC: [u8; 4] = *b"cmud";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bulk,
    Echo,
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub kind: Kind,
    pub number: u64,
}

impl Head {
    pub fn octets(self) -> [u8; HEAD] {
        let mut octets = [0; HEAD];
        octets[..4].copy_from_slice(&MAGIC);
        octets[4] = self.kind as u8;
        octets[8..].copy_from_slice(&self.number.to_be_bytes());
        octets
    }

    /// `None`: the bytes do not begin with a head.
    pub fn parse(octets: &[u8]) -> Option<Head> {
        let (head, _) = octets.split_first_chunk::<HEAD>()?;
        let kind = match head[4..8] {
            [0, 0, 0, 0] => Kind::Bulk,
            [1, 0, 0, 0] => Kind::Echo,
            [2, 0, 0, 0] => Kind::Answer,
            _ => return None,
        };
        let number = u64::from_be_bytes(*head.last_chunk()?);
        (head[..4] == MAGIC).then_some(Head { kind, number })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn head_parses_back_and_damaged_head_is_refused() {
        for kind in [Kind::Bulk, Kind::Echo, Kind::Answer] {
            let head = Head { kind, number: 0x0102_0304_0506_0708 };
            let octets = head.octets();
            assert_eq!(Head::parse(&octets), Some(head));
            assert_eq!(octets[8..], [1, 2, 3, 4, 5, 6, 7, 8]);
            for at in 0..8 {
                let mut other = octets;
                other[at] ^= 4;
                assert_eq!(Head::parse(&other), None, "octet {at}");
            }
            for cut in 0..HEAD {
                assert_eq!(Head::parse(&octets[..cut]), None);
            }
        }
    }

    proptest! {
        #[test]
        fn parsed_head_encodes_to_the_same_bytes(octets in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(head) = Head::parse(&octets) {
                prop_assert_eq!(&head.octets()[..], &octets[..HEAD]);
            }
        }
    }
}
