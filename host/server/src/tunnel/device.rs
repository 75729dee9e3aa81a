//! A TUN device through which plain TCP from a tunnel reaches the kernel.
//!
//! The kernel's own IP-in-IP and GUE devices are modules that not every system has, and they would
//! take our segments too.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rivulet_pktio::in_netns;

/// The device; dropping it removes it.
#[derive(Debug)]
pub(super) struct Device(File);

impl Device {
    /// Makes `rivuletN` in the namespace of the interface and sets it up. Needs `CAP_NET_ADMIN`.
    pub fn open(netns: Option<&str>) -> io::Result<Device> {
        in_netns(netns, open).map_err(io::Error::other)?
    }

    /// Passes an IP packet to the kernel as if it had arrived on a wire. Without room the packet is
    /// lost.
    pub fn deliver(&mut self, packet: &[u8]) -> io::Result<()> {
        self.0.write_all(packet)
    }
}

fn open() -> io::Result<Device> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    // SAFETY: all zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"rivulet%d") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an ifreq with a terminated name, which the kernel reads and writes.
    check(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let name: Vec<u8> = request.ifr_name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
    let name = String::from_utf8(name).map_err(io::Error::other)?;
    // Packets on the device have arbitrary sources, and the return route never uses it, so strict
    // reverse-path filtering would drop them. The larger of this value and `all` applies, and a
    // device without an address does not pass even the loose filter. Without the file there is no
    // filter.
    let _ = std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0");
    // Nothing is sent on it, so it needs no address and no solicitations.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/addr_gen_mode"), "1");
    let socket =
        std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: as above; any socket works.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })?;
    Ok(Device(file))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
