//! Which frames filters accept, by the kernel on packet sockets and by the XDP program.

mod both;
mod random;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use rivulet_bpf::kernel::{self, Feature};

use both::{Both, PASSED, TAKEN, program, run, tagged};

const EXID: u16 = 0x5256;

fn segment(v6: bool, option: &[u8]) -> Vec<u8> {
    let mut f = vec![2; 12];
    if v6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 6, 64]);
        f.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        f.extend("fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets());
    } else {
        f.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    f.extend([0x1f, 0x90, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 2]);
    f.extend([((20 + option.len()) as u8 / 4) << 4, 0x10, 1, 0, 0, 0, 0, 0]);
    f.extend(option);
    f.extend([0xfd, 8, 0x52, 0x56, 1, 2, 3, 4]);
    f
}

fn ours(v6: bool) -> Vec<u8> {
    segment(v6, &[253, 8, 0x52, 0x56, 0, 0, 0, 0])
}

fn tcp(rule: TcpRule) -> Both {
    Both::tcp(rule)
}

#[test]
fn option_is_required_if_configured() {
    let any = tcp(TcpRule::default());
    let only_ours = tcp(TcpRule { exid: Some(EXID), ..TcpRule::default() });
    for v6 in [false, true] {
        assert!(any.accepts(&ours(v6)) && only_ours.accepts(&ours(v6)));
        // Without an option the payload starts at the option's place and must not be mistaken for
        // one.
        let plain = segment(v6, &[]);
        assert!(any.accepts(&plain) && !only_ours.accepts(&plain));
        let other = segment(v6, &[253, 8, 0x52, 0x57, 0, 0, 0, 0]);
        assert!(any.accepts(&other) && !only_ours.accepts(&other));
        let kind = segment(v6, &[254, 8, 0x52, 0x56, 0, 0, 0, 0]);
        assert!(any.accepts(&kind) && !only_ours.accepts(&kind));
    }
}

#[test]
fn addresses_and_ports_narrow() {
    let v4: IpAddr = "10.0.0.2".parse().unwrap();
    let v6: IpAddr = "fd00::2".parse().unwrap();
    let other: IpAddr = "fd00::3".parse().unwrap();
    let to = |d: &[IpAddr]| tcp(TcpRule { destinations: d.to_vec(), ..TcpRule::default() });
    assert!(to(&[v4]).accepts(&ours(false)) && !to(&[v4]).accepts(&ours(true)));
    assert!(to(&[v6]).accepts(&ours(true)) && !to(&[v6]).accepts(&ours(false)));
    assert!(!to(&[other]).accepts(&ours(true)));
    assert!(to(&[other, v4, v6]).accepts(&ours(true)));

    let dport =
        |r: RangeInclusive<u16>| tcp(TcpRule { destination_ports: vec![7..=7, r], ..TcpRule::default() });
    for v6 in [false, true] {
        assert!(dport(80..=80).accepts(&ours(v6)) && dport(0..=u16::MAX).accepts(&ours(v6)));
        assert!(!dport(81..=90).accepts(&ours(v6)) && !dport(70..=79).accepts(&ours(v6)));
    }
}

#[test]
fn fragments_and_short_frames_do_not_pass() {
    let f = tcp(TcpRule { exid: Some(EXID), ..TcpRule::default() });
    let mut fragment = ours(false);
    fragment[20] = 0x20;
    assert!(!f.accepts(&fragment));
    for v6 in [false, true] {
        let frame = ours(v6);
        let option_end = frame.len() - 8 - 4;
        for len in 0..option_end {
            assert!(!f.accepts(&frame[..len]), "v6 {v6}, {len} octets");
        }
    }
}

#[test]
fn rules_are_alternatives() {
    let f = Both::new(&[
        Rule::EtherType(0x88b5),
        Rule::IcmpError(vec!["10.0.0.2".parse().unwrap()]),
        Rule::Tcp(TcpRule { exid: Some(EXID), ..TcpRule::default() }),
    ]);
    let mut heartbeat = vec![0; 60];
    heartbeat[12..14].copy_from_slice(&[0x88, 0xb5]);
    assert!(f.accepts(&heartbeat) && f.accepts(&ours(true)) && f.accepts(&ours(false)));
    let mut icmp = ours(false);
    icmp[23] = 1;
    for (kind, pass) in [(3, true), (11, true), (12, true), (8, false), (0, false)] {
        icmp[34] = kind;
        assert_eq!(f.accepts(&icmp), pass, "type {kind}");
    }
    icmp[34] = 3;
    icmp[33] = 9;
    assert!(!f.accepts(&icmp), "to another address");
    assert!(!Both::new(&[]).accepts(&ours(false)), "no rule accepts nothing");
}

