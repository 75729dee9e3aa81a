//! Flows that move between macroflows, on the real kernel.

use libcm::abi::{Op, Operation};
use libcm::{Calls, Client, Congestion, Descriptors, Error, FlowId, MacroflowId, Update};
use rivulet_bpf::cm::{CallOptions, Macroflow};
use rivulet_pktio::testing::eventually;

use crate::rig::{ALICE, BOB, MTU, Rig, path, sends};

const RTT: u64 = 20_000_000;

fn slow() -> CallOptions {
    CallOptions { grant_life: 1 << 50, silence: 1 << 50, ..CallOptions::default() }
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> rivulet_cm::Error {
    match result {
        Err(Error::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn programs(rig: &Rig) -> Descriptors {
    let [open, call, calls] = rig.calls.programs().map(|p| p.try_clone_to_owned().unwrap());
    Descriptors { open, call, calls }
}

/// The numbers of a destination's macroflow, and of those split from it.
fn numbers(rig: &Rig) -> (Macroflow, Vec<Macroflow>) {
    let (mut common, apart): (Vec<_>, Vec<_>) =
        rig.calls.macroflows().unwrap().into_iter().partition(|m| m.apart.is_none());
    assert_eq!(common.len(), 1, "{common:?}");
    (common.remove(0), apart)
}

fn arrived(bytes: u64) -> Update {
    Update { nsent: bytes, nrecd: bytes, congestion: Congestion::None, rtt: RTT }
}

/// Opens two flows on two paths; the second one joins the first one's macroflow.
fn two(client: &mut Client) -> (crate::rig::Path, FlowId, crate::rig::Path, FlowId) {
    let (a, b) = (path("127.0.0.1"), path("127.0.0.1"));
    let (of_a, of_b) = (client.open(&a.key, MTU).unwrap(), client.open(&b.key, MTU).unwrap());
    (a, of_a, b, of_b)
}

#[test]
fn flow_moves_with_its_outstanding_bytes_and_back() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let (a, of_a, b, of_b) = two(&mut client);
        let common = client.macroflow(of_a).unwrap();
        assert_eq!(client.macroflow(of_b).unwrap(), common);
        client.set_weight(of_b, 7).unwrap();
        client.request(of_a, 6).unwrap();
        client.request(of_b, 20).unwrap();
        assert_eq!(sends(&mut client).len(), 10);
        a.send(2, 1000);
        b.send(3, 1000);
        let own = client.split(of_b).unwrap();
        assert_eq!((client.macroflow(of_a).unwrap(), client.macroflow(of_b).unwrap()), (common, own));
        let (first, apart) = numbers(&rig);
        assert_eq!((first.numbers.flows, first.numbers.outstanding()), (1, 2000));
        assert_eq!((apart.len(), apart[0].apart), (1, Some(own.0)));
        let n = apart[0].numbers;
        assert_eq!(
            (n.flows, n.outstanding(), n.cwnd, n.srtt),
            (1, 3000, 10_000, 0),
            "with its own, into a new window"
        );
        // Waiting requests moved too, and are granted the room of the new macroflow.
        assert_eq!(sends(&mut client), vec![of_b; 7]);
        // Feedback goes to the macroflow that the flow is in now.
        client.update(of_b, &arrived(3000)).unwrap();
        let (first, apart) = numbers(&rig);
        assert_eq!((first.numbers.srtt, apart[0].numbers.srtt), (0, RTT));
        assert_eq!((first.numbers.outstanding(), apart[0].numbers.outstanding()), (2000, 0));
        b.send(1, 1000);
        assert_eq!(numbers(&rig).1[0].numbers.outstanding(), 1000, "and so is what leaves");

        assert_eq!(refused(client.set_macroflow(of_b, MacroflowId(999))), rivulet_cm::Error::NoMacroflow);
        assert_eq!(refused(client.set_macroflow(of_b, MacroflowId(0))), rivulet_cm::Error::NoMacroflow);
        client.set_macroflow(of_b, common).unwrap();
        client.set_macroflow(of_b, common).unwrap();
        assert_eq!(client.macroflow(of_b).unwrap(), common);
        let (first, _) = numbers(&rig);
        assert_eq!((first.numbers.flows, first.numbers.outstanding()), (2, 3000));
        eventually("one that was split ends with its last flow", || numbers(&rig).1.is_empty());
        assert_eq!(refused(client.set_macroflow(of_a, own)), rivulet_cm::Error::NoMacroflow);
        client.close(of_b).unwrap();
        assert_eq!(refused(client.split(of_b)), rivulet_cm::Error::NoFlow);
        assert_eq!(refused(client.macroflow(of_b)), rivulet_cm::Error::NoFlow);
        assert_eq!(numbers(&rig).0.numbers.outstanding(), 2000);
    });
}

/// A split macroflow keeps no history: repeated splitting and closing leaves nothing behind.
#[test]
fn split_macroflows_end_with_their_flows() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        for _ in 0..50 {
            let path = path("127.0.0.1");
            let flow = client.open(&path.key, MTU).unwrap();
            client.split(flow).unwrap();
            client.split(flow).unwrap();
            client.close(flow).unwrap();
        }
    });
    eventually("nothing of them is left", || numbers(&rig).1.is_empty());
    assert_eq!(numbers(&rig).0.numbers.flows, 0);
}

