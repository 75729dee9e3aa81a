//! Robustness against damaged programs and arbitrary packets; and tables compared with a simple
//! model.

use crate::common::{Cmd, FEATURES, Rig};
use proptest::prelude::*;
use rivulet_engine::*;
use serde_json::Value;

const ROUTER: &[u8] = include_bytes!("../../benches/router.json");

/// The `n`-th value of a document, counted depth first.
fn nth<'v>(v: &'v mut Value, n: &mut usize) -> Option<&'v mut Value> {
    if *n == 0 {
        return Some(v);
    }
    *n -= 1;
    match v {
        Value::Array(list) => list.iter_mut().find_map(|v| nth(v, n)),
        Value::Object(map) => map.values_mut().find_map(|v| nth(v, n)),
        _ => None,
    }
}

fn count(v: &Value) -> usize {
    1 + match v {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// A change of a document.
#[derive(Clone, Debug)]
enum Damage {
    Replace(prop::sample::Index, Value),
    Copy(prop::sample::Index, prop::sample::Index),
    Remove(prop::sample::Index, prop::sample::Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        prop_oneof![(-3i64..70).boxed(), any::<i64>().boxed()].prop_map(Value::from),
        "(0x[0-9a-f]{1,20}|[a-z.]{0,6}|cmd|items|register|expression)".prop_map(Value::from),
        Just(Value::from(Vec::<Value>::new())),
    ];
    prop_oneof![
        4 => (index(), value).prop_map(|(i, v)| Damage::Replace(i, v)),
        3 => (index(), index()).prop_map(|(a, b)| Damage::Copy(a, b)),
        2 => (index(), index()).prop_map(|(a, b)| Damage::Remove(a, b)),
    ]
}

fn apply(doc: &mut Value, damage: &Damage) {
    let total = count(doc);
    match damage {
        Damage::Replace(i, v) => {
            if let Some(at) = nth(doc, &mut i.index(total)) {
                *at = v.clone();
            }
        }
        Damage::Copy(from, to) => {
            let copy = nth(doc, &mut from.index(total)).map(|v| v.clone());
            if let (Some(at), Some(copy)) = (nth(doc, &mut to.index(total)), copy) {
                // Repeated doubling would only take time.
                if count(&copy) < 2000 {
                    *at = copy;
                }
            }
        }
        Damage::Remove(i, which) => match nth(doc, &mut i.index(total)) {
            Some(Value::Array(list)) if !list.is_empty() => {
                list.remove(which.index(list.len()));
            }
            Some(Value::Object(map)) if !map.is_empty() => {
                let key = map.keys().nth(which.index(map.len())).cloned();
                map.remove(&key.unwrap_or_default());
            }
            _ => {}
        },
    }
}

fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    // Mostly a known operation, to reach more than the parser's default.
    let frame = (0u8..32, prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(op, mut rest)| {
        rest.insert(0, op);
        rest
    });
    prop::collection::vec(frame, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A damaged program is refused with a place, or it loads and processes every packet without a
    /// crash, with the same result compiled and interpreted.
    #[test]
    fn damaged_programs_do_no_harm(
        router in any::<bool>(),
        changes in prop::collection::vec(damage(), 1..6),
        frames in frames(),
    ) {
        let mut doc: Value = serde_json::from_slice(if router { ROUTER } else { FEATURES }).expect("JSON");
        changes.iter().for_each(|d| apply(&mut doc, d));
        let text = serde_json::to_vec(&doc).expect("JSON");
        if let Err(e) = Program::from_json(&text) {
            prop_assert!(!e.what.is_empty());
        } else {
            let mut rigs = [true, false].map(|native| Rig::new(&text, native));
            for f in &frames {
                let out = rigs.each_mut().map(|r| r.send(3, f));
                prop_assert_eq!(&out[0], &out[1]);
            }
        }
    }

    /// Arbitrary bytes are not a program.
    #[test]
    fn arbitrary_bytes_are_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Program::from_json(&text).is_err());
    }

    /// Native code and interpreter agree, on packets and on the state afterwards.
    #[test]
    fn compiled_and_interpreted_agree(frames in frames()) {
        let mut rigs = [true, false].map(|native| Rig::new(FEATURES, native));
        for rig in &rigs {
            let way = CloneSession { replicas: vec![Replica { port: 2, instance: 1 }], ..CloneSession::default() };
            rig.pipeline.set_clone_session(5, Some(&way)).expect("session");
            rig.pipeline.set_clone_session(6, Some(&way)).expect("session");
        }
        for f in &frames {
            let out = rigs.each_mut().map(|r| r.send(3, f));
            prop_assert_eq!(&out[0], &out[1], "{:?}", f);
        }
        let state = rigs.each_ref().map(|r| {
            let sums = r.pipeline.info().register("I.sums").expect("register");
            let seen = r.pipeline.info().counter("I.seen").expect("counter");
            let cells: Vec<_> = (0..16).map(|i| r.pipeline.register(sums, i)).collect();
            let counts: Vec<_> = (0..8).map(|i| r.pipeline.counter(seen, i)).collect();
            (cells, counts, r.switch.stats())
        });
        prop_assert_eq!(&state[0], &state[1]);
    }

    /// Range, ternary and prefix tables find the same as a linear search.
    #[test]
    fn tables_agree_with_a_list(
        ranges in prop::collection::vec((0u32..40, 0u32..40, any::<u8>(), 0u8..4, 1i32..50), 1..40),
        prefixes in prop::collection::vec((any::<u8>(), 0u32..9), 1..30),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        keys in prop::collection::vec((0u32..40, any::<u8>()), 1..40),
    ) {
        let mut rig = Rig::new(FEATURES, true);
        let word = |v: u32| v.to_be_bytes().to_vec();
        // (low, high, value, mask, priority, result)
        let mut list = Vec::new();
        for (n, (a, b, value, mask, priority)) in ranges.iter().enumerate() {
            let (low, high) = (*a.min(b), *a.max(b));
            let (value, result) = (value & mask, n as u32 + 1);
            let key = vec![
                KeyMatch::Range { low: word(low), high: word(high) },
                KeyMatch::Ternary { value: vec![value], mask: vec![*mask] },
            ];
            // Distinct priorities: of two equal ones the slot would decide.
            let priority = priority * 64 + n as i32;
            let call = rig.call("I.range_t", "I.set_b", &[result.into()]);
            rig.insert("I.range_t", key.clone(), priority, call).expect("an entry");
            list.push((low, high, value, *mask, priority, result, key));
        }
        for g in &gone {
            if list.len() > 1 {
                let (_, _, _, _, priority, _, fields) = list.remove(g.index(list.len()));
                let key = EntryKey { fields, priority };
                rig.pipeline.delete(rig.table("I.range_t"), &key).expect("it is there");
            }
        }
        let mut by_prefix = std::collections::HashMap::new();
        for (n, (value, len)) in prefixes.iter().enumerate() {
            let value = u32::from(*value) << 24 & u32::MAX.checked_shl(32 - len).unwrap_or(0);
            let key = vec![KeyMatch::Lpm { value: word(value), prefix_len: *len }];
            let call = rig.call("I.lpm_t", "I.set_b", &[n as u128 + 1]);
            if rig.insert("I.lpm_t", key, 0, call).is_ok() {
                by_prefix.insert((value, *len), n as u32 + 1);
            }
        }
        for g in &gone {
            let mut left: Vec<(u32, u32)> = by_prefix.keys().copied().collect();
            left.sort_unstable();
            if !left.is_empty() {
                let (value, prefix_len) = left[g.index(left.len())];
                by_prefix.remove(&(value, prefix_len));
                let fields = vec![KeyMatch::Lpm { value: word(value), prefix_len }];
                let key = EntryKey { fields, priority: 0 };
                rig.pipeline.delete(rig.table("I.lpm_t"), &key).expect("it is there");
            }
        }
        for (a, c) in &keys {
            let want = list
                .iter()
                .filter(|e| (e.0..=e.1).contains(a) && c & e.3 == e.2)
                .max_by_key(|e| e.4)
                .map_or(0, |e| e.5);
            prop_assert_eq!(rig.cmd(Cmd { c: *c, ..Cmd::new(11, *a, 0) }).b, want);
            let address = u32::from(*c) << 24 | a;
            let of = |len: u32| by_prefix.get(&(address & u32::MAX.checked_shl(32 - len).unwrap_or(0), len));
            let want = (0..=32).rev().find_map(of).copied().unwrap_or(0xdead);
            prop_assert_eq!(rig.cmd(Cmd::new(10, address, 0)).b, want);
        }
    }
}
