//! The semantics of each call.

mod any_order;

use super::*;
use crate::controller::rules::FORGET;
use crate::{Congestion, Thresholds};

const MTU: u32 = 1000;
const MS: Nanos = MILLISECOND;

fn key(host: u8, port: u16) -> Key {
    Key {
        source: "192.0.2.1:5000".parse().unwrap(),
        destination: format!("198.51.100.{host}:{port}").parse().unwrap(),
        protocol: 17,
        dscp: 0,
    }
}

fn manager(initial: u32) -> Manager {
    Manager::new(Config { rules: Rules { initial, limit: 2 }, ..Config::default() })
}

/// Polls all grants and returns their flows in order.
fn granted(m: &mut Manager) -> Vec<FlowId> {
    let mut flows = vec![];
    while let Some(event) = m.poll() {
        if let Event::Send { flow, .. } = event {
            flows.push(flow);
        }
    }
    flows
}

fn ask(m: &mut Manager, now: Nanos, flow: FlowId, times: u32) {
    for _ in 0..times {
        m.request(now, flow).unwrap();
    }
}

fn arrived(bytes: u64) -> Update {
    Update { nsent: bytes, nrecd: bytes, rtt: 100 * MS, ..Update::default() }
}

fn lost(bytes: u64, congestion: Congestion) -> Update {
    Update { nsent: bytes, congestion, ..Update::default() }
}

#[test]
fn flows_to_one_destination_are_one_macroflow() {
    let mut m = manager(4);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    let other = m.open(1, key(2, 80), MTU).unwrap();
    let marked = m.open(1, Key { dscp: 46, ..key(1, 80) }, MTU).unwrap();
    assert_eq!(m.macroflow(a), m.macroflow(b));
    assert_ne!(m.macroflow(a), m.macroflow(other));
    assert_ne!(m.macroflow(a), m.macroflow(marked));
    assert_eq!(m.open(1, key(1, 80), MTU), Err(Error::Open));
    assert_eq!((m.mtu(a), m.counts()), (Ok(MTU), (4, 3)));
    for mtu in [0, 65_536] {
        assert_eq!(m.open(1, key(3, 80), mtu), Err(Error::Mtu));
        assert_eq!(m.set_mtu(1, a, mtu), Err(Error::Mtu));
    }
    m.close(1, a).unwrap();
    assert_eq!(m.close(1, a), Err(Error::NoFlow));
    assert_ne!(m.open(1, key(1, 80), MTU).unwrap(), a, "a number is given once");
}

#[test]
fn the_window_is_granted_in_turns_and_no_more() {
    let mut m = manager(4);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    ask(&mut m, 1, a, 5);
    ask(&mut m, 1, b, 5);
    // The first flow requested before the second was open.
    assert_eq!(granted(&mut m), [a, a, a, a]);
    for n in 1..=4 {
        m.notify(1, a, MTU).unwrap();
        assert_eq!(m.controller(a).unwrap().outstanding(), n * 1000);
    }
    assert_eq!(granted(&mut m), []);
    // A packet was acknowledged: the window is 5 MTUs, and two more packets fit, one of each flow.
    m.update(100 * MS, a, arrived(1000)).unwrap();
    assert_eq!(granted(&mut m), [a, b]);
    m.update(100 * MS, a, arrived(2000)).unwrap();
    assert_eq!(granted(&mut m), [b, b, b, b]);
}

#[test]
fn weights_share_turns() {
    let mut m = Manager::new(Config { scheduler: scheduler::Kind::Weighted, ..Config::default() });
    let flows: Vec<_> = (0..2).map(|n| m.open(1, key(1, n), MTU).unwrap()).collect();
    assert_eq!(m.set_weight(flows[1], 0), Err(Error::Weight));
    m.set_weight(flows[1], 3).unwrap();
    let mut got = [0, 0];
    let mut now = 1;
    for _ in 0..1000 {
        for flow in &flows {
            while m.request(now, *flow).is_ok() {}
        }
        let turns = granted(&mut m);
        for flow in &turns {
            m.notify(now, *flow, MTU).unwrap();
            got[flows.iter().position(|f| f == flow).unwrap()] += 1;
        }
        now += 100 * MS;
        for flow in turns {
            // Losses keep the window constant.
            m.update(now, flow, Update { rtt: 0, ..lost(1000, Congestion::Transient) }).unwrap();
        }
    }
    let ratio = f64::from(got[1]) / f64::from(got[0]);
    assert!((2.9..3.1).contains(&ratio), "{got:?}");
    let rate = |m: &mut Manager, flow| {
        m.update(now, flow, Update { rtt: 100 * MS, ..Update::default() }).unwrap();
        m.query(now, flow).unwrap().unwrap().rate
    };
    assert_eq!(rate(&mut m, flows[1]), 3 * rate(&mut m, flows[0]));
}

