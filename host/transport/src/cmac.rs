//! AES-128-CMAC (RFC 4493) over several parts, with the block cipher of the `aes` crate.
//!
//! The `cmac` crate keeps a running state beside the key. A server that seals with one key for a
//! long time would clone a kilobyte for each MAC. Here the key is only read. The whole chain of
//! blocks runs in one call of the cipher's backend, so the CPU's features are detected once.

use aes::cipher::generic_array::typenum::U16;
use aes::cipher::{Block, BlockBackend, BlockClosure, BlockEncrypt, BlockSizeUser, KeyInit};
use aes::{Aes128Enc, cipher::generic_array::GenericArray};
use zeroize::Zeroize;

/// Length in bytes of a block and of a whole MAC.
const BLOCK: usize = 16;

/// An expanded key, for any number of MACs.
#[derive(Clone)]
pub struct MacKey {
    cipher: Aes128Enc,
    /// K1 and K2 of RFC 4493 section 2.3. Blocks are only XORed, so all are kept in native byte
    /// order.
    whole: u128,
    padded: u128,
}

/// Doubling in GF(2^128), from which RFC 4493 derives its subkeys.
fn double(x: u128) -> u128 {
    x << 1 ^ if x >> 127 == 1 { 0x87 } else { 0 }
}

impl MacKey {
    /// Expands `key` for repeated use.
    pub fn new(key: &[u8; 16]) -> Self {
        let cipher = Aes128Enc::new(key.into());
        let mut zero = GenericArray::default();
        cipher.encrypt_block(&mut zero);
        let whole = double(u128::from_be_bytes(zero.into()));
        let native = |x: u128| u128::from_ne_bytes(x.to_be_bytes());
        Self { cipher, whole: native(whole), padded: native(double(whole)) }
    }

    /// The full 16-byte MAC over the concatenation of `parts`.
    pub fn mac(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut mac = [0; BLOCK];
        self.cipher.encrypt_with_backend(Chain { key: self, parts, mac: &mut mac });
        mac
    }

    /// The first 12 bytes of [`MacKey::mac`], as the wire carries it.
    pub fn mac12(&self, parts: &[&[u8]]) -> [u8; 12] {
        let mac = self.mac(parts);
        let mut out = [0; 12];
        out.copy_from_slice(&mac[..12]);
        out
    }
}

/// `aes` clears its own key on drop.
impl Drop for MacKey {
    fn drop(&mut self) {
        self.whole.zeroize();
        self.padded.zeroize();
    }
}

impl core::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("MacKey(..)")
    }
}

/// The chain of blocks of one MAC.
struct Chain<'a> {
    key: &'a MacKey,
    parts: &'a [&'a [u8]],
    mac: &'a mut [u8; BLOCK],
}

impl BlockSizeUser for Chain<'_> {
    type BlockSize = U16;
}

impl BlockClosure for Chain<'_> {
    #[inline(always)]
    fn call<B: BlockBackend<BlockSize = U16>>(self, backend: &mut B) {
        let mut encrypt = |state: u128| {
            let mut block: Block<Self> = state.to_ne_bytes().into();
            backend.proc_block((&mut block).into());
            u128::from_ne_bytes(block.into())
        };
        // `open` holds the block that may be the last; `fill` bytes of it are valid.
        let (mut state, mut open, mut fill) = (0u128, 0u128, 0);
        for part in self.parts {
            let mut rest = *part;
            while !rest.is_empty() {
                if fill == BLOCK {
                    (state, open, fill) = (encrypt(state ^ open), 0, 0);
                }
                if let (0, Some((block, more))) = (fill, rest.split_first_chunk::<BLOCK>()) {
                    (open, fill, rest) = (u128::from_ne_bytes(*block), BLOCK, more);
                    continue;
                }
                let (now, more) = rest.split_at(rest.len().min(BLOCK - fill));
                let mut block = [0; BLOCK];
                block[fill..fill + now.len()].copy_from_slice(now);
                open |= u128::from_ne_bytes(block);
                (fill, rest) = (fill + now.len(), more);
            }
        }
        let last = if fill == BLOCK {
            open ^ self.key.whole
        } else {
            let mut end = [0; BLOCK];
            end[fill] = 0x80;
            open ^ u128::from_ne_bytes(end) ^ self.key.padded
        };
        *self.mac = encrypt(state ^ last).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::cmac::{Cmac, Mac};
    use proptest::prelude::*;

    const KEY: [u8; 16] =
        [0x2b, 0x7e, 0x15, 0x16, 0x28, 0xae, 0xd2, 0xa6, 0xab, 0xf7, 0x15, 0x88, 0x09, 0xcf, 0x4f, 0x3c];

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    }

    /// The examples of RFC 4493 section 4.
    #[test]
    fn is_rfc_4493() {
        let message = hex(concat!(
            "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51",
            "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
        ));
        for (length, want) in [
            (0, "bb1d6929e95937287fa37d129b756746"),
            (16, "070a16b46b4d4144f79bdd9dd04a287c"),
            (40, "dfa66747de9ae63030ca32611497c827"),
            (64, "51f0bebf7e3b9d92fc49741779363cfe"),
        ] {
            assert_eq!(MacKey::new(&KEY).mac(&[&message[..length]])[..], hex(want), "{length} bytes");
        }
    }

    proptest! {
        /// For every split of the message into parts, the MAC equals that of the `cmac` crate for
        /// the whole.
        #[test]
        fn is_that_of_the_cmac_crate_however_it_is_cut(
            key: [u8; 16],
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..6),
        ) {
            let slices: Vec<&[u8]> = parts.iter().map(|p| &p[..]).collect();
            let mut reference = <Cmac<aes::Aes128> as Mac>::new((&key).into());
            reference.update(&parts.concat());
            prop_assert_eq!(MacKey::new(&key).mac(&slices).to_vec(), reference.finalize().into_bytes().to_vec());
        }
    }
}
