//! Shares a window among flows that cannot be called back: each flow asks for its share when one of
//! its packets is acknowledged.
//!
//! Kernel TCP is such a client. A flow that the window limits is hungry. All hungry flows get equal
//! parts of the bytes that the others leave unused. A part is seldom a whole number of packets, so
//! each flow carries the remainder over to its next round trip. New flows start with evenly spread
//! remainders. At any time the packets of all flows together fill the window, and in the long run
//! each flow gets its exact part.
//!
//! `host/bpf/src/bpf/macroflow.h` implements the same in C.

/// Spreads the initial remainders evenly: the golden ratio times 2^32.
const SPREAD: u64 = 0x9e37_79b9;

/// The flows of one macroflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Group {
    /// Number of flows.
    flows: u32,
    /// Number of hungry flows: those that the window limits.
    hungry: u32,
    /// Number of flows that ever joined.
    joined: u64,
    /// Bytes outstanding of the flows that are not hungry.
    aside: u64,
}

/// One flow of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Member {
    outstanding: u64,
    hungry: bool,
    /// Remainder of the flow's part in its last round, in bytes; less than a packet.
    carry: u64,
}

impl Group {
    /// Adds a flow with packets of `mss` bytes.
    pub fn join(&mut self, mss: u32) -> Member {
        self.flows += 1;
        let turn = (self.joined.wrapping_mul(SPREAD)) & 0xffff_ffff;
        self.joined += 1;
        Member { outstanding: 0, hungry: false, carry: (turn * u64::from(mss)) >> 32 }
    }

    /// Removes a flow.
    pub fn leave(&mut self, member: &mut Member) {
        self.set(member, 0, false);
        self.flows = self.flows.saturating_sub(1);
    }

    /// Number of flows.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// Number of flows that the window limits.
    #[must_use]
    pub fn hungry(&self) -> u32 {
        self.hungry
    }

    /// Records a flow's outstanding bytes and whether it would send more if it could.
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

    /// The flow's part of a window, in bytes.
    #[must_use]
    pub fn part(&self, member: &Member, window: u64) -> u64 {
        let (aside, eaters) = if member.hungry {
            (self.aside, self.hungry)
        } else {
            (self.aside - member.outstanding, self.hungry + 1)
        };
        window.saturating_sub(aside) / u64::from(eaters)
    }

    /// The flow's part in whole packets of `mss` bytes, at least one: how many it may have
    /// outstanding in this round trip. `next`: the flow's next round trip begins.
    pub fn packets(&self, member: &mut Member, window: u64, mss: u32, next: bool) -> u32 {
        let mss = u64::from(mss.max(1));
        // A packet is sent only when all of it fits.
        let window = window - window % mss;
        let part = self.part(member, window) + member.carry;
        if next {
            member.carry = part % mss;
        }
        (part / mss).clamp(1, u64::from(u32::MAX)) as u32
    }
}

impl Member {
    /// Bytes outstanding.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Whether the flow would send more if it could.
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

    /// In each round the parts add up to the window's packets, to within two; over many rounds each
    /// flow gets its equal part.
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
    fn unused_share_goes_to_other_flows() {
        let (mut group, mut members) = hungry(3);
        assert_eq!(group.part(&members[0], 30_000), 10_000);
        group.set(&mut members[2], 2000, false);
        assert_eq!((group.hungry(), group.part(&members[0], 30_000)), (2, 14_000));
        // The satisfied flow could have as much as the others if it wanted more.
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
        /// The group's sums match its members after any sequence of changes.
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
