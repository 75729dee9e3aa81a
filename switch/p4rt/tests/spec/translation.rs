//! Sections 8.4.6 and 18.1: types whose values have another form for controllers than in the data
//! plane.

use super::harness::*;
use rivulet_p4rt::parse_p4info;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

const NUMBERS_JSON: &[u8] = include_bytes!("../programs/numbers.json");
const NUMBERS_P4INFO: &str = include_str!("../programs/numbers.p4info.txtpb");

fn numbers() -> p4::ForwardingPipelineConfig {
    p4::ForwardingPipelineConfig {
        p4info: Some(parse_p4info(NUMBERS_P4INFO.as_bytes()).unwrap()),
        p4_device_config: NUMBERS_JSON.to_vec(),
        cookie: None,
    }
}

/// A server with one of the programs here, its primary, and its names.
async fn bench(config: p4::ForwardingPipelineConfig) -> (Bench, Controller, Names) {
    let names = Names::of(config.p4info.clone().unwrap());
    let bench = Bench::empty().await;
    let mut controller = bench.primary(1).await;
    controller.set_pipeline(PipelineAction::VerifyAndCommit, Some(config)).await.unwrap();
    (bench, controller, names)
}

fn packet_out(values: &[&[u8]], payload: &[u8]) -> Outgoing {
    let one = |(value, id): (&&[u8], u32)| p4::PacketMetadata { metadata_id: id, value: value.to_vec() };
    let metadata = values.iter().zip(1..).map(one).collect();
    Outgoing::Packet(p4::PacketOut { payload: payload.to_vec(), metadata })
}

fn metadata(packet: &p4::PacketIn) -> Vec<Vec<u8>> {
    packet.metadata.iter().map(|m| m.value.clone()).collect()
}

/// The P4Info has 32 bits for a field of 16: with the P4Info's layout, the switch would read port 0
/// and take four bytes of the frame for the header.
#[tokio::test(flavor = "multi_thread")]
async fn packet_out_has_the_layout_of_the_program() {
    let (bench, mut c, _) = bench(numbers()).await;
    c.send_message(packet_out(&[&[0, 0, 0, 3]], &frame(1, 1))).await;
    assert_eq!(bench.machine.sent().await, [(3, frame(1, 1))]);
    for too_large in [&[1, 0, 0][..], &[1, 0, 0, 0, 3]] {
        c.send_message(packet_out(&[too_large], &frame(1, 1))).await;
        let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
        assert_eq!(error.canonical_code, Code::InvalidArgument as i32, "{error:?}");
    }
}

/// Nine bits that controllers see as 32, and seven of padding: whole bytes in the program only.
#[tokio::test(flavor = "multi_thread")]
async fn packet_in_has_the_layout_of_the_program() {
    let (bench, mut c, names) = bench(numbers()).await;
    let to_cpu = names.entry("exact_ports", vec![exact(1, &[2])], "send", &[&[1, 254]]);
    c.insert(to_cpu).await.unwrap();
    bench.machine.packet(2, &frame(9, 1));
    let Received::Packet(packet) = c.receive().await.unwrap() else { panic!("a packet-in") };
    assert_eq!(packet.payload, frame(9, 1));
    assert_eq!(metadata(&packet), [vec![2], vec![0], vec![9]], "port, padding and label");
}

/// A label of 24 bits that does not fit the 8 bits of the controllers' form has none.
#[tokio::test(flavor = "multi_thread")]
async fn packet_in_without_a_controller_form_is_dropped() {
    let (bench, mut c, names) = bench(numbers()).await;
    let to_cpu = names.entry("exact_ports", vec![exact(1, &[2])], "send", &[&[1, 254]]);
    c.insert(to_cpu).await.unwrap();
    let mut wide = frame(9, 1);
    wide[3] = 1;
    bench.machine.packet(2, &wide);
    bench.machine.packet(2, &frame(9, 1));
    let Received::Packet(packet) = c.receive().await.unwrap() else { panic!("a packet-in") };
    assert_eq!(packet.payload, frame(9, 1));
    assert_eq!((bench.server.totals().packet_ins, bench.server.totals().packet_ins_lost), (1, 1));
}

