//! Prometheus metrics (text format 0.0.4) of the serving process.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_pktio::Stats;
use rivulet_server::counters::{ADOPTED, Counters, Unserved};
use rivulet_server::{PoolView, Server};
use rivulet_transport::server::Refusal;

use super::connections::{Connections, Counts};

/// Values for the metrics, a few milliseconds old.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    counters: Counters,
    io: Stats,
    ready: bool,
    load: usize,
    adopted: usize,
    pools: Vec<PoolView>,
    /// Number of open connections of the kernel's TCP, and counts of refused, displaced and late
    /// ones.
    open: usize,
    connections: Counts,
}

/// The values, which each worker of the packet path updates at intervals, and which the metrics
/// page reads.
#[derive(Clone, Debug)]
pub struct Shared(Arc<[Mutex<Snapshot>]>, Connections);

impl Shared {
    /// Creates an entry for each of `workers` workers.
    #[must_use]
    pub(super) fn of(workers: usize, connections: Connections) -> Shared {
        Shared((0..workers.max(1)).map(|_| Mutex::default()).collect(), connections)
    }

    /// Stores a worker's present values.
    pub fn take(&self, worker: usize, server: &mut Server) {
        let io = server.io_stats();
        let snapshot = Snapshot {
            counters: server.counters().clone(),
            io,
            ready: server.is_ready(),
            load: server.load(),
            adopted: server.adopted(),
            pools: server.pools(),
            open: self.1.open(),
            connections: self.1.counts(),
        };
        if let Some(place) = self.0.get(worker) {
            *place.lock() = snapshot;
        }
    }

    /// Sums of all workers' counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.0.iter().for_each(|worker| sum.add(&worker.lock().counters));
        sum
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        self.0.iter().map(|worker| worker.lock().clone()).collect()
    }
}

/// Time limit for the head of a request.
const PATIENCE: Duration = Duration::from_secs(1);

/// Serves the metrics at `address`, on a separate thread.
pub fn listen(address: SocketAddr, shared: Shared) -> io::Result<()> {
    listen_with(address, move || page(&shared.snapshots()))
}

