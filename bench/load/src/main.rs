//! The command `rivulet-load`. Clients, time and requests are limited.
//!
//! Clients are threads with blocking connections, like ordinary programs; or, with `--one-thread`, all in one
//! event loop, which costs so little that the server remains the bottleneck.

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use rivulet_load::report::{Outcome, Report, Row};
use rivulet_load::response::read_response;
use rivulet_load::swarm::{self, Swarm};
use rivulet_load::target::{self, Ask};
use rivulet_pktio::IoChoice;

mod window;

use window::Window;

/// Load from clients that fetch one object again and again; prints one line of JSON.
#[derive(Parser)]
#[command(name = "rivulet-load", version)]
struct Options {
    /// URL to fetch: http://ADDRESS:PORT/PATH (an address, not a name), or over DNS dns://ADDRESS:PORT/NAME
    /// (--one-thread).
    url: String,
    /// The transport.
    #[arg(long, value_enum, default_value = "rivulet")]
    transport: Transport,
    /// Parallel clients.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    clients: u32,
    /// Seconds after which no new request begins.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Most requests of each client.
    #[arg(long, default_value_t = u64::MAX)]
    requests: u64,
    /// Requests on one connection; 1 opens a new connection for each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    per_connection: u32,
    /// Seconds without progress after which a kernel TCP client closes its connection.
    #[arg(long, default_value_t = 30.0)]
    timeout: f64,
    /// Requests a second of a Poisson process, as long as some of --clients are free (--one-thread).
    #[arg(long, requires = "one_thread", value_parser = positive)]
    rate: Option<f64>,
    /// End the load when standard input ends (--one-thread).
    #[arg(long, requires = "one_thread", conflicts_with = "hold")]
    until_input_ends: bool,
    /// Compare every answer's body with this file (--one-thread).
    #[arg(long, requires = "one_thread")]
    expect: Option<PathBuf>,
    /// Write a line of CSV for each request: start by the monotonic clock, duration in microseconds, and
    /// failure (--one-thread).
    #[arg(long, requires = "one_thread")]
    log: Option<PathBuf>,
    /// Count bytes as they arrive, from this second on, and end at --seconds with requests in progress
    /// (threads only).
    #[arg(long, conflicts_with = "one_thread")]
    warm: Option<f64>,
    /// All clients in one event loop.
    #[arg(long)]
    one_thread: bool,
    /// Use address tokens of earlier connections (Rivulet, --one-thread).
    #[arg(long, requires = "one_thread")]
    token: bool,
    /// Packet I/O of the one thread: af_packet, af_xdp, auto (Rivulet, --one-thread).
    #[arg(long, default_value_t, requires = "one_thread")]
    io: IoChoice,
    /// Open all clients' connections, fetch once on each, print "open", and hold them until standard input
    /// ends.
    #[arg(long, requires = "one_thread")]
    hold: bool,
    /// With --hold: read about this many bytes of the body, then close the window (plain).
    #[arg(long, requires = "hold")]
    close_at: Option<u64>,
    /// Source addresses, used in rotation; more than 28,000 parallel connections need several (--one-thread).
    #[arg(long, requires = "one_thread")]
    source: Vec<IpAddr>,
}

/// Id of the DNS queries; each connection has one query.
const QUERY: u16 = 0x5256;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// The Rivulet transport.
    Rivulet,
    /// The kernel's TCP.
    Tcp,
    /// Ordinary TCP without a socket for each connection, for paths without loss (--one-thread).
    Plain,
    /// The kernel's TCP with the request in the SYN if there is a cookie (RFC 7413; --one-thread).
    TcpFastopen,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Rivulet => "rivulet",
            Transport::Tcp => "tcp",
            Transport::Plain => "plain",
            Transport::TcpFastopen => "tcp-fastopen",
        }
    }
}

