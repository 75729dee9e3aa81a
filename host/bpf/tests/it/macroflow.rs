//! Compares `macroflow.h`, compiled for this machine, with the Rust code of host/cm: both have the
//! same numbers after each step of any trace.

use proptest::prelude::*;
use rivulet_bpf::cm::Numbers;
use rivulet_cm::controller::{Congestion, Controller, Report, Rules};
use rivulet_cm::{Aimd, Group, MILLISECOND, Member, Nanos, SECOND};

/// `struct macroflow` and `struct member`.
type Raw = [u64; 20];
type RawMember = [u64; 3];

unsafe extern "C" {
    fn rivulet_test_cm_init(m: *mut Raw, initial: u32, limit: u32, mtu: u32);
    fn rivulet_test_cm_set_mtu(m: *mut Raw, mtu: u32);
    fn rivulet_test_cm_charge(m: *mut Raw, now: u64, bytes: u64);
    fn rivulet_test_cm_age(m: *mut Raw, now: u64);
    fn rivulet_test_cm_report(m: *mut Raw, now: u64, report: *const [u64; 7]);
    fn rivulet_test_cm_undo(m: *mut Raw, reduction: u64);
    fn rivulet_test_cm_next_threshold(m: *const Raw, old: i32) -> u64;
    fn rivulet_test_cm_join(m: *mut Raw, member: *mut RawMember, mss: u32);
    fn rivulet_test_cm_leave(m: *mut Raw, member: *mut RawMember);
    fn rivulet_test_cm_set(m: *mut Raw, member: *mut RawMember, outstanding: u64, hungry: i32);
    fn rivulet_test_cm_part(m: *const Raw, member: *const RawMember, window: u64) -> u64;
    fn rivulet_test_cm_packets(
        m: *const Raw,
        member: *mut RawMember,
        window: u64,
        mss: u32,
        next: i32,
    ) -> u32;
}

/// The C structure and its Rust counterpart, which get the same steps.
struct Pair {
    rust: Aimd,
    group: Group,
    c: Raw,
    members: Vec<Option<(Member, RawMember)>>,
}

impl Pair {
    fn new(rules: Rules, mtu: u32) -> Pair {
        let mut c = Raw::default();
        // SAFETY: the structures have the sizes that macroflow.c asserts; so have those of all
        // further calls.
        unsafe { rivulet_test_cm_init(&raw mut c, rules.initial, rules.limit, mtu) };
        Pair { rust: Aimd::new(rules, mtu), group: Group::default(), c, members: vec![None; 4] }
    }

    fn numbers(&self) -> Numbers {
        let octets: Vec<u8> = self.c.iter().flat_map(|n| n.to_ne_bytes()).collect();
        Numbers::parse(&octets).unwrap()
    }

    fn apply(&mut self, now: Nanos, step: &Step) -> Result<(), TestCaseError> {
        let c = &raw mut self.c;
        match *step {
            Step::Charge(bytes) => {
                self.rust.charge(now, bytes);
                // SAFETY: as above.
                unsafe { rivulet_test_cm_charge(c, now, bytes) };
            }
            Step::Report(report) => {
                self.rust.report(now, &report);
                let Report { flow, resolved, acked, congestion, old, limited, rtt } = report;
                let fields =
                    [flow, resolved, acked, rtt, congestion as u64, u64::from(limited), u64::from(old)];
                // SAFETY: as above.
                unsafe { rivulet_test_cm_report(c, now, &raw const fields) };
            }
            Step::Age => {
                self.rust.age(now);
                // SAFETY: as above.
                unsafe { rivulet_test_cm_age(c, now) };
            }
            Step::Undo(back) => {
                let reduction = self.rust.reductions().saturating_sub(back);
                self.rust.undo(reduction);
                // SAFETY: as above.
                unsafe { rivulet_test_cm_undo(c, reduction) };
            }
            Step::Mtu(mtu) => {
                self.rust.set_mtu(mtu);
                // SAFETY: as above.
                unsafe { rivulet_test_cm_set_mtu(c, mtu) };
            }
            Step::Come(at, mss) => {
                if self.members[at].is_none() {
                    let mut raw = RawMember::default();
                    // SAFETY: as above.
                    unsafe { rivulet_test_cm_join(c, &raw mut raw, mss) };
                    self.members[at] = Some((self.group.join(mss), raw));
                }
            }
            Step::Go(at) => {
                if let Some((mut member, mut raw)) = self.members[at].take() {
                    self.group.leave(&mut member);
                    // SAFETY: as above.
                    unsafe { rivulet_test_cm_leave(c, &raw mut raw) };
                }
            }
            Step::Set(at, bytes, hungry) => {
                if let Some((member, raw)) = &mut self.members[at] {
                    self.group.set(member, bytes, hungry);
                    // SAFETY: as above.
                    unsafe { rivulet_test_cm_set(c, &raw mut *raw, bytes, i32::from(hungry)) };
                }
            }
            Step::Packets(at, mss, next) => {
                if let Some((member, raw)) = &mut self.members[at] {
                    let window = self.rust.window();
                    // SAFETY: as above.
                    let part = unsafe { rivulet_test_cm_part(c, &raw const *raw, window) };
                    prop_assert_eq!(part, self.group.part(member, window));
                    // SAFETY: as above.
                    let packets =
                        unsafe { rivulet_test_cm_packets(c, &raw mut *raw, window, mss, i32::from(next)) };
                    prop_assert_eq!(packets, self.group.packets(member, window, mss, next));
                }
            }
        }
        Ok(())
    }

