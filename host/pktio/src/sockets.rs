//! Inspects and aborts the kernel's TCP connections from outside their process (sock_diag(7),
//! `SOCK_DESTROY`).
//!
//! The kernel looks a socket up as for a segment, so without a connection it finds the listener.
//! Therefore a socket is looked up first and then destroyed by its cookie.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SOCK_DIAG;

use crate::in_netns;
use crate::netlink::{NLM_F_ACK, ask, ask_with, dump, socket_of};

/// linux/sock_diag.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// include/net/tcp_states.h
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;
/// States after this end sent its FIN and before it is acknowledged, one bit each.
const CLOSING: u32 = 1 << 4 | 1 << 9 | 1 << 11;
/// include/net/tcp_states.h: an established connection.
const ESTABLISHED: u32 = 1 << 1;
/// linux/inet_diag.h: matches any cookie.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Offsets of state, local port and cookie in `struct inet_diag_msg`.
const STATE: usize = 1;
const LOCAL_PORT: usize = 4;
const COOKIE: usize = 44;

/// What the kernel holds between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// No connection.
    Nothing,
    /// A closed connection that waits for late segments (TIME-WAIT, RFC 9293 section 3.3.2).
    Remains,
    /// A connection in any other state.
    Connection,
}

/// The TCP sockets of one network namespace.
#[derive(Debug)]
pub struct Sockets(OwnedFd);

impl Sockets {
    /// Opens a netlink socket in a network namespace (a name of `ip netns` or a path), or the
    /// calling thread's. Aborting a connection needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// The system's.
    pub fn open(netns: Option<&str>) -> io::Result<Sockets> {
        in_netns(netns, || socket_of(SOCK_DIAG)).map_err(io::Error::other)?.map(Sockets)
    }

    /// Checks that the kernel answers queries.
    ///
    /// # Errors
    /// `ENOENT` from a kernel without `tcp_diag`, which would find no socket at all; the system's
    /// error.
    pub fn check(&self) -> io::Result<()> {
        let nobody = SocketAddr::from(([0; 4], 0));
        dump(&self.0, SOCK_DIAG_BY_FAMILY, &request(nobody, nobody, 1 << LISTEN, &NO_COOKIE), |_| ())
    }

    /// Aborts the connection between these two ends: its process gets an error, and the peer a RST
    /// where TCP sends one. Returns false if there is none.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN`, `EOPNOTSUPP` of a kernel without `CONFIG_INET_DIAG_DESTROY`.
    pub fn abort(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
        match self.find(local, remote)? {
            Some((_, cookie)) => self.destroy(local, remote, &cookie),
            None => Ok(false),
        }
    }

