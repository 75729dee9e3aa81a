//! A stateful middlebox between client and service. It tracks the window of a TCP connection like
//! Linux's `nf_conntrack` with `nf_conntrack_tcp_be_liberal=0` and counts the packets that Linux
//! would call INVALID. All packets pass.
//!
//! The rules are those of van Rooij, "Real Stateful TCP Packet Filtering in IP Filter" (2000), as
//! in `nf_conntrack_proto_tcp.c`. For a packet with sequence range `seq` to `end`, acknowledgement
//! `ack` and a window:
//!
//! 1. Data stays within the receiver's window: `seq <= maxend`.
//! 2. It is not older than one window: `end >= sent - maxwin(receiver)`.
//! 3. The acknowledged data was sent: `ack <= sent(receiver)`.
//! 4. The acknowledgement is not too old: `ack >= sent(receiver) - max(maxwin, 66000)`.

use std::any::Any;

use crate::Nanos;
use crate::ids::{LinkId, NodeId};
use crate::net::{Context, Node};
use crate::packet::{Body, Packet};

/// `MAXACKWINCONST` of Linux.
const ACK_WINDOW: u32 = 66_000;

/// The fields of a segment that the box uses.
#[derive(Debug, Clone, Copy)]
struct Header {
    seq: u32,
    end: u32,
    ack: u32,
    window: u32,
    syn: bool,
    acknowledges: bool,
    /// The shift of the window scale option (RFC 7323), in a SYN.
    scale: Option<u8>,
}

impl Header {
    fn read(packet: &[u8]) -> Option<Self> {
        let (ip, total) = match packet.first()? >> 4 {
            4 => (20, usize::from(u16::from_be_bytes([packet[2], packet[3]]))),
            _ => (40, 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]))),
        };
        let tcp = packet.get(ip..total)?;
        let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let (seq, ack) = (word(4)?, word(8)?);
        let (header, flags) = (usize::from(*tcp.get(12)? >> 4) * 4, *tcp.get(13)?);
        let (fin, syn) = (flags & 1, flags >> 1 & 1);
        let payload = tcp.len().checked_sub(header)? as u32;
        let mut options = tcp.get(20..header)?;
        let mut scale = None;
        while let [kind, rest @ ..] = options {
            options = match (kind, rest) {
                (0, _) => break,
                (1, rest) => rest,
                (_, [length, ..]) if *length >= 2 && usize::from(*length) <= options.len() => {
                    if (*kind, *length) == (3, 3) {
                        scale = Some(options[2].min(14));
                    }
                    &options[usize::from(*length)..]
                }
                _ => return None,
            };
        }
        Some(Self {
            seq,
            end: seq.wrapping_add(payload + u32::from(syn) + u32::from(fin)),
            ack,
            window: u32::from(u16::from_be_bytes([tcp[14], tcp[15]])),
            syn: syn == 1,
            acknowledges: flags & 0x10 != 0,
            scale,
        })
    }
}

/// State of one end.
#[derive(Debug, Clone, Copy, Default)]
struct Side {
    /// End of the data that it sent.
    sent: u32,
    /// End of the data that it may send.
    allowed: u32,
    /// Its largest window; 0: no segment seen yet.
    window: u32,
    scale: u8,
}

fn after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// One connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conntrack {
    client: Side,
    server: Side,
    opened: bool,
}

impl Conntrack {
    /// Whether a packet from or to the client is valid. Invalid packets do not change the state.
    pub fn takes(&mut self, from_client: bool, packet: &[u8]) -> bool {
        let Some(h) = Header::read(packet) else { return false };
        let (mut sender, mut receiver) =
            if from_client { (self.client, self.server) } else { (self.server, self.client) };
        let mut answered = false;
        if h.syn && (sender.window == 0 || (from_client && !self.opened)) {
            // The first segment of this end, or a new connection of the client.
            sender =
                Side { sent: h.end, allowed: h.end, window: h.window.max(1), scale: h.scale.unwrap_or(0) };
            if !h.acknowledges {
                receiver = Side::default();
            } else if h.scale.is_none() {
                (sender.scale, receiver.scale) = (0, 0);
            }
            answered = h.acknowledges;
            if !h.acknowledges {
                (self.client, self.server) = (sender, receiver);
                return true;
            }
        } else if h.syn {
            // A SYN on an open connection, or a repeated answer to one: passes without an effect.
            return true;
        } else if sender.window == 0 {
            // Only a SYN opens a connection here. Data that overtook the answer to the SYN passes
            // without an effect.
            return !from_client;
        }
        let (mut seq, mut end) = (h.seq, h.end);
        let ack = if h.acknowledges { h.ack } else { receiver.sent };
        if seq == end {
            (seq, end) = (sender.sent, sender.sent);
        }
        let valid = !after(seq, sender.allowed)
            && !after(sender.sent.wrapping_sub(receiver.window), end)
            && !after(ack, receiver.sent)
            && !after(receiver.sent.wrapping_sub(sender.window.max(ACK_WINDOW)), ack);
        if !valid {
            return false;
        }
        let window = if h.syn { h.window } else { h.window << sender.scale };
        sender.window = sender.window.max(window);
        if after(end, sender.sent) {
            sender.sent = end;
        }
        if receiver.window != 0 && after(end, sender.allowed) {
            receiver.window += end.wrapping_sub(sender.allowed);
        }
        if after(ack.wrapping_add(window).wrapping_add(1), receiver.allowed) {
            receiver.allowed = ack.wrapping_add(window).wrapping_add(u32::from(window == 0));
        }
        self.opened |= answered;
        (self.client, self.server) = if from_client { (sender, receiver) } else { (receiver, sender) };
        true
    }
}