#[test]
fn a_grant_that_is_declined_goes_to_another() {
    let mut m = manager(1);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    ask(&mut m, 1, a, 1);
    ask(&mut m, 1, b, 1);
    assert_eq!(granted(&mut m), [a]);
    m.notify(1, a, 0).unwrap();
    assert_eq!(granted(&mut m), [b]);
    assert_eq!(m.controller(a).unwrap().outstanding(), 0);
    // A grant declined before the client polled it: its event disappears.
    m.notify(1, b, 0).unwrap();
    ask(&mut m, 1, a, 1);
    m.notify(1, a, 0).unwrap();
    assert_eq!(m.poll(), None);
}

#[test]
fn a_grant_that_is_not_used_expires() {
    let mut m = manager(1);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    ask(&mut m, MS, a, 1);
    ask(&mut m, MS, b, 1);
    assert_eq!(granted(&mut m), [a]);
    assert_eq!(m.poll_timeout(), Some(101 * MS));
    m.handle_timeout(101 * MS - 1);
    assert_eq!(granted(&mut m), []);
    m.handle_timeout(101 * MS);
    assert_eq!(granted(&mut m), [b]);
    // A late packet is still charged; the second flow's grant stays.
    m.notify(102 * MS, a, MTU).unwrap();
    m.notify(102 * MS, b, MTU).unwrap();
    assert_eq!(m.controller(a).unwrap().outstanding(), 2000);
}

#[test]
fn a_grant_lives_a_round_trip_if_that_is_longer() {
    let mut m = manager(2);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    m.update(1, a, Update { rtt: 700 * MS, ..Update::default() }).unwrap();
    ask(&mut m, MS, a, 1);
    assert_eq!(m.poll_timeout(), Some(701 * MS));
}

#[test]
fn bytes_sent_without_grant_are_charged() {
    let mut m = manager(2);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    m.notify(1, a, 1500).unwrap();
    ask(&mut m, 1, a, 1);
    assert_eq!(granted(&mut m), [], "500 bytes are left");
    m.update(2, a, Update { nsent: 500, ..Update::default() }).unwrap();
    assert_eq!(granted(&mut m), [a]);
    // A packet of two MTUs uses two grants.
    let mut m = manager(4);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    ask(&mut m, 1, a, 4);
    m.notify(1, a, 2000).unwrap();
    m.notify(1, a, 2000).unwrap();
    assert_eq!(m.poll_timeout(), Some(1 + 5 * SECOND), "no grant is left to expire");
}

#[test]
fn a_small_packet_leaves_room_for_more() {
    let mut m = manager(1);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    ask(&mut m, 1, a, 20);
    let mut sent = 0;
    while let Some(Event::Send { flow, .. }) = m.poll() {
        m.notify(1, flow, 100).unwrap();
        sent += 1;
    }
    // Until less than an MTU of the window is left, whatever size the next packet has.
    assert_eq!((sent, m.controller(a).unwrap().outstanding()), (1, 100));
}

#[test]
fn requests_of_one_flow_have_a_limit() {
    let mut m =
        Manager::new(Config { requests: 3, rules: Rules { initial: 1, limit: 2 }, ..Config::default() });
    let a = m.open(1, key(1, 80), MTU).unwrap();
    ask(&mut m, 1, a, 4);
    assert_eq!(m.request(1, a), Err(Error::Requests));
}

#[test]
fn reports_cover_only_the_own_flow() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    m.notify(1, a, 5000).unwrap();
    m.update(2, b, arrived(5000)).unwrap();
    let controller = m.controller(a).unwrap();
    assert_eq!((controller.outstanding(), controller.window()), (5000, 10_000));
}

