//! The calls on the real kernel, by threads without privileges.

use std::os::fd::AsRawFd;

use libcm::{Congestion, Error, Event, MAX_BULK, Thresholds, Update};
use rivulet_bpf::cm::CallOptions;
use rivulet_pktio::testing::eventually;

use crate::rig::{ALICE, BOB, MTU, Rig, path, sends, wait};

const RTT: u64 = 20_000_000;

fn arrived(bytes: u64) -> Update {
    Update { nsent: bytes, nrecd: bytes, congestion: Congestion::None, rtt: RTT }
}

/// Grants and missing feedback never expire, except in tests about expiry.
fn slow() -> CallOptions {
    CallOptions { grant_life: 1 << 50, silence: 1 << 50, ..CallOptions::default() }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> rivulet_cm::Error {
    match result {
        Err(Error::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_without_rights_is_granted_counted_and_its_window_grows() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1").connected();
        let flow = client.open(&path.key, MTU).unwrap();
        assert_eq!(client.mtu(flow).unwrap(), MTU);
        assert_eq!(client.query(flow).unwrap(), None);
        assert!(sends(&mut client).is_empty());
        client.request(flow, 12).unwrap();
        assert_eq!(sends(&mut client).len(), 10, "the first window");
        path.send(10, MTU as usize);
        assert_eq!(rig.outstanding(ALICE), 10_000);
        client.update(flow, &arrived(10_000)).unwrap();
        assert_eq!(sends(&mut client).len(), 2, "those that waited");
        let m = rig.macroflow(ALICE);
        assert_eq!(
            (m.destination.to_string().as_str(), m.numbers.cwnd, m.numbers.flows),
            ("127.0.0.1", 12_000, 1)
        );
        let status = client.query(flow).unwrap().unwrap();
        assert_eq!((status.rate, status.rtt, status.loss), (600_000, RTT, 0));
        // The other three kinds of congestion.
        path.send(2, MTU as usize);
        let lost = |congestion| Update { nsent: 1000, nrecd: 0, congestion, rtt: 0 };
        client.update(flow, &lost(Congestion::Transient)).unwrap();
        assert_eq!(rig.macroflow(ALICE).numbers.cwnd, 6000);
        client.update(flow, &lost(Congestion::Ecn)).unwrap();
        assert_eq!(rig.macroflow(ALICE).numbers.cwnd, 6000, "once for what was sent before");
        client.update(flow, &lost(Congestion::Ecn)).unwrap();
        assert_eq!(rig.macroflow(ALICE).numbers.cwnd, 3000);
        client.update(flow, &lost(Congestion::Persistent)).unwrap();
        assert_eq!(rig.macroflow(ALICE).numbers.cwnd, 1000);
        client.close(flow).unwrap();
        assert_eq!(refused(client.close(flow)), rivulet_cm::Error::NoFlow);
        assert_eq!(refused(client.request(flow, 1)), rivulet_cm::Error::NoFlow);
    });
}

#[test]
fn unsent_bytes_do_not_count_as_arrived() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = client.open(&path.key, MTU).unwrap();
        client.request(flow, 10).unwrap();
        for _ in 0..100 {
            client.notify(flow, 60_000).unwrap();
            client.update(flow, &arrived(1 << 40)).unwrap();
        }
        let n = rig.macroflow(ALICE).numbers;
        assert_eq!((n.cwnd, n.sent, n.outstanding()), (10_000, 0, 0));
        path.send(10, 1000);
        // The bytes do not count for another flow either.
        let second = crate::rig::path("127.0.0.1");
        let other = client.open(&second.key, MTU).unwrap();
        client.update(other, &arrived(1 << 40)).unwrap();
        let n = rig.macroflow(ALICE).numbers;
        assert_eq!((n.cwnd, n.sent, n.outstanding()), (10_000, 10_000, 10_000));
        client.update(flow, &arrived(1 << 40)).unwrap();
        let n = rig.macroflow(ALICE).numbers;
        assert_eq!((n.cwnd, n.sent, n.outstanding()), (12_000, 10_000, 0));
    });
}

