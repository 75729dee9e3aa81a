//! Relays TCP connections to a name server behind stateless TCP, for what it must answer by TCP:
//! zone transfers, long answers, queries in pieces. The kernel's TCP takes over such a connection
//! (`docs/plain.md`), and each is relayed to a connection to the name server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rivulet_server::{Adopted, Doorway};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::adopted;
use super::connections::{Connections, Guest, Phase};
use super::plain::taking;

/// Time limit for the name server to accept a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Time after which an idle connection is closed, or one with a side that accepts no data.
const IDLE: Duration = Duration::from_secs(30);
const BLOCK: usize = 16 << 10;

/// The channel for connections with queries that the name server at this address has to answer by
/// TCP.
pub(super) fn doorway(back_end: SocketAddr, connections: Connections) -> io::Result<Doorway> {
    adopted::doorway("dns", connections, move |mut client, guest| {
        relay(&mut client, back_end, guest)?;
        client.finish(taking(guest));
        Ok(())
    })
}

/// Copies both directions until the name server closes. A single thread does both, because an
/// adopted socket's clock is set between two of its reads and writes.
fn relay(client: &mut Adopted, back_end: SocketAddr, guest: &Guest) -> io::Result<()> {
    let mut server = TcpStream::connect_timeout(&back_end, CONNECT)?;
    server.set_nodelay(true)?;
    server.set_read_timeout(Some(IDLE))?;
    server.set_write_timeout(Some(IDLE))?;
    client.set_patience(IDLE)?;
    let handle = client.handle()?;
    let mut block = vec![0; BLOCK];
    let mut asks = true;
    let longest = Timespec::try_from(IDLE).map_err(io::Error::other)?;
    loop {
        let wanted = if asks { PollFlags::IN } else { PollFlags::empty() };
        let mut both = [
            PollFd::from_borrowed_fd(server.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(handle.as_fd(), wanted),
        ];
        match poll(&mut both, Some(&longest)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        let [answers, queries] = both.map(|fd| fd.revents());
        if guest.is_displaced() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !answers.is_empty() {
            let n = server.read(&mut block)?;
            if n == 0 {
                return Ok(());
            }
            client.write_all(&block[..n])?;
            guest.enter(Phase::Waiting);
        }
        if !queries.is_empty() {
            // The client has closed, whether or not it got everything.
            if !asks {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let n = client.read(&mut block)?;
            asks = n > 0;
            if asks {
                guest.enter(Phase::Answer);
                server.write_all(&block[..n])?;
            } else {
                server.shutdown(Shutdown::Write)?;
            }
        }
    }
}
