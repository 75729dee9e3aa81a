//! Bytestrings (P4Runtime section 8.4): big-endian integers, accepted in any length and returned in
//! the shortest one. A value is refused only if it does not fit its width or is empty.

use crate::error::{UpdateError, out_of_range};

/// The value without leading zero bytes; at least one byte remains.
pub fn canonical(value: &[u8]) -> &[u8] {
    let zeros = value.iter().take_while(|b| **b == 0).count();
    &value[zeros.min(value.len().saturating_sub(1))..]
}

/// Bits needed for the unsigned value; 0 for zero.
pub fn bit_length(value: &[u8]) -> usize {
    let Some(first) = value.iter().position(|b| *b != 0) else { return 0 };
    (value.len() - first) * 8 - value[first].leading_zeros() as usize
}

/// Checks an unsigned value against a width in bits and returns it in canonical form.
pub fn unsigned(value: &[u8], width: u32, what: &dyn std::fmt::Display) -> Result<Vec<u8>, UpdateError> {
    if value.is_empty() {
        return Err(out_of_range(format!("{what}: empty bytestring")));
    }
    if bit_length(value) > width as usize {
        return Err(out_of_range(format!("{what}: value needs {} bits, has {width}", bit_length(value))));
    }
    Ok(canonical(value).to_vec())
}

/// Checks a two's complement value against a width in bits and returns its `width` bits as an unsigned value.
pub fn signed(value: &[u8], width: u32, what: &dyn std::fmt::Display) -> Result<Vec<u8>, UpdateError> {
    let Some(first) = value.first() else {
        return Err(out_of_range(format!("{what}: empty bytestring")));
    };
    // Count the bits that differ from the sign, from the top, plus one for the sign itself.
    let fill: u8 = if first & 0x80 != 0 { 0xff } else { 0 };
    let magnitude: Vec<u8> = value.iter().map(|b| b ^ fill).collect();
    if bit_length(&magnitude) + 1 > width as usize {
        return Err(out_of_range(format!("{what}: signed value does not fit {width} bits")));
    }
    let mut bits = vec![fill; bytes_for(width)];
    let keep = value.len().min(bits.len());
    let at = bits.len() - keep;
    bits[at..].copy_from_slice(&value[value.len() - keep..]);
    mask_top(&mut bits, width);
    Ok(canonical(&bits).to_vec())
}

/// The canonical two's complement form of a value of `width` bits.
pub fn from_signed_bits(bits: &[u8], width: u32) -> Vec<u8> {
    let mut value = padded(bits, width);
    if width == 0 || value.is_empty() {
        return vec![0];
    }
    let top = (width as usize - 1) % 8;
    let negative = value[0] >> top & 1 == 1;
    if negative && top < 7 {
        value[0] |= 0xffu8 << (top + 1);
    }
    let fill: u8 = if negative { 0xff } else { 0 };
    // A leading byte is redundant if it only repeats the sign bit of the next one.
    let redundant = value.windows(2).take_while(|w| w[0] == fill && (w[1] ^ fill) & 0x80 == 0).count();
    value.split_off(redundant)
}

/// Bytes needed for this many bits.
pub fn bytes_for(width: u32) -> usize {
    (width as usize).div_ceil(8)
}

/// The value in exactly the bytes of its width: padded with zeros, or with excess bytes removed in
/// front.
pub fn padded(value: &[u8], width: u32) -> Vec<u8> {
    let n = bytes_for(width);
    let mut out = vec![0; n];
    let keep = value.len().min(n);
    out[n - keep..].copy_from_slice(&value[value.len() - keep..]);
    out
}

/// The value with all `width` bits set, canonical.
pub fn all_ones(width: u32) -> Vec<u8> {
    let mut ones = vec![0xff; bytes_for(width).max(1)];
    mask_top(&mut ones, width);
    ones
}

/// The mask with the highest `prefix` of `width` bits set, in the bytes of the width.
pub fn prefix_mask(prefix: u32, width: u32) -> Vec<u8> {
    let mut mask = vec![0u8; bytes_for(width)];
    let offset = mask.len() as u32 * 8 - width;
    for bit in offset..(offset + prefix.min(width)) {
        mask[bit as usize / 8] |= 0x80 >> (bit % 8);
    }
    mask
}

/// Whether a value has no bit outside a mask; both are numbers of any length.
pub fn within_mask(value: &[u8], mask: &[u8]) -> bool {
    let from_end = |s: &[u8], i: usize| s.len().checked_sub(i + 1).map_or(0, |at| s[at]);
    (0..value.len()).all(|i| from_end(value, i) & !from_end(mask, i) == 0)
}

/// Whether the value is zero.
pub fn is_zero(value: &[u8]) -> bool {
    value.iter().all(|b| *b == 0)
}

