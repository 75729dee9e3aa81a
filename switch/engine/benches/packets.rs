//! Packets per second of the engine alone, one core, no I/O: the plain router with 10 and 10,000 entries, the
//! three kinds of lookup with 10 and 10,000 entries, and the ToR program if its trace is there:
//!
//! ```text
//! python3 switch/engine/benches/tor_trace.py > tor.trace
//! TOR_TRACE=$PWD/tor.trace cargo bench -p rivulet-engine
//! ```
//!
//! Prints one JSON object. With words after `--` it measures only the figures whose names begin with one of
//! them: `cargo bench -p rivulet-engine -- ToR`.

use std::collections::HashMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rivulet_engine::*;

/// Duration of each measurement.
const SPAN: Duration = Duration::from_millis(800);

fn main() {
    if std::env::args().any(|a| a == "--test") {
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut figures = Vec::new();
    if wanted("router") {
        for entries in [10, 10_000] {
            figures.push((format!("router, {entries} routes"), router(here, entries)));
        }
    }
    if wanted("lookup") {
        figures.extend(lookups(here));
    }
    let trace = std::env::var_os("TOR_TRACE").map(PathBuf::from);
    match trace.and_then(|p| std::fs::read_to_string(p).ok()) {
        Some(trace) => figures.extend(tor(here, &trace)),
        None => eprintln!("no TOR_TRACE: the ToR program is left out"),
    }
    let lines: Vec<String> = figures
        .iter()
        .map(|(name, ns)| {
            format!("  \"{name}\": {{\"ns_per_packet\": {ns:.1}, \"packets_per_second\": {:.0}}}", 1e9 / ns)
        })
        .collect();
    println!("{{\n{}\n}}", lines.join(",\n"));
}

/// Whether the command line names a figure, or none.
fn wanted(figure: &str) -> bool {
    let mut names = std::env::args().skip(1).filter(|a| !a.starts_with("--")).peekable();
    names.peek().is_none() || names.any(|n| figure.starts_with(&n))
}

/// Nanoseconds per packet, the best of eight measurements: disturbances only ever slow one down.
fn measure(mut batch: impl FnMut() -> usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        let (start, mut packets) = (cpu_time(), 0);
        while cpu_time() - start < SPAN / 8 {
            packets += batch();
        }
        best = best.min((cpu_time() - start).as_nanos() as f64 / packets as f64);
    }
    best
}

/// Processor time of this thread, so that other load on the machine has little effect.
fn cpu_time() -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux and `t` is a timespec to be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn start(program: &Path) -> (Pipeline, Switch, DataPath, Events) {
    let json = std::fs::read(program).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let begin = Instant::now();
    let program = Program::from_json(&json).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    if json.len() > 1_000_000 {
        eprintln!("loaded in {:?}", begin.elapsed());
    }
    let pipeline = Pipeline::new(program);
    let (switch, path, events) = Switch::new(SwitchConfig::default());
    (pipeline, switch, path, events)
}

/// A deterministic random number generator.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn router(here: &Path, entries: u32) -> f64 {
    let (pipeline, switch, mut path, _events) = start(&here.join("benches/router.json"));
    let table = pipeline.info().table("RouterIngress.routes").expect("the router's table");
    let action = pipeline.info().tables[table.index()].action("RouterIngress.forward").expect("its action");
    let mut seed = 1;
    let mut destinations = Vec::new();
    while destinations.len() < entries as usize {
        let (address, len) = (random(&mut seed) as u32, 12 + random(&mut seed) as u32 % 20);
        let value = address & (u32::MAX << (32 - len));
        let params = vec![vec![destinations.len() as u8 % 4], vec![2, 0, 0, 0, 0, 1]];
        let key = EntryKey {
            fields: vec![KeyMatch::Lpm { value: value.to_be_bytes().to_vec(), prefix_len: len }],
            priority: 0,
        };
        if pipeline
            .insert(table, &EntrySpec::new(key, EntryAction::Call(ActionCall { action, params })))
            .is_ok()
        {
            destinations.push(address);
        }
    }
    switch.commit(&pipeline).expect("commit");
    let frames: Vec<Vec<u8>> = (0..1024).map(|i| ipv4(destinations[i * 7 % destinations.len()])).collect();
    let mut out = 0u64;
    let mut now = 0;
    let ns = measure(|| {
        for f in &frames {
            now += 1;
            path.process(now, 1, f, &mut |port: u32, head: &[u8], rest: &[u8]| {
                black_box((port, head, rest));
                out += 1;
            });
        }
        frames.len()
    });
    assert_eq!(out, switch.stats().received, "a packet was dropped");
    ns
}

