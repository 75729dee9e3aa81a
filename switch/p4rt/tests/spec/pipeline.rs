//! Sections 7, 14, 15 and 17: setting, saving, committing and reading the forwarding pipeline.

use super::harness::*;
use p4::get_forwarding_pipeline_config_request::ResponseType;
use rivulet_p4rt::P4RUNTIME_API_VERSION;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::{Code, Status};

async fn get(c: &mut Controller, r#type: ResponseType) -> Option<p4::ForwardingPipelineConfig> {
    let request = p4::GetForwardingPipelineConfigRequest { device_id: DEVICE, response_type: r#type as i32 };
    c.client.get_forwarding_pipeline_config(request).await.unwrap().into_inner().config
}

fn cookie(value: u64) -> p4::ForwardingPipelineConfig {
    let cookie = Some(p4::forwarding_pipeline_config::Cookie { cookie: value });
    p4::ForwardingPipelineConfig { cookie, ..config() }
}

/// The test program with one word of its JSON replaced.
fn altered(from: &str, to: &str) -> p4::ForwardingPipelineConfig {
    let json = std::str::from_utf8(JSON).unwrap();
    assert!(json.contains(from), "{from} is in the program");
    p4::ForwardingPipelineConfig { p4_device_config: json.replace(from, to).into_bytes(), ..config() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_works_before_the_first_pipeline() {
    let bench = Bench::empty().await;
    let mut c = bench.primary(1).await;
    assert_eq!(get(&mut c, ResponseType::All).await, None);
    let write = c.send(c.request(vec![update(Type::Insert, bench.info.l2(1, 2))])).await.unwrap_err();
    assert_eq!(write.code(), Code::FailedPrecondition);
    let (_, end) = c.read_all(vec![bench.info.key("l2", vec![]).wrap()]).await;
    assert_eq!(end.unwrap_err().code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_devices_are_not_found() {
    let (bench, mut c) = Bench::new().await;
    let device_id = DEVICE + 1;
    let not_found = |status: Status| assert_eq!(status.code(), Code::NotFound);
    not_found(c.send(p4::WriteRequest { device_id, ..c.request(vec![]) }).await.unwrap_err());
    not_found(c.client.read(p4::ReadRequest { device_id, ..Default::default() }).await.unwrap_err());
    let get = p4::GetForwardingPipelineConfigRequest { device_id, response_type: 0 };
    not_found(c.client.get_forwarding_pipeline_config(get).await.unwrap_err());
    let set = p4::SetForwardingPipelineConfigRequest { device_id, ..Default::default() };
    not_found(c.client.set_forwarding_pipeline_config(set).await.unwrap_err());
    not_found(c.client.capabilities(p4::CapabilitiesRequest { device_id }).await.unwrap_err());
    drop(bench);
}

#[tokio::test(flavor = "multi_thread")]
async fn capabilities_report_the_release() {
    let bench = Bench::empty().await;
    for device_id in [0, DEVICE] {
        let answer = bench.client().await.capabilities(p4::CapabilitiesRequest { device_id }).await.unwrap();
        assert_eq!(answer.into_inner().p4runtime_api_version, P4RUNTIME_API_VERSION);
    }
    let numbers: Vec<u32> = P4RUNTIME_API_VERSION.split('.').map(|n| n.parse().unwrap()).collect();
    assert!(numbers >= vec![1, 4, 0], "{P4RUNTIME_API_VERSION}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_config_is_read_back_by_parts() {
    let (_bench, mut c) = Bench::new().await;
    let all = config();
    assert_eq!(get(&mut c, ResponseType::All).await.unwrap(), all);
    let cookie_only = get(&mut c, ResponseType::CookieOnly).await.unwrap();
    assert_eq!(cookie_only, p4::ForwardingPipelineConfig { cookie: all.cookie, ..Default::default() });
    let info = get(&mut c, ResponseType::P4infoAndCookie).await.unwrap();
    assert_eq!((info.p4info, info.p4_device_config.len(), info.cookie), (all.p4info, 0, all.cookie));
    let device = get(&mut c, ResponseType::DeviceConfigAndCookie).await.unwrap();
    assert_eq!((device.p4info, device.p4_device_config), (None, all.p4_device_config));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_without_cookie_is_read_without() {
    let (_bench, mut c) = Bench::new().await;
    let config = p4::ForwardingPipelineConfig { cookie: None, ..config() };
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(config)).await.unwrap();
    assert_eq!(get(&mut c, ResponseType::CookieOnly).await.unwrap().cookie, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_changes_nothing() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    c.set_pipeline(PipelineAction::Verify, Some(cookie(5))).await.unwrap();
    assert_eq!(get(&mut c, ResponseType::CookieOnly).await.unwrap().cookie.unwrap().cookie, 99);
    assert_eq!(bench.machine.packet(1, &frame(1, 1)).len(), 1, "the entry forwards");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_and_commit_clears_the_state() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    assert_eq!(bench.machine.packet(1, &frame(1, 1)), [(2, frame(1, 1))]);
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(cookie(5))).await.unwrap();
    assert!(c.read(bench.info.key("l2", vec![])).await.unwrap().is_empty());
    assert_ne!(bench.machine.packet(1, &frame(1, 1)), [(2, frame(1, 1))]);
    assert_eq!(get(&mut c, ResponseType::CookieOnly).await.unwrap().cookie.unwrap().cookie, 5);
}

/// Packets use the old pipeline until COMMIT; reads and writes go to the saved one and take effect
/// with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_saved_pipeline_is_written_while_the_old_forwards() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    c.set_pipeline(PipelineAction::VerifyAndSave, Some(cookie(5))).await.unwrap();
    assert!(c.read(bench.info.key("l2", vec![])).await.unwrap().is_empty(), "reads go to the saved one");
    c.insert(bench.info.l2(1, 3)).await.unwrap();
    assert_eq!(bench.machine.packet(1, &frame(1, 1)), [(2, frame(1, 1))], "the old one forwards");
    c.set_pipeline(PipelineAction::Commit, None).await.unwrap();
    assert_eq!(
        bench.machine.packet(1, &frame(1, 1)),
        [(3, frame(1, 1))],
        "writes to the saved pipeline count"
    );
    assert_eq!(c.read(bench.info.key("l2", vec![])).await.unwrap(), [bench.info.l2(1, 3)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_needs_a_saved_config_and_takes_none() {
    let (_bench, mut c) = Bench::new().await;
    let missing = c.set_pipeline(PipelineAction::Commit, None).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let superfluous = c.set_pipeline(PipelineAction::Commit, Some(config())).await.unwrap_err();
    assert_eq!(superfluous.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_need_a_config() {
    let (_bench, mut c) = Bench::new().await;
    use PipelineAction as A;
    for action in [A::Verify, A::VerifyAndSave, A::VerifyAndCommit, A::ReconcileAndCommit, A::Unspecified] {
        let refused = c.set_pipeline(action, None).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{action:?}");
    }
}

/// Each invalid pipeline is refused with a message that contains the place, and the old one stays
/// in use.
#[tokio::test(flavor = "multi_thread")]
async fn bad_pipeline_is_refused_with_the_place_of_its_fault() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    let no_table = altered("\"MainIngress.l2\"", "\"MainIngress.other\"");
    let wide = {
        let mut config = config();
        let info = config.p4info.as_mut().unwrap();
        info.tables[1].match_fields[0].bitwidth = 31;
        config
    };
    let register = {
        let mut config = config();
        config.p4info.as_mut().unwrap().registers[0].preamble.as_mut().unwrap().name =
            "MainIngress.lost".into();
        config
    };
    let twice = {
        let mut config = config();
        let info = config.p4info.as_mut().unwrap();
        let id = info.tables[0].preamble.as_ref().unwrap().id;
        info.tables[1].preamble.as_mut().unwrap().id = id;
        config
    };
    let prefix = {
        let mut config = config();
        config.p4info.as_mut().unwrap().counters[0].preamble.as_mut().unwrap().id |= 0x0100_0000;
        config
    };
    let truncated =
        p4::ForwardingPipelineConfig { p4_device_config: JSON[..JSON.len() / 2].to_vec(), ..config() };
    let nothing = p4::ForwardingPipelineConfig { p4_device_config: Vec::new(), ..config() };
    let no_info = p4::ForwardingPipelineConfig { p4info: None, ..config() };
    for (bad, place) in [
        (no_table, "MainIngress.l2"),
        (wide, "MainIngress.routes: key hdr.ipv4.dst"),
        (register, "MainIngress.lost"),
        (twice, "used twice"),
        (prefix, "does not start with 0x12"),
        (truncated, "p4_device_config"),
        (nothing, "p4_device_config"),
        (no_info, "P4Info"),
    ] {
        use PipelineAction as A;
        for action in [A::Verify, A::VerifyAndSave, A::VerifyAndCommit, A::ReconcileAndCommit] {
            let refused = c.set_pipeline(action, Some(bad.clone())).await.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
            assert!(refused.message().contains(place), "expected '{place}' in '{}'", refused.message());
        }
    }
    assert_eq!(bench.machine.packet(1, &frame(1, 1)), [(2, frame(1, 1))]);
    assert_eq!(get(&mut c, ResponseType::CookieOnly).await.unwrap().cookie.unwrap().cookie, 99);
}

/// The controllers of p4lang/tutorials send the JSON in a message of P4Runtime's first releases, as
/// `reassign` (field 1) and `device_data` (field 3). It is read back as written.
#[tokio::test(flavor = "multi_thread")]
async fn json_in_the_old_message_is_accepted() {
    let bench = Bench::empty().await;
    let mut c = bench.primary(1).await;
    let mut wrapped = vec![0x08, 1, 0x1a];
    prost::encoding::encode_varint(JSON.len() as u64, &mut wrapped);
    wrapped.extend_from_slice(JSON);
    let config = p4::ForwardingPipelineConfig { p4_device_config: wrapped.clone(), ..config() };
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(config)).await.unwrap();
    assert_eq!(get(&mut c, ResponseType::All).await.unwrap().p4_device_config, wrapped);
    let cut = p4::ForwardingPipelineConfig { p4_device_config: wrapped[..99].to_vec(), ..self::config() };
    let refused = c.set_pipeline(PipelineAction::Verify, Some(cut)).await.unwrap_err();
    assert!(refused.message().contains("p4_device_config: not JSON"), "{refused:?}");
}

/// Annotations, such as references between tables, are for controllers: they are kept unchanged.
#[tokio::test(flavor = "multi_thread")]
async fn annotations_are_kept() {
    let (bench, mut c) = Bench::new().await;
    let text = P4INFO.replacen(
        "  match_fields {\n",
        "  match_fields {\n    annotations: \"@refers_to(l2, dst)\"\n",
        3,
    );
    let text = text.replacen(
        "  params {\n",
        "  params {\n    annotations: \"@refers_to(routes, hdr.ipv4.dst)\"\n",
        3,
    );
    let text = text.replacen("  preamble {\n", "  preamble {\n    annotations: \"@id(1)\"\n", 3);
    let p4info = rivulet_p4rt::parse_p4info(text.as_bytes()).unwrap();
    let fields = p4info.tables.iter().flat_map(|t| &t.match_fields);
    assert_eq!(fields.filter(|m| m.annotations.iter().any(|a| a == "@refers_to(l2, dst)")).count(), 3);
    let annotated = p4::ForwardingPipelineConfig { p4info: Some(p4info), ..config() };
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(annotated.clone())).await.unwrap();
    assert_eq!(get(&mut c, ResponseType::All).await.unwrap(), annotated);
    c.insert(bench.info.l2(1, 2)).await.unwrap();
}

/// p4c omits objects that no packet can reach from the program, but not from the P4Info.
#[tokio::test(flavor = "multi_thread")]
async fn objects_omitted_by_the_compiler_are_not_found() {
    let (bench, mut c) = Bench::new().await;
    let mut larger = config();
    let info = larger.p4info.as_mut().unwrap();
    let renamed = |preamble: &mut Option<rivulet_p4rt::proto::p4::config::v1::Preamble>| {
        let p = preamble.as_mut().unwrap();
        (p.id, p.name) = (p.id + 0x8000, format!("{}_unreached", p.name));
        p.id
    };
    let mut table = info.tables[0].clone();
    let table_id = renamed(&mut table.preamble);
    let mut counter = info.counters[0].clone();
    let counter_id = renamed(&mut counter.preamble);
    let mut register = info.registers[0].clone();
    let register_id = renamed(&mut register.preamble);
    let mut direct = info.direct_counters[0].clone();
    renamed(&mut direct.preamble);
    direct.direct_table_id = table_id;
    info.tables.push(table);
    info.counters.push(counter);
    info.registers.push(register);
    info.direct_counters.push(direct);
    let p4info = larger.p4info.clone();
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(larger)).await.unwrap();
    assert_eq!(get(&mut c, ResponseType::P4infoAndCookie).await.unwrap().p4info, p4info);
    let entry = p4::TableEntry { table_id, ..bench.info.l2(1, 2) };
    let refused = c.send(c.request(vec![update(Type::Insert, entry.clone())])).await.unwrap_err();
    assert_eq!(codes(&refused), [Code::NotFound]);
    assert_eq!(c.read(entry).await, Err(Code::NotFound));
    let counter = p4::CounterEntry { counter_id, index: None, data: None };
    assert_eq!(c.read(counter).await, Err(Code::NotFound));
    let register = p4::RegisterEntry { register_id, index: None, data: None };
    assert_eq!(c.read(register).await, Err(Code::NotFound));
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    assert!(!c.read(p4::TableEntry::default()).await.unwrap().is_empty(), "a wildcard passes over it");
}

/// The same program: all state is kept, counters included.
#[tokio::test(flavor = "multi_thread")]
async fn reconcile_of_the_same_program_keeps_everything() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.route(&[10, 0, 0, 0], 8, 2)).await.unwrap();
    let packet = ipv4([1, 1, 1, 1], [10, 1, 1, 1], 64);
    assert_eq!(bench.machine.packet(1, &packet), [(2, packet.clone())]);
    c.set_pipeline(PipelineAction::ReconcileAndCommit, Some(cookie(5))).await.unwrap();
    assert_eq!(bench.machine.packet(1, &packet), [(2, packet.clone())]);
    let request =
        p4::TableEntry { counter_data: Some(Default::default()), ..bench.info.key("routes", vec![]) };
    let counted = c.read(request).await.unwrap().remove(0).counter_data.unwrap();
    assert_eq!(counted.packet_count, 2);
    assert_eq!(get(&mut c, ResponseType::CookieOnly).await.unwrap().cookie.unwrap().cookie, 5);
}

/// Another program with the same objects: all state is transferred.
#[tokio::test(flavor = "multi_thread")]
async fn reconcile_with_another_program_transfers_state() {
    let (bench, mut c) = Bench::new().await;
    let info = &bench.info;
    c.insert(info.route(&[10, 0, 0, 0], 8, 2)).await.unwrap();
    c.modify(p4::TableEntry {
        is_default_action: true,
        ..info.entry("keyless", vec![], "set_class", &[&[3]])
    })
    .await
    .unwrap();
    let data = Some(p4::P4Data { data: Some(p4::p4_data::Data::Bitstring(vec![9])) });
    let index = Some(p4::Index { index: 3 });
    let register = p4::RegisterEntry { register_id: info.id("stamps"), index, data };
    c.modify(register.clone()).await.unwrap();
    let replicas = vec![p4::Replica {
        port_kind: Some(p4::replica::PortKind::Port(vec![2])),
        instance: 1,
        ..p4::Replica::default()
    }];
    let group = p4::MulticastGroupEntry { multicast_group_id: 4, replicas, metadata: b"m".to_vec() };
    let kind = p4::packet_replication_engine_entry::Type::MulticastGroupEntry(group);
    let group = p4::PacketReplicationEngineEntry { r#type: Some(kind) };
    c.insert(group.clone()).await.unwrap();
    let packet = ipv4([1, 1, 1, 1], [10, 1, 1, 1], 64);
    bench.machine.packet(1, &packet);
    let before: Vec<_> = c.read_all(everything()).await.0;
    // With one more byte it counts as another program.
    let other = p4::ForwardingPipelineConfig { p4_device_config: [JSON, b"\n"].concat(), ..config() };
    c.set_pipeline(PipelineAction::ReconcileAndCommit, Some(other)).await.unwrap();
    assert_eq!(c.read_all(everything()).await.0, before);
    assert_eq!(bench.machine.packet(1, &packet), [(2, packet.clone())]);
    assert_eq!(c.read(register.clone()).await.unwrap(), [register]);
    assert_eq!(c.read(group.clone()).await.unwrap(), [group]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reconcile_refuses_to_lose_state() {
    let (bench, mut c) = Bench::new().await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
    let mut smaller = altered("\"MainIngress.l2\"", "\"MainIngress.other\"");
    let info = smaller.p4info.as_mut().unwrap();
    info.tables.retain(|t| t.preamble.as_ref().is_none_or(|p| p.alias != "l2"));
    let refused = c.set_pipeline(PipelineAction::ReconcileAndCommit, Some(smaller)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("cannot be preserved"), "{}", refused.message());
    assert_eq!(bench.machine.packet(1, &frame(1, 1)), [(2, frame(1, 1))]);
}

/// Reads of all state, in a fixed order.
pub fn everything() -> Vec<p4::entity::Entity> {
    let with_resources = p4::TableEntry {
        counter_data: Some(Default::default()),
        meter_config: Some(Default::default()),
        ..Default::default()
    };
    vec![
        p4::ActionProfileMember::default().wrap(),
        p4::ActionProfileGroup::default().wrap(),
        with_resources.wrap(),
        p4::TableEntry { is_default_action: true, ..Default::default() }.wrap(),
        p4::CounterEntry::default().wrap(),
        p4::MeterEntry::default().wrap(),
        p4::RegisterEntry::default().wrap(),
        p4::ValueSetEntry::default().wrap(),
        p4::PacketReplicationEngineEntry::default().wrap(),
        p4::DigestEntry::default().wrap(),
        p4::ExternEntry::default().wrap(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_stops_with_streams_open() {
    let (bench, mut c) = Bench::new().await;
    bench.stop().await;
    assert!(c.receive().await.is_err());
}
