//! Keys: each epoch has one seal master or one nonce set, from which all other keys are derived.
//!
//! The KDF in counter mode of NIST SP 800-108, with AES-CMAC as the PRF, derives seal keys from a
//! 16-byte master. HalfSipHash, CMAC and GCM-SIV never share a key. Several epochs are live at
//! once, so rotation does not break connections (`docs/wire-format.md`, "Keys and derived values").

use alloc::vec::Vec;
use rivulet_packet::nonce::NonceKey;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, Zeroizing};

pub use crate::cmac::MacKey;

/// Maximum number of live epochs of one kind.
pub const MAX_EPOCHS: usize = 64;

/// Whether two byte strings are equal, in time that depends only on their lengths.
pub fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// The keys derived from one seal master.
pub struct SealKeys {
    /// Seals transport continuations.
    pub transport: MacKey,
    /// Seals user continuations.
    pub user: MacKey,
    /// Address tokens.
    pub token: MacKey,
    /// Challenges to a new address.
    pub challenge: MacKey,
    /// Opens new generations when the nonce epoch of the old one is withdrawn.
    pub generation: MacKey,
}

impl SealKeys {
    /// Derives every key of (service, epoch) from its master.
    pub fn derive(master: &[u8; 16], service: u32, epoch: u16) -> Self {
        let prf = MacKey::new(master);
        let key = |label: &[u8]| Zeroizing::new(kdf(&prf, label, service, epoch));
        Self {
            transport: MacKey::new(&key(b"transport")),
            user: MacKey::new(&key(b"user")),
            token: MacKey::new(&key(b"token")),
            challenge: MacKey::new(&key(b"challenge")),
            generation: MacKey::new(&key(b"generation")),
        }
    }
}

/// NIST SP 800-108r1 section 4.1, counter mode, one block: `CMAC(master, [1] || label || 0 || context || [128])` with the
/// context (service, epoch). Counter and length are 32 bits, big-endian.
fn kdf(prf: &MacKey, label: &[u8], service: u32, epoch: u16) -> [u8; 16] {
    let context = service.to_be_bytes();
    prf.mac(&[&1u32.to_be_bytes(), label, &[0], &context, &epoch.to_be_bytes(), &128u32.to_be_bytes()])
}

/// The keys of one nonce epoch, drawn independently.
#[derive(Clone, Debug)]
pub struct NonceKeys {
    /// K: for nonces of originals.
    pub original: NonceKey,
    /// K': for nonces of retransmissions and of answers to PROBE and TIMEOUT.
    pub retransmitted: NonceKey,
    /// The opening key: derives tag, first number, ISN and later generations.
    pub opening: MacKey,
}

impl Drop for NonceKeys {
    fn drop(&mut self) {
        for key in [&mut self.original, &mut self.retransmitted] {
            key.k0.zeroize();
            key.k1.zeroize();
        }
    }
}

/// The live keys of one service.
pub struct KeyRing {
    service: u32,
    seal: Vec<(u16, SealKeys)>,
    nonce: Vec<(u16, NonceKeys)>,
    usable_seal: u16,
    usable_nonce: u16,
}

impl KeyRing {
    /// A ring without keys for `service`. It refuses every step until keys are added and made
    /// usable.
    pub fn new(service: u32) -> Self {
        Self { service, seal: Vec::new(), nonce: Vec::new(), usable_seal: 0, usable_nonce: 0 }
    }

    /// The service these keys are for.
    pub fn service(&self) -> u32 {
        self.service
    }

    /// Adds a seal epoch (1 to 65,535). Replaces the same epoch; drops the oldest one when the ring
    /// is full.
    pub fn add_seal(&mut self, epoch: u16, master: &[u8; 16]) {
        let keys = SealKeys::derive(master, self.service, epoch);
        self.withdraw_seal(epoch);
        if self.seal.len() >= MAX_EPOCHS {
            self.seal.remove(0);
        }
        self.seal.push((epoch, keys));
    }

    /// Adds a nonce epoch (1 to 65,535). Replaces the same epoch; drops the oldest one when the
    /// ring is full.
    pub fn add_nonce(&mut self, epoch: u16, keys: NonceKeys) {
        self.withdraw_nonce(epoch);
        if self.nonce.len() >= MAX_EPOCHS {
            self.nonce.remove(0);
        }
        self.nonce.push((epoch, keys));
    }

    /// Seals with this epoch from now on, unless a trusted ToR names another usable one.
    pub fn use_seal(&mut self, epoch: u16) {
        self.usable_seal = epoch;
    }

    /// Opens connections in this nonce epoch from now on, unless a trusted ToR names another usable
    /// one.
    pub fn use_nonce(&mut self, epoch: u16) {
        self.usable_nonce = epoch;
    }

    /// Removes a seal epoch: continuations sealed under it are refused from now on.
    pub fn withdraw_seal(&mut self, epoch: u16) {
        self.seal.retain(|(e, _)| *e != epoch);
    }

    /// Removes a nonce epoch: its connections can only continue by RESTART.
    pub fn withdraw_nonce(&mut self, epoch: u16) {
        self.nonce.retain(|(e, _)| *e != epoch);
    }

    /// The seal keys of `epoch`, if it is live.
    pub fn seal(&self, epoch: u16) -> Option<&SealKeys> {
        self.seal.iter().rev().find(|(e, _)| *e == epoch).map(|(_, keys)| keys)
    }

    /// The nonce keys of `epoch`, if it is live.
    pub fn nonce(&self, epoch: u16) -> Option<&NonceKeys> {
        self.nonce.iter().rev().find(|(e, _)| *e == epoch).map(|(_, keys)| keys)
    }

    /// The seal epoch to use: the ToR's (0: none named) if this ring has it, else the newest usable
    /// one.
    pub fn sealing_epoch(&self, named_by_tor: u16) -> u16 {
        if named_by_tor != 0 && self.seal(named_by_tor).is_some() { named_by_tor } else { self.usable_seal }
    }

    /// The nonce epoch to open connections in, chosen as in [`KeyRing::sealing_epoch`].
    pub fn opening_epoch(&self, named_by_tor: u16) -> u16 {
        if named_by_tor != 0 && self.nonce(named_by_tor).is_some() { named_by_tor } else { self.usable_nonce }
    }
}

impl core::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let seal: Vec<_> = self.seal.iter().map(|(e, _)| e).collect();
        let nonce: Vec<_> = self.nonce.iter().map(|(e, _)| e).collect();
        f.debug_struct("KeyRing")
            .field("service", &self.service)
            .field("seal", &seal)
            .field("nonce", &nonce)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_services_and_epochs_get_different_keys() {
        let prf = MacKey::new(&[7; 16]);
        let keys = [
            kdf(&prf, b"transport", 1, 1),
            kdf(&prf, b"user", 1, 1),
            kdf(&prf, b"transport", 2, 1),
            kdf(&prf, b"transport", 1, 2),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn ring_is_bounded_and_drops_withdrawn_epochs() {
        let mut ring = KeyRing::new(1);
        for epoch in 1..=MAX_EPOCHS as u16 + 12 {
            ring.add_seal(epoch, &[epoch as u8; 16]);
        }
        assert!(ring.seal(12).is_none() && ring.seal(13).is_some() && ring.seal(20).is_some());
        ring.use_seal(20);
        assert_eq!(ring.sealing_epoch(13), 13);
        assert_eq!(ring.sealing_epoch(12), 20, "the ToR names an epoch that is gone");
        ring.withdraw_seal(20);
        assert!(ring.seal(20).is_none());
    }
}
