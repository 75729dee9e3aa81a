//! Ethernet II and one 802.1Q tag.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::WireError;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// Tag protocol identifier of 802.1Q.
pub const VLAN: u16 = 0x8100;

/// Addresses and tag of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EthHeader {
    /// Destination MAC address.
    pub dst: [u8; 6],
    /// Source MAC address.
    pub src: [u8; 6],
    /// Tag control information (priority, DEI, VLAN id) of an 802.1Q tag.
    pub vlan: Option<u16>,
}

impl EthHeader {
    /// Bytes on the wire: 14, or 18 with a tag.
    pub fn length(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// Reads the header and the EtherType behind it; the payload starts at [`Self::length`].
    ///
    /// # Errors
    /// [`WireError::EthTruncated`] and [`WireError::EthTagTwice`].
    pub fn parse(frame: &[u8]) -> Result<(Self, u16), WireError> {
        let mut r = Reader::new(frame, WireError::EthTruncated);
        let (dst, src) = (r.array()?, r.array()?);
        let mut ether_type = r.u16()?;
        let mut vlan = None;
        if ether_type == VLAN {
            vlan = Some(r.u16()?);
            let at = r.pos();
            ether_type = r.u16()?;
            if ether_type == VLAN {
                return Err(WireError::EthTagTwice(at));
            }
        }
        Ok((Self { dst, src, vlan }, ether_type))
    }

    /// Fills the first [`Self::length`] bytes of `frame`; false if they are not there.
    #[must_use]
    pub fn fill(&self, frame: &mut [u8], ether_type: u16) -> bool {
        let mut w = Writer::new(frame);
        self.write(&mut w, ether_type);
        w.finish().is_ok()
    }

    pub(crate) fn write(&self, w: &mut Writer<'_>, ether_type: u16) {
        w.bytes(&self.dst);
        w.bytes(&self.src);
        if let Some(tci) = self.vlan {
            w.u16(VLAN);
            w.u16(tci);
        }
        w.u16(ether_type);
    }
}

impl fmt::Display for EthHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mac = |f: &mut fmt::Formatter<'_>, a: &[u8; 6]| {
            write!(f, "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", a[0], a[1], a[2], a[3], a[4], a[5])
        };
        mac(f, &self.src)?;
        f.write_str(" > ")?;
        mac(f, &self.dst)?;
        match self.vlan {
            Some(tci) => write!(f, " vlan {}", tci & 0xfff),
            None => Ok(()),
        }
    }
}