    /// Compares each number of both.
    fn check(&self) -> Result<(), TestCaseError> {
        let n = self.numbers();
        // SAFETY: as above.
        let threshold = |old| unsafe { rivulet_test_cm_next_threshold(&raw const self.c, old) };
        prop_assert_eq!(threshold(0), self.rust.next_threshold(false));
        prop_assert_eq!(threshold(1), self.rust.next_threshold(true));
        prop_assert_eq!(
            self.rust.numbers(),
            [
                ("mtu", u64::from(n.mtu)),
                ("cwnd", n.cwnd),
                ("ssthresh", n.ssthresh),
                ("credit", n.credit),
                ("sent", n.sent),
                ("reported", n.reported),
                ("recover", n.recover),
                ("reductions", n.reductions),
                ("prior_cwnd", n.prior_cwnd),
                ("prior_ssthresh", n.prior_ssthresh),
                ("srtt", n.srtt),
                ("rttvar", n.rttvar),
                ("active", n.active),
                ("arrived", n.arrived),
                ("arrived_by", n.arrived_by),
                ("arrived_other", n.arrived_other),
                ("collapsed", u64::from(n.collapsed)),
                ("silent", u64::from(n.silent)),
            ]
        );
        prop_assert_eq!((self.group.flows(), self.group.hungry()), (n.flows, n.hungry));
        for (member, raw) in self.members.iter().flatten() {
            prop_assert_eq!((member.outstanding(), member.hungry()), (raw[0], raw[2] & 1 == 1));
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Charge(u64),
    Report(Report),
    Age,
    Undo(u64),
    Mtu(u32),
    Come(usize, u32),
    Go(usize),
    Set(usize, u64, bool),
    Packets(usize, u32, bool),
}

fn report() -> impl Strategy<Value = Report> {
    let congestion = prop_oneof![
        8 => Just(Congestion::None),
        1 => Just(Congestion::Transient),
        1 => Just(Congestion::Ecn),
        1 => Just(Congestion::Persistent)
    ];
    let bytes = || prop_oneof![2 => Just(0), 8 => 1..20_000u64, 1 => any::<u64>()];
    let rtt = prop_oneof![2 => Just(0), 8 => 1..SECOND, 1 => any::<u64>()];
    (1..4u64, bytes(), bytes(), congestion, any::<bool>(), any::<bool>(), rtt).prop_map(
        |(flow, resolved, acked, congestion, old, limited, rtt)| Report {
            flow,
            resolved,
            acked,
            congestion,
            old,
            limited,
            rtt,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<(Nanos, Step)>> {
    let step = prop_oneof![
        8 => (0..30_000u64).prop_map(Step::Charge),
        1 => any::<u64>().prop_map(Step::Charge),
        12 => report().prop_map(Step::Report),
        2 => Just(Step::Age),
        1 => (0..3u64).prop_map(Step::Undo),
        1 => any::<u32>().prop_map(Step::Mtu),
        2 => (0..4usize, 1..9000u32).prop_map(|(at, mss)| Step::Come(at, mss)),
        1 => (0..4usize).prop_map(Step::Go),
        4 => (0..4usize, 0..1_000_000u64, any::<bool>()).prop_map(|(at, b, h)| Step::Set(at, b, h)),
        4 => (0..4usize, 0..9000u32, any::<bool>()).prop_map(|(at, mss, next)| Step::Packets(at, mss, next)),
    ];
    let later = prop_oneof![8 => 0..100 * MILLISECOND, 2 => 0..5 * SECOND, 1 => 0..2000 * SECOND];
    prop::collection::vec((later, step), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn any_trace_has_the_same_numbers_in_c(
        initial in 0..64u32, limit in 0..100_000u32, mtu in any::<u32>(), steps in steps(),
    ) {
        let mut pair = Pair::new(Rules { initial, limit }, mtu);
        pair.check()?;
        let mut now = 1;
        for (later, step) in &steps {
            now += later;
            pair.apply(now, step)?;
            pair.check()?;
        }
    }
}

/// One long transfer as TCP makes it: slow start, congestion avoidance, a loss in each hundred
/// packets, a timeout and a pause.
#[test]
fn transfer_has_same_numbers_in_c() {
    let mtu = 1448;
    let mut pair = Pair::new(Rules { initial: 10, limit: 65_535 }, mtu);
    let mut now = SECOND;
    let (mut windows, mut packets) = (std::collections::BTreeSet::new(), 0u64);
    for round in 0..300u64 {
        let window = pair.rust.window() / u64::from(mtu);
        pair.apply(now, &Step::Charge(window * u64::from(mtu))).unwrap();
        now += 40 * MILLISECOND + round % 7 * MILLISECOND;
        for _ in 0..window {
            packets += 1;
            let bytes = u64::from(mtu);
            let (acked, congestion) = match packets % 100 {
                0 if packets % 3000 == 0 => (0, Congestion::Persistent),
                0 => (0, Congestion::Transient),
                _ => (bytes, Congestion::None),
            };
            let report = Report {
                flow: 1,
                resolved: bytes,
                acked,
                congestion,
                old: false,
                limited: true,
                rtt: 40 * MILLISECOND,
            };
            pair.apply(now, &Step::Report(report)).unwrap();
            pair.check().unwrap();
        }
        if round % 50 == 49 {
            now += 3 * SECOND;
        }
        windows.insert(pair.rust.window());
    }
    assert!(windows.len() > 20 && packets > 3000, "{} windows, {packets} packets", windows.len());
}