#[test]
fn tunnels_of_both_kinds_pass_between_their_ends() {
    for v6 in [false, true] {
        let (a, b) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        let rule = TunnelRule { source: a.parse().unwrap(), destination: b.parse().unwrap() };
        let filter = Both::new(&[Rule::Tunnel(rule)]);
        let back = TunnelRule { source: rule.destination, destination: rule.source };
        let backwards = Both::new(&[Rule::Tunnel(back)]);
        let (protocol, l4) = if v6 { (20, 54) } else { (23, 34) };
        let mut frame = ours(v6);
        assert!(!filter.accepts(&frame), "TCP is no tunnel");
        for (kind, pass) in [(4, true), (41, true), (17, false), (6, false)] {
            frame[protocol] = kind;
            assert_eq!(filter.accepts(&frame), pass, "protocol {kind}");
            assert!(!backwards.accepts(&frame));
        }
        frame[protocol] = 17;
        frame[l4 + 2..l4 + 4].copy_from_slice(&UDP_PORT_GUE.to_be_bytes());
        assert!(filter.accepts(&frame));
        if !v6 {
            frame[20] = 0x20;
            assert!(!filter.accepts(&frame), "a fragment");
        }
    }
}

#[test]
fn long_lists_work_up_to_the_kernels_limit() {
    let many: Vec<IpAddr> = (0..300u16).map(|i| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, i])).collect();
    // The kernel accepts programs of this length if it has room (net.core.optmem_max).
    let filter = Filter::new(&[Rule::Tcp(TcpRule { destinations: many, ..TcpRule::default() })]).unwrap();
    assert!(filter.accepts(&ours(true)));
    if let Some(program) = program(&filter) {
        assert_eq!([true, false].map(|v6| program.verdict(&ours(v6))), [TAKEN, PASSED]);
    }
    let ports = |range| Rule::Tcp(TcpRule { destination_ports: vec![range], ..TcpRule::default() });
    assert!(Both::new(&[ports(1..=2000)]).accepts(&ours(false)), "no hole in a range of ports");
    let taken = Filter::new(&[ports(1..=20_000)]).unwrap().taken().unwrap_err().to_string();
    assert!(taken.contains("at most 16384"), "{taken}");
}

#[test]
fn packet_socket_takes_more_where_rules_are_too_many() {
    let rules: Vec<Rule> = (0..1024u16)
        .flat_map(|i| {
            let destinations = vec![IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 0x1000 + i])];
            let tcp = TcpRule { exid: Some(EXID), destinations, destination_ports: vec![i + 1..=i + 1] };
            [Rule::Tcp(tcp), Rule::EtherType(0x88b5)]
        })
        .collect();
    let filter = Filter::new(&rules).unwrap();
    assert!(filter.program().len() <= MAX_EXACT);
    let kernel_accepts = |frame: &[u8]| program::run(filter.program(), frame);
    assert!([true, false].iter().all(|&v6| kernel_accepts(&ours(v6))), "of any address and port");
    // Frames from a tunnel that are not for this process go to the kernel.
    assert!([true, false].iter().all(|&v6| !filter.accepts(&ours(v6))));
    let other = Filter::new(&[Rule::Tcp(TcpRule { exid: Some(EXID + 1), ..TcpRule::default() })]).unwrap();
    assert!(!other.accepts(&ours(true)));
    let mut heartbeat = ours(true);
    heartbeat[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    assert!(kernel_accepts(&heartbeat) && filter.accepts(&heartbeat));
    heartbeat[12..14].copy_from_slice(&0x0806u16.to_be_bytes());
    assert!(!kernel_accepts(&heartbeat), "no more than that");
    // AF_XDP still takes exactly the frames of the rules.
    filter.taken().unwrap();
}

/// Like a packet socket, which sees frames without their tag: one tag is ignored, and with two the
/// frame has the second one's EtherType.
#[test]
fn one_tag_is_stepped_over() {
    let both = Both::tcp(TcpRule { exid: Some(EXID), ..TcpRule::default() });
    let Some(xdp) = &both.xdp else { return };
    for v6 in [false, true] {
        let once = tagged(&ours(v6), 0x8100);
        assert_eq!([xdp.verdict(&ours(v6)), xdp.verdict(&once)], [TAKEN, TAKEN]);
        for outer in [0x8100, 0x88a8] {
            assert_eq!(xdp.verdict(&tagged(&once, outer)), PASSED);
        }
    }
}