/// The value as a number, if it fits in 32 bits.
pub fn to_u32(value: &[u8]) -> Option<u32> {
    (bit_length(value) <= 32).then(|| canonical(value).iter().fold(0, |n, b| n << 8 | u32::from(*b)))
}

fn mask_top(bytes: &mut [u8], width: u32) {
    if width == 0 {
        bytes.fill(0);
    } else if !width.is_multiple_of(8)
        && let Some(first) = bytes.first_mut()
    {
        *first &= 0xff >> (8 - width % 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The specification's table of valid encodings (section 8.4), unsigned part.
    #[test]
    fn valid_unsigned_encodings() {
        for (width, bytes, same) in [
            (8, &[0x63][..], true),
            (16, &[0x00, 0x63], false),
            (16, &[0x63], true),
            (16, &[0x30, 0x64], true),
            (16, &[0x00, 0x30, 0x64], false),
            (12, &[0x00, 0x63], false),
            (12, &[0x63], true),
            (12, &[0x00, 0x00, 0x63], false),
        ] {
            let read = unsigned(bytes, width, &"x").unwrap();
            assert_eq!(read == bytes, same, "bit<{width}> {bytes:02x?} came back as {read:02x?}");
        }
    }

    /// The specification's table of valid encodings, signed part.
    #[test]
    fn valid_signed_encodings() {
        for (width, bytes, same) in [
            (8, &[0x63][..], true),
            (8, &[0x9d], true),
            (8, &[0xff, 0x9d], false),
            (12, &[0xfd, 0x1d], true),
            (16, &[0x00, 0x00], false),
            (16, &[0x00], true),
        ] {
            let read = from_signed_bits(&signed(bytes, width, &"x").unwrap(), width);
            assert_eq!(read == bytes, same, "int<{width}> {bytes:02x?} came back as {read:02x?}");
        }
    }

    /// The specification's table of invalid encodings.
    #[test]
    fn invalid_encodings_are_out_of_range() {
        for (width, bytes) in [
            (8, &[0x01, 0x63][..]),
            (8, &[]),
            (16, &[0x01, 0x00, 0x63]),
            (12, &[0x10, 0x63]),
            (12, &[0x01, 0x00, 0x63]),
            (12, &[0x00, 0x40, 0x63]),
        ] {
            let error = unsigned(bytes, width, &"x").unwrap_err();
            assert_eq!(error.code, tonic::Code::OutOfRange, "bit<{width}> {bytes:02x?}");
        }
        for (width, bytes) in [(8, &[0x00, 0x9d][..]), (12, &[0x8d, 0x1d]), (16, &[])] {
            let error = signed(bytes, width, &"x").unwrap_err();
            assert_eq!(error.code, tonic::Code::OutOfRange, "int<{width}> {bytes:02x?}");
        }
    }

    #[test]
    fn masks() {
        assert_eq!(prefix_mask(9, 12), [0x0f, 0xf8]);
        assert_eq!(prefix_mask(0, 12), [0, 0]);
        assert_eq!(all_ones(12), [0x0f, 0xff]);
        assert!(within_mask(&[0x01, 0x10], &[0xff, 0x01, 0x10]));
        assert!(!within_mask(&[0x01, 0x01, 0x10], &[0x01, 0x10]));
    }

    proptest! {
        #[test]
        fn unsigned_round_trip(value: u64, width in 1u32..=80, zeros in 0usize..5) {
            let mut bytes = vec![0; zeros];
            bytes.extend_from_slice(&value.to_be_bytes());
            let fits = 64 - value.leading_zeros() <= width;
            match unsigned(&bytes, width, &"x") {
                Ok(read) => {
                    prop_assert!(fits);
                    prop_assert_eq!(read.iter().fold(0u64, |n, b| n << 8 | u64::from(*b)), value);
                    prop_assert!(read.len() == 1 || read[0] != 0);
                }
                Err(_) => prop_assert!(!fits),
            }
        }

        #[test]
        fn signed_round_trip(value: i64, width in 1u32..=80, more in 0usize..4) {
            let mut bytes = vec![if value < 0 { 0xff } else { 0 }; more];
            bytes.extend_from_slice(&value.to_be_bytes());
            let needs = 65 - if value < 0 { value.leading_ones() } else { value.leading_zeros() };
            match signed(&bytes, width, &"x") {
                Ok(bits) => {
                    prop_assert!(needs <= width);
                    let back = from_signed_bits(&bits, width);
                    prop_assert!(back.len() <= 8);
                    let start: i64 = if back[0] & 0x80 != 0 { -1 } else { 0 };
                    prop_assert_eq!(back.iter().fold(start, |n, b| n << 8 | i64::from(*b)), value);
                }
                Err(_) => prop_assert!(needs > width),
            }
        }
    }
}