/// The box as a node: packets to the client go down, all others up.
#[derive(Debug)]
pub struct Middlebox {
    client: NodeId,
    tor: NodeId,
    up: LinkId,
    down: LinkId,
    track: Conntrack,
    /// Packets that passed.
    pub passed: u64,
    /// Invalid ones among them.
    pub invalid: u64,
    /// Time of the first invalid packet, and whether the client sent it.
    pub first: Option<(Nanos, bool)>,
}

impl Middlebox {
    /// Creates a box next to `client`, which reaches the ToR by `up` and the client by `down`.
    pub fn new(client: NodeId, tor: NodeId, up: LinkId, down: LinkId) -> Self {
        let track = Conntrack::default();
        Self { client, tor, up, down, track, passed: 0, invalid: 0, first: None }
    }
}

impl Node for Middlebox {
    fn on_packet(&mut self, mut packet: Packet, ctx: &mut Context) {
        let from_client = packet.src == self.client;
        if let Body::Ip(bytes) = &packet.body {
            self.passed += 1;
            // Linux examines only packets with a right checksum.
            let right = rivulet_packet::Segment::parse_packet(bytes).is_ok_and(|s| s.verify().is_ok());
            if right && !self.track.takes(from_client, bytes) {
                self.invalid += 1;
                self.first.get_or_insert((ctx.now, from_client));
            }
        }
        if from_client {
            packet.dst = self.tor;
            ctx.send(self.up, packet);
        } else {
            ctx.send(self.down, packet);
        }
    }

    fn on_wake(&mut self, _: &mut Context) {}

    fn next_wake(&self) -> Option<Nanos> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment with only the fields that the box uses.
    fn segment(flags: u8, seq: u32, ack: u32, payload: usize, scale: Option<u8>) -> Vec<u8> {
        let options = if scale.is_some() { 4 } else { 0 };
        let mut p = vec![0; 40 + options + payload];
        p[0] = 0x45;
        let total = p.len() as u16;
        p[2..4].copy_from_slice(&total.to_be_bytes());
        p[24..28].copy_from_slice(&seq.to_be_bytes());
        p[28..32].copy_from_slice(&ack.to_be_bytes());
        (p[32], p[33]) = (((20 + options) as u8 / 4) << 4, flags);
        p[34..36].copy_from_slice(&1000u16.to_be_bytes());
        if let Some(scale) = scale {
            p[40..44].copy_from_slice(&[3, 3, scale, 0]);
        }
        p
    }

    const SYN: u8 = 2;
    const ACK: u8 = 0x10;

    /// An open connection: the client sent up to 101, the server up to 501, and the windows are
    /// 1000 << 3.
    fn open() -> Conntrack {
        let mut c = Conntrack::default();
        assert!(c.takes(true, &segment(SYN, 100, 0, 0, Some(3))));
        assert!(c.takes(false, &segment(SYN | ACK, 500, 101, 0, Some(3))));
        assert!(c.takes(true, &segment(ACK, 101, 501, 0, None)));
        c
    }

    #[test]
    fn a_usual_connection_is_valid() {
        let mut c = open();
        assert!(c.takes(true, &segment(ACK, 101, 501, 300, None)));
        assert!(c.takes(false, &segment(ACK, 501, 401, 1000, None)));
        assert!(c.takes(false, &segment(ACK, 2501, 401, 1000, None)), "after a loss");
        assert!(c.takes(false, &segment(ACK, 1501, 401, 1000, None)), "late");
        assert!(c.takes(true, &segment(ACK, 401, 3501, 0, None)));
    }

    #[test]
    fn each_rule_detects_its_violation() {
        for (from_client, packet) in [
            (false, segment(ACK, 501 + 8001, 101, 10, None)),
            (true, segment(ACK, 101u32.wrapping_sub(8500), 501, 10, None)),
            (true, segment(ACK, 101, 502, 0, None)),
            (true, segment(ACK, 101, 501u32.wrapping_sub(70_000), 0, None)),
        ] {
            assert!(!open().takes(from_client, &packet), "{packet:?}");
        }
        assert!(!Conntrack::default().takes(true, &segment(ACK, 1, 1, 10, None)), "without a SYN");
    }
}
