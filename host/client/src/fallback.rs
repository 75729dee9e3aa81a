//! Plain TCP on the handshake that was begun (section 2.6): the kernel takes the connection over.
//!
//! The server answered our SYN as plain TCP does. A kernel socket is set up in repair mode with the numbers
//! of that handshake, so nothing is sent twice, no second connection is made, and no round trip is lost.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use rivulet_transport::client::TcpHandshake;

use crate::connection::Shared;
use crate::port::{check, raw, set};

/// linux/tcp.h: queues of repair mode.
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
/// Leaves repair mode without a window probe, which a server that awaits its handshake's last ACK would
/// take for a segment from the past.
const REPAIR_OFF_NO_PROBE: i32 = -1;
/// TCP option kinds (RFC 9293, RFC 7323, RFC 2018).
const MSS: u32 = 2;
const WINDOW_SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMESTAMPS: u32 = 8;

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

/// The kernel's socket for this connection; made by whoever comes first, with everything that was written
/// so far sent again through it.
pub(crate) fn plain<'a>(shared: &'a Shared, handshake: &TcpHandshake) -> io::Result<&'a TcpStream> {
    // Both directions may come at once; the port is taken by one of them.
    let mut port = shared.port.lock();
    if let Some(stream) = shared.plain.get() {
        return Ok(stream);
    }
    drop(port.take());
    let mut stream = restore(shared, handshake)?;
    let (early, finished) = {
        let mut state = shared.state.lock();
        (std::mem::take(&mut state.early), state.finished)
    };
    if !handshake.syn_data_acknowledged {
        stream.write_all(&early)?;
    }
    if finished {
        stream.shutdown(std::net::Shutdown::Write)?;
    }
    Ok(once(&shared.plain, stream))
}

fn once(cell: &OnceLock<TcpStream>, stream: TcpStream) -> &TcpStream {
    cell.get_or_init(|| stream)
}

fn restore(shared: &Shared, handshake: &TcpHandshake) -> io::Result<TcpStream> {
    let family = if shared.local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let fd = socket.as_raw_fd();
    let tcp = |name, value: i32| set(fd, libc::IPPROTO_TCP, name, &value);
    tcp(libc::TCP_REPAIR, 1)?;
    for (queue, next) in [(SEND_QUEUE, handshake.send_next), (RECEIVE_QUEUE, handshake.receive_next)] {
        tcp(libc::TCP_REPAIR_QUEUE, queue)?;
        set(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &next)?;
    }
    let (storage, len) = raw(shared.local);
    // SAFETY: the storage holds an address of that length.
    check(unsafe { libc::bind(fd, (&raw const storage).cast(), len) })?;
    let (storage, len) = raw(shared.remote);
    // SAFETY: as above. In repair mode this sends nothing.
    check(unsafe { libc::connect(fd, (&raw const storage).cast(), len) })?;
    options(fd, handshake)?;
    let window = u32::from(handshake.window);
    let ours = 65_535;
    let state = RepairWindow {
        snd_wl1: handshake.receive_next,
        snd_wnd: window,
        max_window: window.max(1),
        rcv_wnd: ours,
        rcv_wup: handshake.receive_next,
    };
    set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &state)?;
    tcp(libc::TCP_REPAIR, REPAIR_OFF_NO_PROBE)?;
    Ok(TcpStream::from(socket))
}

/// What the two SYNs agreed on.
fn options(fd: i32, handshake: &TcpHandshake) -> io::Result<()> {
    let mut list = vec![RepairOption { code: MSS, value: handshake.mss.into() }];
    if let Some((theirs, ours)) = handshake.window_scale {
        list.push(RepairOption { code: WINDOW_SCALE, value: u32::from(theirs) | u32::from(ours) << 16 });
    }
    if handshake.sack {
        list.push(RepairOption { code: SACK_PERMITTED, value: 0 });
    }
    if handshake.timestamp.is_some() {
        list.push(RepairOption { code: TIMESTAMPS, value: 0 });
    }
    let len = std::mem::size_of_val(list.as_slice()) as libc::socklen_t;
    // SAFETY: pointer and length are those of the list, of the structure that the option takes.
    check(unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, list.as_ptr().cast(), len)
    })?;
    match handshake.timestamp {
        // Our clock goes on from the SYN's value, or the server takes all for old duplicates (RFC 7323 section 5).
        Some((_, ours)) => set(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &ours),
        None => Ok(()),
    }
}
