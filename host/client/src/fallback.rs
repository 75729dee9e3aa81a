//! Plain TCP on the handshake that was begun (section 2.6): the kernel takes the connection over.
//!
//! The server answered our SYN as plain TCP does. A kernel socket is set up in repair mode with the numbers
//! of that handshake, so nothing is sent twice, no second connection is made, and no round trip is lost.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rivulet_transport::client::TcpHandshake;
use rustix::net::{SendFlags, send};
use socket2::Socket;

use crate::connection::Shared;
use crate::port::{bind_and_connect, repaired, set};

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

/// The kernel's socket for this connection; made by whoever comes first. Does not block: what was written so far and
/// finds no room there is sent by a thread.
pub(crate) fn plain<'a>(shared: &'a Arc<Shared>, handshake: &TcpHandshake) -> io::Result<&'a TcpStream> {
    // Both directions may come at once; the port is taken by one of them.
    let mut port = shared.port.lock();
    if let Some(stream) = shared.plain.get() {
        return Ok(stream);
    }
    drop(port.take());
    let stream = restore(shared, handshake)?;
    let mut state = shared.state.lock();
    let mut early = std::mem::take(&mut state.early);
    if handshake.syn_data_acknowledged {
        early.clear();
    }
    while !early.is_empty() {
        match send(&stream, &early, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => drop(early.drain(..sent)),
            Err(rustix::io::Errno::WOULDBLOCK) => break,
            Err(e) => return Err(e.into()),
        }
    }
    if !early.is_empty() {
        state.resending = true;
        let (shared, stream) = (shared.clone(), stream.try_clone()?);
        std::thread::Builder::new().name("early".into()).spawn(move || resend(&shared, stream, &early))?;
    } else if state.finished {
        stream.shutdown(Shutdown::Write)?;
    }
    // Before the state is let go: whoever says now that this is all finds it.
    Ok(shared.plain.get_or_init(|| stream))
}

/// Sends the rest of what was written before plain TCP was known of. The server may first want to be read from.
fn resend(shared: &Shared, mut stream: TcpStream, early: &[u8]) {
    // Where it fails the socket says so to whoever uses it next.
    let _ = stream.write_all(early);
    let mut state = shared.state.lock();
    state.resending = false;
    if state.finished {
        let _ = stream.shutdown(Shutdown::Write);
    }
    shared.changed.notify_all();
}

/// The same, for what comes behind everything that was written so far.
pub(crate) fn for_writing<'a>(
    shared: &'a Arc<Shared>,
    handshake: &TcpHandshake,
) -> io::Result<&'a TcpStream> {
    let stream = plain(shared, handshake)?;
    let mut state = shared.state.lock();
    while state.resending {
        shared.changed.wait(&mut state);
    }
    Ok(stream)
}

fn restore(shared: &Shared, handshake: &TcpHandshake) -> io::Result<TcpStream> {
    let socket = repaired(shared.local)?;
    for (queue, next) in [(SEND_QUEUE, handshake.send_next), (RECEIVE_QUEUE, handshake.receive_next)] {
        set(&socket, libc::TCP_REPAIR_QUEUE, &[queue])?;
        set(&socket, libc::TCP_QUEUE_SEQ, &[next])?;
    }
    bind_and_connect(&socket, shared.local, shared.remote)?;
    options(&socket, handshake)?;
    let window = u32::from(handshake.window);
    let ours = 65_535;
    let state = RepairWindow {
        snd_wl1: handshake.receive_next,
        snd_wnd: window,
        max_window: window.max(1),
        rcv_wnd: ours,
        rcv_wup: handshake.receive_next,
    };
    set(&socket, libc::TCP_REPAIR_WINDOW, &[state])?;
    set(&socket, libc::TCP_REPAIR, &[REPAIR_OFF_NO_PROBE])?;
    Ok(socket.into())
}

/// What the two SYNs agreed on.
fn options(socket: &Socket, handshake: &TcpHandshake) -> io::Result<()> {
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
    set(socket, libc::TCP_REPAIR_OPTIONS, &list)?;
    match handshake.timestamp {
        // Our clock goes on from the SYN's value, or the server takes all for old duplicates (RFC 7323 section 5).
        Some((_, ours)) => set(socket, libc::TCP_TIMESTAMP, &[ours]),
        None => Ok(()),
    }
}
