//! HTTP load for the benches: clients that fetch one object again and again, over Rivulet or kernel TCP by the
//! same code, and say as JSON what happened.
//!
//! Bounded by construction: a number of clients, a time, and at most so many requests each.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use serde::Serialize;

mod response;

use response::read_response;

/// Load from clients that fetch one object again and again; prints one line of JSON.
#[derive(Parser)]
#[command(name = "rivulet-load", version)]
struct Options {
    /// What to fetch: http://ADDRESS:PORT/PATH (an address, not a name).
    url: String,
    /// The transport.
    #[arg(long, value_enum, default_value = "rivulet")]
    transport: Transport,
    /// Clients at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Seconds after which no new request begins.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Requests of each client at most.
    #[arg(long, default_value_t = u64::MAX)]
    requests: u64,
    /// Requests on one connection; 1 opens a new connection for each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    per_connection: u32,
    /// Seconds without progress after which a kernel TCP client gives up.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// The Rivulet transport, by the client library.
    Rivulet,
    /// The kernel's TCP.
    Tcp,
}

/// What one client saw.
#[derive(Default)]
struct Outcome {
    latencies_us: Vec<u32>,
    bytes: u64,
    errors: u64,
    first_error: Option<String>,
}

/// The line that is printed.
#[derive(Serialize)]
struct Report {
    transport: &'static str,
    clients: u32,
    seconds: f64,
    requests: u64,
    errors: u64,
    first_error: Option<String>,
    bytes: u64,
    mbps: f64,
    requests_per_second: f64,
    latency_us: Percentiles,
    /// Bytes of each client, for Jain's index.
    shares: Vec<u64>,
}

#[derive(Serialize, Default)]
struct Percentiles {
    p50: u32,
    p90: u32,
    p99: u32,
    max: u32,
}

/// A connection of either kind.
trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

fn main() -> anyhow::Result<()> {
    let options = Arc::new(Options::parse());
    let (server, host, path) = target(&options.url)?;
    let stack = match options.transport {
        Transport::Rivulet => Some(rivulet_client::Stack::start().context("the stack cannot start")?),
        Transport::Tcp => None,
    };
    let request = Arc::new(head(&host, &path, options.per_connection));
    let stop = Arc::new(AtomicBool::new(false));
    let start = Arc::new(Barrier::new(options.clients as usize + 1));
    let mut threads = Vec::new();
    for _ in 0..options.clients {
        let (options, request, stop, start, stack) =
            (options.clone(), request.clone(), stop.clone(), start.clone(), stack.clone());
        let body = move || {
            start.wait();
            client(&options, server, &request, &stop, stack.as_ref())
        };
        threads.push(thread::Builder::new().stack_size(256 * 1024).spawn(body).context("too many threads")?);
    }
    start.wait();
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < options.seconds && threads.iter().any(|t| !t.is_finished()) {
        thread::sleep(Duration::from_millis(5));
    }
    stop.store(true, Ordering::Relaxed);
    let outcomes: Vec<Outcome> = threads.into_iter().map(|t| t.join().unwrap_or_default()).collect();
    println!("{}", serde_json::to_string(&report(&options, outcomes, began.elapsed()))?);
    Ok(())
}

