//! Random rules and frames: both kinds of filter accept the same frames.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use rivulet_bpf::kernel::{self, Feature};

use super::both::Both;
use crate::filter::{LocalPorts, LocalRule, Rule, State, TcpRule, TunnelRule, UDP_PORT_GUE};

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

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

const EXID: u16 = 0x5256;
const PORTS: [u16; 6] = [0, 80, 81, 8080, 65534, 65535];
const RANGES: [RangeInclusive<u16>; 7] =
    [0..=0, 80..=80, 70..=90, 8000..=8100, 65534..=65535, 81..=81, 0..=65535];

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

fn rule(r: &mut Random, ports: Option<&LocalPorts>) -> Rule {
    match r.below(9) {
        0 => Rule::EtherType(r.of(&[0x88b5, 0x0806])),
        1 => Rule::IcmpError(addresses(r)),
        2 | 3 => {
            let source = address(r);
            let same = |a: &IpAddr| a.is_ipv4() == source.is_ipv4();
            let destination = std::iter::repeat_with(|| address(r)).find(same).unwrap();
            Rule::Tunnel(TunnelRule { source, destination })
        }
        4 if ports.is_some() => {
            Rule::Local(LocalRule { exid: EXID, addresses: addresses(r), ports: ports.unwrap().clone() })
        }
        _ => Rule::Tcp(TcpRule {
            exid: r.one_in(3).then_some(EXID),
            destinations: addresses(r),
            destination_ports: (0..r.of(&[0, 0, 0, 1, 2])).map(|_| r.of(&RANGES)).collect(),
        }),
    }
}

/// A frame that such rules often accept, or just miss.
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
    f.extend(r.of(&[
        [253, 8, 0x52, 0x56],
        [253, 8, 0x52, 0x57],
        [254, 8, 0x52, 0x56],
        [1, 1, 1, 1],
        [2, 4, 5, 0xb4],
    ]));
    f.extend([0; 8]);
    if r.one_in(4) {
        f.truncate(r.below(f.len() + 1));
    }
    if r.one_in(10) && !f.is_empty() {
        let at = r.below(f.len());
        f[at] ^= 1 << r.below(8);
    }
    // A packet socket never sees this tag, because the kernel removes it first.
    if f.len() >= 14 && matches!(f[12..14], [0x81, 0] | [0x88, 0xa8]) {
        f[12] = 0;
    }
    f
}

#[test]
fn both_kinds_take_the_same() {
    let ports = (!kernel::skipped(Feature::Xdp)).then(|| LocalPorts::new().unwrap());
    if let Some(ports) = &ports {
        for (port, state) in
            [(80, State::Open), (8080, State::Open), (81, State::Opening), (65535, State::Opening)]
        {
            ports.set(port, state);
        }
    }
    let mut r = Random(0x9e37_79b9_7f4a_7c15);
    let mut seen = [[0u32; 2]; 2];
    for _ in 0..60 {
        let n = r.of(&[0, 1, 1, 2, 4]);
        let rules: Vec<Rule> = (0..n).map(|_| rule(&mut r, ports.as_ref())).collect();
        let both = Both::new(&rules);
        for _ in 0..200 {
            let frame = frame(&mut r);
            let accepted = both.accepts(&frame);
            if frame.len() >= 14 {
                let taken = both.takes(&frame);
                // The packet socket's program rejects a frame that is too short for one of the
                // rules.
                let whole = [&frame[..], &[0; 64]].concat();
                assert!(accepted || !taken || both.filter.accepts(&whole), "{:?}, {frame:02x?}", both.rules);
                seen[usize::from(taken)][usize::from(accepted)] += 1;
            }
        }
    }
    let [[neither, copied], [cut, both]] = seen;
    assert!(neither > 300 && both > 300 && copied > 50 && cut < 20, "too few cases of a kind: {seen:?}");
}
