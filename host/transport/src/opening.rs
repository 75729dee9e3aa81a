//! How connections and generations open. Tag and first number come from one PRF, so that every
//! replica computes the same values, and a client can neither choose nor compute them. Also the
//! tokens that prove a client's address.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use arrayvec::ArrayVec;
use rivulet_packet::TransportContinuation;

use crate::keys::{KeyRing, MacKey, NonceKeys, equal_in_constant_time};
use crate::retired::{Retired, WINDOW_TOKEN_LENGTH};
use crate::seal::{address_bytes, ip_bytes};
use crate::time::{CLOCK_MASK, Micros, stamp_age};

/// Tag, first number and server ISN of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Connection tag of generation 0.
    pub tag: u32,
    /// First response number.
    pub first: u32,
    /// Server ISN; for a bare SYN it is the cookie.
    pub isn: u32,
}

fn words(mac: [u8; 16]) -> [u32; 4] {
    core::array::from_fn(|i| u32::from_be_bytes([mac[4 * i], mac[4 * i + 1], mac[4 * i + 2], mac[4 * i + 3]]))
}

/// What a connection is opened with. Each kind derives different numbers, so that no number is
/// issued by two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedBy<'a> {
    /// A SYN without a token. Its retransmission gets the same numbers, of which it reveals one.
    Syn,
    /// A SYN with this address token, which is accepted once.
    Token(&'a [u8]),
    /// The completion of a bare SYN's cookie.
    Cookie,
    /// A SYN with a token for a window, which the generation with this tag returned.
    Window(u32),
}

/// Derives the opening of a connection.
pub fn open_connection(
    keys: &NonceKeys,
    client: SocketAddr,
    service: SocketAddr,
    client_isn: u32,
    by: OpenedBy<'_>,
) -> Opening {
    let (from, to, client_isn) = (address_bytes(client), address_bytes(service), client_isn.to_be_bytes());
    let mac = |domain: u8, token: &[u8]| keys.opening.mac(&[&from, &to, &client_isn, &[domain], token]);
    let [tag, first, ..] = words(match by {
        OpenedBy::Syn => mac(0, &[]),
        OpenedBy::Token(token) => mac(1, token),
        OpenedBy::Cookie => mac(2, &[]),
        // Independent of port and ISN: however often the token is presented, the window exists
        // once.
        OpenedBy::Window(tag) => keys.opening.mac(&[&ip_bytes(client.ip()), &to, &[3], &tag.to_be_bytes()]),
    });
    // The ISN is the same for all kinds: a middlebox may have seen the answer to another SYN of
    // this connection.
    let [_, _, isn, _] = words(keys.opening.mac(&[&from, &to, &client_isn]));
    Opening { tag, first, isn }
}

/// Tag and first number of the generation after `c`. They are the same for every continuation of
/// that generation that is presented in this `slot` of time.
pub fn next_generation(key: &MacKey, c: &TransportContinuation, rekey: bool, slot: u64) -> (u32, u32) {
    let generation = c.generation.wrapping_add(1);
    let (connection, slot) = (c.connection.to_be_bytes(), slot.to_be_bytes());
    let mac = key.mac(&[&connection, &generation.to_be_bytes(), &[u8::from(rekey)], &slot]);
    let [tag, first, ..] = words(mac);
    (tag, first)
}

/// Length in bytes of an address token and of a challenge: seal epoch 16 bits, time 48, MAC 96.
pub const TOKEN_LENGTH: usize = 20;
/// Lifetime of an address token, counted from its stamp.
pub const TOKEN_LIFETIME: Micros = 24 * 3600 * 1_000_000;

fn token(key: &MacKey, epoch: u16, now: u64, what: [&[u8]; 2]) -> [u8; TOKEN_LENGTH] {
    let mut out = [0; TOKEN_LENGTH];
    out[..2].copy_from_slice(&epoch.to_be_bytes());
    out[2..8].copy_from_slice(&(now & CLOCK_MASK).to_be_bytes()[2..]);
    let [first, second] = what;
    let mac = key.mac12(&[&out[..8], first, second]);
    out[8..].copy_from_slice(&mac);
    out
}

