//! Compiles rules to classic BPF, and interprets the instructions that it emits.
//!
//! A conditional jump of classic BPF reaches only 255 instructions, an unconditional one any
//! distance. So each condition skips one instruction, and that instruction is a jump.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD,
    BPF_LDX, BPF_MSH, BPF_RET, BPF_W, sock_filter,
};

use super::{Rule, TcpRule, TunnelRule, UDP_PORT_GUE};

const ACCEPT: u32 = u32::MAX;
const ETHERTYPE: u32 = 12;
const L3: u32 = 14;
const TCP: u32 = 6;
const UDP: u32 = 17;
/// Protocols of a tunnel: IPv4 and IPv6 directly, and UDP for GUE.
const TUNNEL_PROTOCOLS: [u32; 3] = [4, 41, UDP];

/// Compiles the rules as alternatives; the program ends with "reject".
pub(crate) fn compile(rules: &[Rule]) -> Vec<sock_filter> {
    let mut asm = Assembler { code: Vec::new(), fail: Vec::new() };
    for rule in rules {
        match rule {
            Rule::EtherType(kind) => asm.block(|a| a.ethertype(*kind)),
            Rule::Tcp(rule) => asm.tcp(rule),
            Rule::Local(rule) => {
                asm.tcp(&TcpRule { destinations: rule.addresses.clone(), ..TcpRule::default() });
            }
            Rule::IcmpError(to) => {
                if !has_only(to, false) {
                    asm.block(|a| a.icmp4(to));
                }
                if !has_only(to, true) {
                    asm.block(|a| a.icmp6(to));
                }
            }
            Rule::Tunnel(rule) => {
                for protocol in TUNNEL_PROTOCOLS {
                    asm.block(|a| a.tunnel(protocol, rule));
                }
            }
        }
    }
    asm.emit(BPF_RET | BPF_K, 0);
    asm.code
}

/// True if the list is not empty and holds only addresses of the other family.
fn has_only(list: &[IpAddr], v4: bool) -> bool {
    !list.is_empty() && list.iter().all(|a| a.is_ipv4() == v4)
}

struct Assembler {
    code: Vec<sock_filter>,
    /// Jumps to the end of the current rule, not yet resolved.
    fail: Vec<usize>,
}

impl Assembler {
    fn emit(&mut self, code: u32, k: u32) {
        self.code.push(sock_filter { code: code as u16, jt: 0, jf: 0, k });
    }

    /// Emits one rule: accepts what passes `conditions`, otherwise continues with the next rule.
    fn block(&mut self, conditions: impl FnOnce(&mut Self)) {
        conditions(self);
        self.emit(BPF_RET | BPF_K, ACCEPT);
        for jump in std::mem::take(&mut self.fail) {
            self.land(jump);
        }
    }

    /// Makes the jump at `jump` go to the next instruction emitted.
    fn land(&mut self, jump: usize) {
        self.code[jump].k = (self.code.len() - jump - 1) as u32;
    }

    /// Emits a jump whose target is set later.
    fn jump(&mut self) -> usize {
        self.emit(BPF_JMP | BPF_JA, 0);
        self.code.len() - 1
    }

    /// Executes the next instruction only if the condition on the accumulator does not hold
    /// (`unless` false) or does (`unless` true).
    fn skip_if(&mut self, op: u32, k: u32, unless: bool) {
        let (jt, jf) = if unless { (0, 1) } else { (1, 0) };
        self.code.push(sock_filter { code: (BPF_JMP | op | BPF_K) as u16, jt, jf, k });
    }

    /// The rule fails unless the condition holds.
    fn require(&mut self, op: u32, k: u32) {
        self.skip_if(op, k, false);
        let jump = self.jump();
        self.fail.push(jump);
    }

    /// The rule fails if the condition holds.
    fn refuse(&mut self, op: u32, k: u32) {
        self.skip_if(op, k, true);
        let jump = self.jump();
        self.fail.push(jump);
    }

    /// One of several alternatives must hold; each gets a list for its own failures.
    fn any<T>(&mut self, items: &[T], mut alternative: impl FnMut(&mut Self, &T)) {
        if items.is_empty() {
            return;
        }
        let outer = std::mem::take(&mut self.fail);
        let mut done = Vec::with_capacity(items.len());
        for item in items {
            alternative(self, item);
            done.push(self.jump());
            for jump in std::mem::take(&mut self.fail) {
                self.land(jump);
            }
        }
        self.fail = outer;
        let jump = self.jump();
        self.fail.push(jump);
        for jump in done {
            self.land(jump);
        }
    }

    fn ethertype(&mut self, kind: u16) {
        self.emit(BPF_LD | BPF_H | BPF_ABS, ETHERTYPE);
        self.require(BPF_JEQ, kind.into());
    }

    /// Requires a whole IPv4 header, no fragment, and this protocol; leaves the header's length in
    /// the index register.
    fn ipv4(&mut self, protocol: u32) {
        self.ethertype(0x0800);
        self.emit(BPF_LD | BPF_W | BPF_ABS, L3 + 16);
        self.emit(BPF_LD | BPF_B | BPF_ABS, L3 + 9);
        self.require(BPF_JEQ, protocol);
        self.emit(BPF_LD | BPF_H | BPF_ABS, L3 + 6);
        self.refuse(BPF_JSET, 0x3fff);
        self.emit(BPF_LDX | BPF_B | BPF_MSH, L3);
    }

    fn ipv6(&mut self, next_header: u32) {
        self.ethertype(0x86dd);
        self.emit(BPF_LD | BPF_B | BPF_ABS, L3 + 6);
        self.require(BPF_JEQ, next_header);
    }