/// Nanoseconds per lookup in tables of each kind with 10 and with 10,000 entries: a packet that
/// applies the table, minus one that applies none.
fn lookups(here: &Path) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    let mut none = 0.0;
    for (op, name) in [(0, "no table"), (1, "exact"), (2, "lpm"), (3, "ternary")] {
        for entries in [10u32, 10_000] {
            let (pipeline, switch, mut path, _events) = start(&here.join("benches/lookups.json"));
            let mut seed = 9;
            let mut keys = Vec::new();
            while keys.len() < entries as usize {
                let key = random(&mut seed) as u32;
                // Prefixes as in a routing table, mostly long; ternary masks of 13 shapes.
                let prefix_len = 32 - (random(&mut seed) % 17) as u32;
                let mask = [0xffff_ffff_u32, 0xffff_ff00, 0xffff_0000, 0x00ff_ffff]
                    [random(&mut seed) as usize % 4]
                    & !(0x0101 << (random(&mut seed) % 4));
                let value = |mask: u32| (key & mask).to_be_bytes().to_vec();
                let prefix = u32::MAX << (32 - prefix_len);
                let (field, priority) = match op {
                    2 => (KeyMatch::Lpm { value: value(prefix), prefix_len }, 0),
                    3 => {
                        let mask_bytes = mask.to_be_bytes().to_vec();
                        (KeyMatch::Ternary { value: value(mask), mask: mask_bytes }, keys.len() as i32 + 1)
                    }
                    _ => (KeyMatch::Exact(key.to_be_bytes().to_vec()), 0),
                };
                if op > 0 {
                    let table = pipeline.info().table(&format!("I.{name}_t")).expect("a table");
                    let info = pipeline.info();
                    let action = info.tables[table.index()].actions[0];
                    let call = ActionCall { action, params: vec![vec![1]] };
                    let key = EntryKey { fields: vec![field], priority };
                    if pipeline.insert(table, &EntrySpec::new(key, EntryAction::Call(call))).is_err() {
                        continue;
                    }
                }
                keys.push(key);
            }
            switch.commit(&pipeline).expect("commit");
            // Every second packet hits.
            let frames: Vec<Vec<u8>> = (0..2048)
                .map(|i| {
                    let key = if i % 2 == 0 { keys[i * 7919 % keys.len()] } else { random(&mut seed) as u32 };
                    [&[op as u8, 0][..], &key.to_be_bytes(), &[0; 54]].concat()
                })
                .collect();
            let ns = measure(|| {
                for f in &frames {
                    path.process(1, 1, f, &mut |port: u32, head: &[u8], rest: &[u8]| {
                        black_box((port, head, rest));
                    });
                }
                frames.len()
            });
            if op == 0 {
                none = ns;
            } else {
                figures.push((format!("lookup, {name}, {entries} entries"), ns - none));
            }
        }
    }
    figures
}

/// A 64-byte frame with a right header checksum.
fn ipv4(destination: u32) -> Vec<u8> {
    let mut f =
        vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0, 0x45, 0, 0, 50, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1];
    f.extend(destination.to_be_bytes());
    let sum: u32 = f[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    f.resize(64, 0);
    f
}

/// A packet of the trace.
struct Sent {
    port: u32,
    /// Offset of a request's time, 0 if there is none.
    time_at: usize,
    frame: Vec<u8>,
}

