//! `rivulet-cm-apps`: layered streams and audio that adapt through the Congestion Manager.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use libcm::Client;
use rivulet_cm_apps::audio::Drop;
use rivulet_cm_apps::journal::Journal;
use rivulet_cm_apps::layers::{Clock, Layers};
use rivulet_cm_apps::receive::{self, Stream};
use rivulet_cm_apps::server::{Content, Options, PATIENCE, Server};
use rivulet_cm_apps::wire::Feedback;

/// Applications of the Congestion Manager: servers whose streams adapt to the network, and their receiver.
///
/// Servers need `rivulet cm serve` on their host but no privileges; the receiver needs neither.
#[derive(Parser)]
#[command(name = "rivulet-cm-apps", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Streams layers: the same content at several rates; each receiver gets the rate that fits
    Layers(LayersArgs),
    /// Relays the datagrams of an audio source, such as ffmpeg's RTP, through a policer and a
    /// buffer
    Audio(AudioArgs),
    /// Receives a stream, acknowledges it, and prints what arrived
    Receive(ReceiveArgs),
}

#[derive(Args)]
struct ServeArgs {
    /// Address to serve at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:7400")]
    listen: SocketAddr,

    /// Socket of `rivulet cm serve`
    #[arg(long, value_name = "PATH", default_value = libcm::daemon::SOCKET)]
    cm: PathBuf,

    /// Bytes of the largest datagrams, if the path allows them
    #[arg(long = "octets", value_name = "COUNT", default_value_t = 1400, value_parser = clap::value_parser!(u32).range(64..=65_507))]
    bytes: u32,

    /// Largest number of receivers at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    receivers: usize,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args)]
struct CommonArgs {
    /// File for the JSON lines of events [default: standard output]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,

    /// Seconds after which the program ends [default: on SIGINT or SIGTERM]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// Sends packets as fast as they are granted, each of the layer that fits at that moment
    Request,
    /// Sends packets by the server's clock at the layer's rate; the layer changes on the manager's
    /// callbacks
    Rate,
}

#[derive(Args)]
struct LayersArgs {
    /// How the stream adapts
    #[arg(long, value_enum, default_value = "request")]
    by: By,

    /// Rates of the layers in bits a second, rising
    #[arg(long, value_name = "RATE,...", default_value = "250k,500k,1M,2M")]
    rates: Layers,

    /// Rate callback: milliseconds of content sent at a time
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    period: u64,

    /// Rate callback: call when the rate is at most this times the last reported one
    #[arg(long, value_name = "FACTOR", default_value_t = Clock::default().down)]
    down: f64,

    /// Rate callback: call when the rate is at least this times the last reported one
    #[arg(long, value_name = "FACTOR", default_value_t = Clock::default().up)]
    up: f64,

    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Args)]
struct AudioArgs {
    /// Address to which the source sends
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5004")]
    input: SocketAddr,

    /// Size of the buffer in datagrams
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    buffer: u16,

    /// Which datagram a full buffer drops
    #[arg(long, value_enum, default_value = "head")]
    drop: Drop,

    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Args)]
struct ReceiveArgs {
    /// The server
    from: SocketAddr,

    /// Packets that one report acknowledges
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    every: u16,

    /// Milliseconds after which a report acknowledges fewer packets
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u16,

    /// Address for the content: a player, such as ffplay
    #[arg(long, value_name = "ADDRESS:PORT")]
    forward: Option<SocketAddr>,

    #[command(flatten)]
    common: CommonArgs,
}

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: libc::c_int) {
    STOP.store(true, Ordering::Release);
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // SAFETY: the handler only stores to an atomic.
    unsafe {
        let handler = on_signal as extern "C" fn(libc::c_int) as usize;
        libc::signal(libc::SIGTERM, handler);
        libc::signal(libc::SIGINT, handler);
    }
    let result = match cli.command {
        Command::Layers(args) => layers(args),
        Command::Audio(args) => audio(args),
        Command::Receive(args) => receive(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rivulet-cm-apps: {e:#}");
            ExitCode::FAILURE
        }
    }
}

impl CommonArgs {
    fn journal(&self) -> anyhow::Result<Journal> {
        let to: Box<dyn Write + Send> = match &self.journal {
            Some(path) => {
                Box::new(File::create(path).with_context(|| format!("cannot make {}", path.display()))?)
            }
            None => Box::new(io::stdout()),
        };
        Ok(Journal::new(to))
    }

    fn ends(&self) -> impl FnMut() -> bool + use<> {
        let end = self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        move || STOP.load(Ordering::Acquire) || end.is_some_and(|end| Instant::now() >= end)
    }
}

fn layers(args: LayersArgs) -> anyhow::Result<()> {
    let (down, up) = (args.down, args.up);
    anyhow::ensure!((0.0..=1.0).contains(&down), "--down: {down} is not from 0 to 1");
    anyhow::ensure!(up >= 1.0, "--up: {up} is less than 1");
    let clock = Clock { period: args.period * 1_000_000, down, up };
    let content = match args.by {
        By::Request => Content::Alf(args.rates),
        By::Rate => Content::Clocked(args.rates, clock),
    };
    serve(&args.serve, content)
}

fn audio(args: AudioArgs) -> anyhow::Result<()> {
    let input =
        UdpSocket::bind(args.input).with_context(|| format!("cannot listen at {} (--input)", args.input))?;
    serve(&args.serve, Content::Audio { input, buffer: args.buffer.into(), drop: args.drop })
}

fn serve(args: &ServeArgs, content: Content) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(args.listen).with_context(|| format!("cannot listen at {}", args.listen))?;
    let client = Client::connect(&args.cm).with_context(|| {
        format!("cannot connect to the Congestion Manager at {} (`rivulet cm serve`)", args.cm.display())
    })?;
    let options = Options { bytes: args.bytes, receivers: args.receivers, patience: PATIENCE };
    let journal = args.common.journal()?;
    let mut server = Server::new(socket, client, content, options, journal)?;
    eprintln!("serving at {}", args.listen);
    server.run(args.common.ends())
}

fn receive(args: &ReceiveArgs) -> anyhow::Result<()> {
    let ends = args.common.ends();
    let feedback = Feedback { every: args.every, delay_ms: args.delay };
    let options = receive::Options { from: args.from, feedback, forward: args.forward };
    let mut stream = Stream::new(&options, args.common.journal()?)?;
    anyhow::ensure!(stream.run(ends)?, "nothing arrived from {}", args.from);
    Ok(())
}
