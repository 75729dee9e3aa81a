//! Helpers of the tests: sites, replicas without shared state, clients, and a network between them
//! in virtual time.
#![allow(missing_docs, reason = "tests")]

pub mod client;
pub mod name_server;
pub mod net;
pub mod path;
pub mod reno;
pub mod shared;

use rivulet_plain::{CookieKey, CookieKeys, Entry, Object, Site, Table};

/// Bytes without short repetitions, for an object of this size.
pub fn content(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ size as u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..size).map(|_| next()).collect()
}

pub fn object(size: usize) -> Entry {
    let hash = (size as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes();
    Entry::Object(Object { kind: "application/octet-stream".into(), hash, body: content(size).into() })
}

/// Objects named by their sizes.
pub const SIZES: [usize; 10] = [0, 1, 100, 900, 1100, 2000, 5000, 10_000, 13_000, 14_000];

pub fn keys() -> CookieKeys {
    CookieKeys { current: CookieKey::new(*b"current!"), others: [Some(CookieKey::new(*b"previous")), None] }
}

pub fn site() -> Site {
    site_of(&SIZES)
}

/// A site with objects of these sizes.
pub fn site_of(sizes: &[usize]) -> Site {
    let mut entries: Vec<(Box<str>, Entry)> =
        sizes.iter().map(|n| (n.to_string().into(), object(*n))).collect();
    entries.push(("folder".into(), Entry::Folder));
    entries.push(("big".into(), Entry::Kernel));
    Site { keys: keys(), table: Table::new(entries, false).unwrap().into(), mtu: 1500, large: false }
}

pub fn get(size: usize, more: &str) -> Vec<u8> {
    format!("GET /{size} HTTP/1.1\r\nHost: h\r\n{more}\r\n").into_bytes()
}

/// The bodies in a stream of responses, each checked against its Content-Length; no other bytes may
/// follow.
pub fn bodies(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    while !stream.is_empty() {
        let end = stream.windows(4).position(|w| w == b"\r\n\r\n").expect("the end of a head") + 4;
        let head = std::str::from_utf8(&stream[..end]).expect("a head of text");
        assert!(head.starts_with("HTTP/1.1 "), "{head}");
        let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).expect("a length");
        let length: usize = length.parse().unwrap();
        assert!(stream.len() >= end + length, "{length} octets after {head}");
        bodies.push(stream[end..end + length].to_vec());
        stream = &stream[end + length..];
    }
    bodies
}

/// The number of complete responses at the beginning of a stream.
pub fn bodies_whole(mut stream: &[u8]) -> usize {
    let mut count = 0;
    while let Some(at) = stream.windows(4).position(|w| w == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&stream[..at]);
        let length =
            head.lines().find_map(|l| l.strip_prefix("Content-Length: ")).map_or(0, |n| n.parse().unwrap());
        let Some(rest) = stream.get(at + 4 + length..) else { break };
        stream = rest;
        count += 1;
    }
    count
}