#[test]
fn query_before_any_round_trip_returns_none() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    assert_eq!(m.query(1, a), Ok(None));
    m.notify(1, a, 1000).unwrap();
    m.update(2, a, arrived(1000)).unwrap();
    let status = m.query(2, a).unwrap().unwrap();
    assert_eq!(status, Status { rate: 100_000, rtt: 100 * MS, deviation: 50 * MS, loss: 0 });
    // Two sending flows have half each; a flow that only queries gets the share that it would have.
    let b = m.open(2, key(1, 81), MTU).unwrap();
    m.notify(2, a, 1000).unwrap();
    assert_eq!(m.query(2, a).unwrap().unwrap().rate, 100_000);
    assert_eq!(m.query(2, b).unwrap().unwrap().rate, 50_000);
    m.notify(2, b, 1000).unwrap();
    assert_eq!(m.query(2, a).unwrap().unwrap().rate, 50_000);
}

#[test]
fn query_reports_loss_rate() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    m.notify(1, a, 10_000).unwrap();
    m.update(2, a, arrived(6000)).unwrap();
    m.update(2, a, Update { nrecd: 1000, ..lost(2000, Congestion::Transient) }).unwrap();
    assert_eq!(m.query(2, a).unwrap().unwrap().loss, 125_000);
    m.update(2, a, Update { nrecd: 2000, ..lost(2000, Congestion::Ecn) }).unwrap();
    assert_eq!(m.query(2, a).unwrap().unwrap().loss, 100_000);
}

#[test]
fn updates_cross_thresholds_and_only_newest_is_delivered() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    assert_eq!(m.thresh(a, Thresholds::default()), Err(Error::NoFlow), "it did not register");
    m.register_update(a, Some(77)).unwrap();
    let bad = Thresholds { rate_down: 2.0, ..Thresholds::default() };
    assert_eq!(m.thresh(a, bad), Err(Error::Thresholds));
    m.thresh(a, Thresholds { rate_down: 0.6, rate_up: 1.25, ..Thresholds::default() }).unwrap();
    let rates = |m: &mut Manager| {
        let mut rates = vec![];
        while let Some(event) = m.poll() {
            let Event::Update { token, status, .. } = event else { continue };
            assert_eq!(token, 77);
            rates.push(status.rate);
        }
        rates
    };
    m.notify(1, a, 10_000).unwrap();
    m.update(2, a, arrived(1000)).unwrap();
    assert_eq!(rates(&mut m), [110_000], "the first that is known");
    m.update(2, a, arrived(1000)).unwrap();
    m.update(2, a, arrived(1000)).unwrap();
    assert_eq!(rates(&mut m), [], "less than a quarter more");
    m.update(2, a, arrived(1000)).unwrap();
    m.update(2, a, arrived(1000)).unwrap();
    assert_eq!(rates(&mut m), [140_000], "two changes, one event");
    m.update(2, a, lost(1000, Congestion::Transient)).unwrap();
    assert_eq!(rates(&mut m), [70_000]);
    m.register_update(a, None).unwrap();
    m.update(900 * MS, a, lost(4000, Congestion::Persistent)).unwrap();
    assert_eq!(rates(&mut m), []);
}

#[test]
fn a_registered_token_comes_with_grants() {
    let mut m = manager(2);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    ask(&mut m, 1, a, 1);
    m.register_send(a, 5).unwrap();
    assert_eq!(m.poll(), Some(Event::Send { flow: a, token: 5 }));
}

#[test]
fn closed_flow_frees_its_share_at_once() {
    let mut m = manager(2);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    ask(&mut m, 1, a, 5);
    m.notify(1, a, MTU).unwrap();
    ask(&mut m, 1, b, 5);
    assert_eq!(granted(&mut m), [a, a][..1], "the other one was used before it was told");
    m.close(1, a).unwrap();
    assert_eq!(granted(&mut m), [b, b]);
    assert_eq!(m.controller(b).unwrap().outstanding(), 0);
    // The macroflow's history stays for later flows.
    m.notify(1, b, MTU).unwrap();
    m.update(2, b, arrived(1000)).unwrap();
    m.close(3, b).unwrap();
    let c = m.open(500 * MS, key(1, 90), MTU).unwrap();
    assert_eq!(m.controller(c).unwrap().window(), 3000);
    assert!(m.query(500 * MS, c).unwrap().is_some());
}

