//! Sections 8.4 and 9.1: table entries, their keys and actions, default entries, const tables, direct
//! resources.

use super::harness::*;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

const INVALID: Result<(), Code> = Err(Code::InvalidArgument);
const DENIED: Result<(), Code> = Err(Code::PermissionDenied);
const OUT_OF_RANGE: Result<(), Code> = Err(Code::OutOfRange);

fn acl(bench: &Bench, class: u8, priority: i32) -> p4::TableEntry {
    let key = vec![
        ternary(1, &[10, 0, 0, 0], &[255, 0, 0, 0]),
        optional(2, &[17]),
        range(3, &[1], &[0x10, 0]),
        exact(4, &[1]),
    ];
    p4::TableEntry { priority, ..bench.info.entry("acl", key, "set_class", &[&[class]]) }
}

#[tokio::test(flavor = "multi_thread")]
async fn written_entries_are_read_back() {
    let (bench, mut c) = Bench::new().await;
    let entries = [
        bench.info.l2(1, 2),
        p4::TableEntry { metadata: b"cookie".to_vec(), ..bench.info.route(&[10, 1, 0, 0], 16, 2) },
        acl(&bench, 5, 10),
    ];
    for entry in entries {
        c.insert(entry.clone()).await.unwrap();
        assert_eq!(c.read(bench_key(&entry)).await.unwrap(), [entry]);
    }
}

