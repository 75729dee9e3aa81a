//! Session tickets under keys that replicas share, so that a client resumes its session at any of them.
//!
//! A ticket has the name of its key, a nonce, and sealed content: the time of issue in seconds and
//! the session. Any replica can open it, and none stores it.

use std::fmt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::digest;
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

use crate::file_error::FileError;

/// Length of a key, bytes.
const KEY_BYTES: usize = 32;
/// Most keys of a file.
const MAX_KEYS: usize = 16;
const MAX_FILE_BYTES: u64 = 16 << 10;
/// Bytes of a key's name.
const NAME_BYTES: usize = 16;
/// Bytes of the issue time.
const TIME_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

/// Seconds for which a ticket can be used.
const LIFETIME_S: u64 = 12 * 3600;
/// Seconds by which the clock of the replica that issued a ticket may be ahead of ours.
const MAX_CLOCK_LEAD_S: u64 = 300;
/// A longer ticket could only hold a client's certificate chain, and clients with certificates get
/// no tickets.
const MAX_TICKET_BYTES: usize = 4096;

/// A key of session tickets. `{:?}` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey(Zeroizing<[u8; KEY_BYTES]>);

impl TicketKey {
    /// Makes a key from these bytes.
    #[must_use]
    pub fn new(secret: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(secret))
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey(..)")
    }
}

struct Key {
    name: [u8; NAME_BYTES],
    key: LessSafeKey,
}

impl Key {
    fn new(secret: &[u8; KEY_BYTES]) -> Self {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"rivulet ticket key name");
        context.update(secret);
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&context.finish().as_ref()[..NAME_BYTES]);
        let key = UnboundKey::new(&CHACHA20_POLY1305, secret).expect("the key has the cipher's length");
        Self { name, key: LessSafeKey::new(key) }
    }
}

/// Session ticket keys. The first one seals, and all of them open.
pub(crate) struct TicketKeys(Vec<Key>);

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TicketKeys").field(&self.0.len()).finish()
    }
}

impl TicketKeys {
    /// Reads a file that has a key of 64 hexadecimal digits on each line. Empty lines and those that begin with `#` are
    /// skipped.
    pub(crate) fn read(path: &Path) -> Result<Self, FileError> {
        let error = |problem: String| FileError::new(path, problem);
        let bytes = rivulet_private_file::read(path, MAX_FILE_BYTES).map_err(|e| error(e.to_string()))?;
        let bytes = Zeroizing::new(bytes);
        let mut keys = Vec::new();
        for (n, line) in bytes.split(|&b| b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let secret = parse_hex(line).ok_or_else(|| {
                error(format!("line {}: a key has 64 hexadecimal digits (`openssl rand -hex 32`)", n + 1))
            })?;
            keys.push(Key::new(&secret));
        }
        match keys.len() {
            0 => Err(error("it holds no key: write one with `openssl rand -hex 32`".into())),
            count if count > MAX_KEYS => Err(error(format!("it holds {count} keys, {MAX_KEYS} at most"))),
            _ => Ok(Self(keys)),
        }
    }

    pub(crate) fn given(keys: &[TicketKey]) -> Self {
        Self(keys.iter().map(|key| Key::new(&key.0)).collect())
    }

    fn seal(&self, session: &[u8], now: u64) -> Option<Vec<u8>> {
        let key = self.0.first()?;
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).ok()?;
        let start = NAME_BYTES + NONCE_LEN;
        let mut ticket = Vec::with_capacity(start + TIME_BYTES + session.len() + TAG_BYTES);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(&now.to_be_bytes());
        ticket.extend_from_slice(session);
        let tag = key
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(key.name),
                &mut ticket[start..],
            )
            .ok()?;
        ticket.extend_from_slice(tag.as_ref());
        (ticket.len() <= MAX_TICKET_BYTES).then_some(ticket)
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        if ticket.len() > MAX_TICKET_BYTES {
            return None;
        }
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        // Key names are public, so the comparison need not take constant time.
        let key = self.0.iter().find(|key| key.name == *name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = key.key.open_in_place(nonce, Aad::from(key.name), &mut sealed).ok()?;
        let (issued, session) = opened.split_first_chunk::<TIME_BYTES>()?;
        let issued = u64::from_be_bytes(*issued);
        let is_good = issued <= now + MAX_CLOCK_LEAD_S && now.saturating_sub(issued) <= LIFETIME_S;
        is_good.then(|| session.to_vec())
    }
}

impl ProducesTickets for TicketKeys {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_S as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, now())
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn parse_hex(text: &[u8]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    if pairs.len() != KEY_BYTES {
        return None;
    }
    let digit = |b: u8| char::from(b).to_digit(16);
    for (byte, [high, low]) in key.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(seeds: &[u8]) -> TicketKeys {
        TicketKeys(seeds.iter().map(|&seed| Key::new(&[seed; KEY_BYTES])).collect())
    }

    #[test]
    fn ticket_opens_at_each_replica_with_its_key() {
        let ticket = keys(&[1]).seal(b"session", 1_000_000).unwrap();
        assert_eq!(keys(&[2, 1]).open(&ticket, 1_000_000).as_deref(), Some(&b"session"[..]));
        assert_eq!(keys(&[2]).open(&ticket, 1_000_000), None);
    }

    #[test]
    fn old_ticket_is_refused() {
        let (keys, issued) = (keys(&[1]), 1_000_000);
        let ticket = keys.seal(b"session", issued).unwrap();
        assert!(keys.open(&ticket, issued + LIFETIME_S).is_some());
        assert!(keys.open(&ticket, issued + LIFETIME_S + 1).is_none());
        assert!(keys.open(&ticket, issued - MAX_CLOCK_LEAD_S).is_some());
        assert!(keys.open(&ticket, issued - MAX_CLOCK_LEAD_S - 1).is_none());
    }

    #[test]
    fn changed_or_cut_ticket_is_refused() {
        let keys = keys(&[1]);
        let ticket = keys.seal(b"session", 1_000_000).unwrap();
        for n in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[n] ^= 1;
            assert_eq!(keys.open(&changed, 1_000_000), None, "byte {n}");
            assert_eq!(keys.open(&ticket[..n], 1_000_000), None, "{n} bytes");
        }
        assert_eq!(keys.open(&[0; MAX_TICKET_BYTES + 1], 1_000_000), None);
    }

    #[test]
    fn key_file_errors_name_file_line_and_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, content: String| {
            let path = folder.path().join(name);
            rivulet_private_file::create(&path, content.as_bytes()).unwrap();
            TicketKeys::read(&path).map(|keys| keys.0.len()).map_err(|e| e.to_string())
        };
        let (first, second) = ("ab".repeat(32), "CD".repeat(32));
        assert_eq!(read("two", format!("# of May\n{first}\n\n{second}")), Ok(2));
        let error = read("short", format!("{first}\n{}", "ab".repeat(31))).unwrap_err();
        assert!(error.contains("short: line 2") && error.contains("openssl rand -hex 32"), "{error}");
        assert!(read("digits", "xy".repeat(32)).is_err());
        assert!(read("none", "# nothing\n".into()).unwrap_err().contains("no key"));
        assert!(read("many", format!("{first}\n").repeat(17)).unwrap_err().contains("17 keys"));
        assert!(TicketKeys::read(&folder.path().join("away")).is_err());
    }
}
