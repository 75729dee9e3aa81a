//! Figures that need no clock. `loop N` runs N server steps for callgrind, `accept N` the same with
//! the soft states of `rivulet serve` except the minisocket cache, `cached N` with that cache too.
//! `bytes` prints the header bytes of a response by field, with and without delta encoding, as
//! JSON.
#![allow(missing_docs)]

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::hint::black_box;

use rivulet_packet::{NewContinuation, SealedContinuation, Segment};
use rivulet_transport::Time;
use rivulet_transport::server::{MinisocketCache, Policy, ReplayMemory, Reply, Server, Verdict, step};
use support::steady;

fn steps(n: u64) {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let policy = Policy::default();
    let mut out = [0u8; 2048];
    for _ in 0..n {
        let segment = Segment::parse_packet(black_box(&packet)).unwrap();
        let verdict = step(&segment, &keys, Time(steady::NOW), &policy);
        let Ok(Verdict::Respond(plan)) = &verdict else { panic!() };
        black_box(plan.respond(0, &Reply::default(), &keys, &mut out).unwrap());
    }
}

/// The replay memory accepts a number once, so each request belongs to another connection.
fn accepts(n: u64, cached: bool) {
    let keys = support::keys();
    let replay = Some(ReplayMemory::new(1 << 18, 4_000_000, 99));
    let cache = cached.then(|| MinisocketCache::new(1 << 13));
    let mut server = Server { policy: Policy::default(), replay, cache };
    let mut out = [0u8; 2048];
    let client = support::CLIENT.parse().unwrap();
    for tag in 0..n {
        let sealed = steady::sealed_as(&keys, tag as u32);
        if let Some(cache) = &mut server.cache {
            cache.insert(&sealed, client);
        }
        let packet = steady::request_with(&keys, &sealed);
        let segment = Segment::parse_packet(black_box(&packet)).unwrap();
        let verdict = server.accept(&segment, &keys, Time(steady::NOW));
        let Ok(Verdict::Respond(plan)) = &verdict else { panic!() };
        black_box(server.respond(plan, 0, &Reply::default(), &keys, &mut out).unwrap());
    }
}

fn response_bytes(delta: bool) -> String {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let policy = Policy { delta, ..Policy::default() };
    let segment = Segment::parse_packet(&packet).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &policy) else { panic!() };
    let mut out = [0u8; 2048];
    let want = plan.heads()[0].want.unwrap();
    let answer = rivulet_transport::server::Answer::Data { offset: want.offset, data: b"x", end: false };
    let sent = plan.respond(0, &Reply { answer, ..Reply::default() }, &keys, &mut out).unwrap();
    let segment = Segment::parse_packet(&out[..sent.length]).unwrap();
    let response = segment.response().unwrap();
    let (continuation, mac) = match response.continuation {
        NewContinuation::Full(_) => (SealedContinuation::LENGTH - 12, 12),
        NewContinuation::Delta(d) => (d.length() - 12, 12),
        NewContinuation::None => (0, 0),
    };
    let total = 8 + response.head_length();
    assert_eq!(total, sent.length - 20 - 20 - 1, "IPv4 and TCP headers, and one byte of data");
    format!(
        "{{\"option\": 8, \"number\": 4, \"nonce\": 4, \"content\": 1, \"answers\": 1, \
         \"continuation\": {continuation}, \"mac\": {mac}, \"offset\": 8, \"total\": {total}}}"
    )
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("loop") => steps(arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1000)),
        Some("accept") => accepts(arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1000), false),
        Some("cached") => accepts(arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1000), true),
        Some("bytes") => {
            println!("{{\"delta\": {}, \"full\": {}}}", response_bytes(true), response_bytes(false));
        }
        _ => eprintln!("usage: transport_figures loop N | accept N | cached N | bytes"),
    }
}
