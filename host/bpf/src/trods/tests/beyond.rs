//! Acknowledgements of data that this host did not send (`src/bpf/beyond.h`), with a real socket of
//! the kernel.

use std::net::TcpStream;

use rivulet_pktio::repair::{Connection, restore};

use super::stamped::BASE;
use super::*;

/// Bytes that were sent, and the most bytes that a client may hold beyond them.
const SENT: u32 = 100;
const MOST: u32 = SENT + (1 << 26);

/// The socket of a connection on which [`SENT`] bytes were sent.
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

/// The acknowledgement that the kernel gets when the client sends `ack`, in bytes of the server's
/// data.
fn kernel_ack(rig: &Rig, ack: u32) -> u32 {
    rig.client_sends(ACK, 0, ack, BASE, &[]).ack
}

fn bounds(rig: &Rig, is_adopted: bool) {
    let _socket = socket(rig);
    for ack in [0, SENT - 1, SENT, SENT + 1, SENT + 5000, MOST] {
        assert_eq!(kernel_ack(rig, ack), if is_adopted { ack.min(SENT) } else { ack }, "{is_adopted}");
    }
    assert_eq!(kernel_ack(rig, MOST + 1), MOST + 1, "the sender does not know the sequence numbers");
}

#[test]
fn ack_beyond_sent_data_is_lowered_to_it() {
    let Some(rig) = Rig::new("127.0.0.9:1025", "127.0.0.1:8193") else { return };
    let limits = Limits { ack: CLIENT, data: SERVER.wrapping_add(SENT), first: SERVER, ..Limits::default() };
    rig.trods.insert(&rig.key(), &limits).unwrap();
    assert_eq!(kernel_ack(&rig, SENT + 1), SENT + 1, "there is no socket");
    for adopted in [false, true] {
        assert!(rig.trods.set_limits(&rig.key(), &Limits { adopted, ..limits }).unwrap());
        bounds(&rig, adopted);
    }
}

#[test]
fn ack_is_lowered_without_limits_too() {
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
fn fin_acked_early_does_not_end_connection() {
    let Some(mut rig) = Rig::new("127.0.0.9:1028", "127.0.0.1:8196") else { return };
    let (end, far) = (SENT + 50, SERVER.wrapping_add(SENT + 50));
    let limits = Limits { ack: CLIENT, data: far, fin_at: Some(far), first: SERVER, ..Limits::default() };
    rig.trods.insert(&rig.key(), &limits).unwrap();
    let _socket = socket(&rig);
    for (adopted, told) in [(true, vec![]), (false, vec![Seen::Ended])] {
        assert!(rig.trods.set_limits(&rig.key(), &Limits { adopted, ..limits }).unwrap());
        kernel_ack(&rig, end + 1);
        assert_eq!(rig.events(), told, "{adopted}");
    }
}

#[test]
fn ack_of_stamped_connection_is_lowered_too() {
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
