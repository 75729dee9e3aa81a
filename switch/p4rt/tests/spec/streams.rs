//! Section 16: packets, digests, idle notifications and errors on the stream. The server never
//! waits for a controller.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::harness::*;
use rivulet_p4rt::ServerConfig;
use rivulet_p4rt::proto::p4::v1 as p4;
use rivulet_p4rt::proto::rivulet::switch::v1 as sw;
use rivulet_p4rt::proto::rivulet::switch::v1::switch_client::SwitchClient;
use tonic::Code;

fn packet_out(values: &[&[u8]], payload: &[u8]) -> Outgoing {
    let one = |(value, id): (&&[u8], u32)| p4::PacketMetadata { metadata_id: id, value: value.to_vec() };
    let metadata = values.iter().zip(1..).map(one).collect();
    Outgoing::Packet(p4::PacketOut { payload: payload.to_vec(), metadata })
}

async fn to_cpu(bench: &Bench, c: &mut Controller) {
    let default = bench.info.entry("l2", vec![], "to_cpu", &[&[5]]);
    c.modify(p4::TableEntry { is_default_action: true, ..default }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_come_in_with_their_metadata() {
    let (bench, mut c) = Bench::new().await;
    to_cpu(&bench, &mut c).await;
    assert!(bench.machine.packet(2, &frame(1, 1)).is_empty());
    let Received::Packet(packet) = c.receive().await.unwrap() else { panic!("a packet-in") };
    assert_eq!(packet.payload, frame(1, 1));
    let values: Vec<_> = packet.metadata.iter().map(|m| (m.metadata_id, m.value.clone())).collect();
    assert_eq!(values, [(1, vec![2]), (2, vec![5])], "ingress port and reason, canonical");
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_go_out_with_their_metadata() {
    let (bench, c) = Bench::new().await;
    c.send_message(packet_out(&[&[0, 1, 0x2c], &[0]], &frame(1, 1))).await;
    assert_eq!(bench.machine.sent().await, [(300, frame(1, 1))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_metadata_is_a_stream_error() {
    let (bench, mut c) = Bench::new().await;
    let wrong: [&[&[u8]]; 4] = [&[&[2]], &[&[2, 0], &[0]], &[&[2], &[0], &[0]], &[&[], &[0]]];
    for values in wrong {
        let message = packet_out(values, b"payload");
        c.send_message(message.clone()).await;
        let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
        assert_eq!(error.canonical_code, Code::InvalidArgument as i32, "{error:?}");
        let Some(p4::stream_error::Details::PacketOut(details)) = error.details else { panic!("{error:?}") };
        assert_eq!(details.packet_out.map(Outgoing::Packet), Some(message));
    }
    assert_eq!(bench.server.totals().packet_outs, 0);
    assert_eq!(c.arbitrate(Some(1)).await.0, Code::Ok, "the stream lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_primary_takes_part_in_packet_io() {
    let (bench, mut a) = Bench::new().await;
    to_cpu(&bench, &mut a).await;
    let mut b = bench.controller().await;
    b.arbitrate(None).await;
    b.send_message(packet_out(&[&[2], &[0]], &frame(1, 1))).await;
    let Received::Error(error) = b.receive().await.unwrap() else { panic!("a stream error") };
    assert_eq!(error.canonical_code, Code::PermissionDenied as i32);
    bench.machine.packet(2, &frame(1, 1));
    assert!(matches!(a.receive().await.unwrap(), Received::Packet(_)));
    b.expect_no_message().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_switch_refuses_packets() {
    let (bench, mut c) = Bench::new().await;
    bench.machine.full.store(true, Ordering::Relaxed);
    c.send_message(packet_out(&[&[2], &[0]], &frame(1, 1))).await;
    let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
    assert_eq!(error.canonical_code, Code::ResourceExhausted as i32);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_messages_are_stream_errors() {
    let (_bench, mut c) = Bench::new().await;
    for (message, code) in
        [(Some(Outgoing::Other(Default::default())), Code::Unimplemented), (None, Code::InvalidArgument)]
    {
        c.requests.send(p4::StreamMessageRequest { update: message }).await.unwrap();
        let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
        assert_eq!(error.canonical_code, code as i32);
        assert!(matches!(error.details, Some(p4::stream_error::Details::Other(_))));
    }
}

/// Learns a source MAC in `aging`, by `l2`'s default, or both.
async fn learning(bench: &Bench, c: &mut Controller, config: p4::digest_entry::Config) {
    let entry = p4::DigestEntry { digest_id: bench.info.id("learn_t"), config: Some(config) };
    c.insert(entry).await.unwrap();
    let aging = bench.info.entry("aging", vec![], "learn", &[]);
    c.modify(p4::TableEntry { is_default_action: true, ..aging }).await.unwrap();
}

fn learned(list: &p4::DigestList) -> Vec<u8> {
    use p4::p4_data::Data;
    let one = |d: &p4::P4Data| match d.data.as_ref() {
        Some(Data::Struct(s)) => match (&s.members[0].data, &s.members[1].data) {
            (Some(Data::Bitstring(mac)), Some(Data::Bitstring(port))) => {
                assert_eq!((mac.len(), port.as_slice()), (6, &[2][..]));
                mac[5]
            }
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    list.data.iter().map(one).collect()
}

async fn receive_digest(c: &mut Controller) -> p4::DigestList {
    match c.receive().await.unwrap() {
        Received::Digest(list) => list,
        other => panic!("expected a digest list, received {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn digests_are_gathered_and_sent() {
    let (bench, mut c) = Bench::new().await;
    bench.machine.packet(2, &frame(1, 1));
    let config =
        p4::digest_entry::Config { max_list_size: 3, max_timeout_ns: 1_500_000_000, ack_timeout_ns: 0 };
    learning(&bench, &mut c, config).await;
    for src in [1, 1, 2, 3] {
        bench.machine.packet(2, &frame(1, src));
    }
    let list = receive_digest(&mut c).await;
    assert_eq!(learned(&list), [1, 2, 3], "a full list, equal samples once");
    assert_eq!(list.digest_id, bench.info.id("learn_t"));
    assert!(list.timestamp > 1_600_000_000_000_000_000, "{} is ns since the epoch", list.timestamp);
    let start = Instant::now();
    bench.machine.packet(2, &frame(1, 4));
    let next = receive_digest(&mut c).await;
    assert_eq!(learned(&next), [4], "a list that waited long enough");
    assert!(start.elapsed() >= Duration::from_millis(1490), "{:?}", start.elapsed());
    assert_ne!(next.list_id, list.list_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_digests_are_not_repeated() {
    let (bench, mut c) = Bench::new().await;
    let config =
        p4::digest_entry::Config { max_list_size: 1, max_timeout_ns: 0, ack_timeout_ns: 600_000_000_000 };
    learning(&bench, &mut c, config).await;
    bench.machine.packet(2, &frame(1, 1));
    let list = receive_digest(&mut c).await;
    bench.machine.packet(2, &frame(1, 1));
    c.expect_no_message().await;
    c.send_message(Outgoing::DigestAck(p4::DigestListAck {
        digest_id: list.digest_id,
        list_id: list.list_id,
    }))
    .await;
    // The acknowledgement and the packet use different channels; the answer to arbitration comes
    // after the acknowledgement.
    c.arbitrate(Some(1)).await;
    bench.machine.packet(2, &frame(1, 1));
    assert_eq!(learned(&receive_digest(&mut c).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_digests_time_out() {
    let (bench, mut c) = Bench::new().await;
    let config =
        p4::digest_entry::Config { max_list_size: 1, max_timeout_ns: 0, ack_timeout_ns: 1_500_000_000 };
    learning(&bench, &mut c, config).await;
    bench.machine.packet(2, &frame(1, 1));
    receive_digest(&mut c).await;
    bench.machine.packet(2, &frame(1, 1));
    c.expect_no_message().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    bench.machine.packet(2, &frame(1, 1));
    assert_eq!(learned(&receive_digest(&mut c).await), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_digest_sends_nothing() {
    let (bench, mut c) = Bench::new().await;
    let config = p4::digest_entry::Config { max_list_size: 1, ..Default::default() };
    learning(&bench, &mut c, config).await;
    let digest_id = bench.info.id("learn_t");
    c.delete(p4::DigestEntry { digest_id, config: None }).await.unwrap();
    bench.machine.packet(2, &frame(1, 1));
    c.expect_no_message().await;
    c.send_message(Outgoing::DigestAck(p4::DigestListAck { digest_id: digest_id + 1, list_id: 1 })).await;
    let Received::Error(error) = c.receive().await.unwrap() else { panic!("a stream error") };
    assert_eq!(error.canonical_code, Code::InvalidArgument as i32);
    assert!(matches!(error.details, Some(p4::stream_error::Details::DigestListAck(_))));
}

/// An idle entry is reported with its key, metadata and timeout, and again after another timeout,
/// but not when hit.
#[tokio::test(flavor = "multi_thread")]
async fn idle_entries_are_reported() {
    let (bench, mut c) = Bench::new().await;
    let key = vec![exact(1, &[2, 0, 0, 0, 1, 4])];
    let timeout = Duration::from_millis(1200);
    let entry = p4::TableEntry {
        idle_timeout_ns: timeout.as_nanos() as i64,
        metadata: b"m".to_vec(),
        ..bench.info.entry("aging", key.clone(), "nothing", &[])
    };
    let start = Instant::now();
    c.insert(entry.clone()).await.unwrap();
    assert_eq!(
        c.read(bench.info.key("aging", vec![])).await.unwrap(),
        [entry.clone()],
        "the timeout as written"
    );
    let mut last_hit = start;
    while start.elapsed() < timeout {
        last_hit = Instant::now();
        bench.machine.packet(1, &frame(1, 4));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for n in 1..=2 {
        let Received::IdleTimeoutNotification(traced) = c.receive().await.unwrap() else { panic!("idle") };
        assert!(
            last_hit.elapsed() >= timeout * n - Duration::from_millis(5),
            "{n}: {:?}",
            last_hit.elapsed()
        );
        let keys: Vec<_> = traced
            .table_entry
            .iter()
            .map(|e| (e.table_id, &e.r#match, &e.metadata, e.idle_timeout_ns))
            .collect();
        assert_eq!(keys, [(entry.table_id, &key, &entry.metadata, entry.idle_timeout_ns)]);
        assert!(traced.timestamp > 1_600_000_000_000_000_000);
    }
    c.modify(p4::TableEntry { idle_timeout_ns: 0, ..entry.clone() }).await.unwrap();
    if let Ok(received) = tokio::time::timeout(timeout * 2, c.received.message()).await {
        panic!("a timeout of 0 means none, yet {received:?}");
    }
    assert_eq!(c.modify(p4::TableEntry { idle_timeout_ns: -1, ..entry }).await, Err(Code::InvalidArgument));
}

/// A controller that does not read loses packets; forwarding, writes and other controllers are not
/// affected.
#[tokio::test(flavor = "multi_thread")]
async fn controller_that_does_not_read_slows_no_other() {
    let (bench, mut slow) = Bench::new().await;
    to_cpu(&bench, &mut slow).await;
    let large = [frame(1, 1), vec![0; 9000]].concat();
    let start = Instant::now();
    for _ in 0..20_000 {
        bench.machine.packet(2, &large);
        // It takes a fraction of this without waiting; a wait would last forever.
        assert!(start.elapsed() < 2 * PATIENCE, "20,000 packets took {:?}", start.elapsed());
    }
    tokio::time::timeout(PATIENCE, slow.insert(bench.info.l2(1, 2))).await.expect("a write waits").unwrap();
    let mut b = bench.primary(2).await;
    // After the messages in flight one more may not fit.
    let again = async {
        loop {
            bench.machine.packet(2, &frame(7, 1));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let received = async {
        loop {
            match b.receive().await.unwrap() {
                Received::Packet(p) if p.payload == frame(7, 1) => break,
                Received::Packet(p) => assert_eq!(p.payload, large, "a packet still in flight"),
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::select! {
        () = again => {}
        () = received => {}
    }
    let totals = bench.server.totals();
    assert!(totals.packet_ins_lost > 1000, "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_vanishes_is_no_longer_primary() {
    let (bench, c) = Bench::new().await;
    let mut b = bench.controller().await;
    b.arbitrate(Some(0)).await;
    drop(c);
    assert_eq!(b.receive_arbitration().await, (Code::NotFound, Some(1)));
}

/// A stream without arbitration would be unknown to any arbiter that could end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_arbitration() {
    let patience = Duration::from_millis(200);
    let bench = Bench::with(ServerConfig { patience, ..ServerConfig::default() }).await;
    let mut a = bench.primary(1).await;
    let mut b = bench.controller().await;
    assert_eq!(b.receive().await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(a.arbitrate(Some(2)).await.0, Code::Ok, "a controller with arbitration stays");
}

/// A client of P4Runtime must not be able to operate the machine.
#[tokio::test(flavor = "multi_thread")]
async fn ports_are_not_served_beside_p4runtime() {
    let bench = Bench::empty().await;
    let mut s = SwitchClient::connect(format!("http://{}", bench.address)).await.unwrap();
    let add = sw::AddPortRequest { port: 9, interface: "veth9".to_owned() };
    assert_eq!(s.add_port(add).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(bench.machine.ports.lock().get(&9), None);
    let mut p = P4RuntimeClient::connect(format!("http://{}", bench.control)).await.unwrap();
    let refused = p.capabilities(p4::CapabilitiesRequest { device_id: DEVICE }).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_links_and_traces_are_served() {
    let (bench, _c) = Bench::new().await;
    let mut s = bench.switch_client().await;
    let add = |port, interface: &str| sw::AddPortRequest { port, interface: interface.to_owned() };
    s.add_port(add(9, "veth9")).await.unwrap();
    assert_eq!(s.add_port(add(9, "veth9")).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(s.add_port(add(8, "missing")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(s.add_port(add(8, "")).await.unwrap_err().code(), Code::InvalidArgument);
    let link = sw::Link { rate_bps: 1_000_000, delay_ns: 5, loss: 0.5, ..Default::default() };
    s.set_link(sw::SetLinkRequest { port: 9, link: Some(link) }).await.unwrap();
    let listed = s.list_ports(sw::ListPortsRequest {}).await.unwrap().into_inner().ports;
    assert_eq!(
        listed.iter().map(|p| (p.port, p.up)).collect::<Vec<_>>(),
        [(1, true), (2, true), (3, false), (9, true)]
    );
    assert_eq!(listed[3].link, Some(link));
    for loss in [1.5, -0.1, f64::NAN] {
        let bad = sw::SetLinkRequest { port: 9, link: Some(sw::Link { loss, ..link }) };
        assert_eq!(s.set_link(bad).await.unwrap_err().code(), Code::InvalidArgument, "{loss}");
    }
    s.remove_port(sw::RemovePortRequest { port: 9 }).await.unwrap();
    assert_eq!(s.remove_port(sw::RemovePortRequest { port: 9 }).await.unwrap_err().code(), Code::NotFound);
    let request = sw::TraceRequest { ingress_port: 1, packet: frame(1, 1), dry_run: false };
    let traced = s.trace(request.clone()).await.unwrap().into_inner();
    assert!(traced.text.contains("table MainIngress.l2"), "{}", traced.text);
    assert_eq!(traced.outputs.len(), 1);
    let dry = sw::TraceRequest { dry_run: true, ..request };
    assert_eq!(s.trace(dry).await.unwrap().into_inner().outputs, traced.outputs);
}
