//! Transfers a TCP connection to the kernel after another stack made the handshake (`TCP_REPAIR`,
//! tcp(7) and CRIU). A socket is given the sequence numbers of the existing connection, no packet
//! is sent, and the peer notices nothing.
//!
//! Order: sequence numbers before connect; options agreed in the SYNs after it; the maximum segment
//! size before it, because the kernel derives its segment size when it connects.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, connect, ipproto, send, socket_with, sockopt,
};

use crate::in_netns;

/// linux/tcp.h: the values of `TCP_REPAIR`.
const ON: i32 = 1;
/// Without a window probe, which a client without any data so far would treat as an old duplicate.
const OFF: i32 = -1;
/// linux/tcp.h: the queues.
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
/// Option kinds (RFC 9293, RFC 7323, RFC 2018).
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

/// linux/tcp.h: `tcpi_options`.
const WITH_TIMESTAMPS: u8 = 1;
const WITH_SACK: u8 = 2;
const WITH_SCALES: u8 = 4;

/// net/tcp.h: bounds of the segment size.
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

/// State of a connection at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Local address and port; this host must have the address.
    pub local: SocketAddr,
    /// The peer's address and port.
    pub remote: SocketAddr,
    /// Sequence number that the peer acknowledges, from which data may be unacknowledged.
    pub send_next: u32,
    /// Next sequence number expected from the peer.
    pub receive_next: u32,
    /// The peer's receive window in bytes.
    pub send_window: u32,
    /// The window that we announced, in bytes.
    pub receive_window: u32,
    /// The peer's maximum segment size from its SYN, which includes the options. Clamped to the
    /// kernel's bounds of 88 and 32,767.
    pub mss: u16,
    /// Window scale shifts (RFC 7323), the peer's and ours, if both SYNs had the option.
    pub scales: Option<(u8, u8)>,
    /// Whether both ends support SACK.
    pub sack: bool,
    /// With timestamps our next TSval, rounded up to an even number because the kernel uses the
    /// lowest bit for the clock's unit. It counts milliseconds.
    pub timestamp: Option<u32>,
}

/// Why the kernel could not take the connection over.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct RepairError {
    /// The system call or option.
    pub step: &'static str,
    /// Its error. `EADDRNOTAVAIL` of `connect`: the kernel already has a connection between these
    /// addresses and ports, or had one until recently.
    pub source: io::Error,
}

/// Checks that this process may use `TCP_REPAIR` and that the kernel supports it.
///
/// # Errors
/// The reason, as text for the operator.
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

/// Checks that this process may take over connections of this port, even if other sockets use the
/// port.
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
    // TCP_REPAIR allows binding to a port that other sockets use.
    bind(&permitted()?, &SocketAddr::from(([127, 0, 0, 1], port))).map_err(right)
}

/// Transfers a connection to the kernel, in a network namespace (a name of `ip netns` or a path) or
/// the calling thread's. Sends nothing. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// [`RepairError`]; no socket is left behind.
pub fn restore(connection: &Connection, netns: Option<&str>) -> Result<TcpStream, RepairError> {
    restore_with(connection, &[], netns)
}

/// [`restore`] of a connection on which these bytes were sent and are not acknowledged: the kernel repeats them when they are
/// lost.
///
/// # Errors
/// As of [`restore`].
pub fn restore_with(
    connection: &Connection,
    unacknowledged: &[u8],
    netns: Option<&str>,
) -> Result<TcpStream, RepairError> {
    let entered = in_netns(netns, || established(connection, unacknowledged));
    entered.map_err(|e| RepairError { step: "the namespace", source: io::Error::other(e) })?
}