/// Like [`listen`], with the page that `page` makes.
pub(crate) fn listen_with(address: SocketAddr, page: impl Fn() -> String + Send + 'static) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    std::thread::Builder::new().name("metrics".into()).spawn(move || {
        loop {
            // One request at a time, with a short time limit: only a scraper connects.
            match listener.accept() {
                Ok((stream, _)) => {
                    let _ = answer(stream, &page);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    })?;
    Ok(())
}

fn answer(mut stream: std::net::TcpStream, page: &impl Fn() -> String) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    // The request is ignored, because there is one page. But its whole head is read, in any number
    // of segments: unread data at the close would make the kernel reset the connection.
    let (mut head, mut length) = ([0; 4096], 0);
    while !head[..length].ends_with(b"\r\n\r\n") {
        // The time limit is for the whole head, so that a client that sends a byte now and then
        // does not block others for longer.
        let left = end.saturating_duration_since(Instant::now());
        // A timeout of zero would mean no timeout.
        stream.set_read_timeout(Some(left.max(Duration::from_micros(1))))?;
        match stream.read(&mut head[length..]) {
            Ok(0) => return Ok(()),
            Ok(n) => length += n,
            // A socket with a timeout also returns this when the process was frozen or stopped; it
            // is no error of the connection.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let page = page();
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    );
    stream.write_all(answer.as_bytes())
}

/// The metrics page; the first worker has the values of the whole replica.
#[must_use]
pub fn page(workers: &[Snapshot]) -> String {
    let mut s = workers.first().cloned().unwrap_or_default();
    for other in workers.iter().skip(1) {
        s.counters.add(&other.counters);
        s.io = sum(s.io, other.io);
    }
    let frames: Vec<String> = (0..workers.len()).map(|n| format!("{{worker=\"{n}\"}}")).collect();
    let frames: Vec<(&str, u64)> =
        frames.iter().map(String::as_str).zip(workers.iter().map(|w| w.counters.frames)).collect();
    let mut out = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
        // Writing to a String does not fail.
        let _ = writeln!(out, "# HELP rivulet_{name} {help}\n# TYPE rivulet_{name} {kind}");
        for (labels, value) in rows {
            let _ = writeln!(out, "rivulet_{name}{labels} {value}");
        }
    };
    let c = &s.counters;
    metric("frames_total", "counter", "Frames taken.", &[("", c.frames)]);
    metric("worker_frames_total", "counter", "Frames taken, by the worker that took them.", &frames);
    metric("requests_total", "counter", "Requests that the step accepted.", &[("", c.requests)]);
    metric("terminated_total", "counter", "Trickles that it terminated.", &[("", c.terminated)]);
    metric("responses_total", "counter", "Responses handed to the interface.", &[("", c.responses)]);
    metric("heartbeats_total", "counter", "Heartbeats sent.", &[("", c.heartbeats)]);
    let help = "Answers of ToRs to heartbeats.";
    metric("tor_answers_total", "counter", help, &[("", c.answers)]);
    let help = "Answers that were not believed.";
    metric("tor_answers_refused_total", "counter", help, &[("", c.answers_refused)]);
    let labels: Vec<String> = s.pools.iter().map(pool_labels).collect();
    let rows = |value: fn(&PoolView) -> u64| -> Vec<(&str, u64)> {
        labels.iter().map(String::as_str).zip(s.pools.iter().map(value)).collect()
    };
    let help = "Members that the ToR holds for alive, bit r for replica r.";
    metric("pool_alive", "gauge", help, &rows(|p| p.live.alive));
    let help = "And that take plain TCP.";
    metric("pool_plain", "gauge", help, &rows(|p| p.live.plain));
    let help = "1 once the ToR has known the pool for long enough to tell.";
    metric("pool_settled", "gauge", help, &rows(|p| p.live.settled.into()));
    let help = "Age of the ToR's last answer, microseconds.";
    metric("pool_answer_age_us", "gauge", help, &rows(|p| p.age.as_micros() as u64));
    let help = "Switch number and incarnation of the ToR.";
    metric("pool_tor_id", "gauge", help, &rows(|p| p.live.tor_id.into()));
    let help = "Requests in tunnels whose ToR block was not believed.";
    metric("untagged_total", "counter", help, &[("", c.untagged)]);
    let help = "Requests that waited longer than 10 ms, as the interface is slower than what is asked for.";
    metric("late_requests_total", "counter", help, &[("", c.late)]);
    let help = "Routers that found a response too big for its path.";
    metric("path_too_big_total", "counter", help, &[("", c.too_big)]);
    metric("plain_total", "counter", "Segments of plain TCP judged without state.", &[("", c.plain)]);
    let help = "Segments of plain TCP that brought an answer or a part of one.";
    metric("plain_answered_total", "counter", help, &[("", c.plain_answered)]);
    let labels = c.back_end.named().map(|(name, value)| (format!("{{event=\"{name}\"}}"), value));
    let rows: Vec<(&str, u64)> = labels.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let help = "Datagrams to and from the back end, and what became of requests to it.";
    metric("back_end_total", "counter", help, &rows);
    let mut by = |name: &str, label: &str, help: &str, names: &[&str], values: &[u64]| {
        let labels: Vec<String> = names.iter().map(|name| format!("{{{label}=\"{name}\"}}")).collect();
        let rows: Vec<(&str, u64)> = labels.iter().map(String::as_str).zip(values.iter().copied()).collect();
        metric(name, "counter", help, &rows);
    };
    let help = "Plain connections that stateless TCP cannot serve and the kernel's has taken over, by what was asked.";
    by("plain_adopted_total", "cause", help, &ADOPTED, &c.plain_adopted);
    let help = "Plain segments that are nothing for stateless TCP and were refused, by reason.";
    by("plain_refused_total", "reason", help, &Unserved::NAMES, &c.plain_refused);
    by("refused_total", "reason", "Requests refused, by reason.", &Refusal::NAMES, &c.refused);
    let help = "Segments of adopted connections that the kernel's TCP was given.";
    metric("plain_passed_total", "counter", help, &[("", c.plain_passed)]);
    let help = "Segments to other kernels' connections that went back to the ToR.";
    metric("plain_handed_on_total", "counter", help, &[("", c.plain_handed_on)]);
    metric("plain_adopted", "gauge", "Adopted connections that are held.", &[("", s.adopted as u64)]);
    let help = "Connections of the kernel's TCP that are open, adopted ones too.";
    metric("plain_open", "gauge", help, &[("", s.open as u64)]);
    let ended = [
        ("{reason=\"refused\"}", s.connections.refused),
        ("{reason=\"displaced\"}", s.connections.displaced),
        ("{reason=\"late\"}", s.connections.late),
    ];
    let help = "Connections of the kernel's TCP that found no room, gave way to others, or whose client was too slow.";
    metric("plain_ended_total", "counter", help, &ended);
    let drops = [
        ("{reason=\"not_ours\"}", c.not_ours),
        ("{reason=\"damaged\"}", c.damaged),
        ("{reason=\"unsent\"}", c.unsent),
        ("{reason=\"unbuilt\"}", c.unbuilt),
        ("{reason=\"not_passed\"}", c.plain_lost),
        ("{reason=\"receive_queue\"}", s.io.rx_dropped),
        ("{reason=\"transmit_queue\"}", s.io.tx_dropped),
        ("{reason=\"transmit_error\"}", s.io.tx_errors),
    ];
    metric("dropped_total", "counter", "Frames and responses lost on this host, by reason.", &drops);
    metric("received_bytes_total", "counter", "Octets of frames taken.", &[("", s.io.rx_bytes)]);
    metric("sent_bytes_total", "counter", "Octets of frames sent.", &[("", s.io.tx_bytes)]);
    metric("ready", "gauge", "1 while this replica serves.", &[("", u64::from(s.ready))]);
    metric(
        "load",
        "gauge",
        "Requests in the last batch, and open connections of the kernel's TCP.",
        &[("", s.load as u64)],
    );
    out
}