    /// What the kernel holds between these two ends. Takes some microseconds.
    ///
    /// # Errors
    /// The system's.
    pub fn held(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Held> {
        Ok(match self.find(local, remote)? {
            None => Held::Nothing,
            Some((TIME_WAIT, _)) => Held::Remains,
            Some(_) => Held::Connection,
        })
    }

    /// State and cookie of the socket between these two ends, ignoring a listener.
    fn find(&self, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<(u8, [u8; 8])>> {
        let found = match ask(&self.0, SOCK_DIAG_BY_FAMILY, &request(local, remote, u32::MAX, &NO_COOKIE)) {
            Err(e) if is_absent(&e) => return Ok(None),
            found => found?,
        };
        let cookie = found.get(COOKIE..).and_then(|octets| octets.first_chunk());
        let (Some(state), Some(cookie)) = (found.get(STATE), cookie) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        Ok((*state != LISTEN).then_some((*state, *cookie)))
    }

    /// Aborts the connections from this local end whose FIN is not acknowledged, and returns how
    /// many. Their processes have closed them or ended.
    ///
    /// # Errors
    /// As of [`Sockets::abort`].
    pub fn abort_closing(&self, local: SocketAddr) -> io::Result<usize> {
        let mut count = 0;
        for (remote, cookie) in self.all(local, CLOSING)? {
            count += usize::from(self.destroy(local, remote, &cookie)?);
        }
        Ok(count)
    }

    /// The other ends of the connections of this end whose FIN is not acknowledged.
    ///
    /// # Errors
    /// The system's.
    pub fn closing(&self, local: SocketAddr) -> io::Result<Vec<SocketAddr>> {
        Ok(self.all(local, CLOSING)?.into_iter().map(|(remote, _)| remote).collect())
    }

    /// The remote ends of the established connections of this local end.
    ///
    /// # Errors
    /// The system's.
    pub fn established(&self, local: SocketAddr) -> io::Result<Vec<SocketAddr>> {
        Ok(self.all(local, ESTABLISHED)?.into_iter().map(|(remote, _)| remote).collect())
    }

    /// Counts established connections by local port. /proc would also list those in TIME_WAIT, at
    /// some microseconds each.
    ///
    /// # Errors
    /// The system's.
    pub fn count(&self) -> io::Result<HashMap<u16, u16>> {
        let mut counts: HashMap<u16, u16> = HashMap::new();
        for nobody in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
            let nobody = SocketAddr::new(nobody, 0);
            dump(&self.0, SOCK_DIAG_BY_FAMILY, &request(nobody, nobody, ESTABLISHED, &NO_COOKIE), |body| {
                if let Some(port) = port(body, LOCAL_PORT) {
                    let count = counts.entry(port).or_default();
                    *count = count.saturating_add(1);
                }
            })?;
        }
        Ok(counts)
    }

    /// Remote ends and cookies of the connections in these states.
    fn all(&self, local: SocketAddr, states: u32) -> io::Result<Vec<(SocketAddr, [u8; 8])>> {
        let nobody = match local {
            SocketAddr::V4(_) => SocketAddr::from(([0; 4], 0)),
            SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
        };
        let mut found = Vec::new();
        dump(&self.0, SOCK_DIAG_BY_FAMILY, &request(local, nobody, states, &NO_COOKIE), |body| {
            found.extend(read(body, local));
        })?;
        Ok(found)
    }

    fn destroy(&self, local: SocketAddr, remote: SocketAddr, cookie: &[u8; 8]) -> io::Result<bool> {
        match ask_with(&self.0, SOCK_DESTROY, NLM_F_ACK, &request(local, remote, u32::MAX, cookie)) {
            // The connection has ended meanwhile.
            Err(e) if is_absent(&e) => Ok(false),
            done => done.map(|_| true),
        }
    }
}

/// Remote end and cookie from a `struct inet_diag_msg`, if its local end is `local`.
fn read(body: &[u8], local: SocketAddr) -> Option<(SocketAddr, [u8; 8])> {
    let ip = |at: usize| -> Option<IpAddr> {
        Some(match local {
            SocketAddr::V4(_) => IpAddr::from(*body.get(at..)?.first_chunk::<4>()?),
            SocketAddr::V6(_) => IpAddr::from(*body.get(at..)?.first_chunk::<16>()?),
        })
    };
    let cookie = *body.get(COOKIE..)?.first_chunk()?;
    let is_own = port(body, LOCAL_PORT)? == local.port() && ip(8)? == local.ip();
    is_own.then_some((SocketAddr::new(ip(24)?, port(body, LOCAL_PORT + 2)?), cookie))
}

fn port(body: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*body.get(at..)?.first_chunk()?))
}

fn is_absent(e: &io::Error) -> bool {
    [Errno::NOENT, Errno::STALE].iter().any(|errno| e.raw_os_error() == Some(errno.raw_os_error()))
}