    fn address4(&mut self, at: u32, list: &[IpAddr]) {
        let list: Vec<u32> = list
            .iter()
            .filter_map(|a| if let IpAddr::V4(a) = a { Some(a.to_bits()) } else { None })
            .collect();
        if !list.is_empty() {
            self.emit(BPF_LD | BPF_W | BPF_ABS, at);
        }
        self.any(&list, |a, ip| a.require(BPF_JEQ, *ip));
    }

    fn address6(&mut self, at: u32, list: &[IpAddr]) {
        let list: Vec<[u8; 16]> =
            list.iter().filter_map(|a| if let IpAddr::V6(a) = a { Some(a.octets()) } else { None }).collect();
        self.any(&list, |a, ip| {
            // The last word differs most often, so compare it first.
            for word in (0..4).rev() {
                let bytes = &ip[word * 4..word * 4 + 4];
                a.emit(BPF_LD | BPF_W | BPF_ABS, at + 4 * word as u32);
                a.require(BPF_JEQ, bytes.iter().fold(0, |v, b| v << 8 | u32::from(*b)));
            }
        });
    }

    /// Emits the conditions on the TCP header, which starts at `base`, relative to the index
    /// register or the frame, depending on `mode`.
    fn tcp_header(&mut self, mode: u32, base: u32, rule: &TcpRule) {
        if let Some(exid) = rule.exid {
            // A data offset of 24 bytes or more; otherwise payload would be read as options.
            self.emit(BPF_LD | BPF_B | mode, base + 12);
            self.require(BPF_JGE, 0x60);
            self.emit(BPF_LD | BPF_B | mode, base + 20);
            self.require(BPF_JEQ, 253);
            self.emit(BPF_LD | BPF_H | mode, base + 22);
            self.require(BPF_JEQ, exid.into());
        }
        // A frame too short for ports is rejected by this load.
        self.emit(BPF_LD | BPF_H | mode, base + 2);
        self.any(&rule.destination_ports, |a, range: &RangeInclusive<u16>| {
            a.require(BPF_JGE, (*range.start()).into());
            a.refuse(BPF_JGT, (*range.end()).into());
        });
    }

    /// Emits the rule for both IP families, or for one if all of its addresses are of one.
    fn tcp(&mut self, rule: &TcpRule) {
        if !has_only(&rule.destinations, false) {
            self.block(|a| a.tcp4(rule));
        }
        if !has_only(&rule.destinations, true) {
            self.block(|a| a.tcp6(rule));
        }
    }

    fn tcp4(&mut self, rule: &TcpRule) {
        self.ipv4(TCP);
        self.address4(L3 + 16, &rule.destinations);
        self.tcp_header(BPF_IND, L3, rule);
    }

    fn tcp6(&mut self, rule: &TcpRule) {
        self.ipv6(TCP);
        self.address6(L3 + 24, &rule.destinations);
        self.tcp_header(BPF_ABS, L3 + 40, rule);
    }

    fn tunnel(&mut self, protocol: u32, rule: &TunnelRule) {
        let (mode, l4) = if rule.destination.is_ipv4() {
            self.ipv4(protocol);
            self.address4(L3 + 12, &[rule.source]);
            self.address4(L3 + 16, &[rule.destination]);
            (BPF_IND, L3)
        } else {
            self.ipv6(protocol);
            self.address6(L3 + 8, &[rule.source]);
            self.address6(L3 + 24, &[rule.destination]);
            (BPF_ABS, L3 + 40)
        };
        if protocol == UDP {
            self.emit(BPF_LD | BPF_H | mode, l4 + 2);
            self.require(BPF_JEQ, UDP_PORT_GUE.into());
        }
    }

    fn icmp4(&mut self, to: &[IpAddr]) {
        self.ipv4(1);
        self.address4(L3 + 16, to);
        self.emit(BPF_LD | BPF_B | BPF_IND, L3);
        self.any(&[3, 11, 12], |a, kind| a.require(BPF_JEQ, *kind));
    }

    fn icmp6(&mut self, to: &[IpAddr]) {
        self.ipv6(58);
        self.address6(L3 + 24, to);
        self.emit(BPF_LD | BPF_B | BPF_ABS, L3 + 40);
        self.require(BPF_JGE, 1);
        self.refuse(BPF_JGT, 4);
    }
}

/// Interprets what [`compile`] emits. A load outside the frame rejects, as in the kernel.
pub(crate) fn run(code: &[sock_filter], frame: &[u8]) -> bool {
    let load = |at: usize, len: usize| -> Option<u32> {
        let bytes = frame.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().fold(0, |v, b| v << 8 | u32::from(*b)))
    };
    let (mut acc, mut index, mut pc) = (0u32, 0u32, 0usize);
    // Jumps only go forward, so this ends.
    while let Some(i) = code.get(pc) {
        pc += 1;
        let op = u32::from(i.code);
        match op & 0x07 {
            BPF_LD => {
                let len = match op & 0x18 {
                    BPF_B => 1,
                    BPF_H => 2,
                    _ => 4,
                };
                let base = if op & 0xe0 == BPF_IND { index as usize } else { 0 };
                let Some(value) = load(base + i.k as usize, len) else { return false };
                acc = value;
            }
            BPF_LDX => {
                let Some(value) = load(i.k as usize, 1) else { return false };
                index = (value & 0x0f) * 4;
            }
            BPF_JMP if op & 0xf0 == BPF_JA => pc += i.k as usize,
            BPF_JMP => {
                let holds = match op & 0xf0 {
                    BPF_JEQ => acc == i.k,
                    BPF_JGT => acc > i.k,
                    BPF_JGE => acc >= i.k,
                    _ => acc & i.k != 0,
                };
                pc += usize::from(if holds { i.jt } else { i.jf });
            }
            _ => return i.k != 0,
        }
    }
    false
}
