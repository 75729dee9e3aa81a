//! Metrics in Prometheus' text format, over HTTP.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_p4rt::{Port, Ports, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::ports::PortControl;
use crate::worker::WorkerCounters;

/// Largest number of connections; more wait in the kernel.
const CONNECTIONS: usize = 16;
/// Longest request head.
const MAX_REQUEST: usize = 8192;
/// Longest time for one client.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sources of the metrics.
#[derive(Clone)]
pub struct Sources {
    /// The ports.
    pub ports: PortControl,
    /// The engine; `None` for the bare forwarder.
    pub switch: Option<rivulet_engine::Switch>,
    /// The P4Runtime server.
    pub server: Option<Server>,
    /// Counters of the packet loop.
    pub worker: Arc<WorkerCounters>,
}

/// Serves until the runtime ends.
pub async fn serve(listener: TcpListener, sources: Sources) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let sources = sources.clone();
                tokio::spawn(async move {
                    // A client that is too slow or disconnects gets no answer.
                    let _ = tokio::time::timeout(TIMEOUT, answer(stream, sources)).await;
                    drop(permit);
                });
            }
            Err(e) => {
                // Out of descriptors: continue, but do not spin.
                tracing::warn!("metrics: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, sources: Sources) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = stream.read(&mut chunk).await?;
        if n == 0 || head.len() > MAX_REQUEST {
            return Ok(());
        }
        head.extend_from_slice(&chunk[..n]);
    }
    let found = head.starts_with(b"GET /metrics ") || head.starts_with(b"GET / ");
    let (status, body) = if found {
        // Refreshing the counters of the packet path may block.
        let text = tokio::task::spawn_blocking(move || render(&sources)).await.unwrap_or_default();
        ("200 OK", text)
    } else {
        ("404 Not Found", "metrics are at /metrics\n".into())
    };
    let reply = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

/// All metrics.
fn render(sources: &Sources) -> String {
    let mut text = String::new();
    ports(&sources.ports.list_ports(), &mut text);
    let worker = &sources.worker;
    let no_such_port = worker.no_such_port.load(Ordering::Relaxed);
    counter(&mut text, "no_such_port", "Packets for a port that there is none of.", no_such_port);
    if let Some(switch) = &sources.switch {
        // The engine's totals become counters of the same name.
        if let Ok(serde_json::Value::Object(stats)) = serde_json::to_value(switch.stats()) {
            for (name, value) in stats {
                if let Some(value) = value.as_u64() {
                    counter(&mut text, &name, "Total of the packet path.", value);
                }
            }
        }
    }
    if let Some(server) = &sources.server {
        let t = server.totals();
        for (name, help, value) in [
            ("packet_ins", "Packets handed to controllers.", t.packet_ins),
            ("packet_ins_lost", "Packets for controllers that were lost.", t.packet_ins_lost),
            ("packet_outs", "Packets taken from controllers.", t.packet_outs),
            ("packet_outs_lost", "Packets of controllers that were refused.", t.packet_outs_lost),
            ("digest_lists", "Digest lists sent.", t.digest_lists),
            ("updates", "Updates of Write requests that were tried.", t.updates),
            ("batches_failed", "Write requests with an error.", t.batches_failed),
        ] {
            counter(&mut text, name, help, value);
        }
    }
    text
}

fn counter(text: &mut String, name: &str, help: &str, value: u64) {
    let name = format!("rivulet_switch_{name}_total");
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
}

/// Reads one value of a port.
type Reading = fn(&Port) -> u64;

fn ports(ports: &[Port], text: &mut String) {
    let metrics: [(&str, &str, &str, Reading); 7] = [
        ("port_up", "gauge", "Whether the link is up.", |p| u64::from(p.up)),
        ("port_rx_packets_total", "counter", "Packets received.", |p| p.rx_packets),
        ("port_rx_bytes_total", "counter", "Bytes received.", |p| p.rx_bytes),
        ("port_rx_dropped_total", "counter", "Packets lost before the pipeline.", |p| p.rx_dropped),
        ("port_tx_packets_total", "counter", "Packets sent.", |p| p.tx_packets),
        ("port_tx_bytes_total", "counter", "Bytes sent.", |p| p.tx_bytes),
        ("port_tx_dropped_total", "counter", "Packets lost after the pipeline.", |p| p.tx_dropped),
    ];
    for (name, kind, help, reading) in metrics {
        let _ = writeln!(text, "# HELP rivulet_switch_{name} {help}\n# TYPE rivulet_switch_{name} {kind}");
        for p in ports {
            let interface = p.interface.replace('\\', "\\\\").replace('"', "\\\"");
            let labels = format!("port=\"{}\",interface=\"{interface}\"", p.port);
            let _ = writeln!(text, "rivulet_switch_{name}{{{labels}}} {}", reading(p));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_format() {
        let port = Port { port: 1, interface: "ns:e\"0".into(), up: true, rx_packets: 7, ..Port::default() };
        let mut text = String::new();
        ports(&[port], &mut text);
        counter(&mut text, "updates", "Updates.", 3);
        assert!(text.contains("# TYPE rivulet_switch_port_up gauge\nrivulet_switch_port_up{port=\"1\",interface=\"ns:e\\\"0\"} 1\n"));
        assert!(
            text.contains("rivulet_switch_port_rx_packets_total{port=\"1\",interface=\"ns:e\\\"0\"} 7\n")
        );
        assert!(
            text.ends_with("# TYPE rivulet_switch_updates_total counter\nrivulet_switch_updates_total 3\n")
        );
    }
}
