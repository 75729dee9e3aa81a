//! Segments of connections that no process here holds: the process searches for the holder first,
//! then the client is reset.

use super::*;

#[test]
fn protected_and_parked_connections_are_not_reset() {
    let Some(mut rig) = Rig::v4() else { return };
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, NEXT);
    rig.open();
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, SWALLOWED);
    assert_eq!(rig.up(RST, 7, 0, &[]), NEXT);
    assert_eq!(rig.events(), [Seen::Aborted(false), Seen::Reset(7)]);
    rig.trods.free(&rig.key()).unwrap();
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, NEXT);
    rig.trods
        .leases()
        .unwrap()
        .set(3, Lease { until: u64::MAX, settling: u64::MAX, ..Lease::default() })
        .unwrap();
    // The kernel does not know the connection: its RSTs do not leave, however often the client
    // retransmits.
    for _ in 0..2 {
        assert_eq!(rig.down(RST, 5, 0, &[]).0, SWALLOWED);
        rig.refused_before(1);
    }
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, NEXT, "a live server resets its connection");
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, NEXT, "only its RSTs are held back");
    rig.trods.leases().unwrap().set(3, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
    rig.trods.park(&rig.key()).unwrap();
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, SWALLOWED);
    rig.trods.unpark(&rig.key()).unwrap();
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, NEXT);
    assert_eq!(rig.counters().resets, 4);
}

/// The kernel has no socket for the connection, or no server.
#[test]
fn unknown_connection_is_reset_one_second_after_first_segment() {
    let Some(mut rig) = Rig::v4() else { return };
    // RSTs that answer an acknowledgement, and RSTs that answer a SYN, which its client retransmits
    // without a probe.
    for (flags, seq, told) in
        [(RST, 5, vec![Seen::Refused(5)]), (RST | ACK, 0u32.wrapping_sub(SERVER), vec![])]
    {
        delete(&map(&rig.trods.object, "refused").unwrap(), rig.key().octets()).unwrap();
        assert_eq!(rig.down(flags, seq, 0, &[]).0, SWALLOWED);
        assert_eq!(rig.down(flags, seq, 0, &[]).0, SWALLOWED);
        assert_eq!(rig.events(), told);
        rig.refused_before(1);
        assert_eq!(rig.down(flags, seq, 0, &[]).0, NEXT);
        assert_eq!(rig.events(), vec![]);
        // The last RST was so long ago that the next one counts as the first.
        rig.refused_before(129);
        assert_eq!(rig.down(flags, seq, 0, &[]).0, SWALLOWED);
        assert_eq!(rig.events(), told);
    }
    assert_eq!(rig.counters().resets, 6);
}

/// Between two deaths another replica may have held the connection, so its RST is held back again.
#[test]
fn reset_waits_again_after_a_pause() {
    let Some(mut rig) = Rig::v4() else { return };
    for pause in [3, 8, 120] {
        delete(&map(&rig.trods.object, "refused").unwrap(), rig.key().octets()).unwrap();
        for _ in 0..2 {
            assert_eq!(rig.down(RST, 5, 0, &[]).0, SWALLOWED, "{pause}");
            assert_eq!(
                rig.events(),
                [Seen::Refused(5)],
                "the process gets an event, at which it probes the client"
            );
            rig.refused_before(pause);
        }
        assert_eq!(rig.down(RST, 5, 0, &[]).0, SWALLOWED, "{pause}");
        rig.refused_before(2);
        assert_eq!(rig.down(RST, 5, 0, &[]).0, NEXT, "{pause}: the client has answered the probe");
        rig.events();
    }
}

