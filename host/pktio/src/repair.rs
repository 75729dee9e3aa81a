//! Connections that the kernel's TCP takes over from whoever made their handshake (`TCP_REPAIR`, tcp(7) and CRIU): a socket
//! is set up with the numbers of a connection that exists, no packet is sent, and the peer notices nothing.
//!
//! Sequence numbers go in before the connection, what the two SYNs agreed on behind it, and the maximum segment size before it:
//! the kernel cuts by the size that it knew when it connected.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt};

use crate::in_netns;

/// linux/tcp.h: the values of `TCP_REPAIR`.
const ON: i32 = 1;
/// Without a window probe, which a client that has had nothing yet would take for a segment from the past.
const OFF: i32 = -1;
/// linux/tcp.h: the queues.
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
/// Option kinds (RFC 9293, RFC 7323, RFC 2018).
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// net/tcp.h: what the kernel takes for a segment size.
const MIN_MSS: u16 = 88;
const MAX_MSS: u16 = 32_767;

/// struct tcp_repair_opt
#[repr(C)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// struct tcp_repair_window
#[repr(C)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// A connection as its two ends know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Our address and port; the address must stand on this host.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// The next sequence number that we send. Nothing is unacknowledged.
    pub send_next: u32,
    /// The next that we await.
    pub receive_next: u32,
    /// Octets that the peer takes.
    pub send_window: u32,
    /// Octets that we said we take.
    pub receive_window: u32,
    /// The peer's maximum segment size as in its SYN: the room for options is in it. Below 88 and above 32,767 it counts as
    /// these, which are the kernel's bounds.
    pub mss: u16,
    /// Shifts of the windows (RFC 7323), if both SYNs had one: the peer's and ours.
    pub scales: Option<(u8, u8)>,
    /// Whether both ends take SACK blocks.
    pub sack: bool,
    /// On a connection with timestamps our next TSval, rounded up to an even one: the kernel takes the lowest bit for another unit.
    /// It grows by one each millisecond.
    pub timestamp: Option<u32>,
}

/// Why the kernel does not take a connection over.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct RepairError {
    /// The system call or option.
    pub step: &'static str,
    /// Its error. `EADDRNOTAVAIL` of `connect`: it has a connection between these addresses and ports, or one that ended lately.
    pub source: io::Error,
}

/// Whether this process may use `TCP_REPAIR`, and the kernel has it.
///
/// # Errors
/// Why not, in words for the operator.
pub fn check() -> Result<(), RepairError> {
    permitted().map(drop)
}

fn permitted() -> Result<OwnedFd, RepairError> {
    let right = |e: RepairError| match e.source.kind() {
        io::ErrorKind::PermissionDenied => RepairError { step: "it needs root, or CAP_NET_ADMIN", ..e },
        _ => e,
    };
    repaired(AddressFamily::INET).map_err(right)
}

/// Whether this process may take over connections of this port, which others may use.
///
/// # Errors
/// As of [`check`].
pub fn check_port(port: u16) -> Result<(), RepairError> {
    let right = |e: rustix::io::Errno| match e {
        rustix::io::Errno::ACCESS => {
            RepairError { step: "its port needs root, or CAP_NET_BIND_SERVICE", source: e.into() }
        }
        _ => of("bind")(e),
    };
    // With TCP_REPAIR nobody else's use of the port is in the way.
    bind(&permitted()?, &SocketAddr::from(([127, 0, 0, 1], port))).map_err(right)
}

/// Has the kernel take a connection over, in a network namespace (a name of `ip netns` or a path) or the calling thread's.
/// Nothing is sent. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// [`RepairError`]; nothing is left behind.
pub fn restore(connection: &Connection, netns: Option<&str>) -> Result<TcpStream, RepairError> {
    let entered = in_netns(netns, || established(connection));
    entered.map_err(|e| RepairError { step: "the namespace", source: io::Error::other(e) })?
}

/// Has a connection's TSval go on from this value, rounded up to an even one. Nobody may read from the stream or write to it at the same time:
/// what they do fails.
///
/// # Errors
/// As of [`restore`]. A connection that ended meanwhile has none.
pub fn set_timestamp(stream: &TcpStream, value: u32) -> Result<(), RepairError> {
    set(stream, libc::TCP_REPAIR, &[ON], "TCP_REPAIR")?;
    let done = set(stream, libc::TCP_TIMESTAMP, &[even(value)], "TCP_TIMESTAMP");
    off(stream)?;
    done
}