/// The key of an entry, for reading it.
fn bench_key(entry: &p4::TableEntry) -> p4::TableEntry {
    p4::TableEntry {
        table_id: entry.table_id,
        r#match: entry.r#match.clone(),
        priority: entry.priority,
        is_default_action: entry.is_default_action,
        ..p4::TableEntry::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(deprecated)]
async fn both_kinds_of_metadata_are_kept() {
    let (bench, mut c) = Bench::new().await;
    let entry = p4::TableEntry { controller_metadata: 77, metadata: b"m".to_vec(), ..bench.info.l2(1, 2) };
    c.insert(entry.clone()).await.unwrap();
    assert_eq!(c.read(bench_key(&entry)).await.unwrap(), [entry]);
}

/// A bytestring of any length is accepted if its value fits; reads return the canonical form; all
/// forms are one entry.
#[tokio::test(flavor = "multi_thread")]
async fn bytestrings_of_any_length_are_one_value() {
    let (bench, mut c) = Bench::new().await;
    let long =
        bench.info.entry("l2", vec![exact(1, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 5])], "forward", &[&[0, 0, 2]]);
    let short = bench.info.entry("l2", vec![exact(1, &[5])], "forward", &[&[2]]);
    c.insert(long.clone()).await.unwrap();
    assert_eq!(c.read(bench.info.key("l2", vec![])).await.unwrap(), [short.clone()]);
    assert_eq!(c.insert(short.clone()).await, Err(Code::AlreadyExists));
    let mac = [0, 0, 0, 0, 0, 5];
    let packet = [&mac[..], &frame(0, 1)[6..]].concat();
    assert_eq!(bench.machine.packet(1, &packet), [(2, packet.clone())]);
    c.delete(long).await.unwrap();
    assert!(c.read(bench.info.key("l2", vec![])).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_do_not_fit_are_out_of_range() {
    let (bench, mut c) = Bench::new().await;
    let l2 = |key: &[u8], port: &[u8]| bench.info.entry("l2", vec![exact(1, key)], "forward", &[port]);
    assert_eq!(c.insert(l2(&[1, 0, 0, 0, 0, 0, 0], &[2])).await, OUT_OF_RANGE, "49 bits of 48");
    assert_eq!(c.insert(l2(&[], &[2])).await, OUT_OF_RANGE, "no byte at all");
    assert_eq!(c.insert(l2(&[1], &[2, 0])).await, OUT_OF_RANGE, "10 bits of 9");
    assert_eq!(c.insert(l2(&[1], &[])).await, OUT_OF_RANGE);
    assert!(c.read(bench.info.key("l2", vec![])).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn insert_modify_delete() {
    let (bench, mut c) = Bench::new().await;
    assert_eq!(c.modify(bench.info.l2(1, 2)).await, Err(Code::NotFound));
    assert_eq!(c.delete(bench.info.l2(1, 2)).await, Err(Code::NotFound));
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    assert_eq!(c.insert(bench.info.l2(1, 3)).await, Err(Code::AlreadyExists));
    assert_eq!(bench.machine.packet(1, &frame(1, 1)), [(2, frame(1, 1))], "the entry is unchanged");
    c.modify(bench.info.l2(1, 3)).await.unwrap();
    assert_eq!(bench.machine.packet(1, &frame(1, 1)), [(3, frame(1, 1))]);
    // A DELETE uses only the key.
    let nonsense = p4::TableEntry {
        action: bench.info.table_action("forward", &[&[9, 9, 9, 9], &[1]]),
        counter_data: Some(Default::default()),
        idle_timeout_ns: -1,
        ..bench.info.l2(1, 3)
    };
    c.delete(nonsense).await.unwrap();
    assert!(c.read(bench.info.key("l2", vec![])).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn modify_without_an_action_keeps_it() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    let entry = p4::TableEntry { action: None, metadata: b"new".to_vec(), ..bench.info.l2(1, 2) };
    c.modify(entry).await.unwrap();
    let expected = p4::TableEntry { metadata: b"new".to_vec(), ..bench.info.l2(1, 2) };
    assert_eq!(c.read(bench.info.key("l2", vec![])).await.unwrap(), [expected]);
}

#[tokio::test(flavor = "multi_thread")]
async fn identifiers_are_checked() {
    let (bench, mut c) = Bench::new().await;
    let entry = bench.info.l2(1, 2);
    assert_eq!(c.insert(p4::TableEntry { table_id: 0, ..entry.clone() }).await, INVALID);
    assert_eq!(
        c.insert(p4::TableEntry { table_id: 0x0200_0001, ..entry.clone() }).await,
        Err(Code::NotFound)
    );
    let with = |action: p4::Action| {
        let r#type = Some(p4::table_action::Type::Action(action));
        p4::TableEntry { action: Some(p4::TableAction { r#type }), ..entry.clone() }
    };
    let forward = bench.info.action("forward", &[&[2]]);
    assert_eq!(c.insert(with(p4::Action { action_id: 1, ..forward.clone() })).await, INVALID);
    assert_eq!(c.insert(with(bench.info.action("set_class", &[&[2]]))).await, INVALID, "not this table's");
    assert_eq!(c.insert(with(bench.info.action("forward", &[]))).await, INVALID, "a parameter is missing");
    assert_eq!(c.insert(with(bench.info.action("forward", &[&[2], &[3]]))).await, INVALID, "one too many");
    let mut twice = forward.clone();
    twice.params.push(twice.params[0].clone());
    assert_eq!(c.insert(with(twice)).await, INVALID);
    assert_eq!(c.insert(p4::TableEntry { action: None, ..entry.clone() }).await, INVALID);
    assert_eq!(c.insert(p4::TableEntry { action: Some(Default::default()), ..entry.clone() }).await, INVALID);
    let member = Some(p4::TableAction { r#type: Some(p4::table_action::Type::ActionProfileMemberId(1)) });
    assert_eq!(c.insert(p4::TableEntry { action: member, ..entry.clone() }).await, INVALID, "a direct table");
    assert_eq!(c.write(Type::Unspecified, entry).await, INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_of_actions_are_enforced() {
    let (bench, mut c) = Bench::new().await;
    let default_only = bench.info.entry("l2", vec![exact(1, &[1])], "to_cpu", &[&[1]]);
    assert_eq!(c.insert(default_only).await, DENIED);
    let table_only = bench.info.entry("l2", vec![], "forward", &[&[2]]);
    assert_eq!(c.modify(p4::TableEntry { is_default_action: true, ..table_only }).await, DENIED);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_checked() {
    let (bench, mut c) = Bench::new().await;
    let l2 = |key| bench.info.entry("l2", key, "forward", &[&[2]]);
    let route = |key| bench.info.entry("routes", key, "forward", &[&[2]]);
    assert_eq!(c.insert(l2(vec![])).await, INVALID, "exact fields cannot be left out");
    assert_eq!(c.insert(l2(vec![exact(2, &[1])])).await, INVALID, "no such field");
    assert_eq!(c.insert(l2(vec![exact(1, &[1]), exact(1, &[1])])).await, INVALID, "twice");
    assert_eq!(c.insert(l2(vec![lpm(1, &[1], 48)])).await, INVALID, "another kind");
    assert_eq!(c.insert(l2(vec![p4::FieldMatch { field_id: 1, field_match_type: None }])).await, INVALID);
    assert_eq!(
        c.insert(route(vec![lpm(1, &[10, 0, 0, 0], 0)])).await,
        INVALID,
        "matches anything: to be left out"
    );
    assert_eq!(c.insert(route(vec![lpm(1, &[10, 0, 0, 1], 8)])).await, INVALID, "bits below the prefix");
    assert_eq!(c.insert(route(vec![lpm(1, &[10, 0, 0, 1], 33)])).await, INVALID);
    let acl = |key: Vec<p4::FieldMatch>| p4::TableEntry { r#match: key, ..acl(&bench, 5, 10) };
    let port = exact(4, &[1]);
    assert_eq!(c.insert(acl(vec![port.clone(), ternary(1, &[1], &[0])])).await, INVALID, "an empty mask");
    assert_eq!(
        c.insert(acl(vec![port.clone(), ternary(1, &[3], &[1])])).await,
        INVALID,
        "bits outside the mask"
    );
    assert_eq!(c.insert(acl(vec![port.clone(), range(3, &[3], &[2])])).await, INVALID);
    assert_eq!(
        c.insert(acl(vec![port.clone(), range(3, &[0], &[255, 255])])).await,
        INVALID,
        "the whole range"
    );
    c.insert(acl(vec![port])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn priority_is_required_only_in_ternary_tables() {
    let (bench, mut c) = Bench::new().await;
    assert_eq!(c.insert(acl(&bench, 5, 0)).await, INVALID, "a ternary table needs one");
    assert_eq!(c.insert(acl(&bench, 5, -1)).await, INVALID);
    assert_eq!(c.insert(p4::TableEntry { priority: 1, ..bench.info.l2(1, 2) }).await, INVALID);
    c.insert(acl(&bench, 5, 10)).await.unwrap();
    c.insert(acl(&bench, 6, 11)).await.expect("the priority is part of the key");
    assert_eq!(c.insert(acl(&bench, 7, 10)).await, Err(Code::AlreadyExists));
    c.delete(acl(&bench, 0, 10)).await.unwrap();
    assert_eq!(c.read(bench.info.key("acl", vec![])).await.unwrap(), [acl(&bench, 6, 11)]);
}

/// The higher number wins.
#[tokio::test(flavor = "multi_thread")]
async fn the_higher_priority_wins() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.route(&[20, 0, 0, 0], 8, 2)).await.unwrap();
    let rule = |action: &str, priority| p4::TableEntry {
        priority,
        ..bench.info.entry(
            "acl",
            vec![ternary(1, &[10, 0, 0, 0], &[255, 0, 0, 0]), exact(4, &[1])],
            action,
            &[],
        )
    };
    let packet = ipv4([10, 1, 1, 1], [20, 1, 1, 1], 64);
    c.insert(rule("drop", 10)).await.unwrap();
    assert!(bench.machine.packet(1, &packet).is_empty());
    c.insert(rule("nothing", 11)).await.unwrap();
    assert_eq!(bench.machine.packet(1, &packet), [(2, packet.clone())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn longest_prefix_wins_and_dont_care_is_left_out() {
    let (bench, mut c) = Bench::new().await;
    let any = bench.info.entry("routes", vec![], "forward", &[&[1]]);
    c.insert(any.clone()).await.unwrap();
    c.insert(bench.info.route(&[10, 0, 0, 0], 8, 2)).await.unwrap();
    c.insert(bench.info.route(&[10, 1, 0, 0], 16, 3)).await.unwrap();
    for (dst, port) in [([10, 1, 2, 3], 3), ([10, 2, 2, 3], 2), ([11, 0, 0, 0], 1)] {
        assert_eq!(bench.machine.packet(1, &ipv4([1, 1, 1, 1], dst, 64))[0].0, port, "{dst:?}");
    }
    let read = c.read(bench.info.key("routes", vec![])).await.unwrap();
    assert!(read.contains(&any), "{read:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_entry() {
    let (bench, mut c) = Bench::new().await;
    let default = |action: &str, params: &[&[u8]]| p4::TableEntry {
        is_default_action: true,
        ..bench.info.entry("keyless", vec![], action, params)
    };
    let key = p4::TableEntry { action: None, ..default("nothing", &[]) };
    assert_eq!(c.read(key.clone()).await.unwrap(), [default("nothing", &[])]);
    assert_eq!(c.insert(default("nothing", &[])).await, INVALID);
    assert_eq!(c.delete(default("nothing", &[])).await, INVALID);
    let with =
        |metadata: &[u8]| p4::TableEntry { metadata: metadata.to_vec(), ..default("set_class", &[&[7]]) };
    c.modify(with(b"m")).await.unwrap();
    assert_eq!(c.read(key.clone()).await.unwrap(), [with(b"m")]);
    assert_eq!(c.modify(p4::TableEntry { priority: 1, ..with(b"m") }).await, INVALID);
    assert_eq!(c.modify(p4::TableEntry { r#match: vec![exact(1, &[1])], ..with(b"m") }).await, INVALID);
    assert_eq!(c.modify(p4::TableEntry { idle_timeout_ns: 1, ..with(b"m") }).await, INVALID);
    assert_eq!(c.read(key.clone()).await.unwrap(), [with(b"m")]);
    c.modify(key.clone()).await.expect("without an action it goes back to the program's");
    assert_eq!(c.read(key).await.unwrap(), [default("nothing", &[])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn const_default_action_cannot_change() {
    let (bench, mut c) = Bench::new().await;
    let default =
        p4::TableEntry { is_default_action: true, ..bench.info.entry("acl", vec![], "nothing", &[]) };
    assert_eq!(c.modify(default.clone()).await, DENIED);
    let read = c.read(p4::TableEntry { action: None, ..default.clone() }).await.unwrap();
    assert_eq!(read, [p4::TableEntry { is_const: true, ..default }]);
    // A table with an action profile has NoAction as its const default.
    let profile = p4::TableEntry { is_default_action: true, ..bench.info.key("members", vec![]) };
    assert_eq!(c.modify(profile.clone()).await, DENIED);
    let read = c.read(profile).await.unwrap().remove(0);
    assert_eq!((read.is_const, read.action), (true, bench.info.table_action("NoAction", &[])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyless_table_has_no_entries() {
    let (bench, mut c) = Bench::new().await;
    assert_eq!(c.insert(bench.info.entry("keyless", vec![], "nothing", &[])).await, INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn const_tables_are_read_and_not_written() {
    let (bench, mut c) = Bench::new().await;
    let fixed =
        |key: &[u8], class: u8| bench.info.entry("fixed", vec![exact(1, key)], "set_class", &[&[class]]);
    let constant = |e: p4::TableEntry| p4::TableEntry { is_const: true, ..e };
    let read = c.read(bench.info.key("fixed", vec![])).await.unwrap();
    assert_eq!(read, [constant(fixed(&[8, 0], 4)), constant(fixed(&[0x86, 0xdd], 6))]);
    assert_eq!(c.insert(fixed(&[1], 1)).await, DENIED);
    assert_eq!(c.delete(fixed(&[8, 0], 4)).await, DENIED);
    assert_eq!(c.modify(fixed(&[8, 0], 4)).await, DENIED, "even with the action it has");
    c.modify(p4::TableEntry { action: None, ..fixed(&[8, 0], 4) }).await.unwrap();
    // Of N entries the first has priority N.
    let read = c.read(bench.info.key("fixed_ternary", vec![])).await.unwrap();
    let order: Vec<_> = read.iter().map(|e| (e.priority, e.r#match.len())).collect();
    assert_eq!(order, [(2, 1), (1, 0)]);
    let second = p4::TableEntry { priority: 1, ..bench.info.key("fixed_ternary", vec![]) };
    assert_eq!(c.read(second.clone()).await.unwrap(), [read[1].clone()]);
    c.modify(second).await.expect("nothing to change is no change");
}

#[tokio::test(flavor = "multi_thread")]
async fn is_const_cannot_be_written() {
    let (bench, mut c) = Bench::new().await;
    assert_eq!(c.insert(p4::TableEntry { is_const: true, ..bench.info.l2(1, 2) }).await, INVALID);
}

/// p4c writes the entries of a preinitialized table as const, with their number as the table's
/// size. BMv2 does not change such a table; neither does this switch.
#[tokio::test(flavor = "multi_thread")]
async fn preinitialized_tables_are_const() {
    let (bench, mut c) = Bench::new().await;
    let initial =
        |key: u8, class: u8| bench.info.entry("initial", vec![exact(1, &[key])], "set_class", &[&[class]]);
    let read = c.read(bench.info.key("initial", vec![])).await.unwrap();
    let constant: Vec<_> = read.iter().map(|e| (e.r#match.clone(), e.is_const)).collect();
    assert_eq!(constant, [(vec![exact(1, &[1])], true), (vec![exact(1, &[2])], true)]);
    assert_eq!(c.delete(initial(2, 0)).await, DENIED);
    assert_eq!(c.modify(initial(2, 5)).await, DENIED);
    assert_eq!(c.insert(initial(3, 1)).await, DENIED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_table_is_resource_exhausted() {
    let (bench, mut c) = Bench::new().await;
    let entry = |i: u8| bench.info.entry("aging", vec![exact(1, &[i])], "nothing", &[]);
    for i in 1..=64 {
        c.insert(entry(i)).await.unwrap();
    }
    assert_eq!(c.insert(entry(65)).await, Err(Code::ResourceExhausted), "its size is 64");
    c.delete(entry(3)).await.unwrap();
    c.insert(entry(65)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcard_reads_and_their_filters() {
    let (bench, mut c) = Bench::new().await;
    let (a, b) = (acl(&bench, 5, 10), p4::TableEntry { metadata: b"m".to_vec(), ..acl(&bench, 6, 11) });
    let dropping = p4::TableEntry { action: bench.info.table_action("drop", &[]), ..acl(&bench, 0, 12) };
    for entry in [&a, &b, &dropping] {
        c.insert(entry.clone()).await.unwrap();
    }
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    let key = bench.info.key("acl", vec![]);
    assert_eq!(c.read(key.clone()).await.unwrap().len(), 3);
    assert_eq!(c.read(p4::TableEntry { priority: 11, ..key.clone() }).await.unwrap(), [b.clone()]);
    assert_eq!(c.read(p4::TableEntry { metadata: b"m".to_vec(), ..key.clone() }).await.unwrap(), [b.clone()]);
    let by_action = p4::TableEntry { action: bench.info.table_action("drop", &[]), ..key.clone() };
    assert_eq!(c.read(by_action).await.unwrap(), [dropping]);
    let by_match = p4::TableEntry { priority: 0, ..bench_key(&a) };
    assert_eq!(c.read(by_match).await.unwrap().len(), 3, "the same match at every priority");
    assert_eq!(c.read(bench_key(&a)).await.unwrap(), [a]);
    assert!(c.read(p4::TableEntry { priority: 99, ..key }).await.unwrap().is_empty());
    assert!(c.read(bench.info.key("l2", vec![exact(1, &[9])])).await.unwrap().is_empty(), "none is no error");
    let all = c.read(p4::TableEntry::default()).await.unwrap();
    let program: usize = 2 + 2 + 2;
    assert_eq!(all.len(), program + 4, "const and initial entries count, default entries do not");
    assert!(all.iter().all(|e| !e.is_default_action));
    assert_eq!(
        c.read(p4::TableEntry { r#match: vec![exact(1, &[1])], ..Default::default() }).await,
        Err(Code::InvalidArgument)
    );
    let defaults = c.read(p4::TableEntry { is_default_action: true, ..Default::default() }).await.unwrap();
    assert_eq!(defaults.len(), p4info().tables.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_counters_count_and_are_written() {
    let (bench, mut c) = Bench::new().await;
    let info = &bench.info;
    let data = |bytes, packets| Some(p4::CounterData { byte_count: bytes, packet_count: packets });
    let entry = p4::TableEntry { counter_data: data(100, 7), ..info.route(&[10, 0, 0, 0], 8, 2) };
    c.insert(entry.clone()).await.unwrap();
    let packet = ipv4([1, 1, 1, 1], [10, 1, 1, 1], 64);
    bench.machine.packet(1, &packet);
    let counted = data(100 + packet.len() as i64, 8);
    let read = p4::TableEntry { counter_data: data(0, 0), ..bench_key(&entry) };
    assert_eq!(c.read(read.clone()).await.unwrap()[0].counter_data, counted);
    assert_eq!(c.read(bench_key(&entry)).await.unwrap()[0].counter_data, None, "only when asked for");
    let direct = p4::DirectCounterEntry { table_entry: Some(bench_key(&entry)), data: None };
    assert_eq!(c.read(direct.clone()).await.unwrap()[0].data, counted);
    c.modify(p4::TableEntry { counter_data: None, ..entry.clone() }).await.unwrap();
    assert_eq!(c.read(direct.clone()).await.unwrap()[0].data, counted, "unset leaves it alone");
    c.modify(direct.clone()).await.unwrap();
    assert_eq!(c.read(direct.clone()).await.unwrap()[0].data, counted, "unset leaves it alone");
    c.modify(p4::DirectCounterEntry { data: data(5, 6), ..direct.clone() }).await.unwrap();
    assert_eq!(c.read(direct.clone()).await.unwrap()[0].data, data(5, 6));
    assert_eq!(c.insert(direct.clone()).await, INVALID);
    assert_eq!(c.delete(direct.clone()).await, INVALID);
    let absent = p4::DirectCounterEntry {
        table_entry: Some(bench_key(&info.route(&[11, 0, 0, 0], 8, 1))),
        data: data(1, 1),
    };
    assert_eq!(c.modify(absent.clone()).await, Err(Code::NotFound));
    assert_eq!(c.read(absent).await, Err(Code::NotFound));
    let all = c.read(p4::DirectCounterEntry::default()).await.unwrap();
    assert_eq!(all, [p4::DirectCounterEntry { table_entry: Some(bench_key(&entry)), data: data(5, 6) }]);
    let negative = p4::DirectCounterEntry { data: data(-1, 0), ..direct };
    assert_eq!(c.modify(negative).await, INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_resources_need_a_table_with_them() {
    let (bench, mut c) = Bench::new().await;
    let l2 = bench.info.l2(1, 2);
    assert_eq!(
        c.insert(p4::TableEntry { counter_data: Some(Default::default()), ..l2.clone() }).await,
        INVALID
    );
    assert_eq!(
        c.insert(p4::TableEntry { meter_config: Some(Default::default()), ..l2.clone() }).await,
        INVALID
    );
    assert_eq!(c.insert(p4::TableEntry { idle_timeout_ns: 5, ..l2.clone() }).await, INVALID);
    assert_eq!(
        c.insert(p4::TableEntry { time_since_last_hit: Some(Default::default()), ..l2.clone() }).await,
        INVALID
    );
    let unserved = p4::TableEntry { meter_counter_data: Some(Default::default()), ..acl(&bench, 1, 1) };
    assert_eq!(c.insert(unserved).await, Err(Code::Unimplemented));
    let direct = p4::DirectCounterEntry { table_entry: Some(l2.clone()), data: Some(Default::default()) };
    assert_eq!(c.modify(direct.clone()).await, INVALID);
    assert_eq!(c.read(direct).await, Err(Code::InvalidArgument));
    assert_eq!(c.modify(p4::DirectMeterEntry { table_entry: Some(l2), ..Default::default() }).await, INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn direct_meters_are_configured_and_reset() {
    let (bench, mut c) = Bench::new().await;
    let config = p4::MeterConfig { cir: 1, cburst: 2, pir: 3, pburst: 4, eburst: 0 };
    let entry = p4::TableEntry { meter_config: Some(config), ..acl(&bench, 5, 10) };
    c.insert(entry.clone()).await.unwrap();
    let read = p4::TableEntry { meter_config: Some(Default::default()), ..bench_key(&entry) };
    assert_eq!(c.read(read.clone()).await.unwrap()[0].meter_config, Some(config));
    assert_eq!(c.read(bench_key(&entry)).await.unwrap()[0].meter_config, None, "only when asked for");
    c.modify(p4::TableEntry { meter_config: None, ..entry.clone() }).await.unwrap();
    assert_eq!(c.read(read.clone()).await.unwrap()[0].meter_config, None, "unset resets it");
    let direct = p4::DirectMeterEntry {
        table_entry: Some(bench_key(&entry)),
        config: Some(config),
        counter_data: None,
    };
    c.modify(direct.clone()).await.unwrap();
    assert_eq!(c.read(direct.clone()).await.unwrap(), [direct.clone()]);
    assert_eq!(c.read(p4::DirectMeterEntry::default()).await.unwrap(), [direct.clone()]);
    c.modify(p4::DirectMeterEntry { config: None, ..direct.clone() }).await.unwrap();
    assert_eq!(c.read(direct.clone()).await.unwrap()[0].config, None);
    assert_eq!(c.insert(direct.clone()).await, INVALID);
    let eburst = p4::MeterConfig { eburst: 1, ..config };
    assert_eq!(c.modify(p4::DirectMeterEntry { config: Some(eburst), ..direct.clone() }).await, INVALID);
    let backwards = p4::MeterConfig { pir: 0, ..config };
    assert_eq!(c.modify(p4::DirectMeterEntry { config: Some(backwards), ..direct.clone() }).await, INVALID);
    let counted = p4::DirectMeterEntry { counter_data: Some(Default::default()), ..direct };
    assert_eq!(c.modify(counted).await, Err(Code::Unimplemented));
}

#[tokio::test(flavor = "multi_thread")]
async fn time_since_last_hit_is_reported_on_request() {
    let (bench, mut c) = Bench::new().await;
    let key = vec![exact(1, &[2, 0, 0, 0, 1, 4])];
    let entry = bench.info.entry("aging", key, "nothing", &[]);
    c.insert(entry.clone()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(120)).await;
    let asked = p4::TableEntry { time_since_last_hit: Some(Default::default()), ..bench_key(&entry) };
    let elapsed = |e: &p4::TableEntry| e.time_since_last_hit.map(|t| t.elapsed_ns);
    // The time is the packet path's clock, which may not run for a while on a busy machine.
    let deadline = std::time::Instant::now() + PATIENCE;
    let before = loop {
        let before = elapsed(&c.read(asked.clone()).await.unwrap()[0]).unwrap();
        if before >= 100_000_000 {
            break before;
        }
        assert!(std::time::Instant::now() < deadline, "{before} ns after 120 ms and long after");
    };
    // Directly after a hit the time is smaller; without a hit it only grows, however often it is
    // read.
    loop {
        bench.machine.packet(1, &frame(1, 4));
        let after = elapsed(&c.read(asked.clone()).await.unwrap()[0]).unwrap();
        if after < before {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{after} ns just after a hit");
    }
    assert_eq!(elapsed(&c.read(bench_key(&entry)).await.unwrap()[0]), None);
    let unsupported =
        p4::TableEntry { time_since_last_hit: Some(Default::default()), ..bench.info.key("l2", vec![]) };
    assert_eq!(c.read(unsupported).await, Err(Code::InvalidArgument));
}
