//! Control calls from other threads while packets are forwarded.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Cmd, FEATURES, Rig};
use rivulet_engine::*;

/// Another thread inserts and deletes entries as fast as it can. No packet is lost, and a packet
/// after a write has returned uses the write.
#[test]
fn writes_do_not_disturb_packets() {
    let mut rig = Rig::new(FEATURES, true);
    let pipeline = rig.pipeline.clone();
    let table = rig.table("I.lpm_t");
    let action = rig.call("I.lpm_t", "I.set_b", &[1]);
    let key = |i: u32| EntryKey {
        fields: vec![KeyMatch::Lpm { value: (i << 8).to_be_bytes().to_vec(), prefix_len: 24 }],
        priority: 0,
    };
    let done = AtomicBool::new(false);
    let mut sent = 0u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20 {
                for i in 0..500 {
                    pipeline.insert(table, &EntrySpec::new(key(i), action.clone())).expect("insert");
                }
                for i in 0..500 {
                    // The even entries remain at the end.
                    if round < 19 || i % 2 == 1 {
                        pipeline.delete(table, &key(i)).expect("delete");
                    }
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let b = rig.cmd(Cmd::new(10, (sent as u32 % 500) << 8, 0)).b;
            assert!(b == 1 || b == 0xdead, "{b:x}");
            sent += 1;
        }
    });
    for i in 0..500 {
        let want = if i % 2 == 0 { 1 } else { 0xdead };
        assert_eq!(rig.cmd(Cmd::new(10, i << 8, 0)).b, want, "entry {i}");
    }
    assert_eq!(rig.switch.stats().emitted, sent + 500);
    assert_eq!(rig.pipeline.entries(table).len(), 250);
}

/// With a stopped packet path, writes wait for room and then fail, without partial effects.
#[test]
fn full_queue_is_an_error() {
    let rig = Rig::new(FEATURES, true);
    let register = rig.pipeline.info().register("I.sums").expect("register");
    let refused = (0..70_000u32).find_map(|i| rig.pipeline.set_register(register, 0, &i.to_be_bytes()).err());
    assert_eq!(refused, Some(WriteError::Busy));
}
