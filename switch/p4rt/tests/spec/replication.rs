//! Section 9.5: multicast groups and clone sessions.

use super::harness::*;
use p4::packet_replication_engine_entry::Type as Kind;
use p4::replica::PortKind;
use rivulet_p4rt::proto::p4::v1 as p4;
use tonic::Code;

const INVALID: Result<(), Code> = Err(Code::InvalidArgument);

fn replica(port: &[u8], instance: u32) -> p4::Replica {
    p4::Replica { port_kind: Some(PortKind::Port(port.to_vec())), instance, ..p4::Replica::default() }
}

fn multicast(id: u32, replicas: Vec<p4::Replica>) -> p4::PacketReplicationEngineEntry {
    let group = p4::MulticastGroupEntry { multicast_group_id: id, replicas, metadata: b"m".to_vec() };
    p4::PacketReplicationEngineEntry { r#type: Some(Kind::MulticastGroupEntry(group)) }
}

fn session(
    session_id: u32,
    replicas: Vec<p4::Replica>,
    class: u32,
    length: i32,
) -> p4::PacketReplicationEngineEntry {
    let session =
        p4::CloneSessionEntry { session_id, replicas, class_of_service: class, packet_length_bytes: length };
    p4::PacketReplicationEngineEntry { r#type: Some(Kind::CloneSessionEntry(session)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn multicast_groups() {
    let (bench, mut c) = Bench::new().await;
    let entry = bench.info.entry("l2", vec![exact(1, &[2, 0, 0, 0, 0, 1])], "replicate", &[&[5]]);
    c.insert(entry).await.unwrap();
    assert!(bench.machine.packet(1, &frame(1, 1)).is_empty(), "the group does not exist");
    let both = multicast(5, vec![replica(&[2], 1), replica(&[3], 2)]);
    c.insert(both.clone()).await.unwrap();
    let mut ports: Vec<u32> = bench.machine.packet(1, &frame(1, 1)).iter().map(|(p, _)| *p).collect();
    ports.sort_unstable();
    assert_eq!(ports, [2, 3]);
    assert_eq!(c.read(multicast(5, vec![])).await.unwrap(), [both.clone()], "metadata too");
    assert_eq!(c.read(multicast(0, vec![])).await.unwrap(), [both.clone()]);
    assert_eq!(c.insert(both.clone()).await, Err(Code::AlreadyExists));
    c.modify(multicast(5, vec![replica(&[2], 1)])).await.unwrap();
    assert_eq!(bench.machine.packet(1, &frame(1, 1)).len(), 1);
    assert_eq!(c.modify(multicast(6, vec![])).await, Err(Code::NotFound));
    assert_eq!(c.delete(multicast(6, vec![])).await, Err(Code::NotFound));
    c.delete(multicast(5, vec![])).await.unwrap();
    assert!(bench.machine.packet(1, &frame(1, 1)).is_empty());
    assert_eq!(c.read(multicast(5, vec![])).await, Err(Code::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_checked() {
    let (_bench, mut c) = Bench::new().await;
    assert_eq!(c.insert(multicast(0, vec![])).await, INVALID);
    assert_eq!(c.insert(multicast(0x1_0000, vec![])).await, INVALID);
    assert_eq!(c.insert(multicast(1, vec![replica(&[2], 0x1_0000)])).await, INVALID);
    assert_eq!(
        c.insert(multicast(1, vec![replica(&[2], 1), replica(&[0, 2], 1)])).await,
        INVALID,
        "one twice"
    );
    assert_eq!(c.insert(multicast(1, vec![replica(&[], 1)])).await, INVALID);
    assert_eq!(c.insert(multicast(1, vec![replica(&[2, 0], 1)])).await, INVALID, "10 bits");
    assert_eq!(c.insert(multicast(1, vec![p4::Replica::default()])).await, INVALID, "no port");
    let backup = p4::BackupReplica { port: vec![3], instance: 1 };
    let with_backup = p4::Replica { backup_replicas: vec![backup], ..replica(&[2], 1) };
    assert_eq!(c.insert(multicast(1, vec![with_backup])).await, Err(Code::Unimplemented));
    assert_eq!(c.insert(p4::PacketReplicationEngineEntry { r#type: None }).await, INVALID);
}

/// A client of release 1.3 writes ports as numbers and must read them as numbers.
#[tokio::test(flavor = "multi_thread")]
#[allow(deprecated)]
async fn ports_are_read_back_as_written() {
    let (_bench, mut c) = Bench::new().await;
    let number =
        p4::Replica { port_kind: Some(PortKind::EgressPort(2)), instance: 1, ..p4::Replica::default() };
    let group = multicast(1, vec![number, replica(&[3], 1)]);
    c.insert(group.clone()).await.unwrap();
    assert_eq!(c.read(multicast(1, vec![])).await.unwrap(), [group]);
    c.insert(multicast(2, vec![replica(&[0, 0, 3], 1)])).await.unwrap();
    assert_eq!(
        c.read(multicast(2, vec![])).await.unwrap(),
        [multicast(2, vec![replica(&[3], 1)])],
        "canonical"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn clone_sessions() {
    let (bench, mut c) = Bench::new().await;
    c.modify(p4::TableEntry { is_default_action: true, ..bench.info.entry("l2", vec![], "drop", &[]) })
        .await
        .unwrap();
    c.insert(bench.info.entry("l2", vec![exact(1, &[2, 0, 0, 0, 0, 1])], "mirror", &[&[8]])).await.unwrap();
    let ports = |sent: Vec<(u32, Vec<u8>)>| sent.into_iter().map(|(p, f)| (p, f.len())).collect::<Vec<_>>();
    let whole = frame(1, 1).len();
    let before = ports(bench.machine.packet(1, &frame(1, 1)));
    let entry = session(8, vec![replica(&[3], 1)], 2, 20);
    c.insert(entry.clone()).await.unwrap();
    let mut expected = before.clone();
    expected.push((3, 20));
    let mut sent = ports(bench.machine.packet(1, &frame(1, 1)));
    sent.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sent, expected, "a truncated clone besides");
    assert_eq!(c.read(session(0, vec![], 0, 0)).await.unwrap(), [entry.clone()]);
    assert_eq!(c.insert(entry).await, Err(Code::AlreadyExists));
    c.modify(session(8, vec![replica(&[3], 1), replica(&[4], 1)], 0, 0)).await.unwrap();
    let sent = ports(bench.machine.packet(1, &frame(1, 1)));
    assert!(sent.contains(&(3, whole)) && sent.contains(&(4, whole)), "{sent:?}");
    c.delete(session(8, vec![], 0, 0)).await.unwrap();
    assert_eq!(ports(bench.machine.packet(1, &frame(1, 1))), before);
    assert_eq!(c.insert(session(0, vec![], 0, 0)).await, INVALID);
    assert_eq!(c.insert(session(9, vec![], 8, 0)).await, INVALID, "no such class of service");
    assert_eq!(c.insert(session(9, vec![], 0, -1)).await, INVALID);
    assert_eq!(c.insert(session(40_000, vec![], 0, 0)).await, Err(Code::OutOfRange));
    assert_eq!(c.modify(session(9, vec![], 0, 0)).await, Err(Code::NotFound));
    assert_eq!(c.read(session(9, vec![], 0, 0)).await, Err(Code::NotFound));
}