/// Without a filter the program takes every frame. Frames without a socket (a queue beyond the
/// first, a closed socket) go to the kernel.
#[test]
fn without_a_socket_the_kernel_has_it() {
    let filter = Filter::new(&[Rule::Tcp(TcpRule::default())]).unwrap();
    let Some(mut program) = program(&filter) else { return };
    assert_eq!([program.verdict(&ours(false)), program.verdict(&[0; 14])], [TAKEN, PASSED]);
    program.redirect.apply(&Taken::everything().table).unwrap();
    assert_eq!([program.verdict(&ours(true)), program.verdict(&[0; 14])], [TAKEN, TAKEN]);
    drop(std::mem::replace(&mut program.socket, std::fs::File::open("/dev/null").unwrap().into()));
    assert_eq!(program.verdict(&ours(true)), PASSED);
}

#[test]
fn local_ports_are_followed_as_they_change() {
    if kernel::skipped(Feature::Xdp) {
        return;
    }
    let ports = LocalPorts::new().unwrap();
    let here = vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let both = Both::new(&[Rule::Local(LocalRule { exid: EXID, addresses: here, ports: ports.clone() })]);
    let xdp = both.xdp.as_ref().unwrap();
    for v6 in [false, true] {
        let at = if v6 { 56 } else { 36 };
        for port in [0u16, 1, 7, 8, 255, 256, 32767, 32768, 65535] {
            let [mut with, mut without] = [ours(v6), segment(v6, &[])];
            for f in [&mut with, &mut without] {
                f[at..at + 2].copy_from_slice(&port.to_be_bytes());
            }
            let verdicts = || [xdp.verdict(&with), xdp.verdict(&without)];
            assert_eq!(verdicts(), [PASSED, PASSED], "{port}");
            ports.set(port, State::Open);
            assert_eq!(verdicts(), [TAKEN, PASSED], "{port}");
            ports.set(port, State::Opening);
            assert_eq!(verdicts(), [TAKEN, TAKEN], "{port}");
            // A packet socket ignores this condition.
            assert!(both.accepts(&with) && both.accepts(&without));
            let others = (0..=u16::MAX).filter(|p| ports.get(*p) != State::None).collect::<Vec<_>>();
            assert_eq!(others, [port]);
            // Only to these addresses.
            with[at - 3] ^= 1;
            assert_eq!(xdp.verdict(&with), PASSED);
            with[at - 3] ^= 1;
            ports.set(port, State::None);
            assert_eq!([xdp.verdict(&with), xdp.verdict(&without)], [PASSED, PASSED], "{port}");
        }
    }
    let other =
        Rule::Local(LocalRule { exid: EXID, addresses: Vec::new(), ports: LocalPorts::new().unwrap() });
    let two = Filter::new(&[both.rules[0].clone(), other]).unwrap();
    assert!(matches!(two.taken(), Err(OpenError::Config(_))), "one program follows one set");
}

/// Maps change while the program runs: at every moment the program takes the frames that both
/// filters accept, and at the end only those of the last one.
#[test]
fn maps_change_under_a_running_program() {
    let service = |last: u8, port| {
        let destinations = vec![IpAddr::from([10, 0, 0, last])];
        Rule::Tcp(TcpRule { exid: Some(EXID), destinations, destination_ports: vec![port..=port] })
    };
    let any = TcpRule { exid: Some(EXID), ..TcpRule::default() };
    // All filters take a segment of ours to port 80 of 10.0.0.2, each through another map entry.
    let filters = [
        vec![service(2, 80)],
        vec![service(3, 80), Rule::Tcp(any)],
        vec![Rule::Tcp(TcpRule { destination_ports: vec![70..=90], ..TcpRule::default() })],
        vec![service(2, 81), service(2, 80), Rule::EtherType(0x88b5)],
    ];
    let tables = filters.each_ref().map(|rules| Filter::new(rules).unwrap().taken().unwrap().table);
    let Some(mut program) = program(&Filter::new(&filters[0]).unwrap()) else { return };
    let running = program.redirect.program().as_fd().try_clone_to_owned().unwrap();
    let over = AtomicBool::new(false);
    let frame = ours(false);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut runs = 0u32;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(run(running.as_fd(), &frame), TAKEN, "after {runs} runs");
                runs += 1;
            }
            runs
        });
        for round in 0..2000 {
            program.redirect.apply(&tables[round % tables.len()]).unwrap();
        }
        over.store(true, Ordering::Relaxed);
        assert!(asked.join().unwrap() > 100, "too few frames for a meaningful test");
    });
    for (rules, table) in filters.iter().zip(&tables) {
        program.redirect.apply(table).unwrap();
        let both = Both::new(rules);
        for port in [80u16, 81, 70, 443] {
            let mut frame = ours(false);
            frame[36..38].copy_from_slice(&port.to_be_bytes());
            for last in [2, 3, 4] {
                frame[33] = last;
                let wanted = if both.accepts(&frame) { TAKEN } else { PASSED };
                assert_eq!(program.verdict(&frame), wanted, "{rules:?}, port {port}, address {last}");
            }
        }
    }
}
