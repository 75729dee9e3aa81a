//! The translation against the interpreter: the same rules and frames through both, the XDP program run by the
//! kernel. Needs the right to load programs; skipped, in words, where there is none.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use super::translate;
use crate::Filter;
use crate::bpf;
use crate::filter::program::{Kind, compile, run};
use crate::filter::{PortSet, Rule, TcpRule, TunnelRule, UDP_PORT_GUE};

/// The verdict of an accepted frame: XDP_TX, which nothing else gives.
const ACCEPTED: u32 = 3;
const PASSED: u32 = 2;

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

const PORTS: [u16; 6] = [0, 80, 81, 8080, 65534, 65535];

fn address(r: &mut Random) -> IpAddr {
    let last = r.below(4) as u8;
    match r.one_in(2) {
        true => IpAddr::from([10, 0, 0, last]),
        false => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
    }
}

fn addresses(r: &mut Random) -> Vec<IpAddr> {
    let n = r.of(&[0, 0, 0, 0, 1, 4, 8]);
    (0..n).map(|_| address(r)).collect()
}

fn ranges(r: &mut Random) -> Vec<std::ops::RangeInclusive<u16>> {
    let n = r.of(&[0, 0, 0, 1, 2]);
    (0..n)
        .map(|_| {
            let (a, b) = (r.of(&PORTS), r.of(&PORTS));
            a.min(b)..=a.max(b)
        })
        .collect()
}

fn rule(r: &mut Random, sets: &[PortSet]) -> Rule {
    match r.below(8) {
        0 => Rule::EtherType(r.of(&[0x88b5, 0x0806])),
        1 => Rule::IcmpError(addresses(r)),
        2 | 3 => {
            let source = address(r);
            let same = |a: &IpAddr| a.is_ipv4() == source.is_ipv4();
            let destination = std::iter::repeat_with(|| address(r)).find(same).unwrap();
            Rule::Tunnel(TunnelRule { source, destination })
        }
        _ => Rule::Tcp(TcpRule {
            exid: r.one_in(3).then_some(0x5256),
            sources: addresses(r),
            destinations: addresses(r),
            source_ports: ranges(r),
            destination_ports: ranges(r),
            destination_port_set: r.one_in(4).then(|| sets[r.below(sets.len())].clone()),
        }),
    }
}

/// A frame that rules of the kind above accept often, and then again just do not.
fn frame(r: &mut Random) -> Vec<u8> {
    let mut f = vec![2; 12];
    let (source, destination) = (address(r), address(r));
    let protocol = r.of(&[6, 6, 6, 6, 1, 58, 4, 41, 17]);
    match (source, destination) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            let words = r.of(&[5u8, 5, 6, 15, 0]);
            let fragment = r.of(&[0x40, 0x40, 0x20, 0x1f]);
            f.extend([8, 0, 0x40 | words, 0, 0, 60, 0, 0, fragment, 0, 64, protocol, 0, 0]);
            f.extend(s.octets());
            f.extend(d.octets());
            f.resize(14 + 4 * usize::from(words).max(5), 7);
        }
        (s, d) => {
            f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
            for a in [s, d] {
                f.extend(match a {
                    IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                    IpAddr::V6(a) => a.octets(),
                });
            }
        }
    }
    if r.one_in(12) {
        f[12..14].copy_from_slice(&r.of(&[0x88b5u16, 0x0806]).to_be_bytes());
    }
    match protocol {
        1 => f.extend([r.of(&[0, 3, 8, 11, 12]), 4, 0, 0]),
        58 => f.extend([r.of(&[0, 1, 2, 4, 5, 128]), 0, 0, 0]),
        _ => {
            f.extend(r.of(&PORTS).to_be_bytes());
            f.extend(r.of(&[UDP_PORT_GUE, 80, 81, 8080, 65535]).to_be_bytes());
        }
    }
    f.extend([0, 0, 0, 1, 0, 0, 0, 2, r.of(&[0x50, 0x60, 0x80, 0xf0, 0x00]), 0x10, 1, 0, 0, 0, 0, 0]);
    f.extend(r.of(&[[253, 8, 0x52, 0x56], [253, 8, 0x52, 0x57], [1, 1, 1, 1], [2, 4, 5, 0xb4]]));
    f.extend([0; 8]);
    if r.one_in(4) {
        f.truncate(r.below(f.len() + 1));
    }
    if r.one_in(10) && !f.is_empty() {
        let at = r.below(f.len());
        f[at] ^= 1 << r.below(8);
    }
    f
}

fn tagged(frame: &[u8], protocol: u16) -> Vec<u8> {
    let mut f = frame[..12].to_vec();
    f.extend(protocol.to_be_bytes());
    f.extend([0, 5]);
    f.extend(&frame[12..]);
    f
}

