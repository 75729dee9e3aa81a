//! The processor time of one step of stateless TCP: `cargo bench -p rivulet-plain`. Measures the
//! thread's CPU time, so that other processes do not count.
#![allow(missing_docs)]

#[path = "../tests/it/support/mod.rs"]
#[allow(dead_code)]
mod support;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rivulet_plain::{Handoff, Replica, Ring, Segment, Verdict};
use support::client::{Client, Nature};
use support::net::{Fate, Net};

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// The packets of one connection: SYN, handshake, request, acknowledgements and FIN.
fn packets(size: usize) -> Vec<Vec<u8>> {
    let site = support::site();
    let mut packets = Vec::new();
    let mut client = Client::new(Nature::default(), 4000, 9, &[support::get(size, "Connection: close\r\n")]);
    Net::new(&site).run_with(&mut client, &mut |_, _| Fate::Arrives, &mut |packet, net, now, outcome| {
        packets.push(packet.to_vec());
        net.answer(&site, packet, now, outcome)
    });
    packets
}

fn connection(c: &mut Criterion) {
    for size in [1, 900, 10_000] {
        let packets = packets(size);
        for (name, ring) in [("", None), ("_ring", Some(Ring::new(1 << 16)))] {
            let mut replica = Replica { site: support::site(), ring };
            let mut out = [0; 2048];
            c.bench_function(&format!("connection_{size}{name}"), |b| {
                b.iter_custom(|iterations| {
                    let start = cpu_time();
                    for _ in 0..iterations {
                        for packet in &packets {
                            let segment = Segment::parse(black_box(packet)).unwrap();
                            match replica.receive(&segment, 29_000_000, None) {
                                Verdict::Say(header) => {
                                    black_box(header.finish(&mut out, 0).unwrap());
                                }
                                Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
                                    for piece in flight.pieces() {
                                        black_box(flight.write(piece, &mut out).unwrap());
                                    }
                                }
                                Verdict::Drop(_)
                                | Verdict::Kernel(_)
                                | Verdict::Begin(_)
                                | Verdict::Adopt(..) => {}
                            }
                        }
                    }
                    cpu_time() - start
                })
            });
        }
    }
    let syn = &packets(1)[0];
    let replica = Replica { site: support::site(), ring: None };
    let mut out = [0; 128];
    c.bench_function("syn", |b| {
        b.iter_custom(|iterations| {
            let start = cpu_time();
            for _ in 0..iterations {
                let segment = Segment::parse(black_box(syn)).unwrap();
                let Verdict::Say(header) = replica.site.judge(&segment, 29_000_000, None) else { panic!() };
                black_box(header.finish(&mut out, 0).unwrap());
            }
            cpu_time() - start
        })
    });
}

criterion_group!(benches, connection);
criterion_main!(benches);
