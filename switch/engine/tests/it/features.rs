//! Every feature of v1model, with a program that uses them all, compiled and interpreted.

use crate::common::{self, Cmd, FEATURES, both, exact};
use rivulet_engine::*;

#[test]
fn registers_are_read_and_written_by_control() {
    both(FEATURES, |rig| {
        assert_eq!(rig.cmd(Cmd::new(1, 3, 5)).b, 5);
        assert_eq!(rig.cmd(Cmd::new(1, 3, 6)).b, 11);
        let sums = rig.pipeline.info().register("I.sums").unwrap();
        assert_eq!(rig.pipeline.register(sums, 3).unwrap(), [11]);
        rig.pipeline.set_register(sums, 3, &[0, 1, 0]).unwrap();
        assert_eq!(rig.cmd(Cmd::new(1, 3, 1)).b, 257);
        assert!(matches!(rig.pipeline.register(sums, 16), Err(WriteError::OutOfRange(_))));
        assert!(matches!(
            rig.pipeline.set_register(sums, 0, &[1, 0, 0, 0, 0]),
            Err(WriteError::OutOfRange(_))
        ));
        // A write beyond the end has no effect.
        rig.cmd(Cmd::new(1, 16, 1));
        rig.cmd(Cmd::new(1, u32::MAX, 1));
        // 96 bits.
        let big = Cmd { op: 16, b: u32::MAX, w: 1, ..Cmd::default() };
        assert_eq!((rig.cmd(big).w, rig.cmd(big).b), (1, u32::MAX - 1));
        let wides = rig.pipeline.info().register("I.wides").unwrap();
        assert_eq!(rig.pipeline.register(wides, 1).unwrap(), [3, 255, 255, 255, 254]);
    });
}

#[test]
fn clones_carry_field_list_and_received_packet() {
    both(FEATURES, |rig| {
        // Without a session there is no clone.
        assert_eq!(rig.send(3, &Cmd::new(3, 8, 1).bytes()).len(), 1);
        let session =
            CloneSession { replicas: vec![Replica { port: 9, instance: 4 }], ..CloneSession::default() };
        rig.pipeline.set_clone_session(5, Some(&session)).unwrap();
        let out = rig.send(3, &Cmd::new(3, 8, 1).bytes());
        assert_eq!(out.iter().map(|p| p.0).collect::<Vec<_>>(), [9, 1]);
        let clone = Cmd::of(&out[0].1);
        assert_eq!((clone.b, clone.w), (1, 8 << 32), "the field not in the list is zero");
        assert_eq!(Cmd::of(&out[1].1).b, 9);
        // Truncated.
        let cut = CloneSession { packet_length_bytes: 6, ..session };
        rig.pipeline.set_clone_session(5, Some(&cut)).unwrap();
        assert_eq!(rig.send(3, &Cmd::new(3, 8, 1).bytes())[0].1.len(), 6);
        // Egress to egress.
        let egress =
            CloneSession { replicas: vec![Replica { port: 2, instance: 0 }], ..CloneSession::default() };
        rig.pipeline.set_clone_session(6, Some(&egress)).unwrap();
        let mut out = rig.send(3, &Cmd::new(25, 0, 0).bytes());
        out.sort();
        assert_eq!(out.iter().map(|p| (p.0, Cmd::of(&p.1).b)).collect::<Vec<_>>(), [(1, 0), (2, 5)]);
    });
}

#[test]
fn multicast_sends_a_copy_to_each_replica() {
    both(FEATURES, |rig| {
        assert!(rig.send(3, &Cmd::new(4, 7, 0).bytes()).is_empty());
        assert_eq!(rig.switch.stats().no_multicast_group, 1);
        let replicas = [Replica { port: 5, instance: 50 }, Replica { port: 6, instance: 60 }];
        rig.pipeline.set_multicast_group(7, Some(&replicas)).unwrap();
        let out = rig.send(3, &Cmd::new(4, 7, 0).bytes());
        assert_eq!(out.iter().map(|p| (p.0, Cmd::of(&p.1).b)).collect::<Vec<_>>(), [(5, 50), (6, 60)]);
        rig.pipeline.set_multicast_group(7, None).unwrap();
        assert!(rig.send(3, &Cmd::new(4, 7, 0).bytes()).is_empty());
        assert!(matches!(rig.pipeline.set_multicast_group(7, None), Err(WriteError::NotFound(_))));
    });
}