/// Labels of a ToR; the rack's own ToR has no address.
fn pool_labels(view: &PoolView) -> String {
    match view.tor {
        None => format!("{{pool=\"{}\"}}", view.pool),
        Some(tor) => format!("{{pool=\"{}\",tor=\"{tor}\"}}", view.pool),
    }
}

fn sum(a: Stats, b: Stats) -> Stats {
    Stats {
        rx_frames: a.rx_frames + b.rx_frames,
        rx_bytes: a.rx_bytes + b.rx_bytes,
        rx_dropped: a.rx_dropped + b.rx_dropped,
        rx_errors: a.rx_errors + b.rx_errors,
        tx_frames: a.tx_frames + b.tx_frames,
        tx_bytes: a.tx_bytes + b.tx_bytes,
        tx_dropped: a.tx_dropped + b.tx_dropped,
        tx_errors: a.tx_errors + b.tx_errors,
    }
}

#[cfg(test)]
mod tests {
    use rivulet_pktio::testing::under_signals;

    use super::*;

    #[test]
    fn metrics_request_in_pieces_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let stream = listener.accept().unwrap().0;
            under_signals(|| answer(stream, &|| page(&Shared::of(1, Connections::default()).snapshots())))
        });
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        for piece in ["GET /metrics HTTP/1.1\r\n", "Host: x\r\n", "\r\n"] {
            stream.write_all(piece.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with('\n'), "{text}");
        server.join().unwrap().unwrap();
    }

    #[test]
    fn slow_client_of_metrics_is_cut_off() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            answer(listener.accept().unwrap().0, &|| page(&Shared::of(1, Connections::default()).snapshots()))
        });
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        // Often enough that no single read times out.
        let sent = (0..25).take_while(|_| {
            std::thread::sleep(Duration::from_millis(200));
            stream.write_all(b"G").is_ok()
        });
        assert!(sent.count() < 25);
        assert!(server.join().unwrap().is_err());
    }

    #[test]
    fn every_metric_has_help_and_type() {
        let mut snapshot = Snapshot::default();
        snapshot.counters.refuse(&Refusal::Stale);
        snapshot.counters.frames = 5;
        let page = page(&[snapshot.clone(), snapshot]);
        assert!(page.contains("rivulet_refused_total{reason=\"stale\"} 2\n"), "{page}");
        assert!(page.contains("rivulet_frames_total 10\n"), "{page}");
        assert!(page.contains("rivulet_worker_frames_total{worker=\"1\"} 5\n"), "{page}");
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(page.contains(&format!("# TYPE {name} ")), "{line}");
            assert!(line.rsplit(' ').next().unwrap().parse::<u64>().is_ok(), "{line}");
        }
    }
}
