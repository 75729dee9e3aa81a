//! Arbitrary messages never crash the server: after each the state can be read, packets pass, and
//! accepted state is read back.

use super::harness::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as Runs, TestRunner};
use prost::Message as _;
use rivulet_p4rt::proto::p4::config::v1 as config;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

/// Messages of each test, so that a run ends within seconds.
const CASES: usize = 600;

/// Identifiers: mostly the given ones, sometimes of another kind, sometimes arbitrary.
fn id_of(known: Vec<u32>) -> impl Strategy<Value = u32> + Clone {
    let info = p4info();
    let mut all = vec![0, 1];
    all.extend(info.tables.iter().filter_map(|x| Some(x.preamble.as_ref()?.id)));
    all.extend(info.actions.iter().filter_map(|x| Some(x.preamble.as_ref()?.id)));
    all.extend(&known);
    prop_oneof![20 => prop::sample::select(known), 2 => prop::sample::select(all), 1 => any::<u32>()]
}

fn ids<T>(list: &[T], preamble: impl Fn(&T) -> &Option<config::Preamble>) -> Vec<u32> {
    list.iter().filter_map(|x| Some(preamble(x).as_ref()?.id)).collect()
}

/// A valid entry, or one with parts replaced.
fn near_entry() -> impl Strategy<Value = p4::TableEntry> + Clone {
    let names = Names::new();
    let right = vec![
        names.l2(1, 2),
        names.l2(2, 3),
        names.route(&[10, 0, 0, 0], 8, 2),
        names.route(&[10, 1, 0, 0], 16, 3),
        names.entry("routes", vec![], "forward_counted", &[&[2], &[3]]),
        p4::TableEntry {
            priority: 5,
            ..names.entry("acl", vec![ternary(1, &[10], &[15]), exact(4, &[1])], "set_class", &[&[7]])
        },
        names.entry("aging", vec![exact(1, &[2, 0, 0, 0, 1, 1])], "learn", &[]),
        p4::TableEntry { is_default_action: true, ..names.entry("keyless", vec![], "set_class", &[&[3]]) },
        names.entry("fixed", vec![exact(1, &[8, 0])], "set_class", &[&[4]]),
    ];
    let edits = (any::<[bool; 8]>(), table_entry());
    (prop::sample::select(right), edits, 0..3).prop_map(|(mut e, (which, other), how_much)| {
        if how_much == 0 {
            return e;
        }
        if which[0] && which[1] {
            e.action = other.action;
        }
        if which[2] && which[3] {
            e.r#match.extend(other.r#match);
        }
        if which[4] {
            e.counter_data = other.counter_data;
        }
        if which[5] {
            e.meter_config = other.meter_config;
        }
        if which[6] && which[7] {
            e.priority = other.priority;
        }
        e.metadata = other.metadata;
        e
    })
}

fn value() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![4 => prop::collection::vec(0u8..4, 0..4), 1 => prop::collection::vec(any::<u8>(), 0..20)]
}

fn small() -> impl Strategy<Value = i32> + Clone {
    prop_oneof![6 => -1..40i32, 1 => any::<i32>()]
}

fn number() -> impl Strategy<Value = i64> + Clone {
    prop_oneof![6 => -1..40i64, 1 => any::<i64>()]
}

fn field_match() -> impl Strategy<Value = p4::FieldMatch> + Clone {
    (0u32..5, 0..6, value(), value(), small()).prop_map(|(field, kind, a, b, n)| match kind {
        0 => exact(field, &a),
        1 => lpm(field, &a, n),
        2 => ternary(field, &a, &b),
        3 => range(field, &a, &b),
        4 => optional(field, &a),
        _ => p4::FieldMatch { field_id: field, field_match_type: None },
    })
}

fn action() -> impl Strategy<Value = p4::Action> + Clone {
    let params = prop::collection::vec((0u32..4, value()), 0..3);
    (id_of(ids(&p4info().actions, |x| &x.preamble)), params).prop_map(|(action_id, params)| p4::Action {
        action_id,
        params: params.into_iter().map(|(param_id, value)| p4::action::Param { param_id, value }).collect(),
    })
}

