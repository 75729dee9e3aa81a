//! Seals stored values, so that an attacker that reaches a store's servers without being a replica
//! of the service can neither read a value, nor change it, nor move it to another key.
//!
//! AES-256-GCM-SIV (RFC 8452) with a key derived from the service's ring of seals. The associated
//! data is the value's key in the store, which names pool, service, replica, incarnation and
//! number, so a value is valid only under its own key. An attacker can restore an older value: a
//! record is used only if [`Record::age`](crate::record::Record::age) and the client's sequence
//! numbers fit it.

use std::sync::Arc;

use aes_gcm_siv::aead::{Aead, AeadInPlace, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};

/// Bytes that sealing adds to a value: format byte, key epoch, nonce and tag.
pub const SEALED: usize = 1 + 2 + NONCE + TAG;
const NONCE: usize = 12;
const TAG: usize = 16;
/// First byte of sealed values, which no unsealed record of older versions begins with.
const FORM: u8 = 0xa5;
/// Context string of the key derivation.
const PURPOSE: &str = "Rivulet TRODS records 2026-11";

/// A service's keys for stored values, by epoch.
#[derive(Clone)]
pub struct RecordKeys(Arc<Keys>);

struct Keys {
    /// The epoch with which new values are sealed.
    usable: u16,
    keys: Vec<(u16, Aes256GcmSiv)>,
}

impl std::fmt::Debug for RecordKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let epochs: Vec<u16> = self.0.keys.iter().map(|(epoch, _)| *epoch).collect();
        write!(f, "RecordKeys({epochs:?}, {} seals)", self.0.usable)
    }
}

impl RecordKeys {
    /// Derives a service's keys from the masters of its live epochs. `usable` is the epoch that
    /// seals; if it is not among them, the oldest one seals, which other replicas most probably
    /// have.
    #[must_use]
    pub fn new(service: u16, usable: u16, masters: &[(u16, [u8; 16])]) -> RecordKeys {
        let derive = |(epoch, master): &(u16, [u8; 16])| {
            let material = [&master[..], &service.to_be_bytes(), &epoch.to_be_bytes()].concat();
            (*epoch, Aes256GcmSiv::new(&blake3::derive_key(PURPOSE, &material).into()))
        };
        let keys: Vec<_> = masters.iter().map(derive).collect();
        let oldest = keys.first().map_or(0, |(epoch, _)| *epoch);
        let usable = if keys.iter().any(|(epoch, _)| *epoch == usable) { usable } else { oldest };
        RecordKeys(Arc::new(Keys { usable, keys }))
    }

    /// The epoch that seals; 0: there is no key, and nothing can be stored.
    #[must_use]
    pub fn usable(&self) -> u16 {
        self.0.usable
    }

    /// The sealing epoch and all epochs: equal values mean equal keys.
    #[must_use]
    pub fn epochs(&self) -> (u16, Vec<u16>) {
        (self.0.usable, self.0.keys.iter().map(|(epoch, _)| *epoch).collect())
    }

    /// Seals a value for this key of the store; `None` without keys.
    #[must_use]
    pub fn seal(&self, place: &str, value: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(SEALED + value.len());
        Sealer::new(self).seal(place, &mut out, |out| out.extend_from_slice(value))?;
        Some(out)
    }

    /// Decrypts a value that a replica of the service sealed for this key; `None` for any other.
    #[must_use]
    pub fn open(&self, place: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let rest = sealed.strip_prefix(&[FORM])?;
        let (epoch, rest) = rest.split_first_chunk::<2>()?;
        let (nonce, msg) = rest.split_first_chunk::<NONCE>()?;
        let cipher = self.cipher(u16::from_be_bytes(*epoch))?;
        cipher.decrypt(Nonce::from_slice(nonce), Payload { msg, aad: associated(place) }).ok()
    }

    fn cipher(&self, epoch: u16) -> Option<&Aes256GcmSiv> {
        self.0.keys.iter().find(|(of, _)| *of == epoch).map(|(_, cipher)| cipher)
    }
}

/// Associated data of a sealed value: its key in the store.
fn associated(place: &str) -> &[u8] {
    place.as_bytes()
}

/// Seals many values, into buffers of the caller. Nonces count up from a random one, because a
/// system call for each would delay every response.
#[derive(Debug)]
pub(super) struct Sealer {
    pub keys: RecordKeys,
    /// The next nonce, after the first random one; its low [`NONCE`] bytes are used.
    next: Option<u128>,
}

impl Sealer {
    pub fn new(keys: &RecordKeys) -> Sealer {
        Sealer { keys: keys.clone(), next: None }
    }