/// Length of the client's address in a token field; it precedes the token.
pub const SEEN_LENGTH: usize = 18;

/// Encodes a token field that informs the client of the address it was seen at: the address, then
/// the token if there is one.
pub fn tell_address(client: SocketAddr, token: Option<&[u8]>, out: &mut TokenField) {
    out.clear();
    let _ = out.try_extend_from_slice(&address_bytes(client));
    let _ = out.try_extend_from_slice(token.unwrap_or_default());
}

/// A token field with an address and a token, both of maximum length.
pub type TokenField = ArrayVec<u8, { SEEN_LENGTH + WINDOW_TOKEN_LENGTH }>;

/// Decodes a token field into the address at which the server saw the client, and the token. Either
/// may be missing; the length shows which are present.
pub fn read_token_field(field: &[u8]) -> (Option<SocketAddr>, Option<&[u8]>) {
    const WITH_TOKEN: usize = SEEN_LENGTH + TOKEN_LENGTH;
    const WITH_WINDOW: usize = SEEN_LENGTH + WINDOW_TOKEN_LENGTH;
    match field.split_first_chunk::<SEEN_LENGTH>() {
        Some((seen, token)) if matches!(field.len(), SEEN_LENGTH | WITH_TOKEN | WITH_WINDOW) => {
            let [ip @ .., high, low] = *seen;
            let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
            let seen = SocketAddr::new(ip, u16::from_be_bytes([high, low]));
            (Some(seen), Some(token).filter(|token| !token.is_empty()))
        }
        _ => (None, Some(field)),
    }
}

fn read_token(token: &[u8]) -> Option<(u16, u64)> {
    let token: &[u8; TOKEN_LENGTH] = token.try_into().ok()?;
    let time = token[2..8].iter().fold(0u64, |t, b| t << 8 | u64::from(*b));
    Some((u16::from_be_bytes([token[0], token[1]]), time))
}

fn fresh(now: u64, stamp: u64, lifetime: Micros) -> bool {
    let age = stamp_age(now, stamp);
    age >= -100_000 && age <= lifetime as i64
}

/// Makes a token that proves `ip` in a later SYN. `None`: the epoch is not in the ring.
pub fn address_token(keys: &KeyRing, epoch: u16, now: u64, ip: IpAddr) -> Option<[u8; TOKEN_LENGTH]> {
    Some(token(&keys.seal(epoch)?.token, epoch, now, [&ip_bytes(ip), &[]]))
}

/// Whether `presented` proves `ip`, as an address token or as a token with a window. Does not check
/// whether it was used before.
pub fn proves_address(keys: &KeyRing, now: u64, ip: IpAddr, presented: &[u8]) -> bool {
    if let Some(retired) = Retired::open(keys, ip, presented) {
        return fresh(now, retired.time, TOKEN_LIFETIME);
    }
    let Some((epoch, time)) = read_token(presented) else { return false };
    let Some(seal) = keys.seal(epoch) else { return false };
    let right = token(&seal.token, epoch, time, [&ip_bytes(ip), &[]]);
    fresh(now, time, TOKEN_LIFETIME) && equal_in_constant_time(&right, presented)
}

/// The challenge to a connection that arrives from the new address `client`. `None`: the epoch is
/// not in the ring.
pub fn challenge(
    keys: &KeyRing,
    epoch: u16,
    now: u64,
    client: SocketAddr,
    connection: u64,
) -> Option<[u8; TOKEN_LENGTH]> {
    let what: [&[u8]; 2] = [&address_bytes(client), &connection.to_be_bytes()];
    Some(token(&keys.seal(epoch)?.challenge, epoch, now, what))
}