#[test]
fn segments_of_orphan_are_parked_until_new_handshake() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.trods.park(&rig.key()).unwrap();
    assert_eq!(rig.up(ACK, 5, 9, b"GET"), DROP);
    assert_eq!(rig.up(FIN | ACK, 5, 9, &vec![1; EVENT_OCTETS - 40]), DROP);
    assert_eq!(rig.up(ACK, 5, 9, &vec![1; EVENT_OCTETS - 39]), DROP);
    let told = rig.events();
    let [Seen::Parked(one), Seen::Parked(most)] = &told[..] else { panic!("{told:?}") };
    let (seq, ack) = (CLIENT.wrapping_add(5).to_be_bytes(), SERVER.wrapping_add(9).to_be_bytes());
    assert_eq!((one[0], &one[24..28], &one[28..32], &one[40..]), (0x45, &seq[..], &ack[..], &b"GET"[..]));
    assert_eq!(most.len(), EVENT_OCTETS);
    // Another replica handed this segment on.
    let lease = |tor| Lease { until: u64::MAX, settling: 0, tor };
    rig.trods.leases().unwrap().set(3, lease([3; 6])).unwrap();
    assert_eq!((rig.up(ACK, 5, 9, b"GET"), rig.events()), (DROP, vec![]));
    rig.trods.leases().unwrap().set(3, lease([2; 6])).unwrap();
    assert_eq!((rig.up(ACK, 5, 9, b"GET"), rig.events().len()), (DROP, 1));
    let (from, to) = (rig.client, rig.service);
    let mut damaged =
        Segment { from, to, seq: 1, ack: 1, flags: ACK, options: vec![], data: vec![1] }.frame();
    damaged[54] = 0;
    assert_eq!((rig.run("trods_ingress", &damaged).0, rig.events()), (DROP, vec![]));
    rig.open();
    assert_eq!(rig.up(ACK, 0, 0, b"GET"), NEXT);
    assert_eq!((rig.events(), rig.counters().parked), (vec![Seen::Request(0, b"GET".into(), false)], 6));
}

#[test]
fn pinned_connection_is_handed_on_once_and_kernel_is_muted() {
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        let (from, to, key) = (rig.client, rig.service, rig.key());
        // All frames of this test have this address as source and destination.
        let tor = [2; 6];
        rig.trods.pin(&key, Pin { tor, holder: 5 }).unwrap();
        for (flags, data) in [(ACK, &b"GET"[..]), (ACK, b""), (FIN | ACK, b""), (RST, b"")] {
            let options = vec![];
            let frame = Segment { from, to, seq: 5, ack: 9, flags, options, data: data.into() }.frame();
            let (verdict, out) = rig.run("trods_ingress", &frame);
            assert_eq!(
                (verdict, &out[..6], &out[6..12]),
                (REDIRECT, &[2, 0x52, 0x56, 0, 0, 5][..], &tor[..])
            );
            assert_eq!(out[12..], frame[12..]);
            assert_eq!(rig.down(flags, 0, 0, data).0, SWALLOWED, "the kernel here must not answer");
            // Data becomes an event, for a later adoption by this replica.
            let told = if data.is_empty() { vec![] } else { vec![Seen::Parked(frame[14..].into())] };
            assert_eq!(rig.events(), told);
        }
        assert_eq!((rig.counters().handed_on, rig.counters().muted, rig.counters().parked), (4, 4, 0));
        // Another member handed the segment on, so it is not handed on again.
        rig.trods.pin(&key, Pin { tor: [2, 2, 2, 2, 2, 3], holder: 5 }).unwrap();
        assert_eq!((rig.up(ACK, 5, 9, b"GET"), rig.events()), (NEXT, vec![]));
        rig.trods.pin(&key, Pin { tor, holder: 5 }).unwrap();
        // A new connection between these ports belongs to this host.
        rig.open();
        assert_eq!(rig.up(ACK, 0, 0, b"GET"), NEXT);
        rig.limit(10, 10, None);
        assert_eq!(rig.down(ACK, 0, 3, b"HTTP").0, NEXT);
        // The former connection of this replica has ended, so it has no limits.
        rig.trods.free(&key).unwrap();
        assert_eq!((rig.up(ACK, 0, 0, b"GET"), rig.down(ACK, 0, 3, b"HTTP").0), (NEXT, NEXT));
        rig.trods.pin(&key, Pin { tor, holder: 5 }).unwrap();
        rig.trods.unpin(&key).unwrap();
        assert_eq!((rig.up(ACK, 0, 0, b"GET"), rig.down(ACK, 0, 3, b"HTTP").0), (NEXT, NEXT));
        assert_eq!(rig.trods.unpin(&key).map_err(|e| e.to_string()), Ok(()));
        assert_eq!(rig.counters().handed_on, 4);
    }
}

