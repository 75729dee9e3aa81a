//! Fallback to plain TCP on the handshake already begun (section 2.6): the
//! kernel takes over the connection.
//!
//! The server answered our SYN with plain TCP. A kernel socket is set up in repair mode
//! (`TCP_REPAIR`) with the sequence numbers of that handshake. That sends nothing twice, needs no
//! second connection and costs no round trip. Plain TCP has no streams, so each further stream gets
//! its own kernel connection.

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

/// Timeout of the kernel's connect; the same as with its default settings.
const CONNECT: Duration = Duration::from_secs(127);

/// Returns the kernel's socket for this stream; the first caller creates it. Blocks only if the
/// handshake belongs to another stream, for that connect. Early bytes that find no room in the
/// socket are sent by a thread.
pub(crate) fn plain<'a>(end: &'a Arc<End>, handshake: &TcpHandshake) -> io::Result<&'a TcpStream> {
    let shared = &end.shared;
    let own = handshake.stream == end.id;
    // A reader and a writer may call this at once; only the first one takes the port.
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
        // Aborted while the kernel connected.
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
    // Before the state is unlocked, so that a later shutdown of writing finds the socket.
    Ok(end.plain.get_or_init(|| stream))
}

/// Sends the rest of the bytes written before the fallback. Needs a thread because the server may
/// not read before the client does.
fn resend(end: &End, mut stream: TcpStream, early: &[u8]) {
    // After a failure the next use of the socket returns the error.
    let _ = stream.write_all(early);
    let mut state = end.shared.state.lock();
    let Some(line) = state.lines.get_mut(&end.id) else { return };
    line.resending = false;
    if line.finished {
        let _ = stream.shutdown(Shutdown::Write);
    }
    end.notify();
}

/// As [`plain`], for a write: waits until all earlier bytes are in the socket.
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
        // The timestamp continues from that of the SYN; otherwise the server drops our segments as
        // old duplicates (PAWS, RFC 7323 section 5).
        timestamp: handshake.timestamp.map(|(_, ours)| ours),
    };
    repair::restore(&connection, None).map_err(|e| e.source)
}

/// Opens a separate kernel connection from the same address.
fn connect(shared: &Shared) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(shared.remote), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(shared.local.ip(), 0).into())?;
    socket.connect_timeout(&shared.remote.into(), CONNECT)?;
    Ok(socket.into())
}
