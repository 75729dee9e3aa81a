//! What the kernel gets for the timestamp that a client echoes.

use super::*;

#[test]
fn echo_becomes_kernels_newest_timestamp_of_index() {
    let Some(rig) = Rig::stamped() else { return };
    // The first segment begins an index, and the others have the same one if all three are sent within 16 ms.
    let (newest, sent) = (0..1000)
        .find_map(|round| {
            rig.put(|st| {
                (st.phase, st.object, st.total, st.index, st.echo) = (Phase::Named, OBJECT, 9000, 30, 29);
            });
            let kernel = KERNEL + 3 * round;
            let send = |n| rig.answers(ACK, n * 9, 0, kernel + n, &[b'x'; 9]).value;
            let sent = [send(0), send(1), send(2)];
            (sent == [sent[0]; 3]).then_some((kernel + 2, sent[0]))
        })
        .expect("three segments within 16 ms");
    assert_eq!(sent >> 27, 31);
    assert_eq!(rig.client_sends(ACK, 0, 9, sent, &[]).echo, newest);
    assert_eq!((rig.now().echo, rig.now().phase), (31, Phase::Echoed));
    // A late older timestamp, and one that was never sent: the kernel gets 0.
    assert_eq!(rig.client_sends(ACK, 0, 9, BASE | OBJECT | 30 << 27, &[]).echo, 0);
    assert_eq!(rig.client_sends(ACK, 0, 9, BASE | OBJECT | 3 << 27, &[]).echo, 0);
    assert_eq!(rig.now().echo, 31);
}