#[test]
fn resubmit_restarts_ingress_and_recirculation_is_bounded() {
    both(FEATURES, |rig| {
        let back = rig.cmd(Cmd::new(5, 40, 1));
        assert_eq!((back.b, back.w), (1, 40), "header changes are undone, only the list is kept");
        assert_eq!(rig.cmd(Cmd::new(6, 10, 0)).b, 10);
        assert!(rig.send(3, &Cmd::new(6, u32::MAX, 0).bytes()).is_empty());
        assert_eq!(rig.switch.stats().pass_limit, 1);
    });
}

#[test]
fn digests_are_sent_when_enabled() {
    both(FEATURES, |rig| {
        rig.cmd(Cmd { c: 9, ..Cmd::new(7, 0, 0) });
        assert!(rig.events.digests.try_recv().is_err());
        let event = rig.pipeline.info().digest("event_t").unwrap();
        assert_eq!(rig.pipeline.info().digests[event.index()].fields, [8, 48, 13]);
        rig.pipeline.enable_digest(event, true).unwrap();
        rig.now = 0x0102_0304;
        rig.cmd(Cmd { c: 9, ..Cmd::new(7, 0, 0) });
        let sample = rig.events.digests.try_recv().unwrap();
        assert_eq!(sample.data[..], [9, 0, 0, 1, 2, 3, 5, 0x1a, 0xbc]);
        assert_eq!(sample.pipeline, rig.pipeline.serial());
    });
}

#[test]
fn meters_colour_and_counters_count() {
    both(FEATURES, |rig| {
        let limit = rig.pipeline.info().meter("I.limit").unwrap();
        assert_eq!(rig.cmd(Cmd::new(8, 2, 0)).c, 0, "green without rates");
        let config = MeterConfig { cir: 1, cburst: 1, pir: 1, pburst: 2 };
        rig.pipeline.set_meter(limit, 2, Some(config)).unwrap();
        let colours: Vec<u8> = (0..4).map(|_| rig.cmd(Cmd::new(8, 2, 0)).c).collect();
        assert_eq!(colours, [0, 1, 2, 2]);
        assert_eq!(rig.pipeline.meter(limit, 2).unwrap(), Some(config));
        let bad = MeterConfig { cir: 2, cburst: 1, pir: 1, pburst: 1 };
        assert!(matches!(rig.pipeline.set_meter(limit, 2, Some(bad)), Err(WriteError::Invalid(_))));
        let seen = rig.pipeline.info().counter("I.seen").unwrap();
        assert_eq!(rig.pipeline.counter(seen, 0).unwrap(), CounterData { packets: 5, bytes: 5 * 18 });
        rig.pipeline.set_counter(seen, 0, CounterData { packets: 100, bytes: 1 }).unwrap();
        rig.cmd(Cmd::new(8, 2, 0));
        assert_eq!(rig.pipeline.counter(seen, 0).unwrap(), CounterData { packets: 101, bytes: 19 });
    });
}

