//! Bits of packets: fields at any bit offset, most significant bit first, in pieces of at most 64 bits.

/// The lowest `width` bits (0 to 64) set.
#[inline(always)]
pub(crate) const fn ones(width: u32) -> u64 {
    if width == 0 { 0 } else { u64::MAX >> (64 - if width > 64 { 64 } else { width }) }
}

/// Reads eight bytes, big-endian; bytes past the end are zero.
#[inline(always)]
fn word(buf: &[u8], at: usize) -> u64 {
    match buf.get(at..at + 8) {
        Some(b) => u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
        None => tail_word(buf, at),
    }
}

#[cold]
fn tail_word(buf: &[u8], at: usize) -> u64 {
    let mut w = [0; 8];
    let have = buf.len().saturating_sub(at).min(8);
    w[..have].copy_from_slice(&buf[buf.len() - have..][..have]);
    u64::from_be_bytes(w)
}

/// The `width` bits (1 to 64) at bit `pos`; bits past the end are zero.
#[inline(always)]
pub(crate) fn get(buf: &[u8], pos: usize, width: u32) -> u64 {
    let (at, shift) = (pos / 8, (pos % 8) as u32);
    let first = word(buf, at) << shift;
    let bits = if shift + width <= 64 {
        first
    } else {
        first | u64::from(buf.get(at + 8).copied().unwrap_or(0)) >> (8 - shift)
    };
    bits >> (64 - width)
}

/// Puts `value`, of `width` bits (1 to 64), at bit `pos` of a buffer that is zero there. The buffer
/// must extend nine bytes beyond the field's first byte.
#[inline(always)]
pub(crate) fn put(buf: &mut [u8], pos: usize, width: u32, value: u64) {
    let (at, shift) = (pos / 8, (pos % 8) as u32);
    let bits = value << (64 - width);
    let Some(bytes) = buf.get_mut(at..at + 9) else { return };
    let (head, last) = bytes.split_at_mut(8);
    if let Ok(head) = <&mut [u8; 8]>::try_from(head) {
        *head = (u64::from_be_bytes(*head) | bits >> shift).to_be_bytes();
    }
    if shift + width > 64 {
        last[0] |= (bits << (64 - shift) >> 56) as u8;
    }
}

/// Limbs (least significant first) of a big-endian byte string. `None` if it does not fit `width` bits.
pub(crate) fn limbs_of(bytes: &[u8], width: u32) -> Option<smallvec::SmallVec<[u64; 4]>> {
    let n = limb_count(width);
    let mut limbs = smallvec::smallvec![0u64; n];
    for (i, &b) in bytes.iter().rev().enumerate() {
        if b == 0 {
            continue;
        }
        *limbs.get_mut(i / 8)? |= u64::from(b) << (i % 8 * 8);
    }
    let top = width - 64 * (n as u32 - 1);
    if limbs[n - 1] & !ones(top) != 0 { None } else { Some(limbs) }
}

/// Limbs of a value of that width; at least one.
pub(crate) fn limb_count(width: u32) -> usize {
    (width.max(1) as usize).div_ceil(64)
}

/// The canonical byte string of limbs: no leading zero bytes, at least one byte.
pub(crate) fn canonical(limbs: &[u64]) -> Vec<u8> {
    let bytes: Vec<u8> = limbs.iter().rev().flat_map(|l| l.to_be_bytes()).collect();
    let zeros = bytes.iter().take_while(|b| **b == 0).count().min(bytes.len() - 1);
    bytes[zeros..].to_vec()
}

/// Appends limbs as a byte string of exactly `width` bits, padded on the left to whole bytes.
pub(crate) fn padded(
    limbs: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator,
    width: u32,
    mut push: impl FnMut(u8),
) {
    let bytes = (width as usize).div_ceil(8);
    let mut skip = limbs.len() * 8 - bytes.min(limbs.len() * 8);
    for limb in limbs.rev() {
        for b in limb.to_be_bytes() {
            if skip > 0 {
                skip -= 1;
            } else {
                push(b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_round_trip_at_any_offset() {
        for pos in 0..24 {
            for width in 1..=64 {
                let mut buf = [0u8; 24];
                let value = 0xdead_beef_0123_4567 & ones(width);
                put(&mut buf, pos, width, value);
                assert_eq!(get(&buf, pos, width), value, "{width} bits at {pos}");
                let set: u32 = buf.iter().map(|b| b.count_ones()).sum();
                assert_eq!(set, value.count_ones());
            }
        }
    }

    #[test]
    fn reads_past_the_end_are_zero() {
        assert_eq!(get(&[0xff], 0, 64), 0xff << 56);
        assert_eq!(get(&[0xff], 80, 8), 0);
        assert_eq!(get(&[0xff; 9], 4, 64), u64::MAX);
    }

    #[test]
    fn byte_strings_convert_to_limbs_and_back() {
        assert_eq!(limbs_of(&[0, 0, 1, 0], 9).unwrap()[..], [256]);
        assert!(limbs_of(&[2, 0], 9).is_none());
        assert_eq!(limbs_of(&[1; 9], 72).unwrap()[..], [0x0101_0101_0101_0101, 1]);
        assert_eq!(canonical(&[0, 1]), [1, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(canonical(&[0]), [0]);
        let mut out = vec![];
        padded([0x1_02u64].into_iter(), 9, |b| out.push(b));
        assert_eq!(out, [1, 2]);
    }
}