#[test]
fn a_flow_is_its_users_and_so_is_the_window() {
    let Some(rig) = Rig::new(slow()) else { return };
    let ((mut alice, id), (mut bob, _)) = (rig.client(ALICE), rig.client(BOB));
    let (path, flow) = rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = alice.open(&path.key, MTU).unwrap();
        assert_eq!(refused(alice.open(&path.key, MTU)), rivulet_cm::Error::Open);
        (path, flow)
    });
    let (open, call, calls) = {
        let [open, call, calls] = rig.calls.programs().map(|p| p.try_clone_to_owned().unwrap());
        (open, call, calls)
    };
    rig.as_user(BOB, || {
        use libcm::Calls;
        use libcm::abi::{Op, Opening, Operation};
        for result in [
            bob.request(flow, 1),
            bob.decline(flow),
            bob.update(flow, &arrived(1)),
            bob.query(flow).map(drop),
            bob.mtu(flow).map(drop),
            bob.close(flow),
            bob.register_update(flow, true),
            bob.thresh(flow, &Thresholds::default()),
        ] {
            assert_eq!(refused(result), rivulet_cm::Error::NoFlow);
        }
        // Another user's flow number does not help.
        let mut programs = libcm::Descriptors { open, call, calls };
        let mut opening = Opening::new(id, &path.key, MTU);
        programs.open(&mut opening).unwrap();
        assert_eq!((opening.result, opening.flow), (-libc::ENOENT, 0));
        // An unknown operation changes nothing.
        let mut op = Op { op: 99, ..Op::new(flow.0, Operation::None, [0; 4]) };
        programs.call(std::slice::from_mut(&mut op)).unwrap();
        assert_eq!(op.result, -libc::ENOENT);
        // The same addresses and ports opened by another user are a separate flow, which does not
        // count the first one's packets.
        let own = bob.open(&path.key, MTU).unwrap();
        bob.request(own, 3).unwrap();
        assert_eq!(sends(&mut bob).len(), 3);
    });
    rig.as_user(ALICE, || path.send(4, 500));
    assert_eq!((rig.outstanding(ALICE), rig.outstanding(BOB)), (2000, 0));
    let flows = rig.calls.macroflows().unwrap().iter().map(|m| m.numbers.flows).collect::<Vec<_>>();
    assert_eq!(flows, [1, 1]);
}

#[test]
fn user_ids_of_one_account_share_its_flows() {
    let Some(rig) = Rig::new(CallOptions { flows: 3, clients: 4, ..slow() }) else { return };
    let ids = [BOB + 1, BOB + 2, BOB + 3];
    let mut clients = ids.map(|uid| rig.client_of(ALICE, uid));
    let open = |client: &mut libcm::Client, uid| {
        rig.as_user(uid, || {
            let path = path("127.0.0.1");
            client.open(&path.key, MTU)
        })
    };
    for ((client, _), uid) in clients.iter_mut().zip(ids) {
        open(client, uid).unwrap();
    }
    assert_eq!(refused(open(&mut clients[0].0, ids[0])), rivulet_cm::Error::Full, "3 flows of all of them");
    let mut bob = rig.client(BOB).0;
    open(&mut bob, BOB).unwrap();
    assert!(rig.calls.admit(BOB, BOB, std::process::id(), 0).is_err(), "4 clients in all");
    // Closing returns the quota to the account, macroflows included.
    for ((client, id), uid) in clients.into_iter().zip(ids) {
        rig.as_user(uid, || drop(client));
        rig.calls.evict(id).unwrap();
    }
    let mut again = rig.client_of(ALICE, ids[0]).0;
    for _ in 0..3 {
        open(&mut again, ids[0]).unwrap();
    }
}

