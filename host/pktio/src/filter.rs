//! Which frames reach a socket, from a few rules.
//!
//! A frame passes if any rule accepts it. In a rule an empty list means "any". Rules become a program of
//! classic BPF, which the kernel runs on a packet socket; for AF_XDP that is translated into an XDP program. One VLAN
//! tag is looked past: under a packet socket the kernel has taken it out, under XDP the program steps over it.
//!
//! What a packet socket gets is a copy, and the kernel goes on with the frame. What XDP takes the kernel never
//! sees. So with AF_XDP only those rules take frames that nobody else has a use for ([`Rule::EtherType`],
//! [`Rule::Tcp`], [`Rule::Tunnel`]); of what concerns the kernel's connections too ([`Rule::IcmpError`]) a copy is
//! had.

mod ports;
pub(crate) mod program;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::OpenError;
pub use ports::PortSet;
use program::{Kind, Program};

/// One kind of frame to accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Everything of one EtherType (heartbeats, ARP).
    EtherType(u16),
    /// Unfragmented TCP segments directly over IPv4 or IPv6.
    Tcp(TcpRule),
    /// ICMP and ICMPv6 error messages (RFC 792 types 3, 11, 12; RFC 4443 types 1 to 4) to one of these
    /// addresses, or to any.
    IcmpError(Vec<IpAddr>),
    /// IP-in-IP and GUE between two hosts, whatever is in it.
    Tunnel(TunnelRule),
}

impl Rule {
    /// The kernel has a use for what this accepts.
    fn is_heard(&self) -> bool {
        matches!(self, Rule::IcmpError(_))
    }
}

/// UDP port of GUE (draft-ietf-intarea-gue).
pub const UDP_PORT_GUE: u16 = 6080;

/// The outer addresses of a tunnel, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelRule {
    /// Who encapsulates.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
}

/// Which TCP segments; every condition must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpRule {
    /// The first option must be kind 253 with this ExID (RFC 6994); `None` accepts segments without.
    pub exid: Option<u16>,
    /// Source address one of these.
    pub sources: Vec<IpAddr>,
    /// Destination address one of these.
    pub destinations: Vec<IpAddr>,
    /// Source port in one of these.
    pub source_ports: Vec<RangeInclusive<u16>>,
    /// Destination port in one of these.
    pub destination_ports: Vec<RangeInclusive<u16>>,
    /// AF_XDP only: destination port in this set now. A packet socket does without the condition, since a copy
    /// too many does no harm.
    pub destination_port_set: Option<PortSet>,
}

/// A compiled set of rules.
#[derive(Clone, Debug)]
pub struct Filter {
    rules: Arc<[Rule]>,
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// Compiles the rules; an error if the program becomes longer than the kernel takes (4096
    /// instructions, some 300 addresses of IPv6).
    pub fn new(rules: &[Rule]) -> Result<Filter, OpenError> {
        let program = program::compile(rules, Kind::Socket).code;
        if program.len() > libc::BPF_MAXINSNS as usize {
            return Err(OpenError::Config(format!(
                "the receive filter needs {} BPF instructions, the kernel takes {}",
                program.len(),
                libc::BPF_MAXINSNS
            )));
        }
        Ok(Filter { rules: rules.into(), program })
    }

    /// What AF_XDP takes from the kernel.
    pub(crate) fn taken(&self) -> Program {
        let taken: Vec<Rule> = self.rules.iter().filter(|r| !r.is_heard()).cloned().collect();
        program::compile(&taken, Kind::Xdp)
    }

    /// What AF_XDP has a copy of beside that; may be nothing.
    pub(crate) fn heard(&self) -> Result<Filter, OpenError> {
        let heard: Vec<Rule> = self.rules.iter().filter(|r| r.is_heard()).cloned().collect();
        Filter::new(&heard)
    }

    /// The instructions, for `SO_ATTACH_FILTER`.
    #[must_use]
    pub fn program(&self) -> &[libc::sock_filter] {
        &self.program
    }

    /// Runs the program on a frame without a VLAN tag, as the kernel would.
    #[must_use]
    pub fn accepts(&self, frame: &[u8]) -> bool {
        program::run(&self.program, &[], frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn tcp(rule: TcpRule) -> Filter {
        Filter::new(&[Rule::Tcp(rule)]).unwrap()
    }

    #[test]
    fn option_is_required_where_asked_for() {
        let any = tcp(TcpRule::default());
        let only_ours = tcp(TcpRule { exid: Some(EXID), ..TcpRule::default() });
        for v6 in [false, true] {
            assert!(any.accepts(&ours(v6)) && only_ours.accepts(&ours(v6)));
            // Without an option the payload stands where an option would: it must not be taken for one.
            let plain = segment(v6, &[]);
            assert!(any.accepts(&plain) && !only_ours.accepts(&plain));
            let other = segment(v6, &[253, 8, 0x52, 0x57, 0, 0, 0, 0]);
            assert!(any.accepts(&other) && !only_ours.accepts(&other));
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
        let from = tcp(TcpRule { sources: vec!["10.0.0.1".parse().unwrap()], ..TcpRule::default() });
        assert!(from.accepts(&ours(false)) && !from.accepts(&ours(true)));

        let dport =
            |r: RangeInclusive<u16>| tcp(TcpRule { destination_ports: vec![7..=7, r], ..TcpRule::default() });
        for v6 in [false, true] {
            assert!(dport(80..=80).accepts(&ours(v6)) && dport(0..=u16::MAX).accepts(&ours(v6)));
            assert!(!dport(81..=90).accepts(&ours(v6)) && !dport(70..=79).accepts(&ours(v6)));
        }
        let sport = tcp(TcpRule { source_ports: vec![8080..=8080], ..TcpRule::default() });
        assert!(sport.accepts(&ours(false)) && sport.accepts(&ours(true)));
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
        let f = Filter::new(&[
            Rule::EtherType(0x88b5),
            Rule::IcmpError(vec!["10.0.0.2".parse().unwrap()]),
            Rule::Tcp(TcpRule { exid: Some(EXID), ..TcpRule::default() }),
        ])
        .unwrap();
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
        assert!(!Filter::new(&[]).unwrap().accepts(&ours(false)), "no rule accepts nothing");
    }

    #[test]
    fn tunnels_of_both_kinds_pass_between_their_ends() {
        for v6 in [false, true] {
            let (a, b) = if v6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
            let rule = TunnelRule { source: a.parse().unwrap(), destination: b.parse().unwrap() };
            let filter = Filter::new(&[Rule::Tunnel(rule)]).unwrap();
            let back = TunnelRule { source: rule.destination, destination: rule.source };
            let backwards = Filter::new(&[Rule::Tunnel(back)]).unwrap();
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
        assert!(tcp(TcpRule { destinations: many, ..TcpRule::default() }).accepts(&ours(true)));
        let too_many = (0..2000u16).map(|i| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, i])).collect();
        let rule = Rule::Tcp(TcpRule { destinations: too_many, ..TcpRule::default() });
        assert!(matches!(Filter::new(&[rule]), Err(OpenError::Config(_))));
    }
}
