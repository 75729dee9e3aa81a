//! The test vectors in code form: the source of docs/wire-vectors.json.
#![allow(dead_code, unused_imports, reason = "the example, the tests and the corpus each use a part")]

mod exercise;
mod invalid;
mod json;
mod valid;

pub use exercise::*;
use rivulet_packet::slot::{Slot, SlotHash, SlotKey};
use rivulet_packet::*;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// Path of the committed file.
pub fn vectors_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire-vectors.json")
}

/// Deterministic numbers for fields with arbitrary values (splitmix64).
pub struct Mix(pub u64);

impl Mix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn word(&mut self) -> u32 {
        self.next() as u32
    }
}

/// All valid packets.
pub fn specs() -> Vec<Spec> {
    valid::specs()
}

/// All invalid frames.
pub fn invalid_frames() -> Vec<Vec<u8>> {
    invalid::frames().into_iter().map(|(_, _, f)| f).collect()
}

/// The nonce epoch of all packets.
pub const NONCE_EPOCH: u16 = 7;
/// K of that epoch.
pub const K: NonceKey = NonceKey { k0: 0x0302_0100, k1: 0x0706_0504 };
/// K' of that epoch.
pub const K_PRIME: NonceKey = NonceKey { k0: 0x1312_1110, k1: 0x1716_1514 };

/// The whole file.
pub fn vectors() -> Value {
    let key = |k: NonceKey| json!({ "k0": k.k0, "k1": k.k1 });
    json!({
        "about": [
            "Test vectors of docs/wire-format.md; made by `cargo run -p rivulet-packet --example wire_vectors`.",
            "Byte strings are hex, everything else is a number, a name of the wire format, or null.",
            "The sums of every proof are right under the keys below where `sums_right` says so.",
            "A position counts from the start of the frame, or of the TCP payload where `layer` is payload.",
            "The MACs of the continuations are a pattern: sealing is the transport's and has its own vectors.",
        ],
        "version": 2,
        "nonce_keys": [{ "epoch": NONCE_EPOCH, "k": key(K), "k_prime": key(K_PRIME) }],
        "packets": valid::packets(),
        "invalid": invalid::packets(),
        "heartbeat_key": "2021222324252627",
        "heartbeats": valid::heartbeats(),
        "answers": valid::answers(),
        "block_key": "3031323334353637",
        "block_tags": valid::block_tags(),
        "invalid_heartbeats": invalid::heartbeats(),
        "nonces": nonces(),
        "slots": slots(),
        "client_slots": client_slots(),
    })
}

fn vector_slots() -> Vec<Slot> {
    (0..64u8).map(|i| Slot { first: i % 8, second: (i % 8 + i / 8 % 7 + 1) % 8 }).collect()
}

/// Hashes that choose slots, and the slots' owners: flows as `[k0, k1, client, its port, service,
/// its port, hash, alive, owner]` with 16-byte addresses, blocks as `[k0, k1, tag, number, attempt,
/// hash, alive, owner]`. There are 64 slots for eight replicas: slot i names i mod 8 and the
/// replica i / 8 mod 7 + 1 places after it.
fn slots() -> Vec<Value> {
    let pairs = vector_slots();
    let mut mix = Mix(3);
    let mut out = vec![];
    for i in 0..200 {
        let key = SlotKey { k0: mix.word(), k1: mix.word(), hash: SlotHash::HalfSipHash };
        let alive = if i % 2 == 0 { 0xff } else { u64::from(mix.word() & 0xff) };
        let v4 = |x: u64| IpAddr::from((x as u32).to_be_bytes());
        let v6 = |x: u64, y: u64| IpAddr::from((u128::from(x) << 64 | u128::from(y)).to_be_bytes());
        let (client, service) = if i % 4 < 2 {
            (v4(mix.next()), v4(mix.next()))
        } else {
            (v6(mix.next(), mix.next()), v6(mix.next(), mix.next()))
        };
        let (client, service) =
            (SocketAddr::new(client, mix.word() as u16), SocketAddr::new(service, mix.word() as u16));
        let hash = key.flow(client, service);
        let octets = |a: SocketAddr| match a.ip() {
            IpAddr::V4(a) => json::hex(&a.to_ipv6_mapped().octets()),
            IpAddr::V6(a) => json::hex(&a.octets()),
        };
        let (c, s) = ((octets(client), client.port()), (octets(service), service.port()));
        out.push(json!([key.k0, key.k1, c.0, c.1, s.0, s.1, hash, alive, slot::owner(hash, &pairs, alive)]));
        let (tag, number, attempt) = (mix.word(), mix.word(), i as u8 % 4);
        let hash = key.block(tag, number, attempt);
        out.push(json!([
            key.k0,
            key.k1,
            tag,
            number,
            attempt,
            hash,
            alive,
            slot::owner(hash, &pairs, alive)
        ]));
    }
    out
}

/// The same for clients, with client affinity, as `[k0, k1, client, hash, alive, owner]`.
fn client_slots() -> Vec<Value> {
    let pairs = vector_slots();
    let mut mix = Mix(4);
    let mut out = vec![];
    for i in 0..100 {
        let key = SlotKey { k0: mix.word(), k1: mix.word(), hash: SlotHash::HalfSipHash };
        let alive = if i % 2 == 0 { 0xff } else { u64::from(mix.word() & 0xff) };
        let client = if i % 4 < 2 {
            Ipv4Addr::from_bits(mix.word()).to_ipv6_mapped()
        } else {
            Ipv6Addr::from_bits(u128::from(mix.next()) << 64 | u128::from(mix.next()))
        };
        let hash = key.client(client.to_canonical());
        let owner = slot::owner(hash, &pairs, alive);
        out.push(json!([key.k0, key.k1, json::hex(&client.octets()), hash, alive, owner]));
    }
    out
}

