//! Sections 9.3, 9.4, 9.6 and 9.7: indirect counters and meters, registers, value sets.

use super::harness::*;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

const INVALID: Result<(), Code> = Err(Code::InvalidArgument);

fn at(index: i64) -> Option<p4::Index> {
    Some(p4::Index { index })
}

fn data(bytes: i64, packets: i64) -> Option<p4::CounterData> {
    Some(p4::CounterData { byte_count: bytes, packet_count: packets })
}

fn bits(value: &[u8]) -> Option<p4::P4Data> {
    Some(p4::P4Data { data: Some(p4::p4_data::Data::Bitstring(value.to_vec())) })
}

#[tokio::test(flavor = "multi_thread")]
async fn counters() {
    let (bench, mut c) = Bench::new().await;
    let cell = |index, data| p4::CounterEntry { counter_id: bench.info.id("port_counter"), index, data };
    let route = bench.info.entry("routes", vec![], "forward_counted", &[&[2], &[3]]);
    c.insert(route).await.unwrap();
    let packet = ipv4([1, 1, 1, 1], [2, 2, 2, 2], 64);
    bench.machine.packet(1, &packet);
    let counted = data(packet.len() as i64, 1);
    assert_eq!(c.read(cell(at(3), None)).await.unwrap(), [cell(at(3), counted)]);
    c.modify(cell(at(4), data(5, 6))).await.unwrap();
    let all = c.read(cell(None, None)).await.unwrap();
    assert_eq!(all.len(), 16);
    assert_eq!(all[4], cell(at(4), data(5, 6)));
    assert_eq!(c.read(p4::CounterEntry::default()).await.unwrap(), all, "the only counter of the program");
    c.modify(cell(at(4), None)).await.unwrap();
    assert_eq!(c.read(cell(at(4), None)).await.unwrap(), [cell(at(4), data(5, 6))], "no data: not changed");
    c.modify(cell(None, data(1, 1))).await.unwrap();
    assert!(c.read(cell(None, None)).await.unwrap().iter().all(|e| e.data == data(1, 1)), "no index: all");
    assert_eq!(c.insert(cell(at(0), data(1, 1))).await, INVALID);
    assert_eq!(c.delete(cell(at(0), data(1, 1))).await, INVALID);
    assert_eq!(c.modify(cell(at(-1), data(1, 1))).await, INVALID);
    assert_eq!(c.modify(cell(at(16), data(1, 1))).await, Err(Code::OutOfRange));
    assert_eq!(c.read(cell(at(16), None)).await, Err(Code::OutOfRange));
    assert_eq!(c.modify(cell(at(0), data(-1, 1))).await, INVALID);
    assert_eq!(c.read(p4::CounterEntry { counter_id: 1, ..Default::default() }).await, Err(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn meters() {
    let (bench, mut c) = Bench::new().await;
    let cell = |index, config| p4::MeterEntry {
        meter_id: bench.info.id("port_meter"),
        index,
        config,
        counter_data: None,
    };
    let rates = p4::MeterConfig { cir: 1, cburst: 1, pir: 1, pburst: 1, eburst: 0 };
    let config = Some(rates);
    assert_eq!(c.read(cell(at(1), None)).await.unwrap(), [cell(at(1), None)], "unconfigured: green for all");
    c.insert(bench.info.entry("routes", vec![], "forward", &[&[2]])).await.unwrap();
    let packet = ipv4([1, 1, 1, 1], [2, 2, 2, 2], 64);
    assert_eq!(bench.machine.packet(1, &packet).len(), 1);
    c.modify(cell(at(1), config)).await.unwrap();
    assert_eq!(c.read(cell(at(1), None)).await.unwrap(), [cell(at(1), config)]);
    assert!(bench.machine.packet(1, &packet).is_empty(), "red, and the program drops it");
    assert_eq!(c.read(cell(None, None)).await.unwrap().len(), 16);
    c.modify(cell(at(1), None)).await.unwrap();
    assert_eq!(bench.machine.packet(1, &packet).len(), 1, "no config: reset to green");
    c.modify(cell(None, config)).await.unwrap();
    assert!(c.read(p4::MeterEntry::default()).await.unwrap().iter().all(|e| e.config == config));
    assert_eq!(c.insert(cell(at(1), config)).await, INVALID);
    assert_eq!(c.delete(cell(at(1), config)).await, INVALID);
    assert_eq!(c.modify(cell(at(-1), config)).await, INVALID);
    assert_eq!(c.modify(cell(at(16), config)).await, Err(Code::OutOfRange));
    let with = |change: fn(&mut p4::MeterConfig)| {
        let mut config = rates;
        change(&mut config);
        cell(at(1), Some(config))
    };
    assert_eq!(c.modify(with(|m| m.eburst = 1)).await, INVALID, "not for two-rate meters");
    assert_eq!(c.modify(with(|m| m.pir = 0)).await, INVALID, "a peak below the committed rate");
    assert_eq!(c.modify(with(|m| m.cir = -1)).await, INVALID);
    let counted = p4::MeterEntry { counter_data: Some(Default::default()), ..cell(at(1), config) };
    assert_eq!(c.modify(counted).await, Err(Code::Unimplemented));
    assert_eq!(c.read(counted).await, Err(Code::Unimplemented));
}

#[tokio::test(flavor = "multi_thread")]
async fn registers() {
    let (bench, mut c) = Bench::new().await;
    let cell = |index, data| p4::RegisterEntry { register_id: bench.info.id("stamps"), index, data };
    c.modify(cell(at(0), bits(&[0, 0, 41]))).await.unwrap();
    assert_eq!(c.read(cell(at(0), None)).await.unwrap(), [cell(at(0), bits(&[41]))]);
    bench.machine.packet(1, &ipv4([1, 1, 1, 1], [2, 2, 2, 2], 64));
    assert_eq!(c.read(cell(at(0), None)).await.unwrap(), [cell(at(0), bits(&[42]))], "the program adds one");
    assert_eq!(c.read(cell(None, None)).await.unwrap().len(), 8);
    assert_eq!(c.read(p4::RegisterEntry::default()).await.unwrap().len(), 16);
    c.modify(cell(None, bits(&[7]))).await.unwrap();
    assert!(c.read(cell(None, None)).await.unwrap().iter().all(|e| e.data == bits(&[7])));
    assert_eq!(c.modify(cell(at(0), bits(&[1, 0, 0, 0, 0, 0, 0]))).await, Err(Code::OutOfRange));
    assert_eq!(c.modify(cell(at(0), bits(&[]))).await, Err(Code::OutOfRange));
    assert_eq!(c.modify(cell(at(8), bits(&[1]))).await, Err(Code::OutOfRange));
    assert_eq!(c.modify(cell(at(-1), bits(&[1]))).await, INVALID);
    assert_eq!(c.modify(cell(at(0), None)).await, INVALID);
    let boolean = Some(p4::P4Data { data: Some(p4::p4_data::Data::Bool(true)) });
    assert_eq!(c.modify(cell(at(0), boolean)).await, INVALID, "not of its type");
    assert_eq!(c.insert(cell(at(0), bits(&[1]))).await, INVALID);
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_registers() {
    let (bench, mut c) = Bench::new().await;
    let cell = |data| p4::RegisterEntry { register_id: bench.info.id("balances"), index: at(0), data };
    bench.machine.packet(1, &ipv4([1, 1, 1, 1], [2, 2, 2, 2], 64));
    assert_eq!(c.read(cell(None)).await.unwrap(), [cell(bits(&[0xff]))], "0 - 1 in int<16>");
    c.modify(cell(bits(&[0xff, 0xff, 0x9d]))).await.unwrap();
    assert_eq!(c.read(cell(None)).await.unwrap(), [cell(bits(&[0x9d]))]);
    c.modify(cell(bits(&[0x00, 0x9d]))).await.unwrap();
    assert_eq!(
        c.read(cell(None)).await.unwrap(),
        [cell(bits(&[0x00, 0x9d]))],
        "a positive number keeps its zero"
    );
    assert_eq!(c.modify(cell(bits(&[0x00, 0x80, 0x00]))).await, Err(Code::OutOfRange));
}

#[tokio::test(flavor = "multi_thread")]
async fn value_sets() {
    let (bench, mut c) = Bench::new().await;
    let set = |types: &[&[u8]]| {
        let members = types.iter().map(|t| p4::ValueSetMember { r#match: vec![exact(1, t)] }).collect();
        p4::ValueSetEntry { value_set_id: bench.info.id("extra_types"), members }
    };
    assert_eq!(c.read(p4::ValueSetEntry::default()).await.unwrap(), [set(&[])]);
    c.insert(bench.info.entry("routes", vec![], "forward", &[&[2]])).await.unwrap();
    let mut packet = ipv4([1, 1, 1, 1], [2, 2, 2, 2], 64);
    packet[12..14].copy_from_slice(&[0x12, 0x34]);
    assert_ne!(bench.machine.packet(1, &packet)[0].0, 2, "not parsed as IPv4");
    c.modify(set(&[&[0, 0x12, 0x34], &[7]])).await.unwrap();
    assert_eq!(bench.machine.packet(1, &packet)[0].0, 2);
    assert_eq!(c.read(set(&[])).await.unwrap(), [set(&[&[0x12, 0x34], &[7]])]);
    assert_eq!(c.modify(set(&[&[7], &[0, 7]])).await, Err(Code::AlreadyExists), "a member twice");
    assert_eq!(c.modify(set(&[&[1], &[2], &[3], &[4], &[5]])).await, Err(Code::ResourceExhausted));
    assert_eq!(c.modify(set(&[&[1, 0, 0]])).await, Err(Code::OutOfRange));
    assert_eq!(c.insert(set(&[])).await, INVALID);
    assert_eq!(c.delete(set(&[])).await, INVALID);
    c.modify(set(&[])).await.unwrap();
    assert_ne!(bench.machine.packet(1, &packet)[0].0, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn digest_entries() {
    let (bench, mut c) = Bench::new().await;
    let entry = |max_list_size| {
        let config = p4::digest_entry::Config { max_list_size, max_timeout_ns: 5, ack_timeout_ns: 6 };
        p4::DigestEntry { digest_id: bench.info.id("learn_t"), config: Some(config) }
    };
    assert_eq!(c.modify(entry(1)).await, Err(Code::NotFound));
    assert_eq!(c.delete(entry(1)).await, Err(Code::NotFound));
    assert_eq!(c.insert(entry(-1)).await, INVALID);
    c.insert(entry(1)).await.unwrap();
    assert_eq!(c.insert(entry(1)).await, Err(Code::AlreadyExists));
    c.modify(entry(2)).await.unwrap();
    assert_eq!(c.read(p4::DigestEntry::default()).await.unwrap(), [entry(2)]);
    assert_eq!(c.read(entry(0)).await.unwrap(), [entry(2)]);
    c.delete(entry(0)).await.unwrap();
    assert!(c.read(p4::DigestEntry::default()).await.unwrap().is_empty());
    assert_eq!(c.insert(p4::DigestEntry { digest_id: 5, config: None }).await, Err(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn externs_are_unimplemented() {
    let (_bench, mut c) = Bench::new().await;
    let entry = p4::ExternEntry { extern_type_id: 0x81, extern_id: 0x8100_0001, entry: None };
    assert_eq!(c.insert(entry.clone()).await, Err(Code::Unimplemented));
    assert_eq!(c.read(entry).await, Err(Code::Unimplemented));
    assert!(c.read(p4::ExternEntry::default()).await.unwrap().is_empty(), "a wildcard finds none");
}