fn table_action() -> impl Strategy<Value = Option<p4::TableAction>> + Clone {
    use p4::table_action::Type as T;
    let set = prop::collection::vec((action(), small(), prop::option::of(value())), 0..3).prop_map(|all| {
        let one = |(action, weight, port): (p4::Action, i32, Option<Vec<u8>>)| p4::ActionProfileAction {
            action: Some(action),
            weight,
            watch_kind: port.map(p4::action_profile_action::WatchKind::WatchPort),
        };
        let action_profile_actions = all.into_iter().map(one).collect();
        T::ActionProfileActionSet(p4::ActionProfileActionSet { action_profile_actions, ..Default::default() })
    });
    let r#type = prop_oneof![
        4 => action().prop_map(T::Action),
        1 => (0u32..4).prop_map(T::ActionProfileMemberId),
        1 => (0u32..4).prop_map(T::ActionProfileGroupId),
        1 => set,
    ];
    prop::option::of(prop::option::of(r#type).prop_map(|r#type| p4::TableAction { r#type }))
}

fn counter_data() -> impl Strategy<Value = Option<p4::CounterData>> + Clone {
    prop::option::of(
        (number(), number()).prop_map(|(b, p)| p4::CounterData { byte_count: b, packet_count: p }),
    )
}

fn meter_config() -> impl Strategy<Value = Option<p4::MeterConfig>> + Clone {
    let config = (number(), number(), number(), number(), number());
    prop::option::of(config.prop_map(|(cir, cburst, pir, pburst, eburst)| p4::MeterConfig {
        cir,
        cburst,
        pir,
        pburst,
        eburst,
    }))
}

fn table_entry() -> impl Strategy<Value = p4::TableEntry> + Clone {
    let key = (
        id_of(ids(&p4info().tables, |x| &x.preamble)),
        prop::collection::vec(field_match(), 0..4),
        small(),
        any::<bool>(),
    );
    let rest =
        (table_action(), counter_data(), meter_config(), number(), prop::bool::weighted(0.05), value());
    (key, rest).prop_map(
        |((table_id, r#match, priority, default), (action, counter, meter, idle, is_const, metadata))| {
            p4::TableEntry {
                table_id,
                r#match,
                priority,
                is_default_action: default,
                action,
                counter_data: counter.filter(|_| idle % 2 == 0),
                meter_config: meter.filter(|_| idle % 3 == 0),
                idle_timeout_ns: if idle % 5 == 0 { idle } else { 0 },
                is_const,
                metadata,
                ..Default::default()
            }
        },
    )
}

fn index() -> impl Strategy<Value = Option<p4::Index>> + Clone {
    prop::option::of(number().prop_map(|index| p4::Index { index }))
}

fn replicas() -> impl Strategy<Value = Vec<p4::Replica>> + Clone {
    let one = (value(), 0u32..3).prop_map(|(port, instance)| p4::Replica {
        port_kind: Some(p4::replica::PortKind::Port(port)),
        instance,
        ..Default::default()
    });
    prop::collection::vec(one, 0..3)
}

fn data() -> impl Strategy<Value = Option<p4::P4Data>> + Clone {
    use p4::p4_data::Data;
    let leaf = prop_oneof![
        value().prop_map(Data::Bitstring),
        any::<bool>().prop_map(Data::Bool),
        value().prop_map(Data::EnumValue)
    ];
    let nested = leaf.prop_recursive(4, 16, 4, |inner| {
        let member = inner.prop_map(|data| p4::P4Data { data: Some(data) });
        prop::collection::vec(member, 0..4).prop_map(|members| Data::Struct(p4::P4StructLike { members }))
    });
    prop::option::of(prop::option::of(nested).prop_map(|data| p4::P4Data { data }))
}

fn entity() -> impl Strategy<Value = p4::entity::Entity> + Clone {
    use p4::packet_replication_engine_entry::Type as Replication;
    let info = p4info();
    let profile = id_of(ids(&info.action_profiles, |x| &x.preamble));
    let member = (profile.clone(), 0u32..4, prop::option::of(action())).prop_map(|(p, m, action)| {
        p4::ActionProfileMember { action_profile_id: p, member_id: m, action }.wrap()
    });
    let group = (profile, 0u32..4, prop::collection::vec((0u32..4, small()), 0..4), small()).prop_map(
        |(p, g, m, size)| {
            let one = |(member_id, weight)| p4::action_profile_group::Member {
                member_id,
                weight,
                watch_kind: None,
            };
            let members = m.into_iter().map(one).collect();
            p4::ActionProfileGroup { action_profile_id: p, group_id: g, members, max_size: size }.wrap()
        },
    );
    let types = prop::collection::vec(prop::collection::vec(field_match(), 0..3), 0..6)
        .prop_map(|all| all.into_iter().map(|r#match| p4::ValueSetMember { r#match }).collect::<Vec<_>>());
    prop_oneof![
        3 => table_entry().prop_map(Kind::wrap),
        20 => near_entry().prop_map(Kind::wrap),
        2 => member,
        2 => group,
        1 => (id_of(ids(&info.counters, |x| &x.preamble)), index(), counter_data()).prop_map(|(counter_id, index, data)| p4::CounterEntry { counter_id, index, data }.wrap()),
        1 => (id_of(ids(&info.meters, |x| &x.preamble)), index(), meter_config()).prop_map(|(meter_id, index, config)| p4::MeterEntry { meter_id, index, config, counter_data: None }.wrap()),
        1 => (id_of(ids(&info.registers, |x| &x.preamble)), index(), data()).prop_map(|(register_id, index, data)| p4::RegisterEntry { register_id, index, data }.wrap()),
        1 => (prop::option::of(table_entry()), counter_data()).prop_map(|(table_entry, data)| p4::DirectCounterEntry { table_entry, data }.wrap()),
        1 => (prop::option::of(table_entry()), meter_config()).prop_map(|(table_entry, config)| p4::DirectMeterEntry { table_entry, config, counter_data: None }.wrap()),
        1 => (id_of(ids(&info.value_sets, |x| &x.preamble)), types).prop_map(|(value_set_id, members)| p4::ValueSetEntry { value_set_id, members }.wrap()),
        1 => (id_of(ids(&info.digests, |x| &x.preamble)), small(), number()).prop_map(|(digest_id, n, t)| {
            let config = p4::digest_entry::Config { max_list_size: n, max_timeout_ns: t, ack_timeout_ns: t };
            p4::DigestEntry { digest_id, config: Some(config) }.wrap()
        }),
        1 => (small(), replicas()).prop_map(|(n, replicas)| {
            let group = p4::MulticastGroupEntry { multicast_group_id: n as u32, replicas, metadata: vec![] };
            p4::PacketReplicationEngineEntry { r#type: Some(Replication::MulticastGroupEntry(group)) }.wrap()
        }),
        1 => (small(), replicas(), 0u32..9, small()).prop_map(|(n, replicas, class_of_service, packet_length_bytes)| {
            let session = p4::CloneSessionEntry { session_id: n as u32, replicas, class_of_service, packet_length_bytes };
            p4::PacketReplicationEngineEntry { r#type: Some(Replication::CloneSessionEntry(session)) }.wrap()
        }),
    ]
}

fn write() -> impl Strategy<Value = (i32, Vec<(i32, p4::entity::Entity)>)> {
    let atomicity = prop_oneof![4 => Just(0), 1 => 0..4i32];
    let r#type = prop_oneof![8 => 1..4i32, 1 => 0..5i32];
    (atomicity, prop::collection::vec((r#type, entity()), 1..6))
}

/// Checks that the server answers and packets pass.
async fn alive(bench: &Bench, c: &mut Controller) {
    let (_, end) = c.read_all(super::pipeline::everything()).await;
    end.expect("everything can be read");
    bench.machine.packet(1, &ipv4([1, 1, 1, 1], [2, 2, 2, 2], 3));
    bench.machine.packet(2, &frame(1, 1));
}

fn sane(code: Code, message: &str) {
    assert!(![Code::Internal, Code::Unavailable, Code::Cancelled].contains(&code), "{code:?}: {message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_writes_never_crash_the_server() {
    let (bench, mut c) = Bench::new().await;
    let mut runner = TestRunner::new_with_rng(Runs::default(), rng(1));
    let strategy = write();
    let (mut accepted, mut tried) = (0, 0);
    for n in 0..CASES {
        let (atomicity, updates) = strategy.new_tree(&mut runner).unwrap().current();
        let one = |(r#type, entity): (i32, _)| p4::Update {
            r#type,
            entity: Some(p4::Entity { entity: Some(entity) }),
        };
        let updates: Vec<_> = updates.into_iter().map(one).collect();
        tried += updates.len();
        let count = updates.len();
        match c.send(p4::WriteRequest { atomicity, ..c.request(updates) }).await {
            Ok(()) => accepted += count,
            Err(status) if status.details().is_empty() => {
                assert_eq!(status.code(), Code::Unimplemented, "{status:?}")
            }
            Err(status) => {
                let codes = codes(&status);
                assert_eq!(codes.len(), count);
                accepted += codes.iter().filter(|c| **c == Code::Ok).count();
                codes.into_iter().for_each(|code| sane(code, status.message()));
            }
        }
        if n % 20 == 0 {
            alive(&bench, &mut c).await;
        }
    }
    alive(&bench, &mut c).await;
    assert!(
        accepted * 50 > tried,
        "the messages are near enough to right ones: {accepted} of {tried} accepted"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reads_never_crash_the_server() {
    let (bench, mut c) = Bench::new().await;
    let mut runner = TestRunner::new_with_rng(Runs::default(), rng(2));
    for i in 1..20 {
        c.insert(bench.info.l2(i, 2)).await.unwrap();
    }
    let strategy = prop::collection::vec(entity(), 1..4);
    for _ in 0..CASES {
        let requests = strategy.new_tree(&mut runner).unwrap().current();
        if let (_, Err(status)) = c.read_all(requests).await {
            codes(&status).into_iter().for_each(|code| sane(code, status.message()));
        }
    }
    alive(&bench, &mut c).await;
}

/// A configuration with flipped bits and cut fields is refused or accepted, but always answered.
#[tokio::test(flavor = "multi_thread")]
async fn random_pipelines_never_crash_the_server() {
    let (bench, mut c) = Bench::new().await;
    let mut runner = TestRunner::new_with_rng(Runs::default(), rng(3));
    let info = p4info().encode_to_vec();
    let strategy =
        (any::<bool>(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), 1..6i32);
    for _ in 0..CASES / 6 {
        let (in_json, edits, action) = strategy.new_tree(&mut runner).unwrap().current();
        let (mut json, mut info) = (JSON.to_vec(), info.clone());
        let target = if in_json { &mut json } else { &mut info };
        for (at, byte) in edits {
            let at = at.index(target.len());
            target[at] = byte;
        }
        let Ok(p4info) = rivulet_p4rt::proto::p4::config::v1::P4Info::decode(&*info) else { continue };
        let config =
            p4::ForwardingPipelineConfig { p4info: Some(p4info), p4_device_config: json, cookie: None };
        let action = PipelineAction::try_from(action).unwrap();
        if let Err(status) = c.set_pipeline(action, Some(config)).await {
            sane(status.code(), status.message());
        }
        bench.machine.packet(1, &ipv4([1, 1, 1, 1], [2, 2, 2, 2], 3));
    }
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(config())).await.unwrap();
    alive(&bench, &mut c).await;
}

fn rng(seed: u8) -> proptest::test_runner::TestRng {
    proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &[seed; 32])
}