#[test]
fn flows_and_requests_of_a_user_are_limited() {
    let Some(rig) = Rig::new(CallOptions { flows: 70, ..slow() }) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let first = path("127.0.0.1");
        let mut key = first.key;
        let flow = client.open(&key, MTU).unwrap();
        for port in 1..64 {
            key.destination.set_port(port);
            client.open(&key, MTU).unwrap();
        }
        key.destination.set_port(64);
        assert_eq!(refused(client.open(&key, MTU)), rivulet_cm::Error::Full, "64 to one destination");
        for last in 2..8 {
            key.destination = format!("127.0.0.{last}:9").parse().unwrap();
            client.open(&key, MTU).unwrap();
        }
        key.destination = "127.0.0.9:9".parse().unwrap();
        assert_eq!(refused(client.open(&key, MTU)), rivulet_cm::Error::Full, "70 in all");
        client.request(flow, 1000).unwrap();
        assert_eq!(refused(client.request(flow, 1000)), rivulet_cm::Error::Requests);
        assert_eq!(refused(client.request(flow, u32::MAX)), rivulet_cm::Error::Requests);
        client.close(flow).unwrap();
        client.open(&key, MTU).unwrap();
        for bad in [0, 65_536, u32::MAX] {
            assert_eq!(refused(client.open(&first.key, bad)), rivulet_cm::Error::Mtu);
        }
        key.protocol = 6;
        assert!(matches!(client.open(&key, MTU), Err(Error::Os { .. })));
    });
    // Its end frees the quota of another client, whatever was still waiting.
    rig.as_user(ALICE, || drop(client));
    let (mut client, id) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        for port in 1..60 {
            let mut key = path("127.0.0.1").key;
            key.destination.set_port(port);
            let flow = client.open(&key, MTU).unwrap();
            client.request(flow, 5).unwrap();
        }
    });
    assert_eq!(rig.calls.evict(id).unwrap(), 59);
    assert_eq!(rig.calls.macroflows().unwrap().iter().map(|m| m.numbers.flows).sum::<u32>(), 0);
    let n = rig.calls.macroflows().unwrap().into_iter().find(|m| m.numbers.joined > 60).unwrap().numbers;
    assert_eq!((n.hungry, n.aside), (0, 0));
    assert_eq!(rig.calls.evict(id).unwrap(), 0);
}

/// A ring that is never read does not overflow: requests whose events would not fit are refused.
#[test]
fn unread_events_never_overflow_the_ring() {
    let Some(rig) = Rig::new(CallOptions { initial_window: 100, ..slow() }) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = client.open(&path.key, MTU).unwrap();
        let mut asked = 0;
        loop {
            match client.request(flow, 50) {
                Ok(()) => asked += 50,
                Err(e) => {
                    assert_eq!(refused::<()>(Err(e)), rivulet_cm::Error::Requests);
                    break;
                }
            }
            for _ in 0..50 {
                client.decline(flow).unwrap();
            }
        }
        // 65,536 bytes of ring hold 24 bytes for each event, and one update event.
        assert_eq!(asked, 2700);
        assert_eq!(sends(&mut client).len(), asked);
        client.request(flow, 50).unwrap();
        assert_eq!(sends(&mut client).len(), 50);
    });
}

#[test]
fn unused_grants_go_to_other_flows() {
    let options = CallOptions { grant_life: 20_000_000, silence: 1 << 50, ..CallOptions::default() };
    let Some(rig) = Rig::new(options) else { return };
    let ((mut dead, _), (mut client, _)) = (rig.client(ALICE), rig.client(ALICE));
    rig.as_user(ALICE, || {
        let (first, second) = (path("127.0.0.1"), path("127.0.0.1"));
        let silent = dead.open(&first.key, MTU).unwrap();
        let flow = client.open(&second.key, MTU).unwrap();
        dead.request(silent, 10).unwrap();
        client.request(flow, 10).unwrap();
        for _ in 0..10 {
            assert_eq!(wait(&mut client), Event::Send(flow));
            second.send(1, 1000);
        }
        assert_eq!(rig.outstanding(ALICE), 10_000);
    });
}

#[test]
fn bytes_without_feedback_count_as_lost() {
    let options = CallOptions { grant_life: 1 << 50, silence: 50_000_000, ..CallOptions::default() };
    let Some(rig) = Rig::new(options) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = client.open(&path.key, MTU).unwrap();
        client.request(flow, 11).unwrap();
        path.send(10, 1000);
        assert_eq!(sends(&mut client).len(), 10);
        assert_eq!(wait(&mut client), Event::Send(flow));
        let n = rig.macroflow(ALICE).numbers;
        assert_eq!((n.cwnd, n.outstanding()), (1000, 0));
    });
}