fn tor(here: &Path, trace: &str) -> Vec<(String, f64)> {
    let (pipeline, switch, mut path, _events) = start(&here.join("../../p4src/build/rivulet.json"));
    let mut packets: HashMap<&str, Vec<Sent>> = HashMap::new();
    for line in trace.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "packet" => packets.entry(words[1]).or_default().push(Sent {
                port: words[2].parse().expect("port"),
                time_at: words[3].parse().expect("offset"),
                frame: bytes(words[4]),
            }),
            _ => install(&pipeline, &words),
        }
    }
    switch.commit(&pipeline).expect("commit");
    const START: u64 = 1_000_000;
    let beats = packets.remove("beat").expect("heartbeats");
    let mut figures = Vec::new();
    let mut now = START;
    for kind in ["range1", "range4", "response"] {
        if !wanted(&format!("ToR, {kind}")) {
            continue;
        }
        let list = packets.get_mut(kind).expect("packets of this kind");
        // Enough packets that the heartbeats between the batches do not matter.
        let few = list.len();
        while list.len() < 512 {
            let Sent { port, time_at, frame } = &list[list.len() % few];
            list.push(Sent { port: *port, time_at: *time_at, frame: frame.clone() });
        }
        let (mut sent, mut out, mut checked) = (0u64, 0u64, 0u64);
        let ns = measure(|| {
            // Advance by two replay slots, so that no number counts as used; the requests keep
            // their age.
            now += 9_000_000;
            for p in &beats {
                path.process(now, p.port, &p.frame, &mut |_: u32, _: &[u8], _: &[u8]| {});
            }
            for p in list.iter_mut() {
                if p.time_at != 0 {
                    let time = 0x0123_4567_89AB_u64 + now - 10_000;
                    p.frame[p.time_at..p.time_at + 6].copy_from_slice(&time.to_be_bytes()[2..]);
                }
                let at = p.time_at;
                path.process(now, p.port, &p.frame, &mut |_: u32, head: &[u8], rest: &[u8]| {
                    out += 1;
                    // The flags of the ToR block, 24 bytes before the request's time.
                    let flags = at.wrapping_sub(24);
                    let byte = head.get(flags).or_else(|| rest.get(flags.wrapping_sub(head.len())));
                    checked += u64::from(byte.is_some_and(|b| b & 1 == 1));
                });
            }
            sent += list.len() as u64;
            list.len()
        });
        assert_eq!(out, sent, "{kind}: a packet was dropped: {:?}", switch.stats());
        if kind != "response" {
            assert_eq!(checked, sent, "{kind}: a request is not marked as checked");
        }
        figures.push((format!("ToR, {kind}"), ns));
    }
    figures
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex = if hex.len() % 2 == 1 { format!("0{hex}") } else { hex.to_string() };
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal")).collect()
}

/// Executes a line of the trace that is not a packet.
fn install(pipeline: &Pipeline, words: &[&str]) {
    let info = pipeline.info();
    let table = |name: &str| {
        let at = info.tables.iter().position(|t| t.name.ends_with(&format!(".{name}")));
        TableId(at.unwrap_or_else(|| panic!("no table {name}")) as u32)
    };
    let call = |t: TableId, name: &str, words: &[&str]| {
        let info_t = &info.tables[t.index()];
        let at =
            info_t.action_names.iter().position(|n| n.ends_with(&format!(".{name}"))).expect("an action");
        let action = info_t.actions[at];
        let given: HashMap<&str, &str> =
            words.iter().map(|w| w.split_once('=').expect("name=value")).collect();
        let params =
            info.actions[action.index()].params.iter().map(|p| bytes(given[p.name.as_str()])).collect();
        EntryAction::Call(ActionCall { action, params })
    };
    match words[0] {
        "default" => {
            let t = table(words[1]);
            pipeline.set_default(t, Some(&call(t, words[2], &words[3..]))).expect("default");
        }
        "group" => {
            let replica = |w: &&str| {
                let (port, instance) = w.split_once(':').expect("port:instance");
                Replica { port: port.parse().expect("port"), instance: instance.parse().expect("instance") }
            };
            let replicas: Vec<Replica> = words[2..].iter().map(replica).collect();
            pipeline.set_multicast_group(words[1].parse().expect("group"), Some(&replicas)).expect("group");
        }
        _ => {
            let t = table(words[1]);
            let arrow = words.iter().position(|w| *w == "->").expect("->");
            let given: HashMap<&str, &str> =
                words[2..arrow].iter().map(|w| w.split_once('=').expect("k=v")).collect();
            let key =
                info.tables[t.index()].key.iter().map(|k| match given[k.name.as_str()].split_once('/') {
                    Some((v, len)) => {
                        KeyMatch::Lpm { value: bytes(v), prefix_len: len.parse().expect("length") }
                    }
                    None => KeyMatch::Exact(bytes(given[k.name.as_str()])),
                });
            let key = EntryKey { fields: key.collect(), priority: 0 };
            let action = call(t, words[arrow + 1], &words[arrow + 2..]);
            pipeline.insert(t, &EntrySpec::new(key, action)).unwrap_or_else(|e| panic!("{words:?}: {e}"));
        }
    }
}
