//! Attackers: each sends packets of one kind that a server has to refuse (or, for SYNs, to answer
//! without storing state).
//!
//! Attacks close to valid traffic start from real requests: a client and the server's step run in memory,
//! with the server's own keys or with others, and one field of the client's packets is changed.

mod plain;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::ValueEnum;
use rivulet_packet::checksum::Sum;
use rivulet_packet::continuation::HEAD;
use rivulet_packet::option::EX_ID;
use rivulet_packet::{RequestClass, SealedContinuation, Segment};
use rivulet_pktio::filter::TcpRule;
use rivulet_pktio::guard::KernelGuard;
use rivulet_pktio::{AfPacket, Filter, Interface, PacketIo, TxFrame};
use rivulet_server::keys::KeySet;
use rivulet_sim::content;
use rivulet_transport::KeyRing;
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection, Read};
use rivulet_transport::server::{Policy, Verdict, step};
use serde::Serialize;

/// What an attacker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Valid requests sealed with other keys.
    WrongKeys,
    /// Valid requests of key epochs that this server does not have.
    ExpiredEpochs,
    /// Rivulet's option, and random bytes.
    Garbage,
    /// SYNs without data.
    Syn,
    /// SYNs with a request.
    SynData,
    /// Valid requests with a changed continuation: a larger window.
    Forged,
    /// Valid requests with right sums but a wrong MAC.
    BadMac,
    /// SYNs of ordinary TCP, as Linux sends them.
    PlainSyn,
    /// Requests by ordinary TCP on connections that do not exist: acknowledgement and timestamp are guessed.
    PlainData,
    /// Acknowledgements of ordinary TCP, without data, on connections that do not exist.
    PlainAck,
}

impl Class {
    /// Whether the packets are ordinary TCP, for which no key is needed.
    fn is_plain(self) -> bool {
        matches!(self, Class::PlainSyn | Class::PlainData | Class::PlainAck)
    }
}

/// An attack.
#[derive(Clone, Debug)]
pub struct Attack {
    /// The attacked server.
    pub server: SocketAddr,
    /// The kind of packets.
    pub class: Class,
    /// The server's key file; ordinary TCP needs none.
    pub keys: Option<PathBuf>,
    /// Packets a second.
    pub rate: u32,
    /// Duration of the attack.
    pub length: Duration,
    /// Source address; `None`: chosen by the system.
    pub source: Option<IpAddr>,
}

/// Counts of sent packets.
#[derive(Debug, Serialize)]
pub struct Sent {
    class: Class,
    packets: u64,
    seconds: f64,
    packets_per_second: f64,
}

/// Number of different packets, sent in rotation.
const POOL: usize = 1024;
/// Age at which the packets are made again, so that the server does not refuse them as stale.
const RENEW: Duration = Duration::from_secs(2);
/// Packets of one system call.
const BATCH: usize = 64;
/// Connections tried for a pool of packets, so that failures do not repeat forever.
const SESSIONS: usize = 4 * POOL;

