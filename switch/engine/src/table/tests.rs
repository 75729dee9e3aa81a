use super::*;
use crate::info::{KeyField, TableInfo};
use crate::types::{EntryKey, KeyMatch, MatchKind};

fn info(kind: TableKind, key: &[(MatchKind, u32)]) -> (TableInfo, KeyPlan) {
    let mut plan = KeyPlan::default();
    let mut fields = Vec::new();
    for (i, (k, w)) in key.iter().enumerate() {
        plan.push(i as u32 * 2, *w, *k, None);
        fields.push(KeyField { name: format!("f{i}"), kind: *k, width: *w });
    }
    let info = TableInfo {
        name: "t".into(),
        kind,
        key: fields,
        actions: vec![],
        action_names: vec![],
        max_size: 10,
        profile: None,
        has_counters: false,
        direct_meter: None,
        support_timeout: false,
        const_entries: false,
        hidden: false,
    };
    (info, plan)
}

fn key(plan: &KeyPlan, values: &[u64]) -> Vec<u64> {
    let frame: Vec<u64> = values.iter().flat_map(|v| [*v, 0]).collect();
    let mut words = vec![0; plan.words];
    plan.build(&frame, &mut words);
    words
}

#[test]
fn the_longest_prefix_wins() {
    let (info, plan) = info(TableKind::Lpm, &[(MatchKind::Exact, 8), (MatchKind::Lpm, 32)]);
    let mut t = Lookup::new(TableKind::Lpm, &plan, 7);
    for (slot, (v, len)) in
        [(0x0a000000u32, 8), (0x0a010000, 16), (0, 0), (0x0a010203, 32)].iter().enumerate()
    {
        let lpm = KeyMatch::Lpm { value: v.to_be_bytes().to_vec(), prefix_len: *len };
        let k = EntryKey { fields: vec![KeyMatch::Exact(vec![1]), lpm], priority: 0 };
        t.insert(slot as u32, &plan.canon(&info, &k).unwrap());
    }
    let find = |t: &Lookup, a: u64, b: u64| t.find(&key(&plan, &[a, b]));
    assert_eq!(find(&t, 1, 0x0a010203), Some(3));
    assert_eq!(find(&t, 1, 0x0a010204), Some(1));
    assert_eq!(find(&t, 1, 0x0b000000), Some(2));
    assert_eq!(find(&t, 2, 0x0a010203), None);
    t.remove(1);
    assert_eq!(find(&t, 1, 0x0a010204), Some(0));
}

#[test]
fn the_highest_priority_wins_and_ranges_hold() {
    let (info, plan) = info(TableKind::Range, &[(MatchKind::Ternary, 16), (MatchKind::Range, 16)]);
    let mut t = Lookup::new(TableKind::Range, &plan, 7);
    let mut add = |slot, value: u16, mask: u16, low: u16, high: u16, priority| {
        let b = |v: u16| v.to_be_bytes().to_vec();
        let fields = vec![
            KeyMatch::Ternary { value: b(value), mask: b(mask) },
            KeyMatch::Range { low: b(low), high: b(high) },
        ];
        t.insert(slot, &plan.canon(&info, &EntryKey { fields, priority }).unwrap());
    };
    add(0, 0, 0, 0, 0xffff, 1);
    add(1, 0x1200, 0xff00, 10, 20, 5);
    add(2, 0x1200, 0xff00, 15, 30, 9);
    add(3, 0x1234, 0xffff, 17, 17, 5);
    let find = |t: &Lookup, a: u64, b: u64| t.find(&key(&plan, &[a, b]));
    assert_eq!(find(&t, 0x1234, 12), Some(1));
    assert_eq!(find(&t, 0x1234, 17), Some(2));
    assert_eq!(find(&t, 0x1234, 40), Some(0));
    t.remove(2);
    // Equal priorities: the lower slot, in the order of BMv2's list.
    assert_eq!(find(&t, 0x1234, 17), Some(1));
    t.remove(1);
    assert_eq!(find(&t, 0x1234, 17), Some(3));
}

/// Growing and shrinking groups that are large enough for filters find the same as a list.
#[test]
fn large_groups_match_a_linear_search() {
    const MASKS: [u64; 3] = [0xffff_ffff, 0xffff_ff00, 0x00ff_ffff];
    let (info, plan) = info(TableKind::Ternary, &[(MatchKind::Ternary, 32)]);
    let mut t = Lookup::new(TableKind::Ternary, &plan, 7);
    let mut random = 1u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 8
    };
    // By slot: value, mask, priority.
    let mut list: Vec<Option<(u64, u64, i32)>> = Vec::new();
    let mut filters = 0;
    for round in 0..20_000u64 {
        // Grow for a while, then shrink.
        let (grows, at) = (round % 8000 < 4000, next() as usize % 4000);
        let value = next() & 0x0fff;
        let mask = MASKS[next() as usize % 3];
        let entry = (value & mask, mask, 1 + (next() % 50) as i32);
        match list.get(at).copied().flatten() {
            None if (grows || next() % 4 == 0) && !list.contains(&Some(entry)) => {
                if list.len() <= at {
                    list.resize(at + 1, None);
                }
                list[at] = Some(entry);
                let bytes = |v: u64| (v as u32).to_be_bytes().to_vec();
                let fields = vec![KeyMatch::Ternary { value: bytes(entry.0), mask: bytes(mask) }];
                let key = EntryKey { fields, priority: entry.2 };
                t.insert(at as u32, &plan.canon(&info, &key).unwrap());
            }
            Some(_) if !grows || next() % 4 == 0 => {
                t.remove(at as u32);
                list[at] = None;
            }
            _ => {}
        }
        if round % 16 == 0 {
            filters += t.groups.iter().filter(|g| g.filter.is_some()).count();
            let wanted = next() & 0x0fff;
            let best = list.iter().enumerate().filter_map(|(slot, e)| {
                e.filter(|(v, m, _)| wanted & m == *v).map(|(_, _, p)| (-p, slot as u32))
            });
            assert_eq!(t.find(&key(&plan, &[wanted])), best.min().map(|(_, slot)| slot), "round {round}");
        }
    }
    assert!(filters > 1000, "{filters}: the filters were not met");
}
