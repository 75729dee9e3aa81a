//! Sections 8.4.6 and 18.1: types that controllers know in another form than the data plane.

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
