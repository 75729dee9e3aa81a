//! State of an interface, queried through any socket of its namespace.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::{Interface, OpenError, in_netns};

/// Present state of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Kernel index; changes when an interface of the same name is recreated.
    pub index: u32,
    /// Payload bytes of a frame, without Ethernet header and VLAN tag.
    pub mtu: u32,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Whether it is administratively up with carrier.
    pub up: bool,
}

impl LinkInfo {
    /// Queries an interface without opening it for packets; needs no privilege.
    pub fn of(interface: &Interface) -> Result<LinkInfo, OpenError> {
        let failed =
            |operation| move |source| OpenError::Os { interface: interface.to_string(), operation, source };
        in_netns(interface.netns(), || {
            let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).map_err(failed("socket"))?;
            LinkInfo::query(socket.as_raw_fd(), interface.name()).map_err(failed("querying the interface"))
        })?
    }

    /// Queries the kernel through `fd`, a socket in the interface's namespace.
    pub(crate) fn query(fd: RawFd, name: &str) -> io::Result<LinkInfo> {
        let mut req = request(name);
        ioctl(fd, libc::SIOCGIFINDEX, &mut req)?;
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        let index = unsafe { req.ifr_ifru.ifru_ifindex } as u32;
        ioctl(fd, libc::SIOCGIFMTU, &mut req)?;
        // SAFETY: as above, SIOCGIFMTU.
        let mtu = unsafe { req.ifr_ifru.ifru_mtu } as u32;
        ioctl(fd, libc::SIOCGIFFLAGS, &mut req)?;
        // SAFETY: as above, SIOCGIFFLAGS.
        let flags = i32::from(unsafe { req.ifr_ifru.ifru_flags });
        ioctl(fd, libc::SIOCGIFHWADDR, &mut req)?;
        // SAFETY: as above, SIOCGIFHWADDR.
        let hw = unsafe { req.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(hw.sa_data) {
            *to = from as u8;
        }
        let up = flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0;
        Ok(LinkInfo { index, mtu, mac, up })
    }
}

fn request(name: &str) -> libc::ifreq {
    // SAFETY: all zero is a valid ifreq.
    let mut req: libc::ifreq = unsafe { std::mem::zeroed() };
    // Leave one zero byte: the kernel reads a C string.
    let room = req.ifr_name.len() - 1;
    for (to, from) in req.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    req
}

fn ioctl(fd: RawFd, op: libc::Ioctl, req: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these operations read and write one ifreq, which `req` is.
    if unsafe { libc::ioctl(fd, op, std::ptr::from_mut(req)) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
