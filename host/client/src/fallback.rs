//! Plain TCP on the handshake that was begun (section 2.6): the kernel takes the connection over.
//!
//! The server answered our SYN as plain TCP does. A kernel socket is set up in repair mode with the numbers
//! of that handshake, so nothing is sent twice, no second connection is made, and no round trip is lost. Plain TCP has no streams:
//! those that were to share the connection get one of the kernel's each.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rivulet_pktio::repair::{self, Connection};
use rivulet_transport::client::TcpHandshake;
use rustix::net::{SendFlags, send};
use socket2::{Domain, Protocol, Socket, Type};

use crate::connection::{Ending, Shared};
use crate::end::End;

/// How long the kernel's connect may take, as with its defaults.
const CONNECT: Duration = Duration::from_secs(127);

/// The kernel's socket for this stream; made by whoever comes first. Does not block, but for a handshake where the one that was
/// begun is another stream's: what was written so far and finds no room there is sent by a thread.
pub(crate) fn plain<'a>(end: &'a Arc<End>, handshake: &TcpHandshake) -> io::Result<&'a TcpStream> {
    let shared = &end.shared;
    let own = handshake.stream == end.id;
    // Both directions may come at once; the port is taken by one of them.
    let mut port = shared.port.lock();
    if let Some(stream) = end.plain.get() {
        return Ok(stream);
    }
    let stream = if own {
        drop(port.take());
        restore(shared, handshake)?
    } else {
        connect(shared)?
    };
    let mut state = shared.state.lock();
    let Some(line) = state.lines.get_mut(&end.id) else {
        return Err(io::ErrorKind::ConnectionAborted.into());
    };
    if line.ending == Ending::Aborted {
        // While the kernel connected.
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    let mut early = std::mem::take(&mut line.early);
    if handshake.syn_data_acknowledged && own {
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
        line.resending = true;
        let (end, stream) = (end.clone(), stream.try_clone()?);
        std::thread::Builder::new().name("early".into()).spawn(move || resend(&end, stream, &early))?;
    } else if line.finished {
        stream.shutdown(Shutdown::Write)?;
    }
    // Before the state is let go: whoever says now that this is all finds it.
    Ok(end.plain.get_or_init(|| stream))
}

/// Sends the rest of what was written before plain TCP was known of. The server may first want to be read from.
fn resend(end: &End, mut stream: TcpStream, early: &[u8]) {
    // Where it fails the socket says so to whoever uses it next.
    let _ = stream.write_all(early);
    let mut state = end.shared.state.lock();
    let Some(line) = state.lines.get_mut(&end.id) else { return };
    line.resending = false;
    if line.finished {
        let _ = stream.shutdown(Shutdown::Write);
    }
    end.notify();
}

/// The same, for what comes behind everything that was written so far.
pub(crate) fn for_writing<'a>(end: &'a Arc<End>, handshake: &TcpHandshake) -> io::Result<&'a TcpStream> {
    let stream = plain(end, handshake)?;
    let mut state = end.shared.state.lock();
    while state.lines.get(&end.id).is_some_and(|line| line.resending) {
        end.wait(&mut state, None)?;
    }
    Ok(stream)
}

fn restore(shared: &Shared, handshake: &TcpHandshake) -> io::Result<TcpStream> {
    let connection = Connection {
        local: shared.local,
        remote: shared.remote,
        send_next: handshake.send_next,
        receive_next: handshake.receive_next,
        send_window: handshake.window.into(),
        receive_window: 65_535,
        mss: handshake.mss,
        scales: handshake.window_scale,
        sack: handshake.sack,
        // Our clock goes on from the SYN's value, or the server takes all for old duplicates (RFC 7323 section 5).
        timestamp: handshake.timestamp.map(|(_, ours)| ours),
    };
    repair::restore(&connection, None).map_err(|e| e.source)
}

/// A connection of the kernel's own, from the same address.
fn connect(shared: &Shared) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(shared.remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(shared.local.ip(), 0).into())?;
    socket.connect_timeout(&shared.remote.into(), CONNECT)?;
    Ok(socket.into())
}