#[test]
fn exact_entries_with_counters_and_timeouts() {
    both(FEATURES, |rig| {
        let table = rig.table("I.exact_t");
        let key = EntryKey { fields: vec![exact(5), KeyMatch::Exact(vec![1])], priority: 0 };
        let mut spec = EntrySpec::new(key.clone(), rig.call("I.exact_t", "I.count_b", &[42]));
        spec.idle_timeout_ns = 10_000;
        spec.metadata = b"mine".to_vec();
        rig.pipeline.insert(table, &spec).unwrap();
        assert!(matches!(rig.pipeline.insert(table, &spec), Err(WriteError::AlreadyExists(_))));
        assert_eq!(rig.cmd(Cmd { c: 1, ..Cmd::new(9, 5, 0) }).b, 42);
        assert_eq!(rig.cmd(Cmd { c: 2, ..Cmd::new(9, 5, 0) }).b, 0);
        let entry = rig.pipeline.entry(table, &key).unwrap();
        assert_eq!(entry.spec.counter, Some(CounterData { packets: 1, bytes: 18 }));
        assert_eq!(entry.spec.metadata, b"mine");
        assert_eq!(
            entry.spec.action,
            EntryAction::Call(ActionCall { params: vec![vec![42]], ..call_of(&spec) })
        );
        assert!(rig.pipeline.take_idle().is_empty());
        rig.now += 20;
        rig.path.poll(rig.now, &mut |_: u32, _: &[u8], _: &[u8]| {});
        assert_eq!(rig.pipeline.take_idle().len(), 1);
        assert!(rig.pipeline.take_idle().is_empty(), "reported once");
        rig.cmd(Cmd { c: 1, ..Cmd::new(9, 5, 0) });
        rig.now += 20;
        rig.path.poll(rig.now, &mut |_: u32, _: &[u8], _: &[u8]| {});
        assert_eq!(rig.pipeline.take_idle().len(), 1, "hit again and idle again");
        // 128-bit parameters.
        let wide = rig.call("I.exact_t", "I.set_wide", &[(7 << 64) | 1]);
        rig.pipeline.modify(table, &EntrySpec::new(key.clone(), wide)).unwrap();
        assert_eq!(rig.cmd(Cmd { c: 1, ..Cmd::new(9, 5, 0) }).w, 6);
        rig.pipeline.delete(table, &key).unwrap();
        assert!(matches!(rig.pipeline.delete(table, &key), Err(WriteError::NotFound(_))));
        assert_eq!(rig.cmd(Cmd { c: 1, ..Cmd::new(9, 5, 0) }).b, 0);
    });
}

fn call_of(spec: &EntrySpec) -> ActionCall {
    match &spec.action {
        EntryAction::Call(c) => c.clone(),
        other => panic!("no call: {other:?}"),
    }
}

#[test]
fn lpm_range_and_const_entries() {
    both(FEATURES, |rig| {
        assert_eq!(rig.cmd(Cmd::new(10, 1, 0)).b, 0xdead);
        let prefix = |v: u32, len| vec![KeyMatch::Lpm { value: v.to_be_bytes().to_vec(), prefix_len: len }];
        let set = |rig: &common::Rig, t: &str, v| rig.call(t, "I.set_b", &[v]);
        rig.insert("I.lpm_t", prefix(0x0a00_0000, 8), 0, set(rig, "I.lpm_t", 8)).unwrap();
        rig.insert("I.lpm_t", prefix(0x0a0b_0000, 16), 0, set(rig, "I.lpm_t", 16)).unwrap();
        assert_eq!(rig.cmd(Cmd::new(10, 0x0a0b_0c0d, 0)).b, 16);
        assert_eq!(rig.cmd(Cmd::new(10, 0x0a0c_0c0d, 0)).b, 8);
        rig.pipeline.set_default(rig.table("I.lpm_t"), Some(&set(rig, "I.lpm_t", 3))).unwrap();
        assert_eq!(rig.cmd(Cmd::new(10, 1, 0)).b, 3);
        rig.pipeline.set_default(rig.table("I.lpm_t"), None).unwrap();
        assert_eq!(rig.cmd(Cmd::new(10, 1, 0)).b, 0xdead);

        let range = |lo: u32, hi: u32| KeyMatch::Range {
            low: lo.to_be_bytes().to_vec(),
            high: hi.to_be_bytes().to_vec(),
        };
        rig.insert("I.range_t", vec![range(10, 20), KeyMatch::Any], 1, set(rig, "I.range_t", 1)).unwrap();
        let four = KeyMatch::Ternary { value: vec![4], mask: vec![4] };
        rig.insert("I.range_t", vec![range(15, 30), four], 2, set(rig, "I.range_t", 2)).unwrap();
        assert_eq!(rig.cmd(Cmd { c: 4, ..Cmd::new(11, 15, 0) }).b, 2);
        assert_eq!(rig.cmd(Cmd { c: 3, ..Cmd::new(11, 15, 0) }).b, 1);
        assert_eq!(rig.cmd(Cmd { c: 4, ..Cmd::new(11, 21, 0) }).b, 2);
        assert_eq!(rig.cmd(Cmd { c: 4, ..Cmd::new(11, 31, 99) }).b, 99);

        // The first matching const entry wins.
        assert_eq!([0x12, 0x1f, 0x22].map(|c| rig.cmd(Cmd { c, ..Cmd::new(12, 0, 0) }).b), [1, 1, 3]);
        let t = rig.table("I.const_t");
        let first = rig.pipeline.entries(t).remove(0);
        assert!(first.is_const);
        assert!(matches!(rig.pipeline.delete(t, &first.spec.key), Err(WriteError::Const(_))));
        assert!(matches!(rig.pipeline.set_default(t, None), Err(WriteError::Const(_))));
    });
}