/// A connection of either kind.
trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if options.warm.is_some_and(|warm| !(0.0..options.seconds).contains(&warm))
        || !options.seconds.is_finite()
    {
        bail!("--warm must be at least 0 and below --seconds");
    }
    if options.close_at.is_some() && options.transport != Transport::Plain {
        bail!("--close-at needs --transport plain: others' windows are the kernel's or the stack's");
    }
    let began = Instant::now();
    let outcomes = if options.one_thread {
        if options.per_connection != 1 {
            bail!("--one-thread has one request a connection");
        }
        vec![one_thread(&options)?]
    } else {
        let (server, host, path) = target::parse(&options.url)?;
        if options.clients > 10_000 || matches!(options.transport, Transport::Plain | Transport::TcpFastopen)
        {
            bail!("more than 10,000 clients, plain, and TCP Fast Open need --one-thread");
        }
        threads(&options, server, target::head(&host, &path, options.per_connection == 1))?
    };
    let report = Report::new(options.transport.name(), options.clients, outcomes, began.elapsed());
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn one_thread(options: &Options) -> anyhow::Result<Outcome> {
    let (server, request, ask) = if options.url.starts_with("dns:") {
        let (server, query) = target::query(&options.url, QUERY)?;
        (server, query, Ask::Name { id: QUERY })
    } else {
        let (server, host, path) = target::parse(&options.url)?;
        (server, target::head(&host, &path, !options.hold), Ask::Path)
    };
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("{}", path.display()));
    let expected = options.expect.as_ref().map(read).transpose()?;
    let swarm = Swarm {
        server,
        request,
        clients: options.clients as usize,
        until: Duration::from_secs_f64(options.seconds),
        requests: options.requests.saturating_mul(options.clients.into()),
        timeout: Duration::from_secs_f64(options.timeout),
        token: options.token,
        io: options.io,
        hold: options.hold,
        close_at: options.close_at,
        sources: options.source.clone(),
        rate: options.rate,
        ask,
        expected: expected.map(Into::into),
        log: options.log.is_some(),
    };
    let released = Arc::new(AtomicBool::new(false));
    if options.hold || options.until_input_ends {
        let released = released.clone();
        thread::spawn(move || {
            for _ in io::stdin().lock().lines() {}
            released.store(true, Ordering::Relaxed);
        });
    }
    let held = || {
        let mut out = io::stdout();
        // The parent process waits for the line; if it has ended, standard input is closed too.
        let _ = writeln!(out, "open").and_then(|()| out.flush());
    };
    let outcome = match options.transport {
        Transport::Rivulet => swarm::rivulet::run(&swarm, held, &released),
        Transport::Plain => swarm::plain::run(&swarm, held, &released),
        Transport::Tcp => swarm::tcp::run(&swarm, false, held, &released),
        Transport::TcpFastopen => swarm::tcp::run(&swarm, true, held, &released),
    }?;
    if let (Some(path), Some(rows)) = (&options.log, &outcome.log) {
        write_log(path, rows).with_context(|| format!("{}", path.display()))?;
    }
    Ok(outcome)
}

fn write_log(path: &Path, rows: &[Row]) -> io::Result<()> {
    let mut out = io::BufWriter::new(std::fs::File::create(path)?);
    writeln!(out, "began_us,took_us,problem")?;
    for row in rows {
        writeln!(out, "{},{},{}", row.began_us, row.took_us, row.problem.replace([',', '\n'], ";"))?;
    }
    out.flush()
}

fn positive(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n > 0.0)
        .ok_or_else(|| "want a number above 0".into())
}

/// A thread for each client.
fn threads(options: &Options, server: SocketAddr, request: Vec<u8>) -> anyhow::Result<Vec<Outcome>> {
    let stack = match options.transport {
        Transport::Rivulet => Some(rivulet_client::Stack::start().context("the stack cannot start")?),
        _ => None,
    };
    let stop = AtomicBool::new(false);
    let window = Window::new(options.clients);
    let start = Barrier::new(options.clients as usize + 1);
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..options.clients as usize {
            let (start, request, stop, stack, window) = (&start, &request, &stop, stack.as_ref(), &window);
            let body = move || {
                start.wait();
                client(options, server, request, stop, stack, (window, number))
            };
            let builder = thread::Builder::new().stack_size(256 * 1024);
            threads.push(builder.spawn_scoped(scope, body).context("too many threads")?);
        }
        start.wait();
        if let Some(warm) = options.warm {
            let (outcomes, took) = window.watch(warm, options.seconds);
            let report = Report::new(options.transport.name(), options.clients, outcomes, took);
            println!("{}", serde_json::to_string(&report)?);
            // Threads may wait for long, but requests in progress no longer count.
            std::process::exit(0);
        }
        let began = Instant::now();
        while began.elapsed().as_secs_f64() < options.seconds && threads.iter().any(|t| !t.is_finished()) {
            thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        Ok(threads.into_iter().map(|t| t.join().unwrap_or_default()).collect())
    })
}

fn client(
    options: &Options,
    server: SocketAddr,
    request: &[u8],
    stop: &AtomicBool,
    stack: Option<&rivulet_client::Stack>,
    (window, number): (&Window, usize),
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut left = options.requests;
    let mut buffer = vec![0; 64 * 1024];
    while left > 0 && !stop.load(Ordering::Relaxed) {
        let mut began = Instant::now();
        let mut connection = match connect(server, stack, options.timeout) {
            Ok(connection) => window.count(number, connection),
            Err(error) => {
                let error = error.into();
                window.fail(number, &error);
                outcome.fail(&error);
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
            match fetch(&mut connection, request, &mut buffer) {
                Ok(bytes) => {
                    outcome.answered(began.elapsed(), bytes);
                    began = Instant::now();
                }
                Err(error) => {
                    window.fail(number, &error);
                    outcome.fail(&error);
                    break;
                }
            }
        }
    }
    outcome
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

/// One request; returns the bytes of the body.
fn fetch(connection: &mut dyn Connection, request: &[u8], buffer: &mut [u8]) -> anyhow::Result<u64> {
    connection.write_all(request)?;
    let (status, bytes) = read_response(connection, buffer)?;
    if status != 200 {
        bail!("status {status}");
    }
    Ok(bytes)
}
