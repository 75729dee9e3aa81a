//! Limits of a client's cost: reads whose answers the client does not receive, requests that are
//! large, slow or many; and secrets.

use std::time::Duration;

use super::harness::*;
use prost::Message as _;
use rivulet_p4rt::ServerConfig;
use rivulet_p4rt::proto::p4::v1 as p4;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Cells of the registers in [`large`]: about 100 MB as messages.
const CELLS: u32 = 1 << 20;

/// The test program with registers larger than all buffers on the way.
fn large() -> p4::ForwardingPipelineConfig {
    let mut program: serde_json::Value = serde_json::from_slice(JSON).unwrap();
    for register in program["register_arrays"].as_array_mut().unwrap() {
        register["size"] = CELLS.into();
    }
    p4::ForwardingPipelineConfig { p4_device_config: program.to_string().into_bytes(), ..config() }
}

async fn with_large_registers(patience: Duration) -> (Bench, Controller) {
    let bench = Bench::with(ServerConfig { patience, ..ServerConfig::default() }).await;
    let mut c = bench.primary(1).await;
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(large())).await.unwrap();
    (bench, c)
}

/// Starts a read of all registers, and receives its first message.
async fn begun(mut client: P4RuntimeClient<Channel>) -> tonic::Streaming<p4::ReadResponse> {
    let entities = vec![p4::Entity { entity: Some(p4::RegisterEntry::default().wrap()) }];
    let request = p4::ReadRequest { device_id: DEVICE, role: String::new(), entities };
    let mut read = client.read(request).await.unwrap().into_inner();
    assert!(!read.message().await.unwrap().unwrap().entities.is_empty());
    read
}

