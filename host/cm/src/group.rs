//! Sharing a window among flows that nobody can call: each asks, when something of it is acknowledged, how much of it may be
//! outstanding.
//!
//! Kernel TCP is such a client. A flow that the window holds back is hungry; all hungry ones have equal parts of what the
//! others leave. A part is seldom a whole number of packets: each flow carries what is left of its division over to its next
//! round trip, and flows begin with remainders that are spread evenly, so that their packets together are the window's at any
//! time and each one's are its part in the long run.
//!
//! `host/bpf/src/bpf/macroflow.h` is the same in C.

/// Spreads the first remainders: the golden ratio, times 2^32.
const SPREAD: u64 = 0x9e37_79b9;

/// The flows of a macroflow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Group {
    /// Flows.
    flows: u32,
    /// Those that the window holds back.
    hungry: u32,
    /// Flows that ever joined.
    joined: u64,
    /// Bytes that are outstanding of the others.
    aside: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Member {
    outstanding: u64,
    hungry: bool,
    /// Bytes of its part that its last round left, less than a packet.
    carry: u64,
}

impl Group {
    /// A flow comes; `mss`: bytes of its packets.
    pub fn join(&mut self, mss: u32) -> Member {
        self.flows += 1;
        let turn = (self.joined.wrapping_mul(SPREAD)) & 0xffff_ffff;
        self.joined += 1;
        Member { outstanding: 0, hungry: false, carry: (turn * u64::from(mss)) >> 32 }
    }

    /// A flow goes.
    pub fn leave(&mut self, member: &mut Member) {
        self.set(member, 0, false);
        self.flows = self.flows.saturating_sub(1);
    }

    /// How many there are.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// How many of them the window holds back.
    #[must_use]
    pub fn hungry(&self) -> u32 {
        self.hungry
    }

    /// What is known of a flow now: bytes of it that are outstanding, and whether it would send more if it could.
    pub fn set(&mut self, member: &mut Member, outstanding: u64, hungry: bool) {
        if member.hungry {
            self.hungry -= 1;
        } else {
            self.aside -= member.outstanding;
        }
        if hungry {
            self.hungry += 1;
        } else {
            self.aside += outstanding;
        }
        (member.outstanding, member.hungry) = (outstanding, hungry);
    }

    /// Bytes of a window that are a flow's part.
    #[must_use]
    pub fn part(&self, member: &Member, window: u64) -> u64 {
        let (aside, eaters) = if member.hungry {
            (self.aside, self.hungry)
        } else {
            (self.aside - member.outstanding, self.hungry + 1)
        };
        window.saturating_sub(aside) / u64::from(eaters)
    }

    /// The same in whole packets of `mss` bytes, at least one: what a flow may have outstanding in this round trip.
    /// `next` says that another one begins.
    pub fn packets(&self, member: &mut Member, window: u64, mss: u32, next: bool) -> u32 {
        let mss = u64::from(mss.max(1));
        // A packet goes when there is room for all of it.
        let window = window - window % mss;
        let part = self.part(member, window) + member.carry;
        if next {
            member.carry = part % mss;
        }
        (part / mss).clamp(1, u64::from(u32::MAX)) as u32
    }
}

impl Member {
    /// Bytes of it that are outstanding.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Whether it would send more if it could.
    #[must_use]
    pub fn hungry(&self) -> bool {
        self.hungry
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MSS: u32 = 1448;

    fn hungry(n: usize) -> (Group, Vec<Member>) {
        let mut group = Group::default();
        let mut members: Vec<Member> = (0..n).map(|_| group.join(MSS)).collect();
        members.iter_mut().for_each(|m| group.set(m, 0, true));
        (group, members)
    }

    /// Together they have the window's packets in each round, to two, and each its part after many.
    #[test]
    fn parts_are_whole_packets_that_add_up() {
        for n in [1, 2, 3, 4, 7, 8, 16, 33] {
            for window in [40u64, 41, 50, 67, 100, 333].map(|p| p * u64::from(MSS) + 700) {
                let (group, mut members) = hungry(n);
                let mut got = vec![0u64; n];
                let rounds = 64;
                for _ in 0..rounds {
                    let mut sum = 0;
                    for (member, got) in members.iter_mut().zip(&mut got) {
                        let packets = u64::from(group.packets(member, window, MSS, true));
                        *got += packets;
                        sum += packets;
                    }
                    let off = sum.abs_diff(window / u64::from(MSS));
                    assert!(off <= 2, "{n} flows, window {window}: {sum} packets");
                }
                let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
                assert!(most - least <= 1, "{n} flows, window {window}: {got:?}");
                let all: u64 = got.iter().sum();
                let whole = window / u64::from(MSS) * rounds;
                assert!(all.abs_diff(whole) <= n as u64, "{n} flows, window {window}: {all} of {whole}");
            }
        }
    }

    #[test]
    fn what_a_flow_does_not_use_is_the_others() {
        let (mut group, mut members) = hungry(3);
        assert_eq!(group.part(&members[0], 30_000), 10_000);
        group.set(&mut members[2], 2000, false);
        assert_eq!((group.hungry(), group.part(&members[0], 30_000)), (2, 14_000));
        // The one that is content may have as much as the others once it wants it.
        assert_eq!(group.part(&members[2], 30_000), 10_000);
        group.leave(&mut members[2]);
        assert_eq!((group.flows(), group.part(&members[0], 30_000)), (2, 15_000));
        assert_eq!(group.part(&members[0], 0), 0);
    }

    #[test]
    fn a_flow_has_one_packet_at_least() {
        let (group, mut members) = hungry(16);
        assert!(members.iter_mut().all(|m| group.packets(m, 2 * u64::from(MSS), MSS, false) == 1));
    }

    proptest! {
        /// The sums are those of the members whatever they do.
        #[test]
        fn sums_are_kept(steps in prop::collection::vec((0..8usize, 0..100_000u64, any::<bool>(), any::<bool>()), 1..200)) {
            let mut group = Group::default();
            let mut members: Vec<Option<Member>> = vec![None; 8];
            for (at, bytes, hungry, leaves) in steps {
                match &mut members[at] {
                    Some(m) if leaves => {
                        group.leave(m);
                        members[at] = None;
                    }
                    Some(m) => group.set(m, bytes, hungry),
                    none => *none = Some(group.join(MSS)),
                }
                let all: Vec<Member> = members.iter().flatten().copied().collect();
                prop_assert_eq!(group.flows() as usize, all.len());
                prop_assert_eq!(group.hungry() as usize, all.iter().filter(|m| m.hungry).count());
                prop_assert_eq!(group.aside, all.iter().filter(|m| !m.hungry).map(|m| m.outstanding).sum::<u64>());
                for m in &all {
                    prop_assert!(group.part(m, 1 << 30) <= 1 << 30);
                }
            }
        }
    }
}