/// The replica gets segments of a connection that another one holds, and has no pin of it.
#[test]
fn unknown_segment_is_returned_to_tor_at_once() {
    let (tor, own, another) = ([2; 6], [2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 7]);
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        let (from, to, options) = (rig.client, rig.service, Vec::new());
        let frame = |source: [u8; 6], flags, data: &[u8]| {
            let options = options.clone();
            let segment = Segment { from, to, seq: 5, ack: 9, flags, options, data: data.into() };
            [&own[..], &source, &segment.frame()[12..]].concat()
        };
        assert_eq!(
            rig.run("trods_ingress", &frame(tor, ACK, b"GET")).0,
            NEXT,
            "the address of the ToR is unknown"
        );
        rig.trods.leases().unwrap().set(3, Lease { until: 0, settling: 0, tor }).unwrap();
        for (flags, data) in [(ACK, &b"GET"[..]), (ACK, b""), (FIN | ACK, b"")] {
            let frame = frame(tor, flags, data);
            let (verdict, out) = rig.run("trods_ingress", &frame);
            assert_eq!((verdict, &out[..6], &out[6..12]), (REDIRECT, &tor[..], &own[..]));
            assert_eq!(out[12..], frame[12..]);
        }
        assert_eq!((rig.counters().handed_on, rig.events()), (3, vec![]));
        // A client's RST is dropped, and a segment that another member handed on is not handed on
        // again.
        for frame in [frame(tor, RST, b""), frame(another, ACK, b"GET")] {
            assert_eq!(rig.run("trods_ingress", &frame), (NEXT, frame));
        }
        rig.set_dead(true);
        let frame = frame(tor, ACK, b"GET");
        assert_eq!(rig.run("trods_ingress", &frame), (NEXT, frame), "the next process decides");
        rig.set_dead(false);
        // The kernel gets segments that may complete a handshake, also without a socket.
        assert_eq!((rig.syn(), rig.up(ACK, 0, 7, b"GET")), (NEXT, NEXT));
    }
}

#[test]
fn flood_of_unknown_segments_is_mostly_not_returned() {
    let Some(rig) = Rig::v4() else { return };
    // All frames of this test have this address as source and destination, so the program gets a
    // returned frame again.
    rig.trods.leases().unwrap().set(3, Lease { tor: [2; 6], ..Lease::default() }).unwrap();
    let (from, to, options) = (rig.client, rig.service, Vec::new());
    let frame = Segment { from, to, seq: 5, ack: 9, flags: ACK, options, data: Vec::new() }.frame();
    let program = rig.trods.object.progs_mut().find(|p| p.name() == "trods_ingress").unwrap();
    // Now and then the last segment is the first of the next period, so this needs several
    // attempts.
    let passes = (0..10).any(|_| {
        let input = Input { data_in: Some(&frame), repeat: 5000, ..Input::default() };
        program.test_run(input).unwrap().return_value as i32 == NEXT
    });
    assert!(passes);
}

/// Also for pinned connections and while a search goes on, a client that retransmits for two
/// seconds is reset.
#[test]
fn client_of_no_connection_is_reset_in_the_end() {
    let Some(rig) = Rig::v4() else { return };
    let pin = Pin { tor: [2; 6], holder: 1 };
    for (settling, pinned) in [(u64::MAX, false), (0, true), (u64::MAX, true)] {
        rig.trods.leases().unwrap().set(3, Lease { until: u64::MAX, settling, ..Lease::default() }).unwrap();
        delete(&map(&rig.trods.object, "refused").unwrap(), rig.key().octets()).unwrap();
        if pinned {
            rig.trods.pin(&rig.key(), pin).unwrap();
        }
        // The kernel sends this RST for an unknown connection.
        let refuses = || rig.down(RST, 500, 0, &[]).0;
        assert_eq!([refuses(), refuses()], [SWALLOWED; 2], "{settling} {pinned}");
        rig.refused_before(1);
        assert_eq!(refuses(), SWALLOWED, "the search may still go on");
        rig.refused_before(1);
        assert_eq!(refuses(), NEXT, "{settling} {pinned}");
        // A socket's own RST leaves unless the connection is pinned; so does data.
        assert_eq!(rig.down(RST | ACK, 500, 0, &[]).0, if pinned { SWALLOWED } else { NEXT });
        assert_eq!(rig.down(ACK, 500, 0, b"x").0, if pinned { SWALLOWED } else { NEXT });
    }
}