/// Runs the attack.
///
/// # Errors
/// Unreadable keys, and errors of the socket.
pub fn run(attack: &Attack) -> anyhow::Result<Sent> {
    let hop = rivulet_client::resolve(attack.server.ip())?;
    let source = attack.source.unwrap_or(hop.source);
    let interface = Interface::new(None, &hop.interface)?;
    let exid = (!attack.class.is_plain()).then_some(EX_ID);
    let rule = TcpRule { exid, destinations: vec![source], ..TcpRule::default() };
    let _guard = KernelGuard::install(None, &[&hop.interface], &[rule])?;
    let config = rivulet_pktio::Config {
        batch: BATCH,
        promiscuous: false,
        filter: Some(Filter::new(&[])?),
        ..rivulet_pktio::Config::default()
    };
    let mut io = AfPacket::open(&interface, config)?;
    let mut ethernet = [0; 14];
    ethernet[..6].copy_from_slice(&hop.mac);
    ethernet[6..12].copy_from_slice(&io.link()?.mac);
    ethernet[12..].copy_from_slice(if source.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] });
    let keys = attack.keys.as_deref().map(KeySet::read).transpose()?;
    let maker = Maker { keys, class: attack.class, server: attack.server, source };

    let mut packets = maker.pool()?;
    let mut made = Instant::now();
    let (began, mut sent, mut next) = (Instant::now(), 0u64, 0usize);
    while began.elapsed() < attack.length {
        if made.elapsed() > RENEW {
            packets = maker.pool()?;
            made = Instant::now();
        }
        let due = (began.elapsed().as_secs_f64() * f64::from(attack.rate)) as u64;
        let count = due.saturating_sub(sent).min(BATCH as u64) as usize;
        if count == 0 {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let frames: Vec<TxFrame<'_>> = (0..count)
            .map(|i| TxFrame {
                head: &ethernet,
                body: &packets[(next + i) % packets.len()],
                ..TxFrame::new(&[])
            })
            .collect();
        let done = io.send(&frames)?;
        next += done;
        sent += done as u64;
        if done < count {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok(Sent { class: attack.class, packets: sent, seconds, packets_per_second: sent as f64 / seconds })
}

struct Maker {
    keys: Option<KeySet>,
    class: Class,
    server: SocketAddr,
    source: IpAddr,
}

impl Maker {
    /// IP packets of the attack.
    fn pool(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut seed = clock().0 | 1;
        if self.class.is_plain() {
            let ends = (self.source, self.server);
            return (0..POOL as u64).map(|n| plain::packet(self.class, ends, mix(seed ^ n))).collect();
        }
        let keys = self.keys.as_ref().context("this attack needs the server's key file")?;
        let ring = self.ring(keys)?;
        let mut out = Vec::with_capacity(POOL);
        for n in 0..SESSIONS {
            seed = mix(seed);
            let local = SocketAddr::new(self.source, 1024 + (seed % 64_000) as u16);
            let config = Config { bare_syn: self.class == Class::Syn, seed, ..Config::default() };
            let wanted = matches!(self.class, Class::Syn | Class::SynData);
            for packet in session(config, local, self.server, &ring, wanted) {
                out.extend(self.spoil(packet, seed ^ n as u64));
            }
            if out.len() >= POOL {
                out.truncate(POOL);
                return Ok(out);
            }
        }
        bail!("the packets of this attack cannot be made: the key file has no usable keys")
    }

    /// The keys with which the packets are made.
    fn ring(&self, own: &KeySet) -> anyhow::Result<KeyRing> {
        let foreign = || KeySet::generate(own.service).context("making foreign keys");
        let mut keys = match self.class {
            Class::WrongKeys | Class::ExpiredEpochs => foreign()?,
            _ => own.clone(),
        };
        match self.class {
            Class::WrongKeys => {
                // The same epochs as the server's, so that it tries a key.
                keys.seal[0].epoch = own.usable_seal;
                keys.nonce[0].epoch = own.usable_nonce;
                (keys.usable_seal, keys.usable_nonce) = (own.usable_seal, own.usable_nonce);
            }
            Class::ExpiredEpochs => {
                let gone = |epochs: Vec<u16>| (1..u16::MAX).rev().find(|e| !epochs.contains(e)).unwrap_or(1);
                let seal = gone(own.seal.iter().map(|k| k.epoch).collect());
                let nonce = gone(own.nonce.iter().map(|k| k.epoch).collect());
                (keys.seal[0].epoch, keys.nonce[0].epoch) = (seal, nonce);
                (keys.usable_seal, keys.usable_nonce) = (seal, nonce);
            }
            _ => {}
        }
        keys.check()?;
        Ok(keys.ring())
    }

    /// The attack packet for a valid one; `None` if the attack does not start from this packet.
    fn spoil(&self, mut packet: Vec<u8>, seed: u64) -> Option<Vec<u8>> {
        let segment = Segment::parse_packet(&packet).ok()?;
        let request = segment.request().ok();
        match self.class {
            Class::Syn => return segment.is_bare_syn().then_some(packet),
            Class::SynData => {
                return request.filter(|r| r.class == RequestClass::Syn).is_some().then_some(packet);
            }
            _ => {}
        }
        let request = request.filter(|r| r.class == RequestClass::Normal)?;
        let sealed = request.continuation?;
        let payload = packet.len() - segment.payload.len();
        match self.class {
            Class::Garbage => {
                let mut state = seed;
                for byte in &mut packet[payload..] {
                    state = mix(state);
                    *byte = state as u8;
                }
            }
            Class::Forged => {
                let mut forged = sealed;
                forged.fields.start_cwnd = forged.fields.start_cwnd.saturating_add(10);
                replace(&mut packet[payload..], &sealed, &forged)?;
            }
            Class::BadMac => {
                let mut forged = sealed;
                for (byte, noise) in forged.mac.iter_mut().zip(mix(seed).to_be_bytes()) {
                    *byte ^= noise;
                }
                forged.mac[11] ^= 1;
                replace(&mut packet[payload..], &sealed, &forged)?;
            }
            _ => return Some(packet),
        }
        repair(&mut packet);
        Some(packet)
    }
}

/// Requests of a client to a server with these keys, both in memory; `opening`: only the first packet.
fn session(
    config: Config,
    local: SocketAddr,
    remote: SocketAddr,
    keys: &KeyRing,
    opening: bool,
) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 9100];
    let mut now = Time(1000);
    let clock = Time(clock().0.saturating_sub(1000));
    let seed = config.seed;
    let bare = config.bare_syn;
    let mut client = Connection::open(config, local, remote, now);
    if bare {
        client.connect(now);
    } else {
        client.write(0, &content::request(40_000, seed, true), now);
    }
    let mut all = Vec::new();
    for _ in 0..6 {
        let mut requests = Vec::new();
        while let Some(n) = client.poll_transmit(now, &mut buffer) {
            requests.push(buffer[..n].to_vec());
        }
        now = now + 100;
        for request in &requests {
            let Ok(segment) = Segment::parse_packet(request) else { continue };
            let time = Time(clock.0 + now.0);
            let Ok(Verdict::Respond(plan)) = step(&segment, keys, time, &Policy::default()) else { continue };
            // A refusal on either side only ends the connection earlier.
            let _ = content::answer(&plan, keys, |response| {
                let _ = client.handle_input(now, &response);
            });
        }
        all.append(&mut requests);
        if opening || all.len() >= 40 {
            break;
        }
        while matches!(client.read(0, &mut buffer), Read::Bytes(_)) {}
    }
    all
}