#[test]
fn dead_client_loses_grants_and_outstanding_bytes_after_timeout() {
    let mut m = manager(4);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    m.notify(MS, a, 4000).unwrap();
    ask(&mut m, MS, b, 9);
    assert_eq!(m.poll_timeout(), Some(5 * SECOND + MS));
    m.handle_timeout(5 * SECOND + MS);
    // One MTU, as after a timeout.
    assert_eq!((granted(&mut m), m.controller(b).unwrap().window()), (vec![b], 1000));
}

#[test]
fn feedback_every_two_seconds_prevents_the_timeout() {
    let mut m = manager(4);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    for n in 1..20 {
        m.notify(n * 2 * SECOND, a, 2000).unwrap();
        m.handle_timeout((n + 1) * 2 * SECOND);
        m.update((n + 1) * 2 * SECOND, a, Update { rtt: 2 * SECOND, ..arrived(2000) }).unwrap();
    }
    assert!(m.controller(a).unwrap().window() > 4000);
}

#[test]
fn a_macroflow_is_split_and_joined() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    let first = m.macroflow(a).unwrap();
    m.notify(1, a, 6000).unwrap();
    m.update(2, a, arrived(1000)).unwrap();
    m.notify(2, b, 3000).unwrap();
    let own = m.split(3, b).unwrap();
    assert_eq!((m.macroflow(a), m.macroflow(b)), (Ok(first), Ok(own)));
    let [ca, cb] =
        [a, b].map(|f| (m.controller(f).unwrap().window(), m.controller(f).unwrap().outstanding()));
    assert_eq!((ca, cb), ((11_000, 5000), (10_000, 3000)), "its packets go with it, its history does not");
    assert_eq!(m.query(3, b), Ok(None));
    // Losses of a split flow reduce only its own window.
    m.update(4, b, lost(1000, Congestion::Transient)).unwrap();
    assert_eq!(m.controller(a).unwrap().window(), 11_000);
    assert_eq!(m.set_macroflow(5, a, MacroflowId(999)), Err(Error::NoMacroflow));
    m.set_macroflow(5, b, first).unwrap();
    m.set_macroflow(5, b, first).unwrap();
    assert_eq!((m.macroflow(b), m.controller(a).unwrap().outstanding()), (Ok(first), 7000));
    assert_eq!(m.set_macroflow(5, a, own), Err(Error::NoMacroflow), "nobody was left in it");
    assert_eq!(m.counts(), (2, 1));
}

#[test]
fn requests_move_with_their_flow() {
    let mut m = manager(1);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    ask(&mut m, 1, a, 1);
    ask(&mut m, 1, b, 2);
    assert_eq!(granted(&mut m), [a]);
    m.split(1, b).unwrap();
    assert_eq!(granted(&mut m), [b]);
    m.notify(1, b, 1000).unwrap();
    m.update(2, b, arrived(1000)).unwrap();
    assert_eq!(granted(&mut m), [b]);
}

#[test]
fn after_a_pause_the_first_window_is_paced() {
    let mut m = manager(2);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let mut now = 1;
    for _ in 0..4 {
        ask(&mut m, now, a, 16);
        let turns = granted(&mut m);
        for _ in &turns {
            m.notify(now, a, MTU).unwrap();
        }
        now += 100 * MS;
        for _ in &turns {
            m.update(now, a, arrived(1000)).unwrap();
        }
        // Flows that waited longer belong to the next round.
        let late = granted(&mut m).len();
        for _ in 0..late {
            m.notify(now, a, MTU).unwrap();
        }
        m.update(now, a, arrived(1000 * late as u64)).unwrap();
    }
    let window = m.controller(a).unwrap().window();
    assert!(window >= 16_000, "{window}");
    now += 500 * MS;
    ask(&mut m, now, a, 16);
    let begin = now;
    let mut times = vec![];
    while times.len() < 16 {
        for _ in granted(&mut m) {
            times.push((now - begin) / MS);
            m.notify(now, a, MTU).unwrap();
        }
        now = m.poll_timeout().unwrap();
        m.handle_timeout(now);
    }
    assert_eq!(times[..3], [0, 0, 0], "as many as a new connection may");
    let expected = 100 * 1000 / window;
    assert!(times[3..].windows(2).all(|w| (expected..=expected + 1).contains(&(w[1] - w[0]))), "{times:?}");
}

