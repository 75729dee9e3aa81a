//! Signals when events arrive.

use std::sync::atomic::{AtomicU32, Ordering};

use libcm::Error;
use rivulet_bpf::cm::CallOptions;
use rivulet_pktio::testing::eventually;

use crate::rig::{ALICE, MTU, Rig, path, sends};

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_signal: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// All tests share the process; no other test uses this signal.
#[test]
fn signal_is_sent_on_events_until_switched_off() {
    let Some(rig) = Rig::new(CallOptions { grant_life: 1 << 50, ..CallOptions::default() }) else { return };
    // SAFETY: the handler only adds to an atomic.
    unsafe { libc::signal(libc::SIGIO, count as extern "C" fn(libc::c_int) as usize) };
    let ((mut client, _), (mut other, _)) = (rig.client(ALICE), rig.client(ALICE));
    for bad in [-1, 0, 32, 33, 65, i32::MAX] {
        assert!(matches!(client.signal(Some(bad)), Err(Error::Os { .. })), "{bad}");
    }
    let (ours, others) = rig.as_user(ALICE, || {
        let open = |client: &mut libcm::Client| client.open(&path("127.0.0.1").key, MTU).unwrap();
        (open(&mut client), open(&mut other))
    });
    let seen = || SIGNALS.load(Ordering::SeqCst);
    client.signal(Some(libc::SIGIO)).unwrap();
    assert_eq!(seen(), 0);
    rig.as_user(ALICE, || client.request(ours, 5).unwrap());
    eventually("a signal of what this client asked for", || seen() > 0);
    assert_eq!(sends(&mut client).len(), 5);
    // A call of another client frees the grant: the first window has ten packets.
    rig.as_user(ALICE, || {
        other.request(others, 5).unwrap();
        client.request(ours, 1).unwrap();
    });
    assert_eq!(sends(&mut client).len(), 0);
    let before = seen();
    rig.as_user(ALICE, || other.decline(others).unwrap());
    eventually("a signal of what another did", || seen() > before);
    // The thread has ended.
    client.signal(None).unwrap();
    let before = seen();
    rig.as_user(ALICE, || {
        client.decline(ours).unwrap();
        client.request(ours, 1).unwrap();
    });
    assert_eq!((sends(&mut client).len(), seen()), (2, before));
    // Events that wait already are signalled at once.
    rig.as_user(ALICE, || {
        client.decline(ours).unwrap();
        client.request(ours, 1).unwrap();
    });
    client.signal(Some(libc::SIGIO)).unwrap();
    eventually("a signal of what was there before", || seen() > before);
}
