//! A replica's pins (connections that others hold), read from a real memcached.

use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin};
use rivulet_pktio::testing::{PATIENCE, eventually};
use rivulet_trods::Record;
use rivulet_trods::hold::{Absence, Known, Pins};
use rivulet_trods::store::{RENEWAL, Store, StoreConfig, prefix};
use rivulet_trods::testing::keys;
use rustix::process::{Pid, Signal, kill_process};

use crate::records::record;
use crate::store::Memcached;

const TOR: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];

/// The record of a connection with this client port.
fn of(port: u16, unprotected: bool) -> Record {
    let mut record = record();
    record.tuple.client.set_port(port);
    record.unprotected = unprotected;
    if unprotected {
        (record.responses, record.requests) = (Vec::new(), Vec::new());
    }
    record
}

/// Stores the records of connections that replica `n` holds.
fn hold(server: &Memcached, n: u8, records: &[Record]) {
    let config = StoreConfig {
        servers: vec![server.address],
        own: Vec::new(),
        copies: 1,
        prefix: prefix("web", &n.to_string(), 1).unwrap(),
        formers: Vec::new(),
        patience: PATIENCE,
        renewal: RENEWAL,
    };
    let mut store = Store::new(&config, &keys(), Instant::now()).unwrap();
    for (number, record) in (0..).zip(records) {
        store.put(number, 1, record, Instant::now());
    }
    let mut done = Vec::new();
    eventually("the records are stored", || {
        store.turn(Instant::now(), &mut done);
        done.len() == records.len()
    });
    assert!(done.iter().all(|done| done.kept));
}

/// An absence of a replica beside these members.
fn absence(server: &Memcached, others: &[u8], number: (u32, u64), gets: fn(u16) -> bool) -> Absence {
    Absence {
        number,
        others: others.iter().map(|n| (*n, prefix("web", &n.to_string(), 1).unwrap(), keys())).collect(),
        named: Vec::new(),
        alive: 0,
        servers: vec![server.address],
        tor: TOR,
        gets: Box::new(move |client, _| gets(client.port())),
    }
}

/// The pins that a replica reads from these members.
fn ask(server: &Memcached, others: &[u8], number: (u32, u64), gets: fn(u16) -> bool) -> Known {
    let (pins, (awake, woken)) = (Pins::default(), channel());
    let wake = move || awake.send(()).unwrap_or_default();
    pins.ask(absence(server, others, number, gets), wake).unwrap();
    woken.recv_timeout(PATIENCE).unwrap();
    pins.known().unwrap()
}

#[test]
fn query_returns_pins_of_possible_connections() {
    let Some(server) = Memcached::start() else { return };
    hold(&server, 2, &[of(1000, false), of(1001, false), of(1002, true)]);
    hold(&server, 3, &[of(2000, false), of(2001, false)]);
    let held = |others: &[u8], gets| {
        let mut known = None;
        // On a busy machine a read may time out and skip the store, so the query is repeated.
        eventually("the store tells what each has", || {
            let told = ask(&server, others, (4, 7), gets);
            let holders: HashSet<u8> = told.held.iter().map(|(_, pin, _)| pin.holder).collect();
            known = (holders.len() == others.len()).then_some(told);
            known.is_some()
        });
        let known = known.unwrap();
        assert_eq!(known.number, (4, 7));
        let mut held: Vec<_> = known.held.into_iter().map(|(key, pin, _)| (key, pin)).collect();
        held.sort_by_key(|(key, _)| key.client().port());
        held
    };
    let pinned = |port, holder| {
        let tuple = of(port, false).tuple;
        (FlowKey::new(tuple.client, tuple.service), Pin { tor: TOR, holder })
    };
    let all = [pinned(1000, 2), pinned(1001, 2), pinned(2000, 3), pinned(2001, 3)];
    assert_eq!(held(&[2, 3], |_| true), all, "whoever was away may get all");
    assert_eq!(held(&[2, 3], |port| port % 2 == 1), [all[1], all[3]], "another one gets what the slots say");
    assert_eq!(held(&[2], |_| true), all[..2], "who is gone holds nothing");
}

/// The client of a living connection would otherwise be reset: its segments arrive at the replica
/// that returned, which hands them to a replica that does not have the connection.
#[test]
fn pins_are_read_again_when_store_returns() {
    let Some(server) = Memcached::start() else { return };
    hold(&server, 2, &[of(1000, false)]);
    let signal = |signal| kill_process(Pid::from_child(&server.process.0), signal).unwrap();
    for ends_absence in [true, false] {
        let (pins, (awake, woken)) = (Pins::default(), channel());
        signal(Signal::STOP);
        pins.ask(absence(&server, &[2], (4, 7), |_| true), move || awake.send(()).unwrap_or_default())
            .unwrap();
        if ends_absence {
            // The first try is over, and the replica still waits.
            std::thread::sleep(Duration::from_millis(800));
            assert!(pins.known().is_none());
        } else {
            // It waits no longer, and gets the pins all the same.
            woken.recv_timeout(PATIENCE).unwrap();
            let known = pins.known().unwrap();
            assert_eq!((known.number, known.held), ((4, 7), Vec::new()));
        }
        signal(Signal::CONT);
        let (mut numbers, mut held) = (Vec::new(), Vec::new());
        // Once more a second later, when holders have stored their records again.
        eventually("the pins are read twice", || {
            while let Some(known) = pins.known() {
                numbers.push(known.number);
                held.extend(known.held);
            }
            held.len() >= 2
        });
        assert_eq!(numbers[0], if ends_absence { (4, 7) } else { (4, 0) });
        assert!(held.iter().all(|(key, pin, _)| (key.client().port(), pin.holder) == (1000, 2)));
    }
}
