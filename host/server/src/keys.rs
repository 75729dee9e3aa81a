//! The keys of a service as they come from a file or from the controller.
//!
//! The file is TOML, written by `rivulet keygen`; every replica of a service holds the same:
//!
//! ```toml
//! service = 1
//! usable_seal = 1
//! usable_nonce = 1
//!
//! [[seal]]
//! epoch = 1
//! master = "000102030405060708090a0b0c0d0e0f"
//!
//! [[nonce]]
//! epoch = 1
//! k = "0001020304050607"
//! k_prime = "08090a0b0c0d0e0f"
//! opening = "000102030405060708090a0b0c0d0e0f"
//! ```
//!
//! and, for plain clients that are answered without state, `usable_cookie = 1` with
//!
//! ```toml
//! [[cookie]]
//! epoch = 1
//! key = "0001020304050607"
//! ```

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rivulet_packet::{NonceKey, TorKey};
use rivulet_plain::{CookieKey, CookieKeys};
use rivulet_transport::{KeyRing, MAX_EPOCHS, MacKey, NonceKeys};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Maximum size of a key file in bytes.
const MAX_FILE: u64 = 64 << 10;

/// Bytes written in hexadecimal; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<const N: usize>(pub [u8; N]);

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{N} bytes>")
    }
}

impl<const N: usize> Serialize for Secret<N> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0.iter().map(|b| format!("{b:02x}")).collect::<String>())
    }
}

impl<'de, const N: usize> Deserialize<'de> for Secret<N> {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let digits = text.len() == 2 * N && text.bytes().all(|b| b.is_ascii_hexdigit());
        let octet = |i: usize| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok();
        let mut out = [0; N];
        for (i, to) in out.iter_mut().enumerate() {
            let value = octet(i).filter(|_| digits);
            *to = value
                .ok_or_else(|| serde::de::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))?;
        }
        Ok(Secret(out))
    }
}

/// A seal epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealKey {
    /// 1 to 65,535.
    pub epoch: u16,
    /// The master that the keys are derived from.
    pub master: Secret<16>,
}

/// A nonce epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NonceEpoch {
    /// 1 to 65,535.
    pub epoch: u16,
    /// K: the words k0 and k1, bytes in little-endian order.
    pub k: Secret<8>,
    /// K': its words k0 and k1, in the same form.
    pub k_prime: Secret<8>,
    /// Key of the opening PRF.
    pub opening: Secret<16>,
}

/// Keys shared with the ToRs in one epoch: one authenticates heartbeats and their answers, the
/// other the blocks of ToRs in other racks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorKeys {
    /// 1 to 65,535; the wire carries its low half.
    pub epoch: u16,
    /// Key for heartbeats and their answers.
    pub heartbeat: Secret<8>,
    /// Key for ToR blocks in tunnels.
    pub block: Secret<8>,
}

/// An epoch of cookies for stateless TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CookieEpoch {
    /// 1 to 65,535; not on the wire.
    pub epoch: u16,
    /// The words k0 and k1, bytes in little-endian order.
    pub key: Secret<8>,
}

impl CookieEpoch {
    fn key(&self) -> CookieKey {
        CookieKey::new(self.key.0)
    }
}

/// All keys of one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySet {
    /// Number of the service, 1 to 65,535.
    pub service: u16,
    /// Newest seal epoch for use where no ToR names one; 0: none yet, and this replica is not
    /// ready.
    pub usable_seal: u16,
    /// Newest nonce epoch for use where no ToR names one; 0: none yet, and this replica is not
    /// ready.
    pub usable_nonce: u16,
    /// Epoch of the heartbeat key; 0 without a ToR.
    #[serde(default)]
    pub usable_tor: u16,
    /// Epoch of the key for new cookies; 0: none yet, and plain clients are not answered without
    /// state.
    #[serde(default)]
    pub usable_cookie: u16,
    /// Live seal epochs.
    pub seal: Vec<SealKey>,
    /// Live nonce epochs.
    pub nonce: Vec<NonceEpoch>,
    /// Live epochs of the keys shared with the ToRs; none without one.
    #[serde(default)]
    pub tor: Vec<TorKeys>,
    /// Live epochs of cookies, oldest first.
    #[serde(default)]
    pub cookie: Vec<CookieEpoch>,
}

