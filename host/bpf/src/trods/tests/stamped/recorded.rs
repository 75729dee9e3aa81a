//! Connections with a response that timestamps do not name, recorded in the store instead.

use super::*;

/// The event that hands a connection to the process.
fn unnamed(seq: u32, end: u32) -> Seen {
    Seen::Unnamed { seq, end, is_known: true, adopted: false }
}

/// Like [`unlisted_target_continues_unnamed`], for a service with a store.
#[test]
fn unlisted_response_is_held_for_recording() {
    let other = |from: &str, to: &str| std::str::from_utf8(GET).unwrap().replace(from, to).into_bytes();
    for asked in [other("/a", "/b"), other("GET", "PUT"), GET[..20].to_vec(), other("Host: h", "Cookie: x")] {
        let Some(mut rig) = Rig::stamped() else { return };
        rig.records();
        rig.put(|_| {});
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, &asked).verdict, NEXT);
        let text = String::from_utf8_lossy(&asked);
        assert_eq!(rig.events(), [unnamed(0, 0), Seen::Request(0, asked.clone(), false)], "{text}");
        assert_eq!((rig.now().phase, rig.unnamed()), (Phase::Recorded, Unnamed::default()));
        let end = asked.len() as u32;
        assert_eq!(
            rig.answers(ACK, 0, end, KERNEL, &[]).verdict,
            SWALLOWED,
            "the request is not acknowledged yet"
        );
        assert_eq!(
            rig.answers(ACK, 0, end, KERNEL, &response()).verdict,
            SWALLOWED,
            "nor does anything leave"
        );
        // Its record is stored.
        rig.store(end, 1000);
        let sent = rig.answers(ACK, 0, end, KERNEL, &response()[..1000]);
        assert_eq!((sent.verdict, sent.ack, object_of(sent.value)), (NEXT, end, NOBODYS));
        // The echo is the kernel's timestamp, and the data becomes an event.
        let heard = rig.client_sends(ACK, end, 900, sent.value, GET);
        assert_eq!((heard.verdict, heard.echo), (NEXT, KERNEL));
        assert_eq!(rig.events(), [Seen::Request(end, GET.to_vec(), false)]);
        // Its limits are removed.
        rig.trods.free(&rig.key()).unwrap();
        assert_eq!(object_of(rig.answers(ACK, 1000, end, KERNEL, &[b'x'; 9]).value), NOBODYS);
        assert_eq!((rig.client_sends(ACK, end, 900, sent.value, GET).echo, rig.events()), (KERNEL, vec![]));
    }
}

#[test]
fn request_with_unknown_response_head_makes_event_first() {
    let Some(mut rig) = Rig::stamped() else { return };
    rig.records();
    rig.put(|_| {});
    assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, NEXT);
    assert_eq!(rig.events(), []);
    let end = GET.len() as u32;
    let sent = rig.answers(ACK, 0, end, KERNEL, b"HTTP/1.1 404 Not Found\r\n\r\n");
    assert_eq!(sent.verdict, SWALLOWED);
    assert_eq!(rig.events(), [unnamed(0, 0), Seen::Request(0, GET.to_vec(), false)]);
    assert_eq!((rig.now().phase, rig.unnamed()), (Phase::Recorded, Unnamed::default()));
    // A second request before the first is answered.
    rig.put(|_| {});
    rig.client_sends(ACK, 0, 0, BASE, GET);
    rig.client_sends(ACK, end, 0, BASE, GET);
    let second = Seen::Request(end, GET.to_vec(), false);
    assert_eq!(rig.events(), [unnamed(0, 0), Seen::Request(0, GET.to_vec(), false), second]);
}

