//! The cost of a step: `cargo bench -p rivulet-transport`. Measured in CPU time of the thread, so
//! other load does not count.
#![allow(missing_docs)]

#[path = "../tests/it/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use rivulet_packet::Segment;
use rivulet_transport::client::{Config, Connection};
use rivulet_transport::server::{MinisocketCache, Policy, Reply, Server, Verdict, step};
use rivulet_transport::{KeyRing, Time};
use support::steady;

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn timed(iterations: u64, mut work: impl FnMut()) -> Duration {
    let start = cpu_time();
    for _ in 0..iterations {
        work();
    }
    cpu_time() - start
}

fn server(c: &mut Criterion) {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let policy = Policy::default();
    let mut out = [0u8; 2048];
    c.bench_function("server_step", |b| {
        b.iter_custom(|iterations| {
            timed(iterations, || {
                let segment = Segment::parse_packet(black_box(&packet)).unwrap();
                let verdict = step(&segment, &keys, Time(steady::NOW), &policy);
                let Ok(Verdict::Respond(plan)) = &verdict else { panic!() };
                black_box(plan.respond(0, &Reply::default(), &keys, &mut out).unwrap());
            })
        })
    });
    for (name, cache) in
        [("server_accept", None), ("server_accept_cached", Some(MinisocketCache::new(1 << 13)))]
    {
        let mut server = Server { policy, cache, ..Server::default() };
        if let Some(cache) = &mut server.cache {
            cache.insert(&steady::sealed(&keys), support::CLIENT.parse().unwrap());
        }
        c.bench_function(name, |b| {
            b.iter_custom(|iterations| {
                timed(iterations, || {
                    let segment = Segment::parse_packet(black_box(&packet)).unwrap();
                    let verdict = server.accept(&segment, &keys, Time(steady::NOW));
                    let Ok(Verdict::Respond(plan)) = &verdict else { panic!() };
                    black_box(server.respond(plan, 0, &Reply::default(), &keys, &mut out).unwrap());
                })
            })
        });
    }
    let segment = Segment::parse_packet(&packet).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &policy) else { panic!() };
    c.bench_function("server_further_response", |b| {
        b.iter_custom(|iterations| {
            timed(iterations, || {
                black_box(black_box(&plan).respond(0, &Reply::default(), &keys, &mut out).unwrap());
            })
        })
    });
}

/// Runs a connection of a fixed window and measures only the client's time.
fn client_rounds(connection: &mut Connection, keys: &KeyRing, now: &mut u64, responses: u64) -> Duration {
    let policy = Policy::default();
    let mut spent = Duration::ZERO;
    let (mut done, mut buffer, mut sink) = (0, vec![0u8; 2048], vec![0u8; 1 << 20]);
    let mut down: Vec<Vec<u8>> = Vec::new();
    while done < responses {
        let mut up = Vec::new();
        let start = cpu_time();
        while let Some(n) = connection.poll_transmit(Time(*now), &mut buffer) {
            up.push(buffer[..n].to_vec());
        }
        spent += cpu_time() - start;
        *now += 20_000;
        down.clear();
        for packet in &up {
            let segment = Segment::parse_packet(packet).unwrap();
            if let Ok(Verdict::Respond(plan)) = step(&segment, keys, Time(*now), &policy) {
                support::answer(&plan, keys, |p| down.push(p.to_vec()));
            }
        }
        let start = cpu_time();
        for packet in &down {
            let _ = connection.handle_input(Time(*now), packet);
        }
        while connection.poll().is_some() {}
        spent += cpu_time() - start;
        while let rivulet_transport::client::Read::Bytes(_) = connection.read(0, &mut sink) {}
        done += down.len() as u64;
        assert!(!down.is_empty() || done == 0, "the connection stands still");
    }
    spent / (done.max(1) as u32) * (responses as u32)
}

fn client(c: &mut Criterion) {
    let keys = support::keys();
    c.bench_function("client_step", |b| {
        b.iter_custom(|iterations| {
            let (local, remote) = (support::CLIENT.parse().unwrap(), support::SERVICE.parse().unwrap());
            let mut now = 1_000_000;
            let config = Config { receive_buffer: 200_000, ..Config::default() };
            let mut connection = Connection::open(config, local, remote, Time(now));
            connection.write(0, b"100000000000\n", Time(now));
            client_rounds(&mut connection, &keys, &mut now, 500);
            client_rounds(&mut connection, &keys, &mut now, iterations)
        })
    });
}

criterion_group!(benches, server, client);
criterion_main!(benches);
