//! Compares `share.h`, compiled for this machine, with the Rust code of host/cm: both give grants
//! to the same flows after each step of any trace.

use proptest::prelude::*;
use rivulet_cm::{
    Config, Congestion, Event, FlowId, Key, MILLISECOND, Manager, Nanos, SECOND, Status, Thresholds, Update,
};

/// `struct cm_share`.
type Raw = u64;

unsafe extern "C" {
    fn rivulet_test_share_size() -> u64;
    fn rivulet_test_share_init(s: *mut Raw, now: u64, initial: u32, limit: u32, mtu: u32);
    fn rivulet_test_share_open(s: *mut Raw, at: u32, now: u64, flow: u64, mtu: u32);
    fn rivulet_test_share_close(s: *mut Raw, at: u32, now: u64);
    fn rivulet_test_share_request(s: *mut Raw, at: u32, count: u32);
    fn rivulet_test_share_weigh(s: *mut Raw, at: u32, weight: u32);
    fn rivulet_test_share_notify(s: *mut Raw, at: u32, now: u64, nsent: u32);
    fn rivulet_test_share_update(s: *mut Raw, at: u32, now: u64, v: *const [u64; 4]);
    fn rivulet_test_share_settle(s: *mut Raw, now: u64, initial: u32) -> u64;
    fn rivulet_test_share_expire(s: *mut Raw, at: u32, now: u64, turned: i32, silence: u64);
    fn rivulet_test_share_query(s: *mut Raw, at: u32, now: u64, status: *mut [u64; 4]) -> i32;
    fn rivulet_test_share_thresh(s: *mut Raw, at: u32, factors: *const [u32; 4]);
    fn rivulet_test_share_watch(s: *mut Raw, at: u32) -> i32;
    fn rivulet_test_share_due(s: *mut Raw, at: u32) -> i32;
    fn rivulet_test_share_reported(s: *mut Raw, at: u32, status: *const [u64; 4]);
    fn rivulet_test_share_look(s: *const Raw, at: u32, out: *mut [u64; 6]);
}

/// Longer than any trace. Expiry is tested separately, because the C code rounds ages to ticks
/// (share.h).
const NEVER: Nanos = 1 << 60;
const FLOWS: usize = 6;
const MTU: u32 = 1000;

#[derive(Clone, Debug)]
enum Step {
    Open(usize, u32),
    Close(usize),
    Request(usize, u32),
    Weigh(usize, u32),
    Notify(usize, u32),
    Update(usize, Update),
    Thresh(usize, [u32; 4]),
    Pass,
}

/// The C structure and its Rust counterpart, which get the same steps.
struct Pair {
    manager: Manager,
    initial: u32,
    c: Vec<Raw>,
    flows: Vec<Option<FlowId>>,
    numbers: Vec<u64>,
    watches: Vec<bool>,
    opened: u64,
}

impl Pair {
    fn new(now: Nanos, initial: u32, limit: u32, mtu: u32) -> Pair {
        let scheduler = rivulet_cm::scheduler::Kind::Weighted;
        let config = Config { scheduler, grant_life: NEVER, silence: NEVER, ..Config::default() };
        let config = Config { rules: rivulet_cm::Rules { initial, limit }, ..config };
        // SAFETY: the function has no arguments.
        let mut c = vec![0; unsafe { rivulet_test_share_size() } as usize / 8];
        // SAFETY: the memory has the size that C reports; so it has in all further calls.
        unsafe { rivulet_test_share_init(c.as_mut_ptr(), now, initial, limit, mtu) };
        Pair {
            manager: Manager::new(config),
            initial,
            c,
            flows: vec![None; FLOWS],
            numbers: vec![0; FLOWS],
            watches: vec![false; FLOWS],
            opened: 0,
        }
    }

    fn key(at: usize) -> Key {
        let address = |port: usize| format!("192.0.2.1:{port}").parse().unwrap();
        Key { source: address(1000 + at), destination: address(7), protocol: 17, dscp: 0 }
    }

