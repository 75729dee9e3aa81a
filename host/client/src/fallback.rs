//! Plain TCP on the handshake that was begun (section 2.6): the kernel takes the connection over.
//!
//! The server answered our SYN as plain TCP does. A kernel socket is set up in repair mode with the numbers
//! of that handshake, so nothing is sent twice, no second connection is made, and no round trip is lost.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use rivulet_pktio::repair::{self, Connection};
use rivulet_transport::client::TcpHandshake;
use rustix::net::{SendFlags, send};

use crate::connection::Shared;

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