#[test]
fn macroflow_of_another_user_is_refused() {
    let Some(rig) = Rig::new(slow()) else { return };
    let ((mut alice, _), (mut bob, _)) = (rig.client(ALICE), rig.client(BOB));
    let (_path, flow, common) = rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = alice.open(&path.key, MTU).unwrap();
        let common = alice.macroflow(flow).unwrap();
        (path, flow, common)
    });
    rig.as_user(BOB, || {
        let path = path("127.0.0.1");
        let own = bob.open(&path.key, MTU).unwrap();
        assert_eq!(refused(bob.set_macroflow(own, common)), rivulet_cm::Error::NoMacroflow);
        assert_eq!(refused(bob.split(flow)), rivulet_cm::Error::NoFlow);
        assert_eq!(refused(bob.macroflow(flow)), rivulet_cm::Error::NoFlow);
    });
    let flows: Vec<_> = rig.calls.macroflows().unwrap().iter().map(|m| m.numbers.flows).collect();
    assert_eq!(flows, [1, 1]);
}

/// Packets sent while their flow moves are counted once.
#[test]
fn packets_sent_during_moves_count_once() {
    const EACH: u64 = 2000;
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = client.open(&path.key, MTU).unwrap();
        let socket = path.socket.try_clone().unwrap();
        let to = path.key.destination;
        std::thread::scope(|threads| {
            let sender = threads.spawn(move || {
                for _ in 0..EACH {
                    assert_eq!(socket.send_to(&[7; 100], to).unwrap(), 100);
                }
            });
            while !sender.is_finished() {
                client.split(flow).unwrap();
            }
        });
        let sum = || rig.calls.macroflows().unwrap().iter().map(|m| m.numbers.outstanding()).sum::<u64>();
        assert_eq!(sum(), 100 * EACH);
    });
}

/// Two threads that move a flow and one that closes it leave no half of it behind.
#[test]
fn concurrent_moves_and_closes_leave_no_state() {
    let Some(rig) = Rig::new(slow()) else { return };
    let (mut client, _) = rig.client(ALICE);
    rig.as_user(ALICE, || {
        for _ in 0..300 {
            let path = path("127.0.0.1");
            let flow = client.open(&path.key, MTU).unwrap();
            client.request(flow, 20).unwrap();
            std::thread::scope(|threads| {
                for _ in 0..2 {
                    let mut programs = programs(&rig);
                    threads.spawn(move || {
                        for _ in 0..4 {
                            let mut op = Op::new(flow.0, Operation::Move, [0; 4]);
                            programs.call(std::slice::from_mut(&mut op)).unwrap();
                            assert!([0, -libc::ENOENT, -libc::EAGAIN].contains(&op.result), "{}", op.result);
                        }
                    });
                }
                client.close(flow).unwrap();
            });
            sends(&mut client);
        }
    });
    assert_eq!(rig.calls.macroflows().unwrap().iter().map(|m| m.numbers.flows).sum::<u32>(), 0);
    eventually("nothing of them is left", || numbers(&rig).1.is_empty());
    // The quota of requests is free again: the full number can wait.
    rig.as_user(ALICE, || {
        let path = path("127.0.0.1");
        let flow = client.open(&path.key, MTU).unwrap();
        client.request(flow, 1000).unwrap();
    });
}