/// Receives the rest of a read; returns the number of cells and how the read ended.
async fn rest(read: &mut tonic::Streaming<p4::ReadResponse>) -> (usize, Result<(), Status>) {
    let mut cells = 0;
    loop {
        match read.next().await {
            Some(Ok(message)) => {
                assert!(message.encoded_len() <= 300 << 10, "a message of {} bytes", message.encoded_len());
                cells += message.entities.len();
            }
            Some(Err(status)) => return (cells, Err(status)),
            None => return (cells, Ok(())),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_read_is_computed_while_sent() {
    let (bench, mut c) = with_large_registers(PATIENCE).await;
    let mut read = begun(c.client.clone()).await;
    let (cells, end) = rest(&mut read).await;
    end.unwrap();
    assert!(cells > CELLS as usize, "two registers, less the first message: {cells}");
    // Only the first message is taken, so the read is far from its end during the write.
    let mut read = begun(c.client.clone()).await;
    let (register_id, data) = (bench.info.id("stamps"), p4::p4_data::Data::Bitstring(vec![9]));
    let index = Some(p4::Index { index: i64::from(CELLS) - 1 });
    let data = Some(p4::P4Data { data: Some(data) });
    c.modify(p4::RegisterEntry { register_id, index, data }).await.unwrap();
    let (cells, end) = rest(&mut read).await;
    assert_eq!(end.unwrap_err().code(), Code::Aborted);
    assert!(cells < CELLS as usize / 2, "{cells} cells were made before they were taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_time_out() {
    let (bench, mut c) = with_large_registers(Duration::from_millis(300)).await;
    // More reads than permits, on separate connections, because unread data fills a connection.
    let mut reads = Vec::new();
    for _ in 0..10 {
        reads.push(begun(bench.client().await).await);
    }
    // Ended reads return their permits; writes and arbitration need none of them.
    assert_eq!(c.arbitrate(Some(2)).await.0, Code::Ok);
    let (_, end) = rest(&mut reads[0]).await;
    assert_eq!(end.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_bounded_before_they_are_decoded() {
    let (bench, mut c) = Bench::new().await;
    // Two bytes each.
    let many = c.request(vec![p4::Update::default(); 300_000]);
    assert!(many.encoded_len() < 1 << 20);
    assert_eq!(c.send(many).await.unwrap_err().code(), Code::ResourceExhausted);
    let deep = p4::TableEntry { r#match: vec![p4::FieldMatch::default(); 300_000], ..bench.info.l2(1, 2) };
    let refused = c.send(c.request(vec![update(Type::Insert, deep)])).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let long = p4::TableEntry { metadata: vec![0; 2 << 20], ..bench.info.l2(1, 2) };
    let (_, end) = c.read_all(vec![long.wrap()]).await;
    assert_eq!(end.unwrap_err().code(), Code::ResourceExhausted);
    // An overlong message on a stream ends the stream.
    let payload = vec![0; 1 << 20];
    c.send_message(Outgoing::Packet(p4::PacketOut { payload, metadata: Vec::new() })).await;
    assert!(c.receive().await.is_err());
    let mut c = bench.primary(2).await;
    c.insert(bench.info.l2(1, 2)).await.unwrap();
}

/// Incomplete requests use up all permits and return them, and do not block arbitration.
#[tokio::test(flavor = "multi_thread")]
async fn incomplete_request_returns_its_permit() {
    let patience = Duration::from_millis(500);
    let bench = Bench::with(ServerConfig { patience, ..ServerConfig::default() }).await;
    let mut senders = Vec::new();
    let mut answers = Vec::new();
    for _ in 0..20 {
        let (sender, body) = mpsc::channel::<p4::WriteRequest>(1);
        senders.push(sender);
        let channel = Channel::from_shared(format!("http://{}", bench.address)).unwrap();
        let channel = channel.connect().await.unwrap();
        answers.push(tokio::spawn(async move {
            let mut client = tonic::client::Grpc::new(channel);
            client.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<p4::WriteRequest, p4::WriteResponse>::default();
            let path = PathAndQuery::from_static("/p4.v1.P4Runtime/Write");
            client.client_streaming(Request::new(ReceiverStream::new(body)), path, codec).await.map(drop)
        }));
    }
    let mut c = bench.primary(1).await;
    for answer in answers {
        let end = tokio::time::timeout(PATIENCE, answer).await.expect("a place is given back").unwrap();
        assert_eq!(end.unwrap_err().code(), Code::DeadlineExceeded);
    }
    c.set_pipeline(PipelineAction::VerifyAndCommit, Some(config())).await.unwrap();
    drop(senders);
}

/// Parameters annotated `@secret` read as zero, except on the connection of the default role's
/// primary.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_shown_only_to_primary() {
    let bench = Bench::empty().await;
    let mut a = bench.primary(1).await;
    let mut config = config();
    let secret = [bench.info.id("forward"), bench.info.id("set_class")];
    for action in &mut config.p4info.as_mut().unwrap().actions {
        if secret.contains(&action.preamble.as_ref().unwrap().id) {
            action.params[0].annotations.push("@secret".to_owned());
        }
    }
    a.set_pipeline(PipelineAction::VerifyAndCommit, Some(config)).await.unwrap();
    let (shown, hidden) = (bench.info.l2(1, 2), bench.info.l2(1, 0));
    a.insert(shown.clone()).await.unwrap();
    let default = |value: u8| p4::TableEntry {
        is_default_action: true,
        ..bench.info.entry("keyless", vec![], "set_class", &[&[value]])
    };
    a.modify(default(3)).await.unwrap();
    let key = bench.info.key("l2", vec![]);
    let default_key = p4::TableEntry { is_default_action: true, ..bench.info.key("keyless", vec![]) };
    assert_eq!(a.read(default_key.clone()).await.unwrap(), [default(3)]);
    assert_eq!(a.read(key.clone()).await.unwrap(), [shown.clone()]);
    let mut b = bench.controller().await;
    for id in [None, Some(0)] {
        b.arbitrate(id).await;
        assert_eq!(b.read(key.clone()).await.unwrap(), [hidden.clone()]);
        assert_eq!(b.read(default_key.clone()).await.unwrap(), [default(0)]);
    }
    let mut c = bench.controller().await;
    c.role = "mine".to_owned();
    assert_eq!(c.arbitrate(Some(9)).await.0, Code::Ok);
    assert_eq!(c.read(key.clone()).await.unwrap(), [hidden.clone()], "any client can claim another role");
    let mut silent = bench.controller().await;
    assert_eq!(silent.read(p4::TableEntry::default()).await.unwrap()[0], hidden, "a wildcard");
    b.arbitrate(Some(2)).await;
    assert_eq!(b.read(key.clone()).await.unwrap(), [shown]);
    assert_eq!(a.read(key).await.unwrap(), [hidden], "primary no more");
}
