//! A UDP socket of the sender, and the sender's clock.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use libcm::Client;
use rustix::net::{RecvFlags, recv};

use super::failure::Failure;
use super::wire::{HEAD, Head, Kind};

/// Maximum number of answers read at a time, before other sockets are served.
pub(super) const TURN: usize = 64;

/// Sends datagrams of one size.
#[derive(Debug)]
pub(super) struct Socket {
    pub udp: UdpSocket,
    to: SocketAddr,
    connected: bool,
    kind: Kind,
    datagram: Vec<u8>,
    answer: Vec<u8>,
}

impl Socket {
    pub fn new(to: SocketAddr, connected: bool, echo: bool, size: u32) -> Result<Socket, Failure> {
        let any = match to {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let udp = UdpSocket::bind(any).map_err(|e| Failure::of(e, "cannot make a socket"))?;
        if connected {
            udp.connect(to).map_err(|e| Failure::of(e, format!("there is no way to {to}")))?;
        }
        let kind = if echo { Kind::Echo } else { Kind::Bulk };
        // One byte more than any answer, to detect longer ones.
        let answer = vec![0; if echo { size as usize } else { HEAD } + 1];
        Ok(Socket { udp, to, connected, kind, datagram: vec![0; size as usize], answer })
    }

    /// The datagram of this number.
    pub fn datagram(&mut self, number: u64) -> &[u8] {
        self.datagram[..HEAD].copy_from_slice(&Head { kind: self.kind, number }.octets());
        &self.datagram
    }

    pub fn send(&mut self, number: u64) -> Result<(), Failure> {
        self.datagram(number);
        let sent = if self.connected {
            self.udp.send(&self.datagram)
        } else {
            self.udp.send_to(&self.datagram, self.to)
        };
        match sent {
            Ok(_) => Ok(()),
            Err(e) => Err(Failure::of(e, format!("cannot send to {}", self.to))),
        }
    }

    /// The number of the next answer that has arrived.
    pub fn answer(&mut self) -> Result<Option<u64>, Failure> {
        answer(&self.udp, &mut self.answer)
    }
}

/// Reads the next answer of a socket into a buffer one byte longer than an answer.
pub(super) fn answer(udp: &UdpSocket, into: &mut [u8]) -> Result<Option<u64>, Failure> {
    loop {
        let length = match recv(udp, &mut *into, RecvFlags::DONTWAIT) {
            Ok((_, length)) => length,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(Failure::of(e.into(), "cannot receive")),
        };
        match Head::parse(&into[..length]) {
            Some(Head { kind: Kind::Answer, number }) if length + 1 == into.len() => return Ok(Some(number)),
            // A datagram from elsewhere or a damaged one is ignored; an answer in it counts as
            // lost.
            _ => {}
        }
    }
}

/// Waits for a client's events and for answers.
#[derive(Debug)]
pub(super) struct Waiter(Vec<libc::pollfd>);

impl Waiter {
    pub fn new<'a>(client: &Client, sockets: impl Iterator<Item = &'a UdpSocket>) -> Waiter {
        let fds = sockets.map(AsRawFd::as_raw_fd).chain([client.as_fd().as_raw_fd()]);
        Waiter(fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect())
    }

    /// Waits for an event; false after a timeout.
    pub fn wait(&mut self, patience: Duration) -> Result<bool, Failure> {
        let patience = libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
        };
        let count = self.0.len() as libc::nfds_t;
        // SAFETY: the array has that many entries; a closed descriptor is reported as invalid.
        match unsafe { libc::ppoll(self.0.as_mut_ptr(), count, &raw const patience, std::ptr::null()) } {
            // A signal counts as an event.
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(true),
                e => Err(Failure::of(e, "cannot wait")),
            },
            ready => Ok(ready > 0),
        }
    }
}

/// Nanoseconds since its creation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
