//! The TAP from which the program takes frames.

use crate::system::{Errno, File};

/// Maximum length of a frame: Ethernet header, VLAN tag, and a packet of 1,500 bytes.
pub const FRAME: usize = 14 + 4 + 1_500;
/// linux/if_tun.h
const TUNSETIFF: usize = 0x4004_54ca;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
/// Size of a name of an interface with its zero byte, and of `struct ifreq` (linux/if.h).
const NAME: usize = 16;
const IFREQ: usize = 40;

/// Attaches to a TAP, or creates it if no interface has this name.
pub fn open(name: &[u8]) -> Result<File, Errno> {
    /// The name does not fit (EINVAL).
    const TOO_LONG: Errno = Errno(22);
    let mut request = [0; IFREQ];
    request[..NAME - 1].get_mut(..name.len()).ok_or(TOO_LONG)?.copy_from_slice(name);
    request[NAME..NAME + 2].copy_from_slice(&(IFF_TAP | IFF_NO_PI).to_ne_bytes());
    let file = File::open(c"/dev/net/tun")?;
    // SAFETY: the request reads and writes one ifreq.
    unsafe { file.ioctl(TUNSETIFF, &mut request) }?;
    Ok(file)
}