    /// Replaces `out` with the bytes that `write` appends, sealed for this key of the store; `None`
    /// without keys.
    pub fn seal(&mut self, place: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) -> Option<()> {
        let keys = &self.keys.0;
        let cipher = self.keys.cipher(keys.usable)?;
        let next = match self.next {
            Some(next) => next,
            None => {
                let mut random = [0; 16];
                getrandom::fill(&mut random).ok()?;
                u128::from_be_bytes(random)
            }
        };
        // A repeated nonce would reveal only whether the same value was sealed twice (RFC 8452 section 9).
        self.next = Some(next.wrapping_add(1));
        let [_, _, _, _, nonce @ ..] = next.to_be_bytes();
        out.clear();
        out.push(FORM);
        out.extend_from_slice(&keys.usable.to_be_bytes());
        out.extend_from_slice(&nonce);
        write(out);
        let value = out.get_mut(SEALED - TAG..)?;
        let tag =
            cipher.encrypt_in_place_detached(Nonce::from_slice(&nonce), associated(place), value).ok()?;
        out.extend_from_slice(&tag);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: &str = "3-5.1.7.12";

    #[test]
    fn sealed_value_opens_only_under_its_key() {
        let keys = RecordKeys::new(5, 2, &[(1, [1; 16]), (2, [2; 16])]);
        let sealed = keys.seal(PLACE, b"a record").unwrap();
        assert_eq!(sealed.len(), SEALED + 8);
        assert!(!sealed.windows(8).any(|part| part == b"a record"));
        assert_eq!(keys.open(PLACE, &sealed).as_deref(), Some(&b"a record"[..]));
        for place in ["3-5.1.7.13", "3-5.1.8.12", "3-5.2.7.12", "3-6.1.7.12", ""] {
            assert_eq!(keys.open(place, &sealed), None, "{place}");
        }
        assert_ne!(keys.seal(PLACE, b"a record").unwrap(), sealed, "a nonce of its own");
    }

    #[test]
    fn each_sealed_value_has_its_own_nonce() {
        let keys = RecordKeys::new(5, 1, &[(1, [1; 16])]);
        let (mut sealer, mut nonces) = (Sealer::new(&keys), std::collections::HashSet::new());
        // The count of nonces wraps within this test.
        sealer.next = Some(u128::MAX - 2);
        let mut out = b"what was there".to_vec();
        for n in 0..5 {
            sealer.seal(PLACE, &mut out, |out| out.push(n)).unwrap();
            assert_eq!(keys.open(PLACE, &out), Some(vec![n]));
            assert!(nonces.insert(out[3..3 + NONCE].to_vec()));
        }
        assert_ne!(Sealer::new(&keys).seal(PLACE, &mut out, |_| ()).map(|()| out[3..15].to_vec()), None);
        assert!(nonces.insert(out[3..3 + NONCE].to_vec()), "another one begins elsewhere");
    }

    #[test]
    fn changed_or_cut_value_does_not_open() {
        let keys = RecordKeys::new(5, 1, &[(1, [1; 16])]);
        let sealed = keys.seal(PLACE, b"a record").unwrap();
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(keys.open(PLACE, &changed), None, "{at}");
            assert_eq!(keys.open(PLACE, &sealed[..at]), None, "{at}");
        }
        assert_eq!(keys.open(PLACE, &[&sealed[..], b"x"].concat()), None);
    }

    #[test]
    fn keys_belong_to_a_service_and_an_epoch() {
        let of = |service, usable, epochs: &[u16]| {
            let masters: Vec<_> = epochs.iter().map(|epoch| (*epoch, [*epoch as u8; 16])).collect();
            RecordKeys::new(service, usable, &masters)
        };
        let (before, both, after) = (of(5, 1, &[1]), of(5, 2, &[1, 2]), of(5, 2, &[2]));
        let old = before.seal(PLACE, b"x").unwrap();
        let new = both.seal(PLACE, b"x").unwrap();
        let opens = |keys: &RecordKeys, sealed: &[u8]| keys.open(PLACE, sealed).is_some();
        assert_eq!([opens(&both, &old), opens(&both, &new)], [true; 2], "two live epochs");
        assert_eq!([opens(&before, &new), opens(&after, &old), opens(&of(6, 2, &[1, 2]), &new)], [false; 3]);
        assert_eq!((of(5, 9, &[3, 4]).usable(), of(5, 4, &[3, 4]).usable()), (3, 4));
        let none = of(5, 1, &[]);
        assert_eq!((none.usable(), none.seal(PLACE, b"x")), (0, None));
    }
}