/// 1,100 values of r(x), as `[k0, k1, tag, number, r]`: the corners first, then random ones.
fn nonces() -> Vec<Value> {
    let mut out = vec![];
    let corners = [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX];
    for (k0, k1) in [(0, 0), (K.k0, K.k1), (K_PRIME.k0, K_PRIME.k1), (u32::MAX, u32::MAX)] {
        for tag in corners {
            for number in corners {
                out.push((k0, k1, tag, number));
            }
        }
    }
    let mut mix = Mix(2);
    out.extend((0..1000).map(|_| (mix.word(), mix.word(), mix.word(), mix.word())));
    out.into_iter().map(|(k0, k1, t, n)| json!([k0, k1, t, n, NonceKey { k0, k1 }.r(t, n)])).collect()
}

/// One member or vector a line, so that a diff shows the changed vectors.
pub fn render(v: &Value) -> String {
    let mut out = String::from("{\n");
    let members = v.as_object().expect("an object");
    for (i, (key, value)) in members.iter().enumerate() {
        let comma = if i + 1 < members.len() { "," } else { "" };
        match value.as_array() {
            Some(rows) => {
                out += &format!("\"{key}\": [\n");
                for (j, row) in rows.iter().enumerate() {
                    out += &format!("{row}{}\n", if j + 1 < rows.len() { "," } else { "" });
                }
                out += &format!("]{comma}\n");
            }
            None => out += &format!("\"{key}\": {value}{comma}\n"),
        }
    }
    out + "}\n"
}

/// A packet before encoding.
#[derive(Clone)]
pub struct Spec {
    pub name: String,
    pub eth: EthHeader,
    pub header: SegmentHeader,
    pub payload: Vec<u8>,
}

impl Spec {
    pub fn frame(&self) -> Vec<u8> {
        let mut f = vec![0; 9000];
        let at = self.eth.length() + self.header.payload_offset();
        f[at..at + self.payload.len()].copy_from_slice(&self.payload);
        let n = self
            .header
            .finish_frame(&self.eth, &mut f, self.payload.len())
            .expect("a packet that can be built");
        f.truncate(n);
        f
    }
}

/// Two hosts in both families, one of them with a VLAN tag: variants 0 to 3.
pub fn header(variant: usize, class: Class, number_low: u16) -> (EthHeader, SegmentHeader) {
    let (client, service) = if variant & 1 == 0 {
        ("192.0.2.1:40000", "198.51.100.80:80")
    } else {
        ("[2001:db8::1]:40000", "[2001:db8:1::80]:80")
    };
    let (client, service) = (client.parse().expect("an address"), service.parse().expect("an address"));
    let request = matches!(class, Class::Request(_));
    let (client_mac, service_mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 80]);
    let (src, dst) = if request { (client, service) } else { (service, client) };
    let (eth_src, eth_dst) = if request { (client_mac, service_mac) } else { (service_mac, client_mac) };
    let vlan = (variant & 2 != 0).then_some(0x2064);
    let flags = TcpFlags::of(class);
    let syn = flags.has(TcpFlags::SYN);
    let syn_options =
        syn.then_some(SynOptions { mss: 1440, ts_value: 0x0102_0304, ts_echo: 0, window_scale: 14 });
    let plain = matches!(class, Class::Request(RequestClass::Normal) | Class::Response(ResponseClass::Data));
    let header = SegmentHeader {
        src,
        dst,
        ecn: if plain { Ecn::Ect0 } else { Ecn::NotEct },
        seq: 0x1111_2222,
        ack: if syn { 0 } else { 0x3333_4444 },
        flags,
        option: RivuletOption { class, number_low },
        syn_options,
    };
    (EthHeader { dst: eth_dst, src: eth_src, vlan }, header)
}

/// A continuation with distinct values in all fields.
pub fn continuation(number: u32, base: u32) -> SealedContinuation {
    let fields = TransportContinuation {
        tag: 0x7a61_9c3e,
        number,
        base,
        time: 0x1234_5678_9abc,
        nonce_epoch: NONCE_EPOCH,
        seal_epoch: 0x0a0b,
        generation: 2,
        tor_id: 0x0103,
        tcp_base: base.wrapping_sub(40),
        start_cwnd: 12,
        ssthresh: 34,
        gain: 0,
        wire_base: 0xc0ff_ee00,
        mss: 1240,
        marked: false,
        first: false,
        rekey_wanted: false,
        srtt: 20_500,
        connection: 0x7a61_9c3e_0000_ff00,
    };
    SealedContinuation {
        fields,
        mac: [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab],
    }
}

/// Ranges from `base` on with gaps of one number, a retransmission in every third place, and right
/// sums.
pub fn ranges(tag: u32, base: u32, count: usize, length: u16) -> Vec<ProofEntry> {
    let mut first = 0u16;
    (0..count)
        .map(|i| {
            let kind = if i % 3 == 2 { EntryKind::Retransmitted } else { EntryKind::Original };
            let key = if i % 3 == 2 { K_PRIME } else { K };
            let last = first + if kind == EntryKind::Original { length - 1 } else { 0 };
            let at = |o: u16| base.wrapping_add(u32::from(o));
            let sum = key.tag(tag).range_sum(at(first), at(last));
            let entry = ProofEntry::range(kind, first, last, sum);
            first = last + if i % 2 == 0 { 1 } else { 2 };
            entry
        })
        .collect()
}