/// Replaces the continuation of a request: its head, and its rest behind the proof.
fn replace(payload: &mut [u8], old: &SealedContinuation, new: &SealedContinuation) -> Option<()> {
    let (old, new) = (old.to_bytes(), new.to_bytes());
    for part in [0..HEAD, HEAD..old.len()] {
        let at = payload.windows(part.len()).position(|w| w == &old[part.clone()])?;
        payload[at..at + part.len()].copy_from_slice(&new[part]);
    }
    Some(())
}

/// Recomputes the TCP checksum.
fn repair(packet: &mut [u8]) {
    let (tcp, addresses) = if packet[0] >> 4 == 4 { (20, 12..20) } else { (40, 8..40) };
    packet[tcp + 16..tcp + 18].fill(0);
    let length = (packet.len() - tcp) as u32;
    let sum = Sum::new().bytes(&packet[addresses]).word(6).bytes(&length.to_be_bytes()).bytes(&packet[tcp..]);
    packet[tcp + 16..tcp + 18].copy_from_slice(&sum.finish().to_be_bytes());
}

/// The replicas' common clock: real time.
fn clock() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64)
}

/// Numbers that look random (SplitMix64's finalizer).
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use rivulet_transport::server::Refusal;

    use super::*;

    /// The server's verdict on each packet of an attack: the name of the refusal, or "answered".
    fn verdicts(class: Class) -> Vec<&'static str> {
        let keys = KeySet::generate(7).unwrap();
        let ring = keys.ring();
        let server = "10.9.0.1:80".parse().unwrap();
        let maker = Maker { keys: Some(keys), class, server, source: "10.9.0.2".parse().unwrap() };
        let judge = |packet: &Vec<u8>| {
            let segment = match Segment::parse_packet(packet) {
                Ok(segment) => segment,
                Err(e) => return Refusal::Wire(e).name(),
            };
            segment.verify().expect("the checksum is right");
            match step(&segment, &ring, clock(), &Policy::default()) {
                Ok(_) => "answered",
                Err(refusal) => refusal.name(),
            }
        };
        maker.pool().unwrap().iter().map(judge).collect()
    }

    #[test]
    fn every_attack_gets_its_verdict() {
        for (class, expected) in [
            (Class::WrongKeys, &["forged"][..]),
            (Class::ExpiredEpochs, &["seal_epoch"]),
            (Class::Garbage, &["malformed", "seal_epoch", "forged"]),
            (Class::Syn, &["answered"]),
            (Class::SynData, &["answered"]),
            (Class::Forged, &["forged"]),
            (Class::BadMac, &["forged"]),
        ] {
            let verdicts = verdicts(class);
            assert_eq!(verdicts.len(), POOL);
            let odd: Vec<_> = verdicts.iter().filter(|v| !expected.contains(v)).collect();
            assert!(odd.is_empty(), "{class:?}: {:?}", &odd[..odd.len().min(5)]);
        }
    }
}