/// Octets that were written and are not acknowledged, FIN among them.
///
/// # Errors
/// The system's.
pub fn unacknowledged(stream: &TcpStream) -> io::Result<u32> {
    let mut octets: libc::c_int = 0;
    // SAFETY: the request writes one int, to which the pointer points.
    if unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u32::try_from(octets).unwrap_or(0))
}

fn established(connection: &Connection) -> Result<TcpStream, RepairError> {
    let family = if connection.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = repaired(family)?;
    for (queue, next) in [(SEND_QUEUE, connection.send_next), (RECEIVE_QUEUE, connection.receive_next)] {
        set(&socket, libc::TCP_REPAIR_QUEUE, &[queue], "TCP_REPAIR_QUEUE")?;
        set(&socket, libc::TCP_QUEUE_SEQ, &[next], "TCP_QUEUE_SEQ")?;
    }
    let mss = connection.mss.clamp(MIN_MSS, MAX_MSS);
    set(&socket, libc::TCP_MAXSEG, &[i32::from(mss)], "TCP_MAXSEG")?;
    bind(&socket, &connection.local).map_err(of("bind"))?;
    connect(&socket, &connection.remote).map_err(of("connect"))?;
    let mut options = [const { RepairOption { code: 0, value: 0 } }; 4];
    // Without an option the kernel would go on to scale its window by what it would have said in a SYN of its own.
    let (theirs, ours) = connection.scales.unwrap_or_default();
    let agreed = [
        Some((MSS, mss.into())),
        Some((WINDOW_SCALE, u32::from(theirs) | u32::from(ours) << 16)),
        connection.sack.then_some((SACK_PERMITTED, 0)),
        connection.timestamp.map(|_| (TIMESTAMPS, 0)),
    ];
    let mut count = 0;
    for ((code, value), to) in agreed.into_iter().flatten().zip(&mut options) {
        *to = RepairOption { code, value };
        count += 1;
    }
    set(&socket, libc::TCP_REPAIR_OPTIONS, &options[..count], "TCP_REPAIR_OPTIONS")?;
    let window = RepairWindow {
        snd_wl1: connection.receive_next,
        snd_wnd: connection.send_window,
        max_window: connection.send_window.max(1),
        rcv_wnd: connection.receive_window,
        rcv_wup: connection.receive_next,
    };
    set(&socket, libc::TCP_REPAIR_WINDOW, &[window], "TCP_REPAIR_WINDOW")?;
    if let Some(value) = connection.timestamp {
        set(&socket, libc::TCP_TIMESTAMP, &[even(value)], "TCP_TIMESTAMP")?;
    }
    off(&socket)?;
    Ok(socket.into())
}

/// The lowest bit is no part of the value but says that its unit is the microsecond.
fn even(value: u32) -> u32 {
    value.wrapping_add(1) & !1
}

/// Ends the repair, at which the kernel has the socket share its port with nobody: a listener may want it as long as the
/// connection lasts.
fn off(socket: &impl AsFd) -> Result<(), RepairError> {
    set(socket, libc::TCP_REPAIR, &[OFF], "TCP_REPAIR off")?;
    sockopt::set_socket_reuseaddr(socket, true).map_err(of("SO_REUSEADDR"))
}

fn repaired(family: AddressFamily) -> Result<OwnedFd, RepairError> {
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP));
    let socket = socket.map_err(of("socket"))?;
    set(&socket, libc::TCP_REPAIR, &[ON], "TCP_REPAIR")?;
    Ok(socket)
}

fn of(step: &'static str) -> impl Fn(rustix::io::Errno) -> RepairError {
    move |e| RepairError { step, source: e.into() }
}

/// Sets an option of TCP that no library knows, to an array of the C structure that it takes.
fn set<T>(socket: &impl AsFd, name: i32, value: &[T], step: &'static str) -> Result<(), RepairError> {
    let (at, length) = (value.as_ptr().cast(), size_of_val(value) as libc::socklen_t);
    // SAFETY: pointer and length are those of `value`, which is read only.
    match unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, name, at, length) } {
        0 => Ok(()),
        _ => Err(RepairError { step, source: io::Error::last_os_error() }),
    }
}