    fn apply(&mut self, now: Nanos, step: &Step) -> Result<(), TestCaseError> {
        let c = self.c.as_mut_ptr();
        let (mut watch, mut settles) = (false, false);
        if self.manager.poll_timeout().is_some_and(|at| at <= now) {
            self.manager.handle_timeout(now);
            self.granted(now, true)?;
            self.check_no_event(now, true)?;
        }
        match *step {
            Step::Open(at, mtu) => {
                if self.flows[at].is_none() {
                    self.opened += 1;
                    self.numbers[at] = self.opened;
                    self.watches[at] = false;
                    self.flows[at] = Some(self.manager.open(now, Self::key(at), mtu).unwrap());
                    // SAFETY: as above.
                    unsafe { rivulet_test_share_open(c, at as u32, now, self.opened, mtu) };
                }
            }
            Step::Close(at) => {
                if let Some(flow) = self.flows[at].take() {
                    self.manager.close(now, flow).unwrap();
                    // SAFETY: as above.
                    unsafe { rivulet_test_share_close(c, at as u32, now) };
                    settles = true;
                }
            }
            Step::Request(at, count) => {
                if let Some(flow) = self.flows[at] {
                    for _ in 0..count {
                        self.manager.request(now, flow).unwrap();
                        // SAFETY: as above.
                        unsafe { rivulet_test_share_request(c, at as u32, 1) };
                        self.granted(now, true)?;
                    }
                }
            }
            Step::Weigh(at, weight) => {
                if let Some(flow) = self.flows[at] {
                    self.manager.set_weight(flow, weight).unwrap();
                    // SAFETY: as above.
                    unsafe { rivulet_test_share_weigh(c, at as u32, weight) };
                }
            }
            Step::Notify(at, nsent) => {
                if let Some(flow) = self.flows[at] {
                    self.manager.notify(now, flow, nsent).unwrap();
                    // SAFETY: as above.
                    unsafe { rivulet_test_share_notify(c, at as u32, now, nsent) };
                    settles = true;
                }
            }
            Step::Update(at, update) => {
                if let Some(flow) = self.flows[at] {
                    self.manager.update(now, flow, update).unwrap();
                    let v = [update.nsent, update.nrecd, update.congestion as u64, update.rtt];
                    // SAFETY: as above.
                    unsafe { rivulet_test_share_update(c, at as u32, now, &raw const v) };
                    (watch, settles) = (true, true);
                }
            }
            Step::Thresh(at, factors) => {
                if let Some(flow) = self.flows[at] {
                    let [rate_down, rate_up, rtt_down, rtt_up] = factors.map(|f| f64::from(f) / 65_536.0);
                    let thresholds = Thresholds { rate_down, rate_up, rtt_down, rtt_up };
                    // A new watcher gets the present status when it registers, and events of
                    // changes by the new thresholds later.
                    watch = !std::mem::replace(&mut self.watches[at], true);
                    if watch {
                        self.manager.register_update(flow, Some(0)).unwrap();
                    }
                    self.manager.thresh(flow, thresholds).unwrap();
                    // SAFETY: as above.
                    unsafe { rivulet_test_share_thresh(c, at as u32, &raw const factors) };
                }
            }
            Step::Pass => {}
        }
        self.granted(now, settles)?;
        self.check_no_event(now, watch)
    }

    /// Compares the grants: the same flows in the same order.
    fn granted(&mut self, now: Nanos, settles: bool) -> Result<(), TestCaseError> {
        let mut c = vec![];
        // A call without room for a grant gives none in C; in Rust, a query may have aged the
        // window.
        let raw = self.c.as_mut_ptr();
        // SAFETY: as above.
        let settle = || unsafe { rivulet_test_share_settle(raw, now, self.initial) };
        if settles {
            while let number @ 1.. = settle() {
                c.push(self.numbers.iter().position(|n| *n == number).unwrap());
            }
        }
        let mut rust = vec![];
        let mut changes = vec![];
        while let Some(event) = self.manager.poll() {
            match event {
                Event::Send { flow, .. } => {
                    rust.push(self.flows.iter().position(|f| *f == Some(flow)).unwrap());
                }
                Event::Update { flow, status, .. } => changes.push((flow, status)),
            }
        }
        prop_assert_eq!(c, rust);
        self.compare(now, changes)
    }

    /// The Rust manager reported these changes; the C code must report the same.
    fn compare(&mut self, now: Nanos, changes: Vec<(FlowId, Status)>) -> Result<(), TestCaseError> {
        for (flow, status) in changes {
            let at = self.flows.iter().position(|f| *f == Some(flow)).unwrap() as u32;
            // SAFETY: as above.
            let c = unsafe {
                rivulet_test_share_watch(self.c.as_mut_ptr(), at);
                rivulet_test_share_due(self.c.as_mut_ptr(), at)
            };
            prop_assert_eq!(c, 1, "slot {} at {}", at, now);
            // The status of the last event, while a query returns the present one.
            let raw = self.query(at, 0);
            prop_assert_eq!(raw, Some(status));
            let raw = [status.rate, status.rtt, status.deviation, u64::from(status.loss)];
            // SAFETY: as above.
            unsafe { rivulet_test_share_reported(self.c.as_mut_ptr(), at, &raw const raw) };
        }
        Ok(())
    }

    /// Checks that no other flow has an event due.
    fn check_no_event(&mut self, now: Nanos, watch: bool) -> Result<(), TestCaseError> {
        for at in 0..FLOWS {
            if watch && self.flows[at].is_some() {
                // SAFETY: as above.
                let due = unsafe { rivulet_test_share_watch(self.c.as_mut_ptr(), at as u32) };
                prop_assert_eq!(due, 0, "slot {} at {}", at, now);
            }
        }
        Ok(())
    }

    fn query(&mut self, at: u32, now: Nanos) -> Option<Status> {
        let mut out = [0; 4];
        // SAFETY: as above.
        let known = unsafe { rivulet_test_share_query(self.c.as_mut_ptr(), at, now, &raw mut out) } == 1;
        let [rate, rtt, deviation, loss] = out;
        known.then_some(Status { rate, rtt, deviation, loss: loss as u32 })
    }