#[test]
fn flows_take_turns_and_may_decline() {
    let Some(rig) = Rig::new(CallOptions { initial_window: 1, ..slow() }) else { return };
    let ((mut one, _), (mut two, _)) = (rig.client(ALICE), rig.client(ALICE));
    rig.as_user(ALICE, || {
        let paths = [path("127.0.0.1"), path("127.0.0.1")];
        let a = one.open(&paths[0].key, MTU).unwrap();
        let b = two.open(&paths[1].key, MTU).unwrap();
        one.request(a, 1).unwrap();
        two.request(b, 3).unwrap();
        one.request(a, 2).unwrap();
        assert_eq!((sends(&mut one), sends(&mut two)), (vec![a], vec![]));
        one.decline(a).unwrap();
        // A call of another process wakes a waiting client.
        assert_eq!((wait(&mut two), sends(&mut one)), (Event::Send(b), vec![]));
        two.decline(b).unwrap();
        assert_eq!((wait(&mut one), sends(&mut two)), (Event::Send(a), vec![]));
        // So does the acknowledgement of another flow's packet.
        paths[0].send(1, 1000);
        assert_eq!(sends(&mut two), []);
        one.update(a, &arrived(1000)).unwrap();
        assert_eq!(sends(&mut two), [b], "twice as much");
        assert_eq!(sends(&mut one), [a]);
    });
}

#[test]
fn turns_and_rates_are_as_the_weights() {
    let Some(rig) = Rig::new(CallOptions { initial_window: 1, ..slow() }) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let paths = [path("127.0.0.1"), path("127.0.0.1")];
        let [light, heavy] = [0, 1].map(|n: usize| client.open(&paths[n].key, MTU).unwrap());
        client.set_weight(heavy, 3).unwrap();
        for bad in [0, 65_536] {
            assert_eq!(refused(client.set_weight(heavy, bad)), rivulet_cm::Error::Weight);
        }
        client.request(light, 100).unwrap();
        client.request(heavy, 100).unwrap();
        // The first flow was alone when it requested.
        assert_eq!(sends(&mut client), [light]);
        client.decline(light).unwrap();
        let mut turns = [0, 0];
        for _ in 0..40 {
            let Event::Send(flow) = wait(&mut client) else { panic!("no grant") };
            turns[usize::from(flow == heavy)] += 1;
            client.decline(flow).unwrap();
        }
        assert_eq!(turns, [10, 30]);
        let Event::Send(flow) = wait(&mut client) else { panic!("no grant") };
        paths[usize::from(flow == heavy)].send(1, 1000);
        client.update(flow, &arrived(1000)).unwrap();
        let rates = [light, heavy].map(|flow| client.query(flow).unwrap().unwrap().rate);
        assert_eq!(rates[1], 3 * rates[0]);
    });
}

#[test]
fn crossed_threshold_is_reported_once() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = client.open(&path.key, MTU).unwrap();
        client.register_update(flow, true).unwrap();
        client
            .thresh(flow, &Thresholds { rate_down: 0.5, rate_up: 2.0, rtt_down: 0.0, rtt_up: f64::INFINITY })
            .unwrap();
        let bad = Thresholds { rate_down: 2.0, ..Thresholds::default() };
        assert_eq!(refused(client.thresh(flow, &bad)), rivulet_cm::Error::Thresholds);
        let round = |client: &mut libcm::Client| {
            path.send(20, 1000);
            client.update(flow, &arrived(20_000)).unwrap();
        };
        round(&mut client);
        let Some(Event::Update(of, first)) = client.poll().unwrap() else { panic!() };
        assert_eq!((of, first.rate), (flow, 600_000));
        for _ in 0..5 {
            round(&mut client);
            assert_eq!(client.poll().unwrap(), None, "22,000 is not twice 12,000");
        }
        round(&mut client);
        round(&mut client);
        let Some(Event::Update(_, second)) = client.poll().unwrap() else { panic!() };
        assert_eq!(second.rate, 1_300_000, "what it is when it is taken");
        assert_eq!(client.poll().unwrap(), None);
        client.register_update(flow, false).unwrap();
        path.send(1, 1000);
        client
            .update(flow, &Update { nsent: 1000, congestion: Congestion::Persistent, ..Update::default() })
            .unwrap();
        assert_eq!(client.poll().unwrap(), None);
    });
}

