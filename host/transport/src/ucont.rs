//! User continuations (section 4.1): standard fields for the client, and opaque bytes of the
//! application. The library seals both to one service and connection.

use crate::keys::{KeyRing, SealKeys, equal_in_constant_time};

/// Length of the fields before the application's bytes.
pub const HEADER: usize = 40;
/// Maximum length of the opaque part in bytes; it fits a packet together with everything else.
pub const MAX_OPAQUE: usize = 1024;
/// Maximum length of a sealed user continuation in bytes.
pub const MAX_UCONT: usize = HEADER + MAX_OPAQUE + MAC;

const FLAG_INPUT: u8 = 0x01;
const MAC: usize = 12;

/// The content of a user continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserContinuation<'a> {
    /// True for an input continuation, false for an output continuation.
    pub input: bool,
    /// The stream that it belongs to.
    pub stream: u16,
    /// First byte that it covers: an output offset, or the input offset at which input continues.
    pub valid_start: u64,
    /// First byte that it no longer covers; `u64::MAX` for no end.
    pub valid_end: u64,
    /// For an output continuation: a digest that identifies the content (of name, size and bytes,
    /// or a deployment id). For an input continuation: the operation id ([`operation_id`]).
    pub identity: [u8; 16],
    /// The application's bytes.
    pub opaque: &'a [u8],
}

/// The fields of a sealed user continuation that a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// True for an input continuation, false for an output continuation.
    pub input: bool,
    /// The stream that it belongs to.
    pub stream: u16,
    /// See [`UserContinuation::valid_start`].
    pub valid_start: u64,
    /// See [`UserContinuation::valid_end`].
    pub valid_end: u64,
}

/// Why a user continuation cannot be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UcontError {
    /// More opaque bytes than [`MAX_OPAQUE`].
    #[error("{0} opaque bytes, at most {MAX_OPAQUE} are allowed")]
    TooLong(usize),
    /// `valid_end` lies before `valid_start`.
    #[error("the valid range is empty")]
    EmptyRange,
    /// The buffer is too small.
    #[error("the buffer is too small")]
    Buffer,
    /// It is shorter than its fixed fields, or has unknown flags.
    #[error("a malformed user continuation")]
    Malformed,
    /// The key ring does not have the epoch that it was sealed under.
    #[error("sealed under an epoch that is not in the key ring")]
    Epoch,
    /// The seal is wrong: the bytes were changed, or belong to another connection or service.
    #[error("not sealed for this connection")]
    Forged,
}

/// The stable id of an operation, derived from the connection, the stream and the input offset
/// where the operation began. A repeat of the same input has the same id on every replica.
pub fn operation_id(connection: u64, stream: u16, start: u64) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&connection.to_be_bytes());
    id[8..10].copy_from_slice(&stream.to_be_bytes());
    id[10..].copy_from_slice(&start.to_be_bytes()[2..]);
    id
}

/// Seals `what` into `out` and returns the length. `generation` is the current generation of the
/// connection.
///
/// # Errors
/// [`UcontError::TooLong`], [`UcontError::EmptyRange`], [`UcontError::Buffer`], [`UcontError::Epoch`].
pub fn seal_user(
    keys: &KeyRing,
    epoch: u16,
    connection: u64,
    generation: u16,
    what: &UserContinuation<'_>,
    out: &mut [u8],
) -> Result<usize, UcontError> {
    if what.opaque.len() > MAX_OPAQUE {
        return Err(UcontError::TooLong(what.opaque.len()));
    }
    if what.valid_end < what.valid_start {
        return Err(UcontError::EmptyRange);
    }
    let seal = keys.seal(epoch).ok_or(UcontError::Epoch)?;
    let body = HEADER + what.opaque.len();
    let length = body + MAC;
    let out = out.get_mut(..length).ok_or(UcontError::Buffer)?;
    out[..2].copy_from_slice(&epoch.to_be_bytes());
    out[2] = if what.input { FLAG_INPUT } else { 0 };
    out[3] = 0;
    out[4..6].copy_from_slice(&what.stream.to_be_bytes());
    out[6..8].copy_from_slice(&generation.to_be_bytes());
    out[8..16].copy_from_slice(&what.valid_start.to_be_bytes());
    out[16..24].copy_from_slice(&what.valid_end.to_be_bytes());
    out[24..40].copy_from_slice(&what.identity);
    out[HEADER..body].copy_from_slice(what.opaque);
    let mac = mac(keys, seal, connection, &out[..body]);
    out[body..].copy_from_slice(&mac);
    Ok(length)
}

fn mac(keys: &KeyRing, seal: &SealKeys, connection: u64, body: &[u8]) -> [u8; MAC] {
    seal.user.mac12(&[&keys.service().to_be_bytes(), &connection.to_be_bytes(), body])
}