    fn check(&mut self, now: Nanos) -> Result<(), TestCaseError> {
        for at in 0..FLOWS {
            let Some(flow) = self.flows[at] else { continue };
            let mut out = [0; 6];
            // SAFETY: as above.
            unsafe { rivulet_test_share_look(self.c.as_ptr(), at as u32, &raw mut out) };
            let controller = self.manager.controller(flow).unwrap();
            prop_assert_eq!((out[0], out[1]), (controller.window(), controller.outstanding()));
            let status = self.manager.query(now, flow).unwrap();
            prop_assert_eq!(self.query(at as u32, now), status);
        }
        Ok(())
    }
}

fn steps() -> impl Strategy<Value = Vec<(Nanos, Step)>> {
    let congestion = prop_oneof![
        10 => Just(Congestion::None),
        1 => Just(Congestion::Transient),
        1 => Just(Congestion::Ecn),
        1 => Just(Congestion::Persistent)
    ];
    let rtt = prop_oneof![1 => Just(0), 4 => MILLISECOND / 10..200 * MILLISECOND];
    let bytes = || prop_oneof![1 => Just(0), 6 => 1..5000u64, 1 => any::<u64>()];
    let update = (bytes(), bytes(), congestion, rtt).prop_map(|(nsent, nrecd, congestion, rtt)| Update {
        nsent,
        nrecd,
        congestion,
        rtt,
    });
    let down = || prop_oneof![Just(0u32), Just(32_768), 0..65_537u32];
    let up = || prop_oneof![Just(65_536u32), Just(131_072), 65_536..10_000_000u32];
    let at = || 0..FLOWS;
    let step = prop_oneof![
        3 => (at(), 1..3000u32).prop_map(|(at, mtu)| Step::Open(at, mtu)),
        1 => at().prop_map(Step::Close),
        8 => (at(), 1..20u32).prop_map(|(at, n)| Step::Request(at, n)),
        2 => (at(), prop_oneof![1..5u32, 1..65_536u32]).prop_map(|(at, w)| Step::Weigh(at, w)),
        8 => (at(), 0..4000u32).prop_map(|(at, n)| Step::Notify(at, n)),
        8 => (at(), update).prop_map(|(at, update)| Step::Update(at, update)),
        1 => (at(), [down(), up(), down(), up()]).prop_map(|(at, f)| Step::Thresh(at, f)),
        2 => Just(Step::Pass),
    ];
    let later = prop_oneof![8 => 0..30 * MILLISECOND, 2 => 0..2 * SECOND, 1 => 0..700 * SECOND];
    prop::collection::vec((later, step), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn any_trace_has_the_same_grants_in_c(initial in 1..20u32, limit in 1..100u32, steps in steps()) {
        let mut now = SECOND;
        let mut pair = Pair::new(now, initial, limit, MTU);
        pair.apply(now, &Step::Open(0, MTU))?;
        for (later, step) in &steps {
            // The history of a macroflow without flows belongs to another module.
            if matches!(step, Step::Close(_)) && pair.flows.iter().flatten().count() == 1 {
                continue;
            }
            now += later;
            pair.apply(now, step)?;
            pair.check(now)?;
        }
    }
}

/// An unused grant expires when it is older than a tick; packets without feedback expire all
/// together.
#[test]
fn unused_grants_and_packets_expire() {
    let mut pair = Pair::new(SECOND, 4, 2, MTU);
    pair.apply(SECOND, &Step::Open(0, MTU)).unwrap();
    pair.apply(SECOND, &Step::Request(0, 3)).unwrap();
    let look = |pair: &Pair| {
        let mut out = [0; 6];
        // SAFETY: as above.
        unsafe { rivulet_test_share_look(pair.c.as_ptr(), 0, &raw mut out) };
        out
    };
    let expire = |pair: &mut Pair, now, turned| {
        // SAFETY: as above.
        unsafe { rivulet_test_share_expire(pair.c.as_mut_ptr(), 0, now, turned, 5 * SECOND) };
    };
    assert_eq!(look(&pair), [4000, 0, 3000, 3, 0, 1]);
    expire(&mut pair, SECOND, 1);
    assert_eq!(look(&pair)[3], 3, "the grants are younger than a tick");
    pair.apply(SECOND, &Step::Request(0, 1)).unwrap();
    pair.apply(SECOND, &Step::Notify(0, 1000)).unwrap();
    assert_eq!(look(&pair), [4000, 1000, 3000, 3, 0, 1]);
    expire(&mut pair, SECOND, 1);
    assert_eq!(look(&pair), [4000, 1000, 1000, 1, 0, 1], "the youngest grant is left");
    expire(&mut pair, SECOND, 1);
    assert_eq!(look(&pair), [4000, 1000, 0, 0, 0, 1]);
    expire(&mut pair, 5 * SECOND, 0);
    assert_eq!(look(&pair)[1], 1000);
    expire(&mut pair, 6 * SECOND, 0);
    assert_eq!(look(&pair), [1000, 0, 0, 0, 0, 0], "all packets are lost, which is persistent congestion");
}
