//! The Internet checksum (RFC 1071), and completing one that a local sender left to the hardware.

/// The one's-complement sum of `data` as big-endian 16-bit words, added to `initial`, folded to 16
/// bits and not complemented. An odd last byte counts as the high half of a word.
#[must_use]
pub fn internet_sum(data: &[u8], initial: u16) -> u16 {
    // Native-endian 64-bit words with end-around carry; the sum is byte-order independent (RFC 1071
    // section 2(B)), so one swap at the end makes it big-endian.
    let mut sum: u64 = 0;
    let mut words = data.chunks_exact(8);
    for word in &mut words {
        let word = u64::from_ne_bytes(word.try_into().unwrap_or([0; 8]));
        let (s, carry) = sum.overflowing_add(word);
        sum = s + u64::from(carry);
    }
    let mut last = [0u8; 8];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    let (s, carry) = sum.overflowing_add(u64::from_ne_bytes(last));
    sum = s + u64::from(carry);
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    sum = (sum >> 16) + (sum & 0xffff);
    let folded = u32::from(u16::from_be(sum as u16)) + u32::from(initial);
    ((folded >> 16) + (folded & 0xffff)) as u16
}

/// Adds what a [partial](crate::Checksum::Partial) checksum leaves out and writes the result. Returns
/// false, the frame untouched, if the field does not lie inside the frame.
///
/// A result of zero is written as 0xffff, its equal, because UDP reads zero as "no checksum"
/// (RFC 768).
#[must_use]
pub fn complete(frame: &mut [u8], start: u16, offset: u16) -> bool {
    let (start, offset) = (usize::from(start), usize::from(offset));
    let field = start + offset;
    if field + 2 > frame.len() {
        return false;
    }
    let sum = !internet_sum(&frame[start..], 0);
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(data: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in data.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn equals_the_word_by_word_sum_at_every_length() {
        let data: Vec<u8> = (0..600u32).map(|i| (i * 167 + 13) as u8).collect();
        for len in 0..data.len() {
            let (a, b) = (internet_sum(&data[..len], 0), plain(&data[..len]));
            // 0 and 0xffff are the same number in one's complement.
            assert!(a == b || (a % 0xffff == 0 && b % 0xffff == 0), "length {len}: {a:#x} against {b:#x}");
        }
        assert_eq!(internet_sum(&[0xff; 4096], 0), 0xffff);
    }

    #[test]
    fn example_of_rfc_1071_section_3() {
        assert_eq!(internet_sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
    }

    #[test]
    fn completing_verifies_and_never_writes_zero() {
        let mut udp = [0x12, 0x34, 0x56, 0x78, 0x00, 0x08, 0, 0];
        assert!(complete(&mut udp, 0, 6));
        assert_eq!(internet_sum(&udp, 0), 0xffff);
        let mut zero = [0xff, 0xff, 0, 0];
        assert!(complete(&mut zero, 0, 2));
        assert_eq!(&zero[2..], [0xff, 0xff]);
    }

    #[test]
    fn a_field_beyond_the_frame_is_refused() {
        let mut frame = [0; 20];
        assert!(!complete(&mut frame, 19, 0));
        assert!(!complete(&mut frame, u16::MAX, u16::MAX));
        assert!(complete(&mut frame, 18, 0));
    }
}