#[test]
fn selectors_spread_over_their_members() {
    both(FEATURES, |rig| {
        let ways = rig.pipeline.info().profile("I.ways").unwrap();
        let action = rig.pipeline.info().profile_action(ways, "I.set_b").unwrap();
        let call = |v: u8| ActionCall { action, params: vec![vec![v]] };
        rig.pipeline.insert_member(ways, 11, &call(1)).unwrap();
        rig.pipeline.insert_member(ways, 12, &call(2)).unwrap();
        let group = Group {
            members: [11, 12].map(|member| GroupMember { member, weight: 1, watch_port: vec![] }).to_vec(),
            max_size: 0,
        };
        rig.pipeline.insert_group(ways, 1, &group).unwrap();
        let selected = |c| vec![KeyMatch::Exact(vec![c])];
        rig.insert("I.select_t", selected(0), 0, EntryAction::Group(1)).unwrap();
        rig.insert("I.select_t", selected(1), 0, EntryAction::Member(12)).unwrap();
        assert!(matches!(rig.pipeline.delete_member(ways, 12), Err(WriteError::InUse(_))));
        let mut seen = [0; 3];
        for a in 0..200 {
            let back = rig.cmd(Cmd::new(2, a, 0));
            assert_eq!(back.w, 1, "a hit");
            assert_eq!(rig.cmd(Cmd::new(2, a, 0)).b, back.b, "the same flow goes the same way");
            seen[back.b as usize] += 1;
        }
        assert!(seen[0] == 0 && seen[1] > 50 && seen[2] > 50, "{seen:?}");
        assert_eq!(rig.cmd(Cmd { c: 1, ..Cmd::new(2, 0, 0) }).b, 2);
        rig.pipeline.modify_member(ways, 12, &call(7)).unwrap();
        assert_eq!(rig.cmd(Cmd { c: 1, ..Cmd::new(2, 0, 0) }).b, 7);
        // A one-shot creates its own members, and removes them.
        let one = |v, weight| OneShotMember { call: call(v), weight, watch_port: vec![] };
        let shot = EntryAction::OneShot(vec![one(30, 1), one(31, 3)]);
        rig.insert("I.select_t", selected(2), 0, shot).unwrap();
        let flow = |i: u32| i.wrapping_mul(2_654_435_761);
        let seen = (0..400).filter(|i| rig.cmd(Cmd { c: 2, ..Cmd::new(2, flow(*i), 0) }).b == 31).count();
        assert!((240..360).contains(&seen), "three of four: {seen}");
        assert_eq!(rig.pipeline.members(ways).len(), 2);
        // A miss and an empty group run no action.
        assert_eq!(rig.cmd(Cmd { c: 9, ..Cmd::new(2, 0, 55) }).b, 55);
        rig.pipeline.modify_group(ways, 1, &Group::default()).unwrap();
        assert_eq!(rig.cmd(Cmd::new(2, 0, 56)).b, 56);
    });
}

#[test]
fn arithmetic_of_every_kind() {
    both(FEATURES, |rig| {
        let back = rig.cmd(Cmd::new(13, 0xffff_fff0, 0x20));
        // Saturated sum, saturated signed difference (-16 - 32), comparison, arithmetic shift.
        assert_eq!((back.w >> 32, back.b, back.c, back.a), (0xffff_ffff, -48i32 as u32, 1, u32::MAX));
        let back = rig.cmd(Cmd::new(13, 0x7fff_ffff, 0xffff_ffff));
        assert_eq!((back.b, back.c), (0x7fff_ffff, 0), "int<32> max - -1 stays at max");
        let w = 0xdead_beef_1234_5678u64;
        let back = rig.cmd(Cmd { c: 4, a: 3, b: 9, w, ..Cmd::new(17, 0, 0) });
        assert_eq!(back.w, ((u128::from(w) * u128::from(w)) >> 64) as u64);
        assert_eq!((back.c, back.b), (1, 6), "3 << 1, and a shift past the width gives 0");
        assert_eq!(rig.cmd(Cmd::new(14, 0x3132_3334, 0)).b, 0x9be3_e0a3, "CRC-32 of \"1234\"");
        for _ in 0..50 {
            assert!((10..=12).contains(&rig.cmd(Cmd::new(18, 0, 0)).b));
        }
    });
}

