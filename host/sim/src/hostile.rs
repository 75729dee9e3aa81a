//! A client and a server with an enemy between them that changes the packets of one end and repairs
//! the checksums; used by two fuzz targets and a test.
//!
//! The enemy's choices are bytes, so that a fuzzer can control them. When they are used up, all
//! packets pass unchanged.

use std::net::SocketAddr;

use rivulet_packet::Segment;
use rivulet_packet::checksum::Sum;
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection, Read};
use rivulet_transport::server::{Congestion, Policy, Verdict, step};

use crate::ids::NodeId;
use crate::{address, content, service};

/// The end with changed packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enemy {
    /// The client's packets: the server is under attack.
    Client,
    /// The server's packets: the client is under attack.
    Server,
}

/// Result of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Session {
    /// All bytes arrived and were right.
    pub finished: bool,
    /// Requests that the server accepted.
    pub requests: usize,
    /// Responses delivered to the client.
    pub responses: usize,
}

/// Turns of a session: in each one every end sends its packets, or time advances to the next
/// timeout.
const TURNS: usize = 300;
/// Largest number of packets from one call: more would mean that the enemy inflated the client's
/// window.
const BURST: usize = 4096;
/// Bytes of the transfer.
const SIZE: u64 = 60_000;
/// Receive buffer of the client.
const BUFFER: usize = 32 << 10;
/// The common clock at the start, in microseconds.
const CLOCK: u64 = 1 << 40;

struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn take(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.byte()).collect()
    }
}

/// The enemy's treatment of one packet: drops it, keeps it, or replaces it by others.
fn meddle(packet: Vec<u8>, choices: &mut Choices<'_>, past: &mut Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    past.push(packet.clone());
    match choices.byte() {
        0..=99 => vec![packet],
        100..=119 => vec![],
        120..=129 => vec![packet.clone(), packet],
        // Change some bytes after the IP header.
        130..=219 => {
            let mut p = packet;
            for _ in 0..1 + choices.byte() % 4 {
                let at = usize::from(u16::from_be_bytes([choices.byte() & 7, choices.byte()]));
                let (value, start) = (choices.byte(), ip_header(&p));
                let span = p.len() - start;
                p[start + at % span] ^= value;
            }
            vec![repaired(p)]
        }
        // Cut the packet, or append the enemy's bytes.
        220..=234 => {
            let mut p = packet;
            let start = ip_header(&p);
            let keep = usize::from(choices.byte()) * 8;
            p.truncate(p.len().min(start + 20 + keep));
            let more = usize::from(choices.byte() % 64);
            p.extend(choices.take(more));
            vec![repaired(p)]
        }
        // Replay an earlier packet, and send this one.
        235..=244 => {
            let i = usize::from(choices.byte()) % past.len();
            vec![past[i].clone(), packet]
        }
        // Send only the enemy's bytes.
        _ => {
            let n = usize::from(choices.byte());
            vec![choices.take(n)]
        }
    }
}

fn ip_header(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 20 } else { 40 }
}