#[test]
fn bulk_calls_return_each_result() {
    let Some(rig) = Rig::new(CallOptions { initial_window: 100, ..slow() }) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let paths: Vec<_> = (0..MAX_BULK).map(|_| path("127.0.0.1")).collect();
        let flows: Vec<_> = paths.iter().map(|p| client.open(&p.key, MTU).unwrap()).collect();
        let done = |results: Vec<Result<(), Error>>| {
            assert!(results.len() == MAX_BULK && results.iter().all(Result::is_ok))
        };
        done(client.bulk_request(&flows).unwrap());
        assert_eq!(sends(&mut client), flows);
        done(client.bulk_notify(&flows.iter().map(|f| (*f, 0)).collect::<Vec<_>>()).unwrap());
        paths.iter().for_each(|p| p.send(1, 1000));
        assert_eq!(rig.outstanding(ALICE), 64_000);
        done(client.bulk_update(&flows.iter().map(|f| (*f, arrived(1000))).collect::<Vec<_>>()).unwrap());
        assert_eq!(rig.outstanding(ALICE), 0);
        client.close(flows[1]).unwrap();
        let answers = client.bulk_query(&flows[..3]).unwrap();
        assert!(
            matches!(answers[..], [Ok(Some(_)), Err(Error::Refused(rivulet_cm::Error::NoFlow)), Ok(Some(_))]),
            "{answers:?}"
        );
        let more = [&flows[..], &flows[..1]].concat();
        assert_eq!(refused(client.bulk_request(&more).map(drop)), rivulet_cm::Error::Bulk);
        assert!(client.bulk_request(&[]).unwrap().is_empty());
    });
}

#[test]
fn datagrams_of_ipv6_and_of_unconnected_sockets_count() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let paths = [path("::1"), path("::1").connected()];
        for path in &paths {
            client.open(&path.key, MTU).unwrap();
            path.socket.send_to(&[0; 10], "[::1]:9").ok();
            path.send(2, 700);
        }
        let m = rig.macroflow(ALICE);
        assert_eq!((m.destination.to_string().as_str(), m.numbers.sent), ("::1", 2800));
        // A datagram larger than the path counts in full, and an empty one counts as one byte.
        paths[0].send(1, 60_000);
        paths[0].send(1, 0);
        assert_eq!(rig.macroflow(ALICE).numbers.sent, 2800 + 60_001);
    });
}

#[test]
fn later_flow_inherits_the_window() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let first = path("127.0.0.1");
        let flow = client.open(&first.key, MTU).unwrap();
        for _ in 0..10 {
            first.send(30, 1000);
            client.update(flow, &arrived(30_000)).unwrap();
        }
        client.close(flow).unwrap();
        let n = rig.macroflow(ALICE).numbers;
        assert_eq!((n.flows, n.cwnd), (0, 30_000));
        let second = path("127.0.0.1");
        let flow = client.open(&second.key, MTU).unwrap();
        assert_eq!(client.query(flow).unwrap().unwrap().rtt, RTT);
        // In another network namespace the same address is another host.
        assert_eq!(rig.macroflow(ALICE).numbers.flows, 1);
    });
}

/// Once a user has the histories of many destinations, those of further ones are deleted by a
/// timer.
#[test]
fn kept_histories_are_limited() {
    let Some(rig) = Rig::new(CallOptions { flows: 3, ..slow() }) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        for last in 1..40 {
            let mut key = path("127.0.0.1").key;
            key.destination = format!("127.0.0.{last}:9").parse().unwrap();
            let flow = client.open(&key, MTU).unwrap();
            client.close(flow).unwrap();
        }
        eventually("they are deleted", || rig.calls.macroflows().unwrap().len() == 3);
        let mut key = path("127.0.0.1").key;
        key.destination = "127.0.0.77:9".parse().unwrap();
        client.open(&key, MTU).unwrap();
    });
}

/// IP options and extension headers do not count as payload, and do not hide the UDP datagram.
#[test]
fn datagrams_behind_options_and_extension_headers_count() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    let [four, six] = rig.as_user(ALICE, || [path("127.0.0.1"), path("::1")]);
    // PadN in IPv6 destination options; no-operation options in IPv4.
    for (path, level, name, options) in [
        (&four, libc::IPPROTO_IP, libc::IP_OPTIONS, &[1u8; 4][..]),
        (&six, libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &[0, 0, 1, 4, 0, 0, 0, 0][..]),
    ] {
        let length = options.len() as libc::socklen_t;
        // SAFETY: the options live through the call. Setting them needs a privilege that users
        // lack.
        let rc = unsafe {
            libc::setsockopt(path.socket.as_raw_fd(), level, name, options.as_ptr().cast(), length)
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }
    rig.as_user(ALICE, || {
        for path in [&four, &six] {
            client.open(&path.key, MTU).unwrap();
            path.send(3, 700);
        }
    });
    let counted: Vec<_> = rig.calls.macroflows().unwrap().iter().map(|m| m.numbers.outstanding()).collect();
    assert_eq!(counted, [2100, 2100]);
}