/// The first response is named until a record of the connection is stored.
#[test]
fn second_request_is_recorded_if_possible() {
    let Some(mut rig) = Rig::stamped() else { return };
    rig.records();
    let total = response().len() as u32;
    rig.put(|st| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, total));
    assert_eq!(rig.client_sends(ACK, 0, total, BASE | OBJECT, GET).verdict, NEXT);
    assert_eq!(rig.events(), [unnamed(0, total), Seen::Request(0, GET.to_vec(), false)]);
    let end = GET.len() as u32;
    assert_eq!(rig.answers(ACK, total, end, KERNEL, &[]).verdict, SWALLOWED);
    assert_eq!(rig.answers(ACK, total, end, KERNEL, b"more").verdict, SWALLOWED);
    assert_eq!(object_of(rig.answers(ACK, 0, 0, KERNEL, &[b'x'; 9]).value), OBJECT);
    rig.store(end, total + 4);
    let sent = rig.answers(ACK, total, end, KERNEL, b"more");
    assert_eq!((sent.verdict, sent.ack, object_of(sent.value)), (NEXT, end, NOBODYS));
    // The process ends a connection that was adopted.
    rig.put(|st| (st.phase, st.object, st.total, st.adopted) = (Phase::Echoed, OBJECT, total, true));
    rig.client_sends(ACK, 0, total, BASE | OBJECT, GET);
    assert_eq!(rig.events()[0], Seen::Unnamed { seq: 0, end: total, is_known: true, adopted: true });
    // The head is unknown unless this replica named the whole first response.
    rig.put(|st| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, total));
    assert_eq!(rig.client_sends(ACK, 0, total - 1, BASE | OBJECT, GET).verdict, NEXT);
    assert_eq!((rig.events(), rig.unnamed().second, rig.now().phase), (vec![], 1, Phase::Free));
}

/// The end of the former connection was not seen, and the kernel answers the next handshake between
/// its ports.
#[test]
fn kernel_handshake_removes_former_connection() {
    let Some(rig) = Rig::stamped() else { return };
    for records in [false, true] {
        rig.trods.issue(rig.service, 3, 2, records).unwrap();
        rig.put(|st| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, 9000));
        assert_eq!(rig.answers(SYN | ACK, 5000, 0, KERNEL, &[]).verdict, NEXT);
        assert_eq!(rig.trods.stamps().get(&rig.key()).unwrap(), None);
    }
}

#[test]
fn changed_connection_is_not_recorded() {
    let Some(rig) = Rig::stamped() else { return };
    for phase in [None, Some(Phase::Free), Some(Phase::Echoed)] {
        rig.put(|st| st.phase = phase.unwrap_or(Phase::Echoed));
        let before = rig.now();
        if phase.is_none() {
            rig.trods.stamps().forget(&rig.key()).unwrap();
        }
        let recorded = Stamped { phase: Phase::Recorded, ..before };
        let is_so = rig.trods.record(&rig.key(), &recorded, &before.limits).unwrap();
        assert_eq!(is_so, phase == Some(Phase::Echoed));
        assert_eq!(rig.trods.limits(&rig.key()).unwrap().is_some(), is_so);
        assert_eq!(rig.trods.stamps().get(&rig.key()).unwrap().is_some(), phase.is_some());
    }
}

#[test]
fn segment_before_socket_exists_is_replayed() {
    let Some(mut rig) = Rig::stamped() else { return };
    rig.records();
    for phase in [Phase::Recorded, Phase::Setup] {
        rig.put(|st| st.phase = phase);
        let limits = rig.now().limits;
        if phase == Phase::Setup {
            // The kernel made its handshake.
            rig.trods.stamps().forget(&rig.key()).unwrap();
            rig.trods.insert(&rig.key(), &limits).unwrap();
        }
        for (awaited, verdict) in [(true, DROP), (false, NEXT)] {
            rig.trods.set_limits(&rig.key(), &Limits { awaited, ..limits }).unwrap();
            assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, verdict);
            match &rig.events()[..] {
                // The process gets the segment unchanged, with its echo, because it will be
                // received again.
                [Seen::Parked(packet)] if awaited => {
                    assert!(packet.ends_with(GET));
                    assert!(packet.windows(4).any(|word| word == BASE.to_be_bytes()));
                }
                [Seen::Request(0, octets, false)] if !awaited => assert_eq!(octets, GET),
                told => panic!("{awaited}: {told:?}"),
            }
        }
    }
}
