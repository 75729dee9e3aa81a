//! Invariants that hold for any sequence of calls.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Open(u8),
    Close(usize),
    Request(usize),
    Notify(usize, u32),
    Update(usize, Update),
    Poll,
    Split(usize),
    Join(usize, usize),
    Pull(usize, bool),
    Mtu(usize, u32),
    Wait(Nanos),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flow = 0..6usize;
    let congestion = prop::sample::select(vec![
        Congestion::None,
        Congestion::Transient,
        Congestion::Persistent,
        Congestion::Ecn,
    ]);
    let update = (0..20_000u64, 0..20_000u64, congestion, prop_oneof![Just(0), Just(u64::MAX), 1..SECOND]);
    let update = update.prop_map(|(nsent, nrecd, congestion, rtt)| Update { nsent, nrecd, congestion, rtt });
    let step = prop_oneof![
        2 => (0..3u8).prop_map(Step::Open),
        1 => flow.clone().prop_map(Step::Close),
        8 => flow.clone().prop_map(Step::Request),
        8 => (flow.clone(), 0..5000u32).prop_map(|(f, n)| Step::Notify(f, n)),
        8 => (flow.clone(), update).prop_map(|(f, u)| Step::Update(f, u)),
        6 => Just(Step::Poll),
        1 => flow.clone().prop_map(Step::Split),
        1 => (flow.clone(), flow.clone()).prop_map(|(a, b)| Step::Join(a, b)),
        1 => (flow.clone(), any::<bool>()).prop_map(|(f, h)| Step::Pull(f, h)),
        1 => (flow, 0..3000u32).prop_map(|(f, m)| Step::Mtu(f, m)),
        4 => (0..300 * MS).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..250)
}

fn consistent(m: &Manager) -> Result<(), TestCaseError> {
    for (id, macroflow) in &m.macroflows {
        let flows: Vec<_> = m.flows.iter().filter(|f| f.1.macroflow == *id).collect();
        let sum = |f: &dyn Fn(&Flow) -> u64| flows.iter().map(|(_, flow)| f(flow)).sum::<u64>();
        prop_assert_eq!(macroflow.controller.outstanding(), sum(&|f| f.outstanding()));
        prop_assert_eq!(macroflow.reserved, sum(&|f| f.grants.len() as u64 * u64::from(f.mtu)));
        prop_assert_eq!(macroflow.active, sum(&|f| u64::from(f.active) * u64::from(f.weight)));
        prop_assert_eq!(macroflow.group.flows() as usize, flows.len());
        prop_assert_eq!(macroflow.empty.is_some(), flows.is_empty());
        prop_assert_eq!(macroflow.granted.len() as u64, sum(&|f| u64::from(!f.grants.is_empty())));
        prop_assert_eq!(macroflow.awaiting_feedback.len() as u64, sum(&|f| u64::from(f.outstanding() > 0)));
        // No flow waits while the window has room and nothing is paced.
        if let Some(next) = macroflow.scheduler.peek() {
            let room = macroflow.has_room(m.flows[&next].mtu);
            prop_assert!(!room || macroflow.armed.is_some());
        }
        prop_assert_eq!(macroflow.armed.is_some(), m.timers.iter().any(|t| t.1 == *id));
    }
    prop_assert!(m.timers.len() <= m.macroflows.len());
    Ok(())
}

proptest! {
    /// For any sequence of calls: sums match, the window is respected, events end, timers advance.
    #[test]
    fn bookkeeping_holds(kind in prop::sample::select(vec![scheduler::Kind::RoundRobin, scheduler::Kind::Weighted]), steps in steps()) {
        let mut m = Manager::new(Config { scheduler: kind, ..Config::default() });
        let mut flows: Vec<FlowId> = vec![];
        let (mut now, mut port) = (1, 0);
        for step in steps {
            let flow = |n: usize| flows.get(n).copied().unwrap_or(FlowId(0));
            match step {
                Step::Open(host) => {
                    port += 1;
                    flows.push(m.open(now, key(host, port), MTU).unwrap());
                }
                Step::Close(n) if n < flows.len() => m.close(now, flows.remove(n)).unwrap(),
                Step::Close(_) => {}
                Step::Request(n) => {
                    let _ = m.request(now, flow(n));
                }
                Step::Notify(n, bytes) => {
                    let _ = m.notify(now, flow(n), bytes);
                }
                Step::Update(n, update) => {
                    let _ = m.update(now, flow(n), update);
                }
                Step::Poll => while m.poll().is_some() {},
                Step::Split(n) => {
                    let _ = m.split(now, flow(n));
                }
                Step::Join(n, with) => {
                    if let Ok(to) = m.macroflow(flow(with)) {
                        let _ = m.set_macroflow(now, flow(n), to);
                    }
                }
                Step::Pull(n, hungry) => {
                    prop_assert!(m.pull(now, flow(n), hungry, true).is_ok_and(|p| p > 0) || n >= flows.len());
                }
                Step::Mtu(n, mtu) => {
                    let _ = m.set_mtu(now, flow(n), mtu);
                }
                Step::Wait(time) => {
                    now += time;
                    m.handle_timeout(now);
                    prop_assert!(m.poll_timeout().is_none_or(|at| at > now), "a timer that was handled is due again");
                }
            }
            consistent(&m)?;
        }
        for flow in flows {
            m.close(now, flow).unwrap();
        }
        consistent(&m)?;
        prop_assert_eq!(m.poll(), None);
        m.handle_timeout(now + FORGET);
        prop_assert_eq!(m.counts(), (0, 0));
    }
}
