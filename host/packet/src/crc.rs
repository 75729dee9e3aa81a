//! CRC-32C (RFC 3720 section 12.1) without the standard library, four bits at a time: a table of 64 bytes.

/// Remainders of four bits under the reflected polynomial 0x82f63b78.
const TABLE: [u32; 16] = {
    let (mut table, mut i) = ([0; 16], 0);
    while i < 16 {
        let (mut remainder, mut bit) = (i as u32, 0);
        while bit < 4 {
            remainder = remainder >> 1 ^ if remainder & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[i] = remainder;
        i += 1;
    }
    table
};

/// The checksum of these bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let nibble = |crc: u32| crc >> 4 ^ TABLE[(crc & 0xf) as usize];
    !bytes.iter().fold(!0, |crc, byte| nibble(nibble(crc ^ u32::from(*byte))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_the_checksum_of_the_hardware(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(super::crc32c(&bytes), crc32c::crc32c(&bytes));
        }
    }
}
