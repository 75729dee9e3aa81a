//! Opens and configures the socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::os;
use crate::{Config, Filter, Interface, LinkInfo, OpenError};

/// Frames of all EtherTypes.
const ALL: u16 = libc::ETH_P_ALL as u16;

/// `PACKET_IGNORE_OUTGOING` for a fanout group, Linux 5.9.
const FANOUT_FLAG_IGNORE_OUTGOING: u32 = 0x4000;

/// The kernel chooses an unused group number.
const FANOUT_FLAG_UNIQUEID: u32 = 0x2000;

/// A number for [`Config::share`] that no group of the interface's namespace uses now.
pub(super) fn unused_share(interface: &Interface) -> Result<u16, OpenError> {
    // The kernel assigns a number only to a bound socket; this one filters out every frame and is
    // closed at once.
    let config =
        Config { filter: Some(Filter::new(&[])?), share: None, promiscuous: false, ..Config::default() };
    let (fd, info) = open(interface, &config)?;
    let fail = |source| os(interface, "PACKET_FANOUT", source);
    let mode = (libc::PACKET_FANOUT_HASH | FANOUT_FLAG_UNIQUEID) << 16;
    option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &(mode as libc::c_int)).map_err(fail)?;
    let (mut group, mut len): (u32, _) = (0, size_of::<u32>() as libc::socklen_t);
    // SAFETY: `group` is `len` writable bytes that live through the call.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_FANOUT,
            (&raw mut group).cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    // `open` derives the group number from this value and the interface index.
    Ok(group as u16 ^ info.index as u16)
}

/// Opens a bound socket and queries its interface.
pub(super) fn open(interface: &Interface, config: &Config) -> Result<(OwnedFd, LinkInfo), OpenError> {
    let fail = |operation| move |source| os(interface, operation, source);
    // Protocol 0: receive nothing before the filter is attached and the socket is bound.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .map_err(|e| os(interface, "socket(AF_PACKET), for root or with CAP_NET_RAW", e.into()))?;
    let info = LinkInfo::query(fd.as_raw_fd(), interface.name()).map_err(|e| match e.raw_os_error() {
        Some(libc::ENODEV) => OpenError::NoSuchInterface(interface.to_string()),
        _ => os(interface, "link state", e),
    })?;

    let set = |level, name, value: libc::c_int| option(fd.as_fd(), level, name, &value);
    set(libc::SOL_PACKET, libc::PACKET_AUXDATA, 1).map_err(fail("PACKET_AUXDATA"))?;
    set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1).map_err(fail("PACKET_VNET_HDR"))?;
    set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1).map_err(fail("PACKET_IGNORE_OUTGOING"))?;
    if config.qdisc_bypass {
        set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1).map_err(fail("PACKET_QDISC_BYPASS"))?;
    }
    if config.mark != 0 {
        option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &config.mark).map_err(fail("SO_MARK"))?;
    }
    set_receive_buffer(fd.as_fd(), config.rx_bytes).map_err(fail("receive buffer"))?;
    set_send_buffer(fd.as_fd(), config.tx_bytes).map_err(fail("send buffer"))?;
    set_filter(fd.as_fd(), config.filter.as_ref()).map_err(fail("SO_ATTACH_FILTER"))?;
    if config.promiscuous {
        let member = libc::packet_mreq {
            mr_ifindex: info.index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)
            .map_err(fail("PACKET_MR_PROMISC"))?;
    }
    bind(fd.as_fd(), info.index, config.ether_type.unwrap_or(ALL)).map_err(fail("bind"))?;
    if let Some(group) = config.share {
        // A group belongs to one interface, and a recreated interface has another index.
        let group = u32::from(group ^ info.index as u16);
        let mode = libc::PACKET_FANOUT_HASH | FANOUT_FLAG_IGNORE_OUTGOING;
        set(libc::SOL_PACKET, libc::PACKET_FANOUT, (group | mode << 16) as libc::c_int)
            .map_err(fail("PACKET_FANOUT"))?;
    }
    Ok((fd, info))
}

/// Index of the interface that a socket is bound to.
pub(super) fn bound_to(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a whole sockaddr_ll, as the length says.
    if unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut addr).cast(), &raw mut len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(addr.sll_ifindex as u32)
}

/// Sets the send buffer in bytes of the kernel's accounting.
pub(super) fn set_send_buffer(fd: BorrowedFd<'_>, octets: usize) -> io::Result<()> {
    let value = before_doubling(octets);
    let forced = sockopt::set_socket_send_buffer_size_force(fd, value);
    Ok(forced.or_else(|_| sockopt::set_socket_send_buffer_size(fd, value))?)
}

/// Sets the receive buffer in bytes of the kernel's accounting.
fn set_receive_buffer(fd: BorrowedFd<'_>, octets: usize) -> io::Result<()> {
    let value = before_doubling(octets);
    let forced = sockopt::set_socket_recv_buffer_size_force(fd, value);
    Ok(forced.or_else(|_| sockopt::set_socket_recv_buffer_size(fd, value))?)
}

/// The kernel takes an int and doubles it. Above its own limit it needs `CAP_NET_ADMIN`; without it
/// the limit applies.
fn before_doubling(octets: usize) -> usize {
    (octets / 2).min((i32::MAX / 2) as usize)
}

fn bind(fd: BorrowedFd<'_>, index: u32, ether_type: u16) -> io::Result<()> {
    // SAFETY: all zero is a valid sockaddr_ll.
    let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    addr.sll_family = libc::AF_PACKET as u16;
    addr.sll_protocol = ether_type.to_be();
    addr.sll_ifindex = index as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a whole sockaddr_ll that lives through the call.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `setsockopt` with a value of a plain C type.
fn option<T>(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is `len` readable bytes that live through the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    if rc != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Switches receive timestamps on or off.
pub(super) fn set_stamps(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &libc::c_int::from(on))
}

/// Attaches the filter, or detaches it.
pub(crate) fn set_filter(fd: BorrowedFd<'_>, filter: Option<&Filter>) -> io::Result<()> {
    let Some(filter) = filter else {
        return match option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0) {
            // No filter was attached.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        };
    };
    let program = libc::sock_fprog {
        len: filter.program().len() as u16,
        // The kernel copies and does not write.
        filter: filter.program().as_ptr().cast_mut(),
    };
    option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Frames the kernel dropped since the last call.
pub(super) fn drops(fd: BorrowedFd<'_>) -> u64 {
    // SAFETY: all zero is a valid tpacket_stats.
    let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: `stats` is `len` writable bytes that live through the call.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &raw mut len,
        )
    };
    if rc == 0 { u64::from(stats.tp_drops) } else { 0 }
}
