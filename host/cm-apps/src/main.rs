//! `rivulet-cm-apps`: layered streams and audio that adapt by the Congestion Manager.

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
/// Servers need `rivulet cm serve` on their host, and no rights; the receiver needs neither.
#[derive(Parser)]
#[command(name = "rivulet-cm-apps", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Streams in layers: the same content at several rates, of which each receiver has the one that fits
    Layers(LayersArgs),
    /// Relays the datagrams of an audio source, such as ffmpeg's RTP: a policer, a buffer, and what is granted leaves
    Audio(AudioArgs),
    /// Receives a stream, acknowledges it, and writes what it saw
    Receive(ReceiveArgs),
}

#[derive(Args)]
struct ServeArgs {
    /// Where receivers ask
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "[::]:7400")]
    listen: SocketAddr,

    /// The door of `rivulet cm serve`
    #[arg(long, value_name = "PATH", default_value = libcm::door::SOCKET)]
    cm: PathBuf,

    /// Octets of the largest datagrams, if the path takes them
    #[arg(long, value_name = "COUNT", default_value_t = 1400, value_parser = clap::value_parser!(u32).range(64..=65_507))]
    octets: u32,

    /// Most receivers at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    receivers: usize,

    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Args)]
struct CommonArgs {
    /// Where JSON lines of what happens go [default: standard output]
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,

    /// Ends after so long [default: by SIGINT or SIGTERM]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u32>,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// Packets leave as fast as they are granted, each of the layer of its moment
    Request,
    /// Packets leave by the server's clock at the layer's rate; the layer changes when the manager calls
    Rate,
}

#[derive(Args)]
struct LayersArgs {
    /// How it adapts
    #[arg(long, value_enum, default_value = "request")]
    by: By,

    /// Rates of the layers in bits a second, rising
    #[arg(long, value_name = "RATE,...", default_value = "250k,500k,1M,2M")]
    rates: Layers,

    /// By rate: content of so many milliseconds leaves at once
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    period: u64,

    /// By rate: the manager calls when the rate is this times what it told last, or less
    #[arg(long, value_name = "FACTOR", default_value_t = Clock::default().down)]
    down: f64,

    /// By rate: or this times, or more
    #[arg(long, value_name = "FACTOR", default_value_t = Clock::default().up)]
    up: f64,

    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Args)]
struct AudioArgs {
    /// Where the source sends
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:5004")]
    input: SocketAddr,

    /// Datagrams in the buffer
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    buffer: u16,

    /// Which one goes when it is full
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

    /// Milliseconds after which it leaves for fewer
    #[arg(long, value_name = "MS", default_value_t = 0)]
    delay: u16,

    /// Where the content goes: a player, such as ffplay
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
        format!("the Congestion Manager lets nobody in at {} (`rivulet cm serve`)", args.cm.display())
    })?;
    let options = Options { octets: args.octets, receivers: args.receivers, patience: PATIENCE };
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
