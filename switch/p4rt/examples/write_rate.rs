//! Measures the table writes per second over gRPC while packets are forwarded, and prints JSON:
//! `cargo run --release -p rivulet-p4rt --example write_rate`.
//!
//! Uses one connection on the loopback. A thread forwards packets all the time and counts missing
//! ones, while tables are replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use p4::p4_runtime_client::P4RuntimeClient;
use rivulet_engine::{Switch, SwitchConfig};
use rivulet_p4rt::proto::p4::v1 as p4;
use rivulet_p4rt::{
    Link, Port, PortError, Ports, Server, ServerConfig, TraceReport, packet_in_channel, parse_p4info,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

const JSON: &[u8] = include_bytes!("../tests/programs/everything.json");
const P4INFO: &[u8] = include_bytes!("../tests/programs/everything.p4info.txtpb");
/// Entries of `routes`, which has room for 16,384.
const ENTRIES: u32 = 15_000;

struct NoPorts;

impl Ports for NoPorts {
    fn add_port(&self, _: u32, _: &str) -> Result<(), PortError> {
        Err(PortError::Unsupported(String::new()))
    }
    fn remove_port(&self, _: u32) -> Result<(), PortError> {
        Err(PortError::Unsupported(String::new()))
    }
    fn list_ports(&self) -> Vec<Port> {
        Vec::new()
    }
    fn is_up(&self, _: u32) -> Option<bool> {
        None
    }
    fn set_link(&self, _: u32, _: Option<Link>) -> Result<(), PortError> {
        Err(PortError::Unsupported(String::new()))
    }
    fn trace(&self, _: u32, _: &[u8], _: bool) -> Result<TraceReport, PortError> {
        Err(PortError::Unsupported(String::new()))
    }
    fn packet_out(&self, _: Vec<u8>) -> Result<(), PortError> {
        Err(PortError::Unsupported(String::new()))
    }
}

/// A packet for 10.255.255.1, whose route is not replaced.
fn packet() -> Vec<u8> {
    let mut f =
        vec![2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 1, 9, 0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0];
    f.extend([1, 1, 1, 1, 10, 255, 255, 1]);
    f.extend([0; 20]);
    f
}

fn route(table: u32, action: u32, r#type: p4::update::Type, i: u32, port: u8) -> p4::Update {
    let value = (0x0a00_0000 | i).to_be_bytes().to_vec();
    let lpm = p4::field_match::Lpm { value, prefix_len: 32 };
    let field =
        p4::FieldMatch { field_id: 1, field_match_type: Some(p4::field_match::FieldMatchType::Lpm(lpm)) };
    let params = vec![p4::action::Param { param_id: 1, value: vec![port] }];
    let call = p4::table_action::Type::Action(p4::Action { action_id: action, params });
    let entry = p4::TableEntry {
        table_id: table,
        r#match: vec![field],
        action: Some(p4::TableAction { r#type: Some(call) }),
        ..p4::TableEntry::default()
    };
    let entity = Some(p4::Entity { entity: Some(p4::entity::Entity::TableEntry(entry)) });
    p4::Update { r#type: r#type as i32, entity }
}

fn request(updates: Vec<p4::Update>) -> p4::WriteRequest {
    let election_id = Some(p4::Uint128 { high: 0, low: 1 });
    p4::WriteRequest { election_id, updates, ..p4::WriteRequest::default() }
}

/// Writes updates in batches with `window` requests in flight; returns updates a second.
async fn rate(
    client: &P4RuntimeClient<Channel>,
    updates: Vec<p4::Update>,
    batch: usize,
    window: usize,
) -> f64 {
    let count = updates.len();
    let start = Instant::now();
    let mut chunks = updates.chunks(batch).map(<[_]>::to_vec).collect::<Vec<_>>().into_iter();
    let mut running = tokio::task::JoinSet::new();
    loop {
        while running.len() < window {
            let Some(updates) = chunks.next() else { break };
            let mut client = client.clone();
            running.spawn(async move { client.write(request(updates)).await });
        }
        match running.join_next().await {
            Some(done) => drop(done.expect("no panic").expect("every write is taken")),
            None => break,
        }
    }
    count as f64 / start.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (switch, mut path, events) = Switch::new(SwitchConfig::default());
    let (_packet_in, packet_ins) = packet_in_channel(16);
    let server = Server::new(ServerConfig::default(), switch, Arc::new(NoPorts));
    server.install(P4INFO, JSON.to_vec())?;
    let (stop, sent, lost) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let forwarding = {
        let (stop, sent, lost) = (stop.clone(), sent.clone(), lost.clone());
        std::thread::spawn(move || {
            let (start, packet) = (Instant::now(), packet());
            while !stop.load(Ordering::Relaxed) {
                let mut out = 0;
                let now = start.elapsed().as_micros() as u64;
                path.process(now, 1, &packet, &mut |port: u32, _: &[u8], _: &[u8]| {
                    out += u32::from(port == 3)
                });
                sent.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(u64::from(out != 1), Ordering::Relaxed);
                // Leave the server some time on a machine with two cores.
                std::thread::sleep(Duration::from_micros(1));
            }
        })
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let served = server.clone();
    tokio::spawn(async move {
        served.serve(listener, None, packet_ins, events.digests, std::future::pending()).await
    });
    let mut client = P4RuntimeClient::connect(format!("http://{address}")).await?;
    let (say, said) = tokio::sync::mpsc::channel(4);
    let election_id = Some(p4::Uint128 { high: 0, low: 1 });
    let arbitration = p4::MasterArbitrationUpdate { election_id, ..Default::default() };
    let update = Some(p4::stream_message_request::Update::Arbitration(arbitration));
    say.send(p4::StreamMessageRequest { update }).await?;
    let mut heard = client.stream_channel(ReceiverStream::new(said)).await?.into_inner();
    heard.message().await?;
    let info = parse_p4info(P4INFO)?;
    let id = |name: &str| {
        let tables = info.tables.iter().map(|t| &t.preamble);
        let all = tables.chain(info.actions.iter().map(|a| &a.preamble));
        all.flatten().find(|p| p.alias == name).map_or(0, |p| p.id)
    };
    let (table, action) = (id("routes"), id("forward"));
    use p4::update::Type;
    client.write(request(vec![route(table, action, Type::Insert, 0x00ff_ff01, 3)])).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    sent.store(0, Ordering::Relaxed);
    lost.store(0, Ordering::Relaxed);
    let all = |r#type: Type, port: u8| {
        (0..ENTRIES).map(|i| route(table, action, r#type, i, port)).collect::<Vec<_>>()
    };
    let one_by_one = rate(&client, all(Type::Insert, 1), 1, 1).await;
    let windowed = rate(&client, all(Type::Modify, 2), 1, 16).await;
    let batches = rate(&client, all(Type::Modify, 4), 100, 1).await;
    let deletes = rate(&client, all(Type::Delete, 4), 100, 1).await;
    stop.store(true, Ordering::Relaxed);
    forwarding.join().expect("the packet path ends");
    let result = serde_json::json!({
        "updates": ENTRIES,
        "updates_per_second": {
            "insert, one an RPC, one RPC at a time": one_by_one.round(),
            "modify, one an RPC, 16 RPCs at a time": windowed.round(),
            "modify, 100 an RPC": batches.round(),
            "delete, 100 an RPC": deletes.round(),
        },
        "packets_meanwhile": sent.load(Ordering::Relaxed),
        "packets_lost": lost.load(Ordering::Relaxed),
    });
    println!("{}", serde_json::to_string_pretty(&result)?);
    Ok(())
}