/// Server, Host field and path of a URL that names an address.
fn target(url: &str) -> anyhow::Result<(SocketAddr, String, String)> {
    let rest = url.strip_prefix("http://").context("only http:// URLs")?;
    let (host, path) = rest.split_once('/').map_or((rest, "/".to_owned()), |(h, p)| (h, format!("/{p}")));
    let with_port = if host.rsplit(']').next().is_some_and(|tail| tail.contains(':')) && !host.ends_with(']')
    {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let server = with_port.parse().with_context(|| format!("{with_port} is not ADDRESS:PORT"))?;
    Ok((server, host.to_owned(), path))
}

fn head(host: &str, path: &str, per_connection: u32) -> Vec<u8> {
    let close = if per_connection == 1 { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").into_bytes()
}

fn client(
    options: &Options,
    server: SocketAddr,
    request: &[u8],
    stop: &AtomicBool,
    stack: Option<&rivulet_client::Stack>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut left = options.requests;
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let mut began = Instant::now();
        let mut connection = match connect(server, stack, options.timeout) {
            Ok(connection) => connection,
            Err(error) => {
                outcome.fail(&error.into());
                left -= 1;
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        for _ in 0..options.per_connection {
            if left == 0 || stop.load(Ordering::Relaxed) {
                break;
            }
            left -= 1;
            match fetch(connection.as_mut(), request, &mut buffer) {
                Ok(bytes) => {
                    outcome.bytes += bytes;
                    outcome.latencies_us.push(began.elapsed().as_micros().try_into().unwrap_or(u32::MAX));
                    began = Instant::now();
                }
                Err(error) => {
                    outcome.fail(&error);
                    break;
                }
            }
        }
    }
    outcome
}

impl Outcome {
    fn fail(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
    }
}

fn connect(
    server: SocketAddr,
    stack: Option<&rivulet_client::Stack>,
    timeout: f64,
) -> io::Result<Box<dyn Connection>> {
    Ok(match stack {
        Some(stack) => Box::new(stack.connect(server).map_err(io::Error::other)?),
        None => {
            let stream = TcpStream::connect_timeout(&server, Duration::from_secs_f64(timeout))?;
            stream.set_read_timeout(Some(Duration::from_secs_f64(timeout)))?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}

/// One request; bytes of the body.
fn fetch(connection: &mut dyn Connection, request: &[u8], buffer: &mut [u8]) -> anyhow::Result<u64> {
    connection.write_all(request)?;
    let (status, bytes) = read_response(connection, buffer)?;
    if status != 200 {
        bail!("status {status}");
    }
    Ok(bytes)
}

fn report(options: &Options, outcomes: Vec<Outcome>, took: Duration) -> Report {
    let shares: Vec<u64> = outcomes.iter().map(|o| o.bytes).collect();
    let errors = outcomes.iter().map(|o| o.errors).sum();
    let first_error = outcomes.iter().find_map(|o| o.first_error.clone());
    let mut latencies: Vec<u32> = outcomes.into_iter().flat_map(|o| o.latencies_us).collect();
    latencies.sort_unstable();
    let seconds = took.as_secs_f64();
    let bytes: u64 = shares.iter().sum();
    let at = |percent: usize| {
        latencies
            .get((latencies.len() * percent / 100).min(latencies.len().saturating_sub(1)))
            .copied()
            .unwrap_or(0)
    };
    Report {
        transport: match options.transport {
            Transport::Rivulet => "rivulet",
            Transport::Tcp => "tcp",
        },
        clients: options.clients,
        seconds,
        requests: latencies.len() as u64,
        errors,
        first_error,
        bytes,
        mbps: bytes as f64 * 8.0 / seconds / 1e6,
        requests_per_second: latencies.len() as f64 / seconds,
        latency_us: Percentiles {
            p50: at(50),
            p90: at(90),
            p99: at(99),
            max: latencies.last().copied().unwrap_or(0),
        },
        shares,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_both_families_with_and_without_port() {
        for (url, server, path) in [
            ("http://10.9.0.1/a/b", "10.9.0.1:80", "/a/b"),
            ("http://10.9.0.1:8080", "10.9.0.1:8080", "/"),
            ("http://[fd00::1]/x", "[fd00::1]:80", "/x"),
            ("http://[fd00::1]:81/x", "[fd00::1]:81", "/x"),
        ] {
            let (got, _, got_path) = target(url).unwrap();
            assert_eq!((got.to_string().as_str(), got_path.as_str()), (server, path));
        }
        assert!(target("https://10.9.0.1/").is_err());
        assert!(target("http://example/").is_err());
    }
}