#[test]
fn history_is_kept_ten_minutes_and_bounded() {
    let mut m = Manager::new(Config { macroflows: 8, ..Config::default() });
    for host in 0..20 {
        let a = m.open(Nanos::from(host) + 1, key(host, 80), MTU).unwrap();
        m.close(Nanos::from(host) + 1, a).unwrap();
    }
    assert_eq!(m.counts(), (0, 8));
    m.handle_timeout(FORGET + 13);
    assert_eq!(m.counts(), (0, 7), "the oldest goes first");
    m.handle_timeout(FORGET + 20);
    assert_eq!((m.counts(), m.poll_timeout()), ((0, 0), None));
    let mut m = Manager::new(Config { flows: 2, ..Config::default() });
    m.open(1, key(1, 1), MTU).unwrap();
    m.open(1, key(1, 2), MTU).unwrap();
    assert_eq!(m.open(1, key(1, 3), MTU), Err(Error::Full));
}

#[test]
fn bulk_calls_do_each_and_have_a_limit() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    let none = FlowId(999);
    let each = Ok(vec![Ok(()), Err(Error::NoFlow), Ok(())]);
    assert_eq!(m.bulk_request(1, &[a, none, b]), each);
    assert_eq!(granted(&mut m), [a, b]);
    assert_eq!(m.bulk_notify(1, &[(a, 1000), (none, 1), (b, 500)]), each);
    assert_eq!(m.bulk_update(2, &[(a, arrived(1000)), (none, arrived(1)), (b, arrived(500))]), each);
    let status = m.bulk_query(2, &[a, none]).unwrap();
    assert!(matches!(status[..], [Ok(Some(_)), Err(Error::NoFlow)]));
    assert_eq!(m.bulk_request(1, &[a; MAX_BULK + 1]), Err(Error::Bulk));
    assert_eq!(granted(&mut m), []);
    assert_eq!(m.bulk_notify(1, &[(a, 1); MAX_BULK + 1]), Err(Error::Bulk));
    assert_eq!(m.bulk_update(1, &[(a, arrived(1)); MAX_BULK + 1]), Err(Error::Bulk));
    assert_eq!(m.bulk_query(1, &[a; MAX_BULK + 1]), Err(Error::Bulk));
}

#[test]
fn clients_that_pull_share_the_window() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    let b = m.open(1, key(1, 81), MTU).unwrap();
    assert_eq!(m.pull(1, a, true, false), Ok(10));
    let both = (m.pull(1, b, true, false).unwrap(), m.pull(1, a, true, false).unwrap());
    assert_eq!(both.0 + both.1, 10);
    m.notify(1, a, 2000).unwrap();
    assert_eq!(m.pull(1, a, false, false), Ok(5), "it may have its share again when it wants it");
    assert_eq!(m.pull(1, b, true, false), Ok(8));
}

#[test]
fn calls_on_a_closed_flow_fail() {
    let mut m = manager(10);
    let a = m.open(1, key(1, 80), MTU).unwrap();
    ask(&mut m, 1, a, 1);
    m.close(1, a).unwrap();
    assert_eq!(m.poll(), None);
    let gone = Err(Error::NoFlow);
    assert_eq!(m.request(1, a), gone);
    assert_eq!(m.notify(1, a, 1), gone);
    assert_eq!(m.update(1, a, arrived(1)), gone);
    assert_eq!(m.register_send(a, 1), gone);
    assert_eq!(m.register_update(a, Some(1)), gone);
    assert_eq!(m.set_weight(a, 1), gone);
    assert_eq!(m.set_mtu(1, a, 1), gone);
    assert!(m.query(1, a).is_err() && m.mtu(a).is_err() && m.split(1, a).is_err() && m.macroflow(a).is_err());
    assert!(m.pull(1, a, true, true).is_err() && m.controller(a).is_err());
}
