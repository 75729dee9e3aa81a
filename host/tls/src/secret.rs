//! Traffic secrets (RFC 8446 section 7): keys, and the secret of the next generation.

use std::fmt;

use ring::{aead, hkdf};
use zeroize::Zeroizing;

use crate::{Error, seal::RecordKey};

/// Bytes of the longest secret, that of SHA-384.
pub(crate) const MAX_SECRET_BYTES: usize = 48;

/// The cipher suites of TLS 1.3 that this crate supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CipherSuite {
    /// `TLS_AES_128_GCM_SHA256`
    Aes128GcmSha256,
    /// `TLS_AES_256_GCM_SHA384`
    Aes256GcmSha384,
    /// `TLS_CHACHA20_POLY1305_SHA256`
    Chacha20Poly1305Sha256,
}

impl CipherSuite {
    /// The suite with this number in a ServerHello (RFC 8446 appendix B.4); `None` if it is not
    /// supported.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        match number {
            0x1301 => Some(Self::Aes128GcmSha256),
            0x1302 => Some(Self::Aes256GcmSha384),
            0x1303 => Some(Self::Chacha20Poly1305Sha256),
            _ => None,
        }
    }

    /// The suite's number in a ServerHello.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Aes128GcmSha256 => 0x1301,
            Self::Aes256GcmSha384 => 0x1302,
            Self::Chacha20Poly1305Sha256 => 0x1303,
        }
    }

    /// Length of the suite's traffic secrets, that of its hash, in bytes.
    #[must_use]
    pub fn secret_bytes(self) -> usize {
        self.hash().hmac_algorithm().digest_algorithm().output_len()
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128GcmSha256 | Self::Chacha20Poly1305Sha256 => hkdf::HKDF_SHA256,
            Self::Aes256GcmSha384 => hkdf::HKDF_SHA384,
        }
    }

    fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128GcmSha256 => &aead::AES_128_GCM,
            Self::Aes256GcmSha384 => &aead::AES_256_GCM,
            Self::Chacha20Poly1305Sha256 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// An application traffic secret of one generation and direction. It is wiped when it is dropped, and `{:?}` hides it.
#[derive(Clone)]
pub struct TrafficSecret {
    suite: CipherSuite,
    /// The secret, padded with zeros.
    bytes: Zeroizing<[u8; MAX_SECRET_BYTES]>,
}

impl TrafficSecret {
    /// `secret` is `server_application_traffic_secret_N` or the client's, as a key log has it.
    ///
    /// # Errors
    /// [`Error::SecretLength`].
    pub fn new(suite: CipherSuite, secret: &[u8]) -> Result<Self, Error> {
        let expected = suite.secret_bytes();
        if secret.len() != expected {
            return Err(Error::SecretLength { expected, actual: secret.len() });
        }
        let mut bytes = Zeroizing::new([0; MAX_SECRET_BYTES]);
        bytes[..expected].copy_from_slice(secret);
        Ok(Self { suite, bytes })
    }

    /// The cipher suite of the secret.
    #[must_use]
    pub fn suite(&self) -> CipherSuite {
        self.suite
    }

    /// The secret itself.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.suite.secret_bytes()]
    }

    /// The secret of the next generation, which a KeyUpdate begins (section 7.2). Its records are counted from 0.
    #[must_use]
    pub fn next_generation(&self) -> Self {
        let mut next = Self { suite: self.suite, bytes: Zeroizing::new([0; MAX_SECRET_BYTES]) };
        self.expand_label(b"traffic upd", &mut next.bytes[..self.suite.secret_bytes()]);
        next
    }

    /// The key and the initial vector (section 7.3).
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        let algorithm = self.suite.aead();
        let mut key = Zeroizing::new([0; 32]);
        let key = &mut key[..algorithm.key_len()];
        let mut iv = [0; aead::NONCE_LEN];
        self.expand_label(b"key", key);
        self.expand_label(b"iv", &mut iv);
        let key = aead::UnboundKey::new(algorithm, key).expect("the key has the algorithm's length");
        RecordKey::new(aead::LessSafeKey::new(key), iv)
    }

    /// HKDF-Expand-Label with an empty context (section 7.1).
    fn expand_label(&self, label: &[u8], out: &mut [u8]) {
        const PREFIX: &[u8] = b"tls13 ";
        let length = (out.len() as u16).to_be_bytes();
        let label_length = [(PREFIX.len() + label.len()) as u8];
        let info = [&length[..], &label_length, PREFIX, label, &[0]];
        hkdf::Prk::new_less_safe(self.suite.hash(), self.bytes())
            .expand(&info, OutputLength(out.len()))
            .and_then(|okm| okm.fill(out))
            .expect("no output is longer than 255 hashes");
    }
}

impl fmt::Debug for TrafficSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficSecret").field("suite", &self.suite).finish_non_exhaustive()
    }
}

/// ring's type for the length of an output.
struct OutputLength(usize);

impl hkdf::KeyType for OutputLength {
    fn len(&self) -> usize {
        self.0
    }
}