/// `struct inet_diag_req_v2`.
fn request(local: SocketAddr, remote: SocketAddr, states: u32, cookie: &[u8; 8]) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(local.port().to_be_bytes());
    body.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        let end = body.len() + 16;
        match address {
            IpAddr::V4(v4) => body.extend(v4.octets()),
            IpAddr::V6(v6) => body.extend(v6.octets()),
        }
        body.resize(end, 0);
    }
    // Any interface.
    body.extend([0; 4]);
    body.extend(cookie);
    body
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connection_is_aborted_without_its_listener() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            // IPv6 may be unavailable.
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let local = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(local).unwrap();
            let (mut server, remote) = listener.accept().unwrap();
            let sockets = Sockets::open(None).unwrap();
            let nobody = SocketAddr::new(remote.ip(), 1);
            assert!(!sockets.abort(local, nobody).unwrap(), "only a listener exists");
            match sockets.abort(local, remote) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    eprintln!("SKIPPED: needs root");
                    return;
                }
                ended => assert!(ended.unwrap()),
            }
            assert_eq!(server.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
            assert_eq!(client.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            assert!(!sockets.abort(local, remote).unwrap(), "it was aborted");
            // The listener still accepts.
            TcpStream::connect(local).unwrap();
            listener.accept().unwrap();
        }
    }

    #[test]
    fn held_distinguishes_connection_listener_and_time_wait() {
        for (listens, connects) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")]
        {
            // IPv6 may be unavailable.
            let Ok(listener) = TcpListener::bind(listens) else { continue };
            let local = SocketAddr::new(connects.parse().unwrap(), listener.local_addr().unwrap().port());
            let client = TcpStream::connect(local).unwrap();
            let remote = client.local_addr().unwrap();
            let mut server = listener.accept().unwrap().0;
            let sockets = Sockets::open(None).unwrap();
            sockets.check().unwrap();
            assert_eq!(sockets.held(local, SocketAddr::new(remote.ip(), 1)).unwrap(), Held::Nothing);
            assert_eq!(sockets.held(local, remote).unwrap(), Held::Connection);
            // The end that closes first waits in TIME_WAIT.
            server.shutdown(std::net::Shutdown::Write).unwrap();
            drop(client);
            assert_eq!(server.read(&mut [0]).unwrap(), 0);
            drop(server);
            assert_eq!(sockets.held(local, remote).unwrap(), Held::Remains);
        }
    }

    /// Like a kernel without `tcp_diag`: a lookup reports that there is no socket, but the check
    /// fails.
    #[test]
    fn kernel_without_tcp_diag_is_an_error() {
        let (sockets, nobody) = (Sockets::open(None).unwrap(), SocketAddr::from(([127, 0, 0, 1], 9)));
        let mut body = request(nobody, nobody, 1 << LISTEN, &NO_COOKIE);
        body[1] = 253;
        for told in [
            ask(&sockets.0, SOCK_DIAG_BY_FAMILY, &body).map(drop),
            dump(&sockets.0, SOCK_DIAG_BY_FAMILY, &body, |_| ()),
        ] {
            assert!(is_absent(&told.unwrap_err()));
        }
    }

    /// A server that closed while its client does not read, and another connection beside it.
    #[test]
    fn only_closing_connections_are_aborted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            clients.push(TcpStream::connect(local).unwrap());
            servers.push(listener.accept().unwrap().0);
        }
        let mut full = servers.remove(0);
        full.set_nonblocking(true).unwrap();
        while full.write(&[0; 65_536]).is_ok() {}
        drop(full);
        let sockets = Sockets::open(None).unwrap();
        match sockets.abort_closing(local) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: needs root");
                return;
            }
            count => assert_eq!(count.unwrap(), 1),
        }
        assert_eq!(sockets.abort_closing(local).unwrap(), 0);
        assert_eq!(sockets.established(local).unwrap(), [clients[1].local_addr().unwrap()]);
        assert_eq!(sockets.count().unwrap().get(&local.port()), Some(&1));
        servers[0].write_all(b"x").unwrap();
        clients[1].read_exact(&mut [0]).unwrap();
    }
}