/// Repairs lengths and checksums.
fn repaired(mut p: Vec<u8>) -> Vec<u8> {
    let tcp = ip_header(&p);
    let length = p.len();
    let pseudo = if tcp == 20 {
        p[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        p[10..12].fill(0);
        let sum = Sum::new().bytes(&p[..20]).finish();
        p[10..12].copy_from_slice(&sum.to_be_bytes());
        Sum::new().bytes(&p[12..20])
    } else {
        p[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        Sum::new().bytes(&p[8..40])
    };
    if length >= tcp + 18 {
        p[tcp + 16..tcp + 18].fill(0);
        let sum = pseudo.word(6).bytes(&((length - tcp) as u32).to_be_bytes()).bytes(&p[tcp..]).finish();
        p[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    }
    p
}

fn policy(cubic: bool) -> Policy {
    let congestion = if cubic { Congestion::Cubic } else { Congestion::Reno };
    Policy { congestion, ..Policy::default() }
}

/// Runs a session under an enemy's choices.
///
/// # Panics
/// If an end panics, sends without limit, or exceeds its buffer: the faults that fuzzing looks for.
pub fn session(bytes: &[u8], enemy: Enemy) -> Session {
    let mut choices = Choices(bytes);
    let setting = choices.byte();
    let (v6, keys, policy) = (setting & 1 != 0, service::keys(&[1], &[1]), policy(setting & 2 != 0));
    let config = Config {
        delayed_acks: setting & 4 != 0,
        bare_syn: setting & 8 != 0,
        receive_buffer: BUFFER,
        seed: 7,
        ..Config::default()
    };
    let mut now = Time(0);
    let local: SocketAddr = address::client(NodeId(1), 0, v6, 40_000);
    let mut client = Connection::open(config, local, address::service(v6), now);
    client.write(0, &content::request(SIZE, 3, true), now);
    client.finish(0);
    let (mut past, mut result) = (vec![], Session::default());
    let (mut received, mut right) = (0, true);
    let mut buffer = vec![0; 9100];
    for _ in 0..TURNS {
        let mut requests = vec![];
        while let Some(n) = client.poll_transmit(now, &mut buffer) {
            requests.push(buffer[..n].to_vec());
            assert!(requests.len() <= BURST, "the client sends without end");
        }
        if requests.is_empty() {
            let Some(due) = client.poll_timeout() else { break };
            now = Time(due.0.max(now.0 + 1));
            client.handle_timeout(now);
            // A client that waits forever would loop here; TURNS bounds it.
        }
        now = Time(now.0 + 5_000);
        if enemy == Enemy::Client {
            requests = requests.into_iter().flat_map(|p| meddle(p, &mut choices, &mut past)).collect();
        }
        let mut responses = vec![];
        for request in &requests {
            let Ok(segment) = Segment::parse_packet(request) else { continue };
            if segment.verify().is_err() {
                continue;
            }
            result.requests += 1;
            let clock = Time(CLOCK + now.0);
            if let Ok(Verdict::Respond(plan)) = step(&segment, &keys, clock, &policy) {
                let heads = plan.heads().len();
                let before = responses.len();
                let _ = content::answer(&plan, &keys, |p| responses.push(p));
                assert!(responses.len() - before <= heads, "more responses than the verdict allows");
            }
        }
        now = Time(now.0 + 5_000);
        if enemy == Enemy::Server {
            responses = responses.into_iter().flat_map(|p| meddle(p, &mut choices, &mut past)).collect();
        }
        for response in &responses {
            result.responses += 1;
            let _ = client.handle_input(now, response);
            // In addition to the buffer a stream may hold the data of one packet.
            assert!(client.buffered() <= BUFFER + 2048, "{} bytes held", client.buffered());
            loop {
                match client.read(0, &mut buffer) {
                    Read::Bytes(n) => {
                        right &= content::mismatch(3, received, &buffer[..n]).is_none();
                        received += n as u64;
                    }
                    Read::Blocked => break,
                    Read::End => {
                        result.finished |= right && received == SIZE;
                        break;
                    }
                }
            }
        }
        while client.poll().is_some() {}
        if client.is_over() || result.finished {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn without_an_enemy_the_transfer_finishes() {
        for setting in 0..16 {
            for enemy in [Enemy::Client, Enemy::Server] {
                let s = session(&[setting], enemy);
                assert!(s.finished, "{setting} {enemy:?} {s:?}");
            }
        }
    }

    #[test]
    fn random_enemies_cause_no_panic() {
        let mut rng = Rng::new(1);
        let mut finished = 0;
        for n in 0..400 {
            let length = rng.below(600);
            let bytes: Vec<u8> = (0..length).map(|_| rng.u64() as u8).collect();
            let enemy = if n % 2 == 0 { Enemy::Client } else { Enemy::Server };
            finished += usize::from(session(&bytes, enemy).finished);
        }
        assert!(finished > 100, "the enemies leave something alive: {finished}");
    }
}
