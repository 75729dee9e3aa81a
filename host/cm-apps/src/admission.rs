//! Address validation: a receiver must repeat a cookie from its own address. Otherwise a forged
//! source address could direct megabits at a victim.

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::wire::Cookie;

/// Makes and verifies cookies without keeping state about receivers.
#[derive(Debug)]
pub struct Admission {
    key: [u8; 32],
}

impl Admission {
    /// Creates a random key for this process.
    ///
    /// # Errors
    /// The kernel provides no random bytes.
    pub fn new() -> io::Result<Admission> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        Ok(Admission { key })
    }

    /// The cookie that a receiver at this address must repeat.
    #[must_use]
    pub fn cookie(&self, of: SocketAddr) -> Cookie {
        let address = match of.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let mut message = [0; 18];
        message[..16].copy_from_slice(&address);
        message[16..].copy_from_slice(&of.port().to_be_bytes());
        let hash = blake3::keyed_hash(&self.key, &message);
        let mut cookie = Cookie::default();
        cookie.copy_from_slice(&hash.as_bytes()[..16]);
        cookie
    }

    /// Whether the cookie belongs to this address, compared in constant time.
    #[must_use]
    pub fn admits(&self, of: SocketAddr, cookie: &Cookie) -> bool {
        let right = self.cookie(of);
        right.iter().zip(cookie).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_is_bound_to_address_and_process() {
        let (one, two) = (Admission::new().unwrap(), Admission::new().unwrap());
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let cookie = one.cookie(at("192.0.2.1:5000"));
        assert!(one.admits(at("192.0.2.1:5000"), &cookie));
        // A dual-stack socket reports an IPv4 address this way.
        assert!(one.admits(at("[::ffff:192.0.2.1]:5000"), &cookie));
        for other in ["192.0.2.1:5001", "192.0.2.2:5000", "[2001:db8::1]:5000"] {
            assert!(!one.admits(at(other), &cookie), "{other}");
        }
        assert!(!two.admits(at("192.0.2.1:5000"), &cookie));
        assert!(!one.admits(at("192.0.2.1:5000"), &Cookie::default()));
    }
}