/// Why keys are refused.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    /// The file cannot be written.
    #[error("{0}: {1}")]
    Write(PathBuf, #[source] io::Error),
    /// The file is not a key file.
    #[error("{0}: {1}")]
    Parse(PathBuf, #[source] Box<toml::de::Error>),
    /// The keys are inconsistent.
    #[error("keys of service {0}: {1}")]
    Invalid(u16, &'static str),
    /// The system provides no randomness.
    #[error("no random numbers: {0}")]
    Random(#[source] io::Error),
}

impl KeySet {
    /// New keys for `service`, epoch 1 of each kind except the ToRs'.
    pub fn generate(service: u16) -> Result<KeySet, KeyError> {
        let seal = SealKey { epoch: 1, master: random()? };
        let nonce = NonceEpoch { epoch: 1, k: random()?, k_prime: random()?, opening: random()? };
        let set = KeySet {
            service,
            usable_seal: 1,
            usable_nonce: 1,
            usable_tor: 0,
            usable_cookie: 1,
            seal: vec![seal],
            nonce: vec![nonce],
            tor: Vec::new(),
            cookie: vec![CookieEpoch { epoch: 1, key: random()? }],
        };
        set.check()?;
        Ok(set)
    }

    /// Reads a key file. A file that other users can read or change is refused.
    pub fn read(path: &Path) -> Result<KeySet, KeyError> {
        let failed = |e| KeyError::Read(path.into(), e);
        let bytes = rivulet_private_file::read(path, MAX_FILE).map_err(failed)?;
        let text = String::from_utf8(bytes).map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
        let set: KeySet = toml::from_str(&text).map_err(|e| KeyError::Parse(path.into(), Box::new(e)))?;
        set.check()?;
        Ok(set)
    }

    /// Writes a new key file that only its owner can read.
    pub fn write(&self, path: &Path) -> Result<(), KeyError> {
        let text = self.to_toml();
        rivulet_private_file::create(path, text.as_bytes()).map_err(|e| KeyError::Write(path.into(), e))
    }

    /// The text of a key file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Integers, strings and tables always serialize.
        toml::to_string(self).unwrap_or_default()
    }

    /// Checks the rules that the types do not express.
    pub fn check(&self) -> Result<(), KeyError> {
        let rule = |ok: bool, what| if ok { Ok(()) } else { Err(KeyError::Invalid(self.service, what)) };
        let distinct = |epochs: &[u16]| epochs.iter().enumerate().all(|(i, e)| !epochs[..i].contains(e));
        let seal: Vec<u16> = self.seal.iter().map(|k| k.epoch).collect();
        let nonce: Vec<u16> = self.nonce.iter().map(|k| k.epoch).collect();
        let tor: Vec<u16> = self.tor.iter().map(|k| k.epoch).collect();
        let cookie: Vec<u16> = self.cookie.iter().map(|k| k.epoch).collect();
        let kinds = [&seal, &nonce, &tor, &cookie];
        rule(self.service != 0, "the service number is 0")?;
        rule(!kinds.iter().any(|epochs| epochs.contains(&0)), "an epoch is 0")?;
        rule(kinds.iter().all(|epochs| epochs.len() <= MAX_EPOCHS), "more than 64 epochs of one kind")?;
        rule(kinds.iter().all(|epochs| distinct(epochs)), "an epoch stands twice")?;
        // 0: none is usable yet; keys are distributed to all replicas before the first use.
        let usable = |epochs: &[u16], epoch| epoch == 0 || epochs.contains(&epoch);
        rule(usable(&seal, self.usable_seal), "the usable seal epoch has no key")?;
        rule(usable(&nonce, self.usable_nonce), "the usable nonce epoch has no key")?;
        rule(usable(&tor, self.usable_tor), "the usable epoch of the ToRs' keys has no key")?;
        rule(usable(&cookie, self.usable_cookie), "the usable cookie epoch has no key")?;
        rule(self.nonce.iter().all(|n| n.k != n.k_prime), "K and K' of an epoch are equal")
    }

    /// The heartbeat key with the low half of its epoch, if there is one.
    #[must_use]
    pub fn beat_key(&self) -> Option<(u8, TorKey)> {
        let of = self.tor.iter().find(|k| k.epoch == self.usable_tor)?;
        Some((of.epoch as u8, TorKey::new(of.heartbeat.0)))
    }

    /// The key for ToR blocks of the newest epoch with this low half.
    #[must_use]
    pub fn block_key(&self, epoch: u8) -> Option<TorKey> {
        let of = self.tor.iter().rev().find(|k| k.epoch as u8 == epoch)?;
        Some(TorKey::new(of.block.0))
    }

    /// The key for new cookies, and up to two others that verify cookies: the newest from `epoch`
    /// on (0: all). `None` while no such key is usable.
    #[must_use]
    pub fn cookies(&self, epoch: u16) -> Option<CookieKeys> {
        let keys = self.cookie.get(self.cookies_before(epoch)..)?;
        let current = keys.iter().find(|k| k.epoch == self.usable_cookie).map(CookieEpoch::key)?;
        let mut others = keys.iter().rev().filter(|k| k.epoch != self.usable_cookie).map(CookieEpoch::key);
        Some(CookieKeys { current, others: [others.next(), others.next()] })
    }

    /// Keys that recognise cookies from before this epoch, the newest three; `None` without any.
    #[must_use]
    pub fn former_cookies(&self, epoch: u16) -> Option<CookieKeys> {
        let mut keys = self.cookie.get(..self.cookies_before(epoch))?.iter().rev().map(CookieEpoch::key);
        Some(CookieKeys { current: keys.next()?, others: [keys.next(), keys.next()] })
    }

    /// The number of cookie keys older than this epoch's. A withdrawn epoch counts as older than
    /// all present ones.
    fn cookies_before(&self, epoch: u16) -> usize {
        self.cookie.iter().position(|k| k.epoch == epoch).unwrap_or(0)
    }

    /// Converts the keys for the transport.
    #[must_use]
    pub fn ring(&self) -> KeyRing {
        let mut ring = KeyRing::new(u32::from(self.service));
        for seal in &self.seal {
            ring.add_seal(seal.epoch, &seal.master.0);
        }
        for nonce in &self.nonce {
            let keys = NonceKeys {
                original: words(&nonce.k),
                retransmitted: words(&nonce.k_prime),
                opening: MacKey::new(&nonce.opening.0),
            };
            ring.add_nonce(nonce.epoch, keys);
        }
        ring.use_seal(self.usable_seal);
        ring.use_nonce(self.usable_nonce);
        ring
    }
}

fn words(key: &Secret<8>) -> NonceKey {
    let [a, b, c, d, e, f, g, h] = key.0;
    NonceKey { k0: u32::from_le_bytes([a, b, c, d]), k1: u32::from_le_bytes([e, f, g, h]) }
}

fn random<const N: usize>() -> Result<Secret<N>, KeyError> {
    let mut out = [0; N];
    getrandom::fill(&mut out).map_err(|e| KeyError::Random(io::Error::other(e)))?;
    Ok(Secret(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_round_trips() {
        let set = KeySet::generate(7).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        set.write(&path).unwrap();
        assert_eq!(KeySet::read(&path).unwrap(), set);
        assert_ne!(KeySet::generate(7).unwrap(), set, "keys are random");
        let ring = set.ring();
        assert!(ring.seal(1).is_some() && ring.nonce(1).is_some() && ring.opening_epoch(0) == 1);
    }

    #[test]
    fn keys_may_be_held_before_any_is_usable() {
        let set = KeySet { usable_seal: 0, usable_nonce: 0, ..KeySet::generate(7).unwrap() };
        set.check().unwrap();
        assert_eq!(KeySet { usable_cookie: 0, ..set.clone() }.cookies(0), None);
        let ring = set.ring();
        assert_eq!((ring.sealing_epoch(0), ring.opening_epoch(0)), (0, 0), "so the heartbeat says not ready");
        assert_eq!((ring.sealing_epoch(1), ring.opening_epoch(1)), (1, 1), "what the ToR names is used");
    }

    #[test]
    fn cookies_are_made_with_the_usable_epoch_and_read_with_the_newest_others() {
        let epochs = |list: &[u16]| -> Vec<CookieEpoch> {
            list.iter().map(|&epoch| CookieEpoch { epoch, key: Secret([epoch as u8; 8]) }).collect()
        };
        let found = |list: &[u16], usable_cookie| {
            let set = KeySet { cookie: epochs(list), usable_cookie, ..KeySet::generate(7).unwrap() };
            set.check().unwrap();
            set.cookies(0)
        };
        let key = |epoch: u8| CookieKey::new([epoch; 8]);
        let keys = |current, others: [Option<u8>; 2]| CookieKeys {
            current: key(current),
            others: others.map(|o| o.map(key)),
        };
        assert_eq!(found(&[1, 2, 3], 2), Some(keys(2, [Some(3), Some(1)])));
        assert_eq!(found(&[1, 2, 3, 4], 3), Some(keys(3, [Some(4), Some(2)])));
        assert_eq!(found(&[9], 9), Some(keys(9, [None, None])));
        assert_eq!((found(&[9], 0), found(&[], 0)), (None, None));
        // From an epoch on, and before it.
        let set =
            KeySet { cookie: epochs(&[1, 2, 3, 4, 5]), usable_cookie: 4, ..KeySet::generate(7).unwrap() };
        assert_eq!(set.cookies(4), Some(keys(4, [Some(5), None])));
        assert_eq!(set.former_cookies(4), Some(keys(3, [Some(2), Some(1)])));
        assert_eq!(set.cookies(5), None, "what is made is of before");
        // All remaining keys are newer than a withdrawn one.
        assert_eq!((set.cookies(9), set.former_cookies(9)), (set.cookies(0), None));
        assert_eq!((set.former_cookies(0), set.former_cookies(1)), (None, None));
        // A key file of an earlier version has none.
        let set = KeySet { cookie: Vec::new(), usable_cookie: 0, ..KeySet::generate(7).unwrap() };
        let text = set.to_toml().replace("usable_cookie = 0\n", "").replace("cookie = []\n", "");
        assert!(!text.contains("cookie"));
        assert_eq!(toml::from_str::<KeySet>(&text).unwrap(), set);
    }

    #[test]
    fn secrets_are_not_shown() {
        let set = KeySet::generate(7).unwrap();
        let digits = toml::Value::try_from(&set.seal[0]).unwrap()["master"].as_str().unwrap().to_owned();
        assert!(!format!("{set:?}").contains(&digits));
    }

    #[test]
    fn bad_files_are_errors() {
        let good = KeySet::generate(7).unwrap().to_toml();
        let cases = [
            good.replace("usable_seal = 1", "usable_seal = 2"),
            good.replace("usable_cookie = 1", "usable_cookie = 2"),
            good.clone() + "[[cookie]]\nepoch = 1\nkey = \"0001020304050607\"\n",
            good.clone() + "[[cookie]]\nepoch = 2\nkey = \"00010203040506\"\n",
            good.replace("service = 7", "service = 0"),
            good.replace("service = 7", "service = 70000"),
            good.replace("epoch = 1", "epoch = 0"),
            good.replace("master = \"", "master = \"0"),
            good.replace("master = \"", "master = \"\u{e9}"),
            good.replace("master", "slave"),
            good.clone() + "[[seal]]\nepoch = 1\nmaster = \"000102030405060708090a0b0c0d0e0f\"\n",
            String::new(),
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        for text in cases {
            let _ = std::fs::remove_file(&path);
            rivulet_private_file::create(&path, text.as_bytes()).unwrap();
            let error = KeySet::read(&path).expect_err(&text);
            assert!(!error.to_string().is_empty());
        }
    }
}
