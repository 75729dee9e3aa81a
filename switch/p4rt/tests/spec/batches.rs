//! Sections 10, 12 and 13: batches with their errors and atomicity, and reads of several entities.

use super::harness::*;
use p4::write_request::Atomicity;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

fn with(c: &Controller, atomicity: Atomicity, updates: Vec<p4::Update>) -> p4::WriteRequest {
    p4::WriteRequest { atomicity: atomicity as i32, ..c.request(updates) }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_update_of_a_batch_has_its_error() {
    let (bench, mut c) = Bench::new().await;
    let updates = vec![
        update(Type::Insert, bench.info.l2(1, 2)),
        update(Type::Insert, bench.info.l2(1, 3)),
        update(Type::Delete, bench.info.l2(9, 3)),
        update(Type::Insert, bench.info.l2(2, 2)),
        p4::Update { r#type: Type::Insert as i32, entity: None },
    ];
    let status = c.send(c.request(updates)).await.unwrap_err();
    let expected = [Code::Ok, Code::AlreadyExists, Code::NotFound, Code::Ok, Code::InvalidArgument];
    assert_eq!(codes(&status), expected);
    assert_eq!(c.read(bench.info.key("l2", vec![])).await.unwrap().len(), 2, "the others were made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_errors_has_no_details() {
    let (bench, mut c) = Bench::new().await;
    c.send(c.request(vec![])).await.unwrap();
    let updates = (1..50).map(|i| update(Type::Insert, bench.info.l2(i, 2))).collect();
    c.send(c.request(updates)).await.unwrap();
}

/// Rolling back undoes all updates of a batch: the state is as before.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_undoes_every_kind() {
    let (bench, mut c) = Bench::new().await;
    let info = &bench.info;
    let data = |n| Some(p4::CounterData { byte_count: n, packet_count: n });
    let register = |n: u8| p4::RegisterEntry {
        register_id: info.id("stamps"),
        index: Some(p4::Index { index: 1 }),
        data: Some(p4::P4Data { data: Some(p4::p4_data::Data::Bitstring(vec![n])) }),
    };
    let counter = |index, n| p4::CounterEntry { counter_id: info.id("port_counter"), index, data: data(n) };
    let member = |id: u32, port: u8| p4::ActionProfileMember {
        action_profile_id: info.id("profile"),
        member_id: id,
        action: Some(info.action("forward", &[&[port]])),
    };
    let group = |id: u32, port: u8| {
        let port_kind = Some(p4::replica::PortKind::Port(vec![port]));
        let replicas = vec![p4::Replica { port_kind, instance: 1, ..Default::default() }];
        let group = p4::MulticastGroupEntry { multicast_group_id: id, replicas, metadata: vec![] };
        let kind = p4::packet_replication_engine_entry::Type::MulticastGroupEntry(group);
        p4::PacketReplicationEngineEntry { r#type: Some(kind) }
    };
    let digest = |n| {
        let config = p4::digest_entry::Config { max_list_size: n, ..Default::default() };
        p4::DigestEntry { digest_id: info.id("learn_t"), config: Some(config) }
    };
    let keyless = |class: u8| p4::TableEntry {
        is_default_action: true,
        ..info.entry("keyless", vec![], "set_class", &[&[class]])
    };
    let meter = |n: i64| {
        let config = (n > 0).then_some(p4::MeterConfig { cir: n, cburst: n, pir: n, pburst: n, eburst: 0 });
        p4::MeterEntry {
            meter_id: info.id("port_meter"),
            index: Some(p4::Index { index: 2 }),
            config,
            counter_data: None,
        }
    };
    let route =
        |port: u8, n: i64| p4::TableEntry { counter_data: data(n), ..info.route(&[10, 0, 0, 0], 8, port) };
    let types = |t: &[u8]| p4::ValueSetEntry {
        value_set_id: info.id("extra_types"),
        members: vec![p4::ValueSetMember { r#match: vec![exact(1, t)] }],
    };
    c.insert(info.l2(1, 2)).await.unwrap();
    c.insert(info.l2(2, 2)).await.unwrap();
    c.insert(route(2, 11)).await.unwrap();
    c.insert(member(1, 2)).await.unwrap();
    c.insert(group(1, 2)).await.unwrap();
    c.insert(digest(3)).await.unwrap();
    c.modify(keyless(3)).await.unwrap();
    c.modify(register(3)).await.unwrap();
    c.modify(counter(Some(p4::Index { index: 2 }), 3)).await.unwrap();
    c.modify(types(&[3])).await.unwrap();
    c.modify(meter(3)).await.unwrap();
    let before = c.read_all(super::pipeline::everything()).await.0;
    let updates = vec![
        update(Type::Modify, info.l2(1, 3)),
        update(Type::Delete, info.l2(2, 3)),
        update(Type::Insert, info.l2(3, 3)),
        update(Type::Modify, route(4, 44)),
        update(Type::Delete, route(4, 44)),
        update(Type::Modify, member(1, 4)),
        update(Type::Insert, member(2, 4)),
        update(Type::Modify, group(1, 4)),
        update(Type::Insert, group(2, 4)),
        update(Type::Modify, digest(4)),
        update(Type::Delete, digest(4)),
        update(Type::Modify, keyless(4)),
        update(Type::Modify, register(4)),
        update(Type::Modify, counter(None, 4)),
        update(Type::Modify, types(&[4])),
        update(Type::Modify, meter(4)),
        update(Type::Insert, info.l2(3, 3)),
        update(Type::Insert, info.l2(4, 3)),
    ];
    let count = updates.len();
    let status = c.send(with(&c, Atomicity::RollbackOnError, updates)).await.unwrap_err();
    let mut expected = vec![Code::Aborted; count];
    expected[count - 2] = Code::AlreadyExists;
    assert_eq!(codes(&status), expected);
    assert_eq!(c.read_all(super::pipeline::everything()).await.0, before);
}

/// The key of an entry that matches every packet has no field, like a read of all entries. So
/// undoing the deletion of such an entry once inserted all entries of the table again.
#[tokio::test(flavor = "multi_thread")]
async fn rollback_restores_default_route_and_open_ranges() {
    let (bench, mut c) = Bench::new().await;
    let info = &bench.info;
    let everything = p4::TableEntry { r#match: vec![], ..info.route(&[10, 0, 0, 0], 8, 4) };
    // Its range, its optional and its ternary field match every value.
    let open = |priority, key: Vec<p4::FieldMatch>| p4::TableEntry {
        priority,
        ..info.entry("acl", [vec![exact(4, &[1])], key].concat(), "set_class", &[&[7]])
    };
    c.insert(info.route(&[10, 0, 0, 0], 8, 2)).await.unwrap();
    c.insert(everything.clone()).await.unwrap();
    c.insert(open(5, vec![])).await.unwrap();
    c.insert(open(6, vec![ternary(1, &[10], &[15])])).await.unwrap();
    // An entry that is inserted again is read after the others.
    let sorted = |entities: Vec<p4::entity::Entity>| {
        let mut texts: Vec<String> = entities.iter().map(|e| format!("{e:?}")).collect();
        texts.sort();
        texts
    };
    let before = sorted(c.read_all(super::pipeline::everything()).await.0);
    let updates = vec![
        update(Type::Modify, p4::TableEntry { action: info.route(&[1], 8, 5).action, ..everything.clone() }),
        update(Type::Delete, everything),
        update(Type::Delete, open(5, vec![])),
        update(Type::Insert, info.route(&[10, 0, 0, 0], 8, 3)),
    ];
    let status = c.send(with(&c, Atomicity::RollbackOnError, updates)).await.unwrap_err();
    assert_eq!(codes(&status), [Code::Aborted, Code::Aborted, Code::Aborted, Code::AlreadyExists]);
    assert_eq!(sorted(c.read_all(super::pipeline::everything()).await.0), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_keeps_a_batch_without_errors() {
    let (bench, mut c) = Bench::new().await;
    let updates = (1..20).map(|i| update(Type::Insert, bench.info.l2(i, 2))).collect();
    c.send(with(&c, Atomicity::RollbackOnError, updates)).await.unwrap();
    assert_eq!(c.read(bench.info.key("l2", vec![])).await.unwrap().len(), 19);
}

/// Two tables are changed together while packets run: `l2` sends to port 2 or 3, and `routes` then
/// to 4 or 5. With separate updates, a packet could use one generation in `l2` and another in
/// `routes`.
#[tokio::test(flavor = "multi_thread")]
async fn packets_see_an_atomic_batch_as_one() {
    let (bench, mut c) = Bench::new().await;
    // The clone made by l2's action and the packet forwarded by routes leave by ports of one
    // generation.
    let both = |session: u8, port: u8| {
        vec![
            bench.info.entry("l2", vec![exact(1, &[2, 0, 0, 0, 0, 9])], "mirror", &[&[session]]),
            bench.info.route(&[10, 0, 0, 0], 8, port),
        ]
    };
    for (id, port) in [(2, 2), (3, 3)] {
        let port_kind = Some(p4::replica::PortKind::Port(vec![port]));
        let replicas = vec![p4::Replica { port_kind, instance: 1, ..Default::default() }];
        let session = p4::CloneSessionEntry { session_id: id, replicas, ..Default::default() };
        let kind = p4::packet_replication_engine_entry::Type::CloneSessionEntry(session);
        c.insert(p4::PacketReplicationEngineEntry { r#type: Some(kind) }).await.unwrap();
    }
    for entry in both(2, 2) {
        c.insert(entry).await.unwrap();
    }
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = {
        let (machine, stop) = (bench.machine.clone(), stop.clone());
        std::thread::spawn(move || {
            let packet = ipv4([1, 1, 1, 1], [10, 1, 1, 1], 64);
            let (mut generations, mut count) = (std::collections::BTreeSet::new(), 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut ports: Vec<u32> = machine.packet(1, &packet).iter().map(|(p, _)| *p).collect();
                ports.sort_unstable();
                generations.insert(ports);
                count += 1;
            }
            (generations, count)
        })
    };
    for i in 0..200 {
        let updates = both(2 + i % 2, 2 + i % 2).into_iter().map(|e| update(Type::Modify, e)).collect();
        c.send(with(&c, Atomicity::DataplaneAtomic, updates)).await.unwrap();
        // A batch that fails at its end never becomes visible.
        let mut updates: Vec<_> = both(9, 9).into_iter().map(|e| update(Type::Modify, e)).collect();
        updates.push(update(Type::Insert, bench.info.route(&[10, 0, 0, 0], 8, 1)));
        let status = c.send(with(&c, Atomicity::DataplaneAtomic, updates)).await.unwrap_err();
        assert_eq!(codes(&status), [Code::Aborted, Code::Aborted, Code::AlreadyExists]);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (generations, count) = seen.join().unwrap();
    assert!(count > 1000, "{count} packets");
    assert_eq!(generations, [vec![2, 2], vec![3, 3]].into(), "clone and packet of one generation");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_atomicity_is_unimplemented() {
    let (bench, mut c) = Bench::new().await;
    let request =
        p4::WriteRequest { atomicity: 9, ..c.request(vec![update(Type::Insert, bench.info.l2(1, 2))]) };
    assert_eq!(c.send(request).await.unwrap_err().code(), Code::Unimplemented);
    assert!(c.read(bench.info.key("l2", vec![])).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn read_returns_valid_requests_and_errors_of_the_others() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    let requests = vec![
        bench.info.key("l2", vec![]).wrap(),
        p4::TableEntry { table_id: 5, ..Default::default() }.wrap(),
        p4::CounterEntry {
            counter_id: bench.info.id("port_counter"),
            index: Some(p4::Index { index: 99 }),
            data: None,
        }
        .wrap(),
        p4::DigestEntry::default().wrap(),
    ];
    let (found, end) = c.read_all(requests).await;
    assert_eq!(found, [bench.info.l2(1, 2).wrap()]);
    assert_eq!(codes(&end.unwrap_err()), [Code::Ok, Code::NotFound, Code::OutOfRange, Code::Ok]);
    let request = p4::ReadRequest {
        device_id: DEVICE,
        entities: vec![p4::Entity { entity: None }],
        ..Default::default()
    };
    let mut stream = c.client.read(request).await.unwrap().into_inner();
    assert_eq!(
        codes(&stream.message().await.unwrap_err()),
        [Code::InvalidArgument],
        "an empty entity is no wildcard"
    );
}

/// An answer larger than a message is split.
#[tokio::test(flavor = "multi_thread")]
async fn large_reads_come_in_pieces() {
    let (bench, mut c) = Bench::new().await;
    let metadata = vec![7; 1000];
    let entry = |i: u16| p4::TableEntry {
        metadata: metadata.clone(),
        ..bench.info.route(&[10, 0, (i >> 8) as u8, i as u8], 32, 2)
    };
    for chunk in 0..8 {
        let updates = (0..1000).map(|i| update(Type::Insert, entry(chunk * 1000 + i))).collect();
        c.send(c.request(updates)).await.unwrap();
    }
    assert_eq!(
        c.read(bench.info.key("routes", vec![])).await.unwrap().len(),
        8000,
        "8 MB, of which a message takes 4"
    );
}