/// `None`, and a line that says so, where programs may not be loaded.
fn sets() -> Option<[PortSet; 2]> {
    match (PortSet::new(), PortSet::new()) {
        (Ok(a), Ok(b)) => Some([a, b]),
        (Err(e), _) | (_, Err(e)) => {
            eprintln!("SKIPPED: no BPF maps: {e}");
            None
        }
    }
}

fn load(program: &crate::filter::program::Program, map: i32) -> std::os::fd::OwnedFd {
    let code = translate(Some(program), map, ACCEPTED).unwrap();
    bpf::load(&code).unwrap_or_else(|e| panic!("{} instructions: {e}", code.len()))
}

#[test]
fn the_kernel_and_the_interpreter_agree() {
    let Some(sets) = sets() else { return };
    for port in [80, 81, 8080, 65535] {
        sets[0].set(port, true);
    }
    sets[1].set(81, true);
    let map = bpf::socket_map().unwrap();
    let mut r = Random(0x9e37_79b9_7f4a_7c15);
    let mut seen = [[0u32; 2]; 2];
    for round in 0..60 {
        let n = r.of(&[0, 1, 1, 2, 4]);
        let rules: Vec<Rule> = (0..n).map(|_| rule(&mut r, &sets)).collect();
        let program = compile(&rules, Kind::Xdp);
        let loaded = load(&program, map.as_raw_fd());
        for _ in 0..200 {
            let frame = frame(&mut r);
            // The kernel runs nothing shorter.
            if frame.len() < 14 {
                continue;
            }
            let wanted = run(&program.code, &program.sets, &frame);
            let tag = r.of(&[None, Some(0x8100), Some(0x88a8)]);
            let given = tag.map_or(frame.clone(), |tag| tagged(&frame, tag));
            let verdict = bpf::run(&loaded, &given).unwrap();
            assert!(verdict == ACCEPTED || verdict == PASSED, "verdict {verdict}");
            assert_eq!(verdict == ACCEPTED, wanted, "round {round}, {rules:?}, {given:02x?}");
            seen[usize::from(tag.is_some())][usize::from(wanted)] += 1;
        }
    }
    assert!(seen.iter().flatten().all(|n| *n > 150), "a test of something: {seen:?}");
}

#[test]
fn a_set_is_followed_and_a_socket_filter_does_without() {
    let Some([set, _]) = sets() else { return };
    let map = bpf::socket_map().unwrap();
    let rule = Rule::Tcp(TcpRule { destination_port_set: Some(set.clone()), ..TcpRule::default() });
    let loaded = load(&compile(std::slice::from_ref(&rule), Kind::Xdp), map.as_raw_fd());
    let mut f = vec![2; 12];
    f.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend([0; 20]);
    for port in [0u16, 1, 7, 8, 255, 256, 32767, 32768, 65535] {
        f[36..38].copy_from_slice(&port.to_be_bytes());
        assert_eq!(bpf::run(&loaded, &f).unwrap(), PASSED, "{port}");
        set.set(port, true);
        assert_eq!(bpf::run(&loaded, &f).unwrap(), ACCEPTED, "{port}");
        let others = (0..=u16::MAX).filter(|p| set.contains(*p)).collect::<Vec<_>>();
        assert_eq!(others, [port]);
        set.set(port, false);
        assert_eq!(bpf::run(&loaded, &f).unwrap(), PASSED, "{port}");
        assert!(Filter::new(std::slice::from_ref(&rule)).unwrap().accepts(&f));
    }
}

/// The longest that a packet socket takes is loaded too: verified within the kernel's limits, jumps within reach.
#[test]
fn long_lists_load() {
    if sets().is_none() {
        return;
    }
    let map = bpf::socket_map().unwrap();
    let v6: Vec<IpAddr> = (0..300u16).map(|i| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, i])).collect();
    let v4: Vec<IpAddr> = (0..300u16).map(|i| IpAddr::from([10, 0, (i >> 8) as u8, i as u8])).collect();
    let tcp = |destinations| Rule::Tcp(TcpRule { exid: Some(0x5256), destinations, ..TcpRule::default() });
    let most: Vec<Rule> = (0..16)
        .flat_map(|i| {
            let ports = vec![80 + i..=80 + i];
            let both = [v4[usize::from(i)], v6[usize::from(i)]];
            [Rule::Tcp(TcpRule {
                destinations: both.to_vec(),
                destination_ports: ports,
                ..TcpRule::default()
            })]
        })
        .collect();
    for rules in [vec![tcp(v6.clone())], vec![tcp(v4.clone()), tcp(v4)], most] {
        Filter::new(&rules).expect("within a packet socket's limit");
        load(&compile(&rules, Kind::Xdp), map.as_raw_fd());
    }
}

#[test]
fn a_refused_program_says_why() {
    if sets().is_none() {
        return;
    }
    // exit, without a verdict
    let error = bpf::load(&[[0x95, 0, 0, 0, 0, 0, 0, 0]]).unwrap_err().to_string();
    assert!(error.contains("verifier") && error.contains("R0"), "{error}");
}