#[test]
fn parser_errors_value_sets_and_variable_headers() {
    both(FEATURES, |rig| {
        assert_eq!(rig.cmd(Cmd::new(22, 7, 0)).c, 0);
        assert_eq!(rig.cmd(Cmd::new(22, 8, 0)).c, 0xee, "verify failed");
        assert_eq!(rig.switch.stats().parser_errors, 1);
        assert_eq!(rig.send(3, &[1, 2, 3])[0].1, [1, 2, 3], "too short for its header, and passed on");
        assert_eq!(rig.switch.stats().parser_errors, 2);
        let set = rig.pipeline.info().value_set("P.known").unwrap();
        assert_eq!(rig.cmd(Cmd::new(40, 0, 0)).b, 0);
        rig.pipeline.set_value_set(set, &[vec![KeyMatch::Exact(vec![40])]]).unwrap();
        assert_eq!(rig.cmd(Cmd::new(40, 0, 0)).b, 0x5e7);
        rig.pipeline.set_value_set(set, &[]).unwrap();
        assert_eq!(rig.cmd(Cmd::new(40, 0, 0)).b, 0);
        // varbit: a length byte, that many bytes, and the rest.
        for n in [0u8, 1, 32] {
            let mut frame = Cmd::new(20, 0, 0).bytes();
            frame.push(n);
            frame.extend(0..n);
            frame.extend(b"rest");
            assert_eq!(rig.send(3, &frame), [(1, frame)]);
        }
        let mut long = Cmd::new(20, 0, 0).bytes();
        long.extend([33; 40]);
        assert_eq!(Cmd::of(&rig.send(3, &long)[0].1).c, 0xee, "longer than the field");
        // A stack: its first element is popped.
        let mut frame = Cmd::new(21, 0, 0).bytes();
        frame.extend([0x10, 0x20, 0x31]);
        assert_eq!(rig.send(3, &frame)[0].1[18..], [0x20, 0x31]);
        let mut frame = Cmd::new(21, 0, 0).bytes();
        frame.extend([0x10; 8]);
        assert_eq!(Cmd::of(&rig.send(3, &frame)[0].1).c, 0xee, "more than the stack holds");
    });
}

#[test]
fn truncation_drops_exit_assert_and_messages() {
    both(FEATURES, |rig| {
        let mut frame = Cmd::new(23, 20, 0).bytes();
        frame.extend([7; 30]);
        assert_eq!(rig.send(3, &frame), [(1, frame[..20].to_vec())]);
        assert!(rig.send(3, &Cmd::new(24, 0, 0).bytes()).is_empty());
        assert!(rig.send(3, &Cmd::new(30, 0, 0).bytes()).is_empty());
        assert_eq!((rig.switch.stats().ingress_dropped, rig.switch.stats().egress_dropped), (1, 1));
        assert_eq!(rig.cmd(Cmd { c: 3, ..Cmd::new(19, 5, 1) }).b, 1, "exit leaves out what follows");
        assert_eq!(rig.events.logs.try_recv().unwrap(), "a=5 {c}=3");
        assert_eq!(rig.cmd(Cmd::new(15, 1, 0)).a, 1);
        assert!(rig.send(3, &Cmd::new(15, 0, 0).bytes()).is_empty());
        assert_eq!(rig.switch.stats().faults, 1);
    });
}

#[test]
fn traces_contain_the_path() {
    both(FEATURES, |rig| {
        let frame = Cmd { c: 0x12, ..Cmd::new(12, 0, 0) }.bytes();
        let trace = rig.path.process_traced(5, 3, &frame, &mut |_: u32, _: &[u8], _: &[u8]| {});
        let text = trace.to_string();
        for part in [
            "state start",
            "extract cmd",
            "table I.const_t [hdr.cmd.c=0x12] hit",
            "I.set_b(value=0x1)",
            "out of port 1",
        ] {
            assert!(text.contains(part), "`{part}` is not in\n{text}");
        }
        let wanted = rig.switch.trace_next(2, Some(4));
        rig.send(3, &frame);
        rig.send(4, &frame);
        rig.send(4, &Cmd::new(30, 0, 0).bytes());
        rig.send(4, &frame);
        let all: Vec<Trace> = wanted.try_iter().collect();
        assert_eq!(all.len(), 2);
        assert!(all[1].steps.contains(&Step::Drop { reason: "end of ingress".into() }));
    });
}