/// The program may not have the header of a P4Info at all; then there is no layout.
#[tokio::test(flavor = "multi_thread")]
async fn packet_metadata_without_a_header_is_refused() {
    let mut config = numbers();
    let mut headers = config.p4info.as_mut().unwrap().controller_packet_metadata.iter_mut();
    let out = headers.find(|m| m.preamble.as_ref().unwrap().name == "packet_out").unwrap();
    let mut more = out.metadata[0].clone();
    (more.id, more.name) = (2, "more".to_owned());
    out.metadata.extend([more.clone(), {
        more.id = 3;
        more
    }]);
    let (bench, mut c, _) = bench(config).await;
    c.send_message(packet_out(&[&[3], &[3], &[3]], &frame(1, 1))).await;
    let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
    assert!(error.message.contains("no header with the fields of controller_packet_metadata packet_out"));
    assert_eq!(bench.server.totals().packet_outs, 0);
}

/// A match of each kind on numbers of 16 bits that controllers see as 32, with real packets.
#[tokio::test(flavor = "multi_thread")]
async fn matches_on_numbers_are_translated_both_ways() {
    let (bench, mut c, names) = bench(numbers()).await;
    let ones = [0xff; 4];
    for (table, key, hits, misses, priority) in [
        ("exact_ports", exact(1, &[3]), 3, 4, 0),
        ("ternary_ports", ternary(1, &[3], &ones), 3, 4, 1),
        ("ternary_ports", ternary(1, &[1], &[1]), 3, 4, 1),
        ("lpm_ports", lpm(1, &[3], 32), 3, 4, 0),
        ("lpm_ports", lpm(1, &[2], 31), 3, 4, 0),
        ("range_ports", range(1, &[2], &[3]), 3, 4, 1),
    ] {
        let entry = p4::TableEntry { priority, ..names.entry(table, vec![key.clone()], "send", &[&[7]]) };
        c.insert(entry.clone()).await.unwrap();
        let found = c.read(names.key(table, vec![])).await.unwrap();
        assert_eq!(found, [entry.clone()], "{table}: as written");
        assert_eq!(bench.machine.packet(hits, &frame(1, 1)), [(7, frame(1, 1))], "{table} {key:?}");
        assert_ne!(bench.machine.packet(misses, &frame(1, 1)), [(7, frame(1, 1))], "{table} {key:?}");
        c.delete(entry).await.unwrap();
    }
    let refused = |table: &str, key| p4::TableEntry {
        priority: i32::from(!table.starts_with("lpm")),
        ..names.entry(table, vec![key], "send", &[&[7]])
    };
    for (entry, code) in [
        (refused("ternary_ports", ternary(1, &[1, 0, 0], &ones)), Code::OutOfRange),
        (refused("ternary_ports", ternary(1, &[3], &[0xff, 0xff])), Code::InvalidArgument),
        (refused("ternary_ports", ternary(1, &[0], &[1, 0, 0])), Code::OutOfRange),
        (refused("lpm_ports", lpm(1, &[0], 16)), Code::InvalidArgument),
        (refused("lpm_ports", lpm(1, &[3], 33)), Code::InvalidArgument),
        (refused("range_ports", range(1, &[0], &ones)), Code::InvalidArgument),
        (names.entry("exact_ports", vec![exact(1, &[1])], "send", &[&[2, 0]]), Code::OutOfRange),
    ] {
        assert_eq!(c.insert(entry.clone()).await, Err(code), "{entry:?}");
    }
}

const NAMES_JSON: &[u8] = include_bytes!("../programs/names.json");
const NAMES_P4INFO: &str = include_str!("../programs/names.p4info.txtpb");

fn strings() -> p4::ForwardingPipelineConfig {
    p4::ForwardingPipelineConfig {
        p4info: Some(parse_p4info(NAMES_P4INFO.as_bytes()).unwrap()),
        p4_device_config: NAMES_JSON.to_vec(),
        cookie: None,
    }
}

