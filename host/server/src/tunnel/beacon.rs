//! The way of heartbeats to another rack's ToR.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use rivulet_packet::heartbeat::{ANSWER_LENGTH, UDP_PORT};
use rivulet_pktio::in_netns;

use super::RETRY;
use crate::heartbeat::{Beat, Live};
use crate::service::Tunnel;

/// Answers taken before the next heartbeat.
const MAX_ANSWERS: usize = 64;

/// A socket to one ToR, opened once the address is there.
#[derive(Debug)]
pub(crate) struct Beacon {
    pub tunnel: Tunnel,
    socket: Option<UdpSocket>,
    /// When to try again, microseconds.
    next: u64,
    /// What this ToR last answered.
    pub live: Option<Live>,
}

impl Beacon {
    pub(crate) fn new(tunnel: Tunnel) -> Beacon {
        Beacon { tunnel, socket: None, next: 0, live: None }
    }

    /// Sends a heartbeat; whether it was sent.
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
        // Errors are those of the network (a router's word about an earlier one): the next goes out all the same.
        self.socket.as_ref().is_some_and(|socket| socket.send(heartbeat).is_ok())
    }

    /// Takes what the ToR answered to heartbeats of `beat`, telling of each whether it is believed.
    pub(crate) fn receive(&mut self, beat: &Beat, now: u64, mut told: impl FnMut(bool)) {
        let Some(socket) = &self.socket else { return };
        let mut answer = [0; ANSWER_LENGTH];
        for _ in 0..MAX_ANSWERS {
            match socket.recv(&mut answer) {
                Ok(length) => {
                    let live = beat.judge(&answer[..length], self.live.as_ref(), now);
                    told(live.is_some());
                    self.live = live.or(self.live);
                }
                // Also a router's word about an earlier heartbeat, which is not a datagram to take.
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
        let mut octets = [0; 8];
        assert_eq!(tor.recv(&mut octets).unwrap(), 4);
        let not_there = Tunnel { local: "192.0.2.1".parse().unwrap(), ..there };
        assert!(!Beacon::new(not_there).send(b"beat", None, 0), "an address that is not here");
    }
}