#[test]
fn a_new_pipeline_takes_over_between_packets() {
    both(FEATURES, |rig| {
        rig.cmd(Cmd::new(1, 0, 5));
        let next = Pipeline::new(rig.pipeline.program().clone());
        let sums = next.info().register("I.sums").unwrap();
        next.set_register(sums, 0, &[100]).unwrap();
        assert_eq!(rig.cmd(Cmd::new(1, 0, 5)).b, 10, "saved: the old one forwards");
        rig.switch.commit(&next).unwrap();
        assert_eq!(rig.cmd(Cmd::new(1, 0, 5)).b, 105);
        assert_eq!(rig.pipeline.register(sums, 0).unwrap(), [10], "retired, and readable");
        assert!(matches!(rig.switch.commit(&rig.pipeline), Err(WriteError::InUse(_))));
        assert_eq!(rig.switch.forwarding().unwrap().serial(), next.serial());
    });
}

#[test]
fn queues_with_a_rate_delay_packets() {
    both(FEATURES, |rig| {
        rig.switch.set_queue(Some(1), Some(1000), 2).unwrap();
        for _ in 0..4 {
            assert!(rig.send(3, &Cmd::new(26, 0, 0).bytes()).is_empty());
        }
        assert_eq!(rig.switch.stats().queue_full, 2);
        let mut out = 0;
        let mut emit = |_: u32, _: &[u8], _: &[u8]| out += 1;
        let next = rig.path.poll(10, &mut emit).expect("one more waits");
        assert!((900..=1100).contains(&next), "a millisecond apart: {next}");
        assert_eq!(rig.path.poll(next, &mut emit), None);
        assert_eq!(out, 2);
    });
}

/// `mark_to_drop` marks its argument: p4c copies an `inout` argument before the call and back after
/// it.
#[test]
fn mark_to_drop_marks_its_argument() {
    let mut program: serde_json::Value = serde_json::from_slice(FEATURES).unwrap();
    let headers = program["headers"].as_array_mut().unwrap();
    let copy = serde_json::json!({
        "name": "copy", "id": headers.len(), "header_type": "standard_metadata", "metadata": true, "pi_omit": true
    });
    headers.push(copy);
    let assign = |to: &str, from: &str| {
        let field = |header: &str| serde_json::json!({"type": "field", "value": [header, "egress_spec"]});
        serde_json::json!({"op": "assign", "parameters": [field(to), field(from)]})
    };
    let mark = |header: &str| serde_json::json!({"op": "mark_to_drop", "parameters": [{"type": "header", "value": header}]});
    let actions = program["actions"].as_array_mut().unwrap();
    let of_op_24 = actions.iter_mut().find(|a| a["name"] == "features235").unwrap();
    assert_eq!(of_op_24["primitives"], serde_json::json!([mark("standard_metadata")]));
    for (back, dropped) in [(true, true), (false, false)] {
        let actions = program["actions"].as_array_mut().unwrap();
        let of_op_24 = actions.iter_mut().find(|a| a["name"] == "features235").unwrap();
        let mut all = vec![assign("copy", "standard_metadata"), mark("copy")];
        all.extend(back.then(|| assign("standard_metadata", "copy")));
        of_op_24["primitives"] = all.into();
        both(program.to_string().as_bytes(), |rig| {
            assert_eq!(rig.send(3, &Cmd::new(24, 0, 0).bytes()).is_empty(), dropped, "copied back: {back}");
        });
    }
    let text = program.to_string().replace("\"value\":\"copy\"", "\"value\":\"cmd\"");
    let error =
        Program::from_json(text.as_bytes()).err().expect("a header without `egress_spec`").to_string();
    assert!(error.contains("parameters[0]") && error.contains("egress_spec"), "{error}");
}