/// Port 3 is in `vrf`, and destination 1 there goes by `nexthop` to `port`.
fn path(names: &Names, vrf: &str, nexthop: &str, port: &str) -> Vec<p4::TableEntry> {
    let dst = ternary(2, &[2, 0, 0, 0, 0, 1], &[0xff; 6]);
    let route = vec![optional(1, vrf.as_bytes()), dst];
    vec![
        names.entry("classify", vec![exact(1, b"3")], "set_vrf", &[vrf.as_bytes()]),
        p4::TableEntry { priority: 5, ..names.entry("routes", route, "set_nexthop", &[nexthop.as_bytes()]) },
        names.entry("nexthops", vec![exact(1, nexthop.as_bytes())], "send", &[port.as_bytes()]),
    ]
}

async fn insert_all(c: &mut Controller, entries: &[p4::TableEntry]) {
    for entry in entries {
        c.insert(entry.clone()).await.unwrap();
    }
}

/// All entries, those of `order` in its order.
async fn entries(c: &mut Controller, order: &[p4::TableEntry]) -> Vec<p4::TableEntry> {
    let mut found = c.read(p4::TableEntry::default()).await.unwrap();
    found.sort_by_key(|e| order.iter().position(|o| o == e));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_join_tables_and_are_read_back() {
    let (bench, mut c, names) = bench(strings()).await;
    let path = path(&names, "blue", "via-7", "7");
    insert_all(&mut c, &path).await;
    assert_eq!(bench.machine.packet(3, &frame(1, 1)), [(7, frame(1, 1))]);
    assert_eq!(entries(&mut c, &path).await, path);
    assert_eq!(c.read(names.key("nexthops", vec![exact(1, b"via-7")])).await.unwrap(), path[2..]);
    assert_eq!(c.read(names.key("nexthops", vec![exact(1, b"via-8")])).await.unwrap(), []);
    assert_eq!(c.delete(names.key("nexthops", vec![exact(1, b"via-8")])).await, Err(Code::NotFound));
    let moved = names.entry("nexthops", vec![exact(1, b"via-7")], "send", &[b"8"]);
    c.modify(moved).await.unwrap();
    assert_eq!(bench.machine.packet(3, &frame(1, 1)), [(8, frame(1, 1))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_that_cannot_be_values_are_refused() {
    let (_bench, mut c, names) = bench(strings()).await;
    let nexthop = |name: &[u8]| names.entry("nexthops", vec![exact(1, name)], "send", &[b"1"]);
    assert_eq!(c.insert(nexthop(b"")).await, Err(Code::InvalidArgument), "empty, and no mapping");
    assert_eq!(c.insert(nexthop(&[0xff])).await, Err(Code::InvalidArgument), "not UTF-8");
    assert_eq!(c.insert(nexthop(&[b'x'; 1025])).await, Err(Code::InvalidArgument), "too long");
    let odd = names.entry("odd", vec![ternary(1, b"a", b"b")], "send", &[b"1"]);
    assert_eq!(c.insert(p4::TableEntry { priority: 1, ..odd.clone() }).await, Err(Code::Unimplemented));
    let any = p4::TableEntry { priority: 1, r#match: Vec::new(), ..odd };
    c.insert(any).await.unwrap();
    let default = names.entry("classify", vec![exact(1, b"3")], "set_vrf", &[b""]);
    c.insert(default).await.unwrap();
}

/// Three bits: 0 has a mapping, seven are left.
#[tokio::test(flavor = "multi_thread")]
async fn unused_values_are_assigned_again() {
    let (_bench, mut c, names) = bench(strings()).await;
    let vrf = |port: usize, vrf: &str| {
        let port = port.to_string();
        names.entry("classify", vec![exact(1, port.as_bytes())], "set_vrf", &[vrf.as_bytes()])
    };
    for round in 0..20 {
        for i in 0..7 {
            c.insert(vrf(i, &format!("vrf-{round}-{i}"))).await.unwrap();
        }
        assert_eq!(c.insert(vrf(7, "one-more")).await, Err(Code::ResourceExhausted));
        assert_eq!(c.modify(vrf(5, "one-more")).await, Err(Code::ResourceExhausted), "both at once");
        c.insert(vrf(7, &format!("vrf-{round}-0"))).await.unwrap();
        c.insert(vrf(8, "")).await.unwrap();
        c.delete(vrf(0, "")).await.unwrap();
        assert_eq!(c.insert(vrf(9, "one-more")).await, Err(Code::ResourceExhausted), "7 still uses it");
        c.delete(vrf(1, "")).await.unwrap();
        c.insert(vrf(9, "one-more")).await.unwrap();
        let member = p4::ActionProfileMember {
            action_profile_id: names.id("shared"),
            member_id: 1,
            action: Some(names.action("send", &[b"port-a"])),
        };
        c.insert(member.clone()).await.unwrap();
        assert_eq!(c.read(member.clone()).await.unwrap(), [member.clone()]);
        c.delete(member).await.unwrap();
        for entry in entries(&mut c, &[]).await {
            c.delete(entry).await.unwrap();
        }
    }
}

/// A batch that is undone assigns no value, and the strings that it deleted keep their values.
#[tokio::test(flavor = "multi_thread")]
async fn failed_batches_leave_strings_unchanged() {
    use p4::write_request::Atomicity;
    let (bench, mut c, names) = bench(strings()).await;
    let path = path(&names, "blue", "via-7", "7");
    insert_all(&mut c, &path).await;
    let vrf = |port: &str, vrf: &str| {
        names.entry("classify", vec![exact(1, port.as_bytes())], "set_vrf", &[vrf.as_bytes()])
    };
    for atomicity in [Atomicity::RollbackOnError, Atomicity::DataplaneAtomic] {
        let mut updates = vec![update(Type::Delete, path[0].clone()), update(Type::Delete, path[1].clone())];
        updates.extend((0..4).map(|i| update(Type::Insert, vrf(&format!("1{i}"), &format!("new-{i}")))));
        updates.push(update(Type::Delete, vrf("99", "blue")));
        let request = p4::WriteRequest { atomicity: atomicity as i32, ..c.request(updates) };
        let codes = codes(&c.send(request).await.unwrap_err());
        assert_eq!(codes.last(), Some(&Code::NotFound), "{codes:?}");
        assert_eq!(entries(&mut c, &path).await, path);
        assert_eq!(bench.machine.packet(3, &frame(1, 1)), [(7, frame(1, 1))]);
    }
    for i in 0..6 {
        c.insert(vrf(&format!("2{i}"), &format!("other-{i}"))).await.unwrap();
    }
    assert_eq!(c.insert(vrf("30", "too-many")).await, Err(Code::ResourceExhausted));
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_and_digests_carry_strings() {
    let (bench, mut c, names) = bench(strings()).await;
    insert_all(&mut c, &path(&names, "blue", "via-7", "cpu")).await;
    bench.machine.packet(3, &frame(1, 1));
    let Received::Packet(packet) = c.receive().await.unwrap() else { panic!("a packet-in") };
    assert_eq!(packet.payload, frame(1, 1));
    assert_eq!(metadata(&packet), [b"3".to_vec(), b"blue".to_vec(), vec![0]]);
    c.send_message(packet_out(&[b"12", &[0]], &frame(2, 2))).await;
    assert_eq!(bench.machine.sent().await, [(12, frame(2, 2))]);
    c.send_message(packet_out(&[b"unknown", &[0]], &frame(2, 2))).await;
    let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
    assert!(error.message.contains("nothing uses \"unknown\""), "{error:?}");
    // A string that an entry uses names the same port in a packet-out.
    c.insert(names.entry("classify", vec![exact(1, b"uplink")], "set_vrf", &[b""])).await.unwrap();
    c.send_message(packet_out(&[b"uplink", &[0]], &frame(2, 2))).await;
    assert_eq!(bench.machine.sent().await, [(1, frame(2, 2))]);

    let digest_config = p4::digest_entry::Config { max_list_size: 1, ..Default::default() };
    let digest_id = names.id("seen_t");
    c.insert(p4::DigestEntry { digest_id, config: Some(digest_config) }).await.unwrap();
    bench.machine.packet(3, &frame(9, 9));
    let Received::Digest(list) = c.receive().await.unwrap() else { panic!("a digest") };
    let Some(p4::p4_data::Data::Struct(seen)) = &list.data[0].data else { panic!("{list:?}") };
    let bits = |i: usize| match &seen.members[i].data {
        Some(p4::p4_data::Data::Bitstring(b)) => b.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!([bits(0), bits(1)], [b"3".to_vec(), b"blue".to_vec()]);
    let cell = p4::RegisterEntry {
        register_id: names.id("last_vrf"),
        index: Some(p4::Index { index: 0 }),
        data: None,
    };
    let read = c.read(cell).await.unwrap()[0].data.clone().unwrap();
    assert_eq!(read.data, Some(p4::p4_data::Data::Bitstring(b"blue".to_vec())));
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_replicas_and_watched_ports_are_strings() {
    use p4::packet_replication_engine_entry::Type as Kind;
    let (bench, mut c, names) = bench(strings()).await;
    let replica = |port: &[u8]| p4::Replica {
        port_kind: Some(p4::replica::PortKind::Port(port.to_vec())),
        ..p4::Replica::default()
    };
    let group = |replicas| p4::PacketReplicationEngineEntry {
        r#type: Some(Kind::MulticastGroupEntry(p4::MulticastGroupEntry {
            multicast_group_id: 9,
            replicas,
            ..Default::default()
        })),
    };
    let both = group(vec![replica(b"2"), replica(b"11")]);
    c.insert(both.clone()).await.unwrap();
    assert_eq!(c.read(group(vec![])).await.unwrap(), [both]);
    let flood = p4::TableEntry { priority: 1, ..names.entry("routes", vec![], "multicast", &[&[9]]) };
    c.insert(flood).await.unwrap();
    let ports: Vec<u32> = bench.machine.packet(3, &frame(1, 1)).iter().map(|(p, _)| *p).collect();
    assert_eq!(ports, [2, 11]);

    let member = |port: &str, weight| p4::ActionProfileAction {
        action: Some(names.action("send", &[port.as_bytes()])),
        weight,
        watch_kind: Some(p4::action_profile_action::WatchKind::WatchPort(port.as_bytes().to_vec())),
    };
    let set = p4::ActionProfileActionSet {
        action_profile_actions: vec![member("1", 1), member("2", 2)],
        ..Default::default()
    };
    let action = p4::TableAction { r#type: Some(p4::table_action::Type::ActionProfileActionSet(set)) };
    let key = names.key("groups", vec![exact(1, b"via-1")]);
    let entry = p4::TableEntry { action: Some(action), ..key.clone() };
    c.insert(entry.clone()).await.unwrap();
    assert_eq!(c.read(key).await.unwrap(), [entry]);
}

#[tokio::test(flavor = "multi_thread")]
async fn strings_survive_a_reconciled_pipeline() {
    let (bench, mut c, names) = bench(strings()).await;
    let path = path(&names, "blue", "via-7", "7");
    c.insert(names.entry("nexthops", vec![exact(1, b"first")], "send", &[b"1"])).await.unwrap();
    insert_all(&mut c, &path).await;
    c.delete(names.key("nexthops", vec![exact(1, b"first")])).await.unwrap();
    let other = p4::ForwardingPipelineConfig { p4_device_config: [NAMES_JSON, b" "].concat(), ..strings() };
    for config in [strings(), other] {
        c.set_pipeline(PipelineAction::ReconcileAndCommit, Some(config)).await.unwrap();
        assert_eq!(entries(&mut c, &path).await, path);
        bench.machine.packet(3, &frame(1, 1));
        assert_eq!(bench.machine.packet(3, &frame(1, 1)), [(7, frame(1, 1))]);
    }
    for entry in &path {
        c.delete(entry.clone()).await.unwrap();
    }
    insert_all(&mut c, &path).await;
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(strings())).await.unwrap();
    assert_eq!(entries(&mut c, &[]).await, []);
    c.set_pipeline(PipelineAction::VerifyAndSave, Some(strings())).await.unwrap();
    insert_all(&mut c, &path).await;
    c.set_pipeline(PipelineAction::Commit, None).await.unwrap();
    assert_eq!(bench.machine.packet(3, &frame(1, 1)), [(7, frame(1, 1))]);
}
