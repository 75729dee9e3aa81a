//! The path of heartbeats to another rack's ToR.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rivulet_packet::heartbeat::{ANSWER_LENGTH, UDP_PORT};
use rivulet_pktio::in_netns;

use super::RETRY;
use crate::heartbeat::{Beat, Live};
use crate::service::Tunnel;

/// Answers read before the next heartbeat.
const MAX_ANSWERS: usize = 64;

/// A socket to one ToR; opened once this host has the address.
#[derive(Debug)]
pub(crate) struct Beacon {
    pub tunnel: Tunnel,
    socket: Option<UdpSocket>,
    /// When to retry, microseconds.
    next: u64,
    /// The ToR's last answer.
    pub live: Option<Live>,
}

impl Beacon {
    pub(crate) fn new(tunnel: Tunnel) -> Beacon {
        Beacon { tunnel, socket: None, next: 0, live: None }
    }

    /// Sends a heartbeat; returns whether it was sent.
    pub(crate) fn send(&mut self, heartbeat: &[u8], netns: Option<&str>, now: u64) -> bool {
        if self.socket.is_none() && now >= self.next {
            self.next = now + RETRY;
            let open = || open(self.tunnel);
            match in_netns(netns, open).map_err(io::Error::other).flatten() {
                Ok(socket) => self.socket = Some(socket),
                Err(e) => {
                    let Tunnel { local, tor } = self.tunnel;
                    tracing::warn!(%local, %tor, error = %e, "no heartbeats to this ToR");
                }
            }
        }
        // Errors come from the network (ICMP about an earlier datagram); the next heartbeat is sent
        // nevertheless.
        self.socket.as_ref().is_some_and(|socket| socket.send(heartbeat).is_ok())
    }

    /// Reads the ToR's answers to heartbeats of `beat`, and reports for each whether it is
    /// authentic.
    pub(crate) fn receive(&mut self, beat: &Beat, now: u64, mut report: impl FnMut(bool)) {
        let Some(socket) = &self.socket else { return };
        let mut answer = [0; ANSWER_LENGTH];
        for _ in 0..MAX_ANSWERS {
            match socket.recv(&mut answer) {
                Ok(length) => {
                    let live = beat.judge(&answer[..length], self.live.as_ref(), now);
                    report(live.is_some());
                    self.live = live.or(self.live);
                }
                // Also an ICMP error about an earlier heartbeat, which leaves no datagram to read.
                Err(_) => break,
            }
        }
    }
}

fn open(tunnel: Tunnel) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(tunnel.local, 0))?;
    socket.connect(SocketAddr::new(tunnel.tor, UDP_PORT))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_go_out_once_the_address_is_there() {
        let tor = UdpSocket::bind(("127.0.0.2", UDP_PORT)).unwrap();
        let there = Tunnel { local: "127.0.0.1".parse().unwrap(), tor: "127.0.0.2".parse().unwrap() };
        assert!(Beacon::new(there).send(b"beat", None, 0));
        let mut bytes = [0; 8];
        assert_eq!(tor.recv(&mut bytes).unwrap(), 4);
        let not_there = Tunnel { local: "192.0.2.1".parse().unwrap(), ..there };
        assert!(!Beacon::new(not_there).send(b"beat", None, 0), "an address that is not here");
    }
}
