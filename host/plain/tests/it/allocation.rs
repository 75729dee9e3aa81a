//! Handling a packet allocates no memory: a counting allocator checks it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rivulet_plain::{Handoff, Judged, Protocol, Relay, Replica, Ring, Segment, Verdict};

use crate::support::client::{Client, Nature};
use crate::support::name_server::{query, translated};
use crate::support::net::{Fate, Net};
use crate::support::{get, keys, site};

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system allocator unchanged; counting touches a const-initialised
// thread-local alone.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is that of `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

#[test]
fn allocator_counts_allocations() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 1);
}

#[test]
fn a_packet_is_answered_without_allocating() {
    let site = site();
    let mut packets = Vec::new();
    for stamps in [true, false] {
        let nature = Nature { stamps, ..Nature::default() };
        let mut client =
            Client::new(nature, 4000, 9, &[get(10_000, "If-None-Match: \"x\"\r\nRange: bytes=5-\r\n")]);
        let net = Net::new(&site);
        net.run_with(&mut client, &mut |_, _| Fate::Arrives, &mut |packet, net, now, outcome| {
            packets.push(packet.to_vec());
            net.answer(&site, packet, now, outcome)
        });
    }
    assert!(packets.len() > 10);
    let mut replica = Replica { site, ring: Some(Ring::new(64)) };
    let mut out = [0; 2048];
    let mut sent = 0;
    let count = allocations(|| {
        for packet in &packets {
            let segment = Segment::parse(packet).unwrap();
            assert!(segment.is_intact());
            match replica.receive(&segment, 29_000_000, None) {
                Verdict::Say(header) => sent += header.finish(&mut out, 0).unwrap(),
                Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
                    for piece in flight.pieces() {
                        sent += flight.write(piece, &mut out).unwrap();
                    }
                }
                Verdict::Drop(_) | Verdict::Kernel(_) | Verdict::Begin(_) | Verdict::Adopt(..) => {}
            }
        }
    });
    assert!(sent > 20_000, "{sent} octets");
    assert_eq!(count, 0);
}

#[test]
fn back_end_answer_is_sent_without_allocating() {
    let relay = Relay { keys: keys(), protocol: Protocol::Dns, deterministic: true, mtu: 1500 };
    let queries = [query(1, 4000, true), query(2, 30, false)].concat();
    let octets = translated(&queries, 0);
    for stamps in [true, false] {
        let nature = Nature { stamps, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 9, std::slice::from_ref(&queries));
        let site = site();
        let (mut out, mut sent) = ([0; 2048], 0);
        Net::new(&site).run_with(&mut client, &mut |_, _| Fate::Arrives, &mut |packet, net, _, _| {
            let mut replies = Vec::with_capacity(16);
            let mut lengths = [0; 16];
            let mut count = 0;
            let mut all = vec![0; 1 << 16];
            let made = allocations(|| {
                let segment = Segment::parse(packet).unwrap();
                let verdict = match relay.judge(&segment, net.minute) {
                    Judged::Ask(ask) => relay.answer(&segment, &ask, Some(&octets), None),
                    Judged::Say(header) => Verdict::Say(header),
                    Judged::Drop(reason) => Verdict::Drop(reason),
                    Judged::Kernel(cause) => Verdict::Kernel(cause),
                    Judged::Adopt(cause, handshake) => Verdict::Adopt(cause, handshake),
                };
                let mut put = |bytes: &[u8]| {
                    all[sent..sent + bytes.len()].copy_from_slice(bytes);
                    sent += bytes.len();
                    lengths[count] = bytes.len();
                    count += 1;
                };
                match verdict {
                    Verdict::Say(header) => {
                        let n = header.finish(&mut out, 0).unwrap();
                        put(&out[..n]);
                    }
                    Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
                        for piece in flight.pieces() {
                            let n = flight.write(piece, &mut out).unwrap();
                            put(&out[..n]);
                        }
                    }
                    Verdict::Drop(_) | Verdict::Kernel(_) | Verdict::Begin(_) | Verdict::Adopt(..) => {}
                }
            });
            assert_eq!(made, 0);
            let mut at = sent - lengths[..count].iter().sum::<usize>();
            for length in &lengths[..count] {
                replies.push(all[at..at + length].to_vec());
                at += length;
            }
            replies
        });
        assert!(client.stream == octets && sent > 4000);
    }
}
