//! What a client acknowledges that this host did not send (`src/bpf/beyond.h`), of a real socket of the kernel's.

use std::net::TcpStream;

use rivulet_pktio::repair::{Connection, restore};

use super::stamped::BASE;
use super::*;

/// Octets that were sent, and those beyond which nobody has any.
const SENT: u32 = 100;
const MOST: u32 = SENT + (1 << 26);

/// The socket of a connection on which so much was sent.
fn socket(rig: &Rig) -> TcpStream {
    let connection = Connection {
        local: rig.service,
        remote: rig.client,
        send_next: SERVER.wrapping_add(SENT),
        receive_next: CLIENT,
        send_window: 65_535,
        receive_window: 65_535,
        mss: 1460,
        scales: None,
        sack: true,
        timestamp: None,
    };
    restore(&connection, None).unwrap()
}

/// Behind which of the server's octets the kernel hears an acknowledgement of so many.
fn heard(rig: &Rig, ack: u32) -> u32 {
    rig.says(ACK, 0, ack, BASE, &[]).ack
}

fn bounds(rig: &Rig, is_adopted: bool) {
    let _socket = socket(rig);
    for ack in [0, SENT - 1, SENT, SENT + 1, SENT + 5000, MOST] {
        assert_eq!(heard(rig, ack), if is_adopted { ack.min(SENT) } else { ack }, "{is_adopted}");
    }
    assert_eq!(heard(rig, MOST + 1), MOST + 1, "a word of whoever does not know the numbers");
}

#[test]
fn who_had_more_behind_holes_is_heard_to_have_what_was_sent() {
    let Some(rig) = Rig::new("127.0.0.9:1025", "127.0.0.1:8193") else { return };
    let limits = Limits { ack: CLIENT, data: SERVER.wrapping_add(SENT), first: SERVER, ..Limits::default() };
    rig.trods.insert(&rig.key(), &limits).unwrap();
    assert_eq!(heard(&rig, SENT + 1), SENT + 1, "there is no socket");
    for adopted in [false, true] {
        assert!(rig.trods.set_limits(&rig.key(), &Limits { adopted, ..limits }).unwrap());
        bounds(&rig, adopted);
    }
}

#[test]
fn who_is_held_to_nothing_any_more_is_bound_all_the_same() {
    let Some(rig) = Rig::new("127.0.0.9:1027", "127.0.0.1:8195") else { return };
    let limits = Limits { ack: CLIENT, data: SERVER, first: SERVER, adopted: true, ..Limits::default() };
    for adopted in [false, true] {
        rig.trods.insert(&rig.key(), &limits).unwrap();
        match adopted {
            true => rig.trods.free_adopted(&rig.key()).unwrap(),
            false => rig.trods.free(&rig.key()).unwrap(),
        }
        assert_eq!(rig.trods.limits(&rig.key()).unwrap(), None);
        bounds(&rig, adopted);
    }
}

#[test]
fn who_had_its_end_behind_a_hole_is_not_over_before_it_was_said_here() {
    let Some(mut rig) = Rig::new("127.0.0.9:1028", "127.0.0.1:8196") else { return };
    let (end, far) = (SENT + 50, SERVER.wrapping_add(SENT + 50));
    let limits = Limits { ack: CLIENT, data: far, fin_at: Some(far), first: SERVER, ..Limits::default() };
    rig.trods.insert(&rig.key(), &limits).unwrap();
    let _socket = socket(&rig);
    for (adopted, told) in [(true, vec![]), (false, vec![Told::Ended])] {
        assert!(rig.trods.set_limits(&rig.key(), &Limits { adopted, ..limits }).unwrap());
        heard(&rig, end + 1);
        assert_eq!(rig.told(), told, "{adopted}");
    }
}

#[test]
fn so_is_whose_timestamps_are_made_here() {
    let Some(rig) = Rig::stamped_at("127.0.0.9:1026", "127.0.0.1:8194") else { return };
    for phase in [Phase::Echoed, Phase::Free, Phase::Recorded] {
        for adopted in [false, true] {
            rig.put(|st| (st.phase, st.adopted, st.total) = (phase, adopted, SENT));
            if let Some(limits) = rig.trods.limits(&rig.key()).unwrap() {
                assert!(rig.trods.set_limits(&rig.key(), &Limits { adopted, ..limits }).unwrap());
            }
            bounds(&rig, adopted);
        }
    }
}