/// The state of an established connection of this process, from which [`restore`] makes it elsewhere: the next byte to be
/// written has number `send_next`, the next to be read `receive_next`. Concurrent reads and writes of the stream fail. Needs
/// `CAP_NET_ADMIN`.
///
/// # Errors
/// As of [`restore`].
pub fn read(stream: &TcpStream) -> Result<Connection, RepairError> {
    let io = |step| move |source| RepairError { step, source };
    let (local, remote) = (stream.local_addr(), stream.peer_addr());
    set(stream, libc::TCP_REPAIR, &[ON], "TCP_REPAIR")?;
    let connection = (|| {
        let mut info = [0u8; 8];
        get(stream, libc::TCP_INFO, &mut info, "TCP_INFO")?;
        // linux/tcp.h: struct tcp_info. Options agreed, then the shifts of the peer's windows and of ours, four bits each.
        let [_, _, _, _, _, options, shifts, _] = info;
        let number = |queue| {
            let mut next = [0u32];
            set(stream, libc::TCP_REPAIR_QUEUE, &[queue], "TCP_REPAIR_QUEUE")?;
            get(stream, libc::TCP_QUEUE_SEQ, &mut next, "TCP_QUEUE_SEQ")?;
            Ok(next[0])
        };
        let send_next = number(SEND_QUEUE)?;
        // More may come between two calls, and nothing is read meanwhile.
        let mut unread = rustix::io::ioctl_fionread(stream).map_err(of("FIONREAD"))?;
        let receive_next = loop {
            let received = number(RECEIVE_QUEUE)?;
            let before =
                std::mem::replace(&mut unread, rustix::io::ioctl_fionread(stream).map_err(of("FIONREAD"))?);
            if before == unread {
                break received.wrapping_sub(unread as u32);
            }
        };
        let (mut mss, mut timestamp) = ([0u32], [0u32]);
        get(stream, libc::TCP_MAXSEG, &mut mss, "TCP_MAXSEG")?;
        get(stream, libc::TCP_TIMESTAMP, &mut timestamp, "TCP_TIMESTAMP")?;
        let mut window =
            [const { RepairWindow { snd_wl1: 0, snd_wnd: 0, max_window: 0, rcv_wnd: 0, rcv_wup: 0 } }];
        get(stream, libc::TCP_REPAIR_WINDOW, &mut window, "TCP_REPAIR_WINDOW")?;
        Ok(Connection {
            local: local.map_err(io("getsockname"))?,
            remote: remote.map_err(io("getpeername"))?,
            send_next,
            receive_next,
            send_window: window[0].snd_wnd,
            receive_window: window[0].rcv_wnd,
            mss: u16::try_from(mss[0]).unwrap_or(u16::MAX),
            scales: (options & WITH_SCALES != 0).then_some((shifts & 15, shifts >> 4)),
            sack: options & WITH_SACK != 0,
            // The lowest bit is the unit.
            timestamp: (options & WITH_TIMESTAMPS != 0).then_some(timestamp[0] & !1),
        })
    })();
    off(stream)?;
    connection
}

/// Sets a connection's TSval to this value, rounded up to an even number. Concurrent reads and
/// writes of the stream fail.
///
/// # Errors
/// As of [`restore`]. Fails if the connection has ended.
pub fn set_timestamp(stream: &TcpStream, value: u32) -> Result<(), RepairError> {
    set(stream, libc::TCP_REPAIR, &[ON], "TCP_REPAIR")?;
    let done = set(stream, libc::TCP_TIMESTAMP, &[even(value)], "TCP_TIMESTAMP");
    off(stream)?;
    done
}

/// Bytes written and not acknowledged, counting a FIN.
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

fn established(connection: &Connection, unacknowledged: &[u8]) -> Result<TcpStream, RepairError> {
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
    // Without the option the kernel would scale its window as in its own SYN.
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
    if !unacknowledged.is_empty() {
        set(&socket, libc::TCP_REPAIR_QUEUE, &[SEND_QUEUE], "TCP_REPAIR_QUEUE")?;
        // The kernel takes what is written now for sent.
        let queued = send(&socket, unacknowledged, SendFlags::DONTWAIT).map_err(of("the send queue"))?;
        if queued < unacknowledged.len() {
            return Err(RepairError { step: "the send queue", source: io::ErrorKind::WriteZero.into() });
        }
    }
    off(&socket)?;
    Ok(socket.into())
}

/// The lowest bit does not belong to the value; it marks microseconds as the unit.
fn even(value: u32) -> u32 {
    value.wrapping_add(1) & !1
}

/// Ends the repair mode. That makes the socket's port exclusive, so set SO_REUSEADDR: a listener
/// may need the port while the connection lasts.
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

/// Sets a TCP option that no library supports, to an array of its C structure.
fn set<T>(socket: &impl AsFd, name: i32, value: &[T], step: &'static str) -> Result<(), RepairError> {
    let (at, length) = (value.as_ptr().cast(), size_of_val(value) as libc::socklen_t);
    // SAFETY: pointer and length are those of `value`, which is read only.
    match unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, name, at, length) } {
        0 => Ok(()),
        _ => Err(RepairError { step, source: io::Error::last_os_error() }),
    }
}

/// Types of which every content is a value.
trait Plain {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for RepairWindow {}

/// Reads a TCP option into an array of its C structure, which the kernel fills as far as it is long.
fn get<T: Plain>(
    socket: &impl AsFd,
    name: i32,
    value: &mut [T],
    step: &'static str,
) -> Result<(), RepairError> {
    let mut length = size_of_val(value) as libc::socklen_t;
    let at = value.as_mut_ptr().cast();
    // SAFETY: pointer and length are those of `value`, whose type has no invalid values.
    let done =
        unsafe { libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, name, at, &raw mut length) };
    match done {
        0 => Ok(()),
        _ => Err(RepairError { step, source: io::Error::last_os_error() }),
    }
}