/// Whether `presented` answers a challenge to `client` that was made within `horizon`.
pub fn answers_challenge(
    keys: &KeyRing,
    now: u64,
    horizon: Micros,
    client: SocketAddr,
    connection: u64,
    presented: &[u8],
) -> bool {
    let Some((epoch, time)) = read_token(presented) else { return false };
    let Some(right) = challenge(keys, epoch, time, client, connection) else { return false };
    fresh(now, time, horizon) && equal_in_constant_time(&right, presented)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> KeyRing {
        let mut ring = KeyRing::new(1);
        ring.add_seal(3, &[9; 16]);
        ring
    }

    #[test]
    fn token_proves_one_address_until_it_expires() {
        let ring = ring();
        let a: SocketAddr = "192.0.2.1:1000".parse().unwrap();
        let b: SocketAddr = "192.0.2.2:1000".parse().unwrap();
        let token = address_token(&ring, 3, 50, a.ip()).unwrap();
        assert!(proves_address(&ring, 60, a.ip(), &token));
        assert!(!proves_address(&ring, 60, b.ip(), &token));
        assert!(!proves_address(&ring, 60 + TOKEN_LIFETIME, a.ip(), &token));
        assert!(!proves_address(&ring, 60, a.ip(), &token[1..]));
        let mut changed = token;
        changed[7] ^= 1;
        assert!(!proves_address(&ring, 60, a.ip(), &changed), "another time");
        assert!(!answers_challenge(&ring, 60, 100, a, 7, &token), "a token is no answer to a challenge");
        let window = Retired { time: 50, tag: 7, window: 90, ssthresh: 90, mss: 1400 };
        let window = window.seal(&ring, 3, a.ip()).unwrap();
        assert!(proves_address(&ring, 60, a.ip(), &window), "one with a window proves it too");
        assert!(!proves_address(&ring, 60, b.ip(), &window));
        assert!(!proves_address(&ring, 60 + TOKEN_LIFETIME, a.ip(), &window));
        let challenge = challenge(&ring, 3, 50, a, 7).unwrap();
        assert!(answers_challenge(&ring, 60, 100, a, 7, &challenge));
        assert!(!answers_challenge(&ring, 60, 100, a, 8, &challenge), "another connection");
        assert!(!answers_challenge(&ring, 160, 100, a, 7, &challenge), "too late");
        assert!(!answers_challenge(&ring, 60, 100, b, 7, &challenge), "another address");
    }

    #[test]
    fn token_field_carries_address_and_token() {
        let mut field = TokenField::new();
        for client in ["192.0.2.1:1000", "[2001:db8::1]:65535"] {
            let client: SocketAddr = client.parse().unwrap();
            for token in [None, Some(&[7; TOKEN_LENGTH][..]), Some(&[7; WINDOW_TOKEN_LENGTH])] {
                tell_address(client, token, &mut field);
                assert_eq!(read_token_field(&field), (Some(client), token));
            }
        }
        for token in [&[7; TOKEN_LENGTH][..], &[7; WINDOW_TOKEN_LENGTH], &[7; 1]] {
            assert_eq!(read_token_field(token), (None, Some(token)));
        }
    }

    #[test]
    fn a_window_opens_the_same_numbers_wherever_it_is_presented() {
        let mac = |n: u8| MacKey::new(&[n; 16]);
        let key = rivulet_packet::NonceKey { k0: 1, k1: 2 };
        let keys = |n| NonceKeys { original: key, retransmitted: key, opening: mac(n) };
        let service: SocketAddr = "198.51.100.80:80".parse().unwrap();
        let opened = |from: &str, isn, by| {
            let o = open_connection(&keys(5), from.parse().unwrap(), service, isn, by);
            (o.tag, o.first)
        };
        let here = opened("192.0.2.1:1000", 1, OpenedBy::Window(7));
        assert_eq!(here, opened("192.0.2.1:2000", 2, OpenedBy::Window(7)));
        assert_ne!(here, opened("192.0.2.1:1000", 1, OpenedBy::Window(8)));
        assert_ne!(here, opened("192.0.2.2:1000", 1, OpenedBy::Window(7)));
        let token = |from: &str, isn| opened(from, isn, OpenedBy::Token(&[7; 20]));
        assert_ne!(token("192.0.2.1:1000", 1), token("192.0.2.1:2000", 1));
        assert_ne!(token("192.0.2.1:1000", 1), token("192.0.2.1:1000", 2));
    }
}