fn parts(sealed: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let flags = *sealed.get(2)?;
    if flags & !FLAG_INPUT != 0 || sealed.get(3) != Some(&0) {
        return None;
    }
    let opaque = sealed.len().checked_sub(HEADER + MAC)?;
    if opaque > MAX_OPAQUE {
        return None;
    }
    let (header, rest) = sealed.split_at(HEADER);
    let (opaque, trailer) = rest.split_at(opaque);
    Some((header, opaque, trailer))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

/// Reads the standard fields without verification, as a client does. `None`: malformed.
pub fn validity(sealed: &[u8]) -> Option<Validity> {
    let (header, ..) = parts(sealed)?;
    let (valid_start, valid_end) = (u64_at(header, 8), u64_at(header, 16));
    if valid_end < valid_start {
        return None;
    }
    Some(Validity { input: header[2] & FLAG_INPUT != 0, stream: u16_at(header, 4), valid_start, valid_end })
}

/// Whether a user continuation is sealed under an epoch older than `newest`, so that its holder may
/// want a new one.
pub fn ages(sealed: &[u8], newest: u16) -> bool {
    // Epoch numbers wrap around.
    parts(sealed).is_some_and(|(header, ..)| (newest.wrapping_sub(u16_at(header, 0)) as i16) > 0)
}

/// Verifies and opens a user continuation of `connection`.
///
/// # Errors
/// [`UcontError::Malformed`], [`UcontError::Epoch`], [`UcontError::Forged`].
pub fn open<'a>(
    keys: &KeyRing,
    connection: u64,
    sealed: &'a [u8],
) -> Result<UserContinuation<'a>, UcontError> {
    let (header, opaque, trailer) = parts(sealed).ok_or(UcontError::Malformed)?;
    let seal = keys.seal(u16_at(header, 0)).ok_or(UcontError::Epoch)?;
    let right = mac(keys, seal, connection, &sealed[..HEADER + opaque.len()]);
    if !equal_in_constant_time(&right, trailer) {
        return Err(UcontError::Forged);
    }
    let mut identity = [0; 16];
    identity.copy_from_slice(&header[24..40]);
    Ok(UserContinuation {
        input: header[2] & FLAG_INPUT != 0,
        stream: u16_at(header, 4),
        valid_start: u64_at(header, 8),
        valid_end: u64_at(header, 16),
        identity,
        opaque,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(service: u32) -> KeyRing {
        let mut ring = KeyRing::new(service);
        ring.add_seal(1, &[1; 16]);
        ring
    }

    const WHAT: UserContinuation<'static> = UserContinuation {
        input: false,
        stream: 3,
        valid_start: 10,
        valid_end: 1 << 40,
        identity: [7; 16],
        opaque: b"/index.html",
    };

    #[test]
    fn opens_only_its_own_seals() {
        let ring1 = ring(1);
        let mut out = [0; MAX_UCONT];
        let n = seal_user(&ring1, 1, 42, 5, &WHAT, &mut out).unwrap();
        let sealed = &out[..n];
        assert_eq!(open(&ring1, 42, sealed), Ok(WHAT));
        assert_eq!(open(&ring1, 43, sealed), Err(UcontError::Forged), "another connection");
        assert!(open(&ring(2), 42, sealed).is_err(), "another service");
        let v = validity(sealed).unwrap();
        assert_eq!([ages(sealed, 1), ages(sealed, 2), ages(sealed, 0xffff)], [false, true, false]);
        assert_eq!((v.stream, v.valid_start, v.valid_end, v.input), (3, 10, 1 << 40, false));
        for i in 0..n {
            let mut bad = sealed.to_vec();
            bad[i] ^= 0x20;
            assert!(open(&ring1, 42, &bad).is_err(), "byte {i} changed");
            assert!(open(&ring1, 42, &sealed[..i]).is_err(), "cut to {i}");
        }
    }

    #[test]
    fn refuses_invalid_user_continuations() {
        let (ring, mut out) = (ring(1), [0; 2000]);
        let long = UserContinuation { opaque: &[0; MAX_OPAQUE + 1], ..WHAT };
        assert_eq!(seal_user(&ring, 1, 1, 0, &long, &mut out), Err(UcontError::TooLong(1025)));
        let backwards = UserContinuation { valid_end: 9, ..WHAT };
        assert_eq!(seal_user(&ring, 1, 1, 0, &backwards, &mut out), Err(UcontError::EmptyRange));
        assert_eq!(seal_user(&ring, 1, 1, 0, &WHAT, &mut out[..50]), Err(UcontError::Buffer));
        assert_eq!(seal_user(&ring, 9, 1, 0, &WHAT, &mut out), Err(UcontError::Epoch));
    }
}
