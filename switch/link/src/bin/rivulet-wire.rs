//! `rivulet-wire A B --rate 100mbit --delay 5ms`: a program that links two interfaces.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use rivulet_link::control::{ControlServer, request, stats};
use rivulet_link::poll::{realtime, signal_fd};
use rivulet_link::{Settings, Wire, WireOptions};
use rivulet_pktio::{AfPacket, ChecksumPolicy, Config, Interface, PacketIo};

/// A link between two interfaces: rate, delay, loss and more, in both directions.
///
/// An interface is a name, or NETNS:NAME for one in another network namespace (a name of `ip netns` or
/// a path such as /proc/42/ns/net).
#[derive(Parser)]
#[command(
    name = "rivulet-wire",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(flatten)]
    run: Option<Run>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Change settings of a running wire: `set SOCKET [a-to-b|b-to-a] rate=10mbit delay=20ms …`
    Set {
        /// Control socket of the wire
        socket: PathBuf,
        /// Optional direction, then key=value
        #[arg(required = true)]
        settings: Vec<String>,
    },
    /// Print the settings of a running wire.
    Show {
        /// Control socket of the wire
        socket: PathBuf,
    },
    /// Print the counters of a running wire.
    Stats {
        /// Control socket of the wire
        socket: PathBuf,
    },
}

#[derive(Args)]
struct Run {
    /// One end.
    a: Interface,
    /// The other end.
    b: Interface,
    /// Bits a second: 100mbit, 1gbit, unlimited.
    #[arg(long)]
    rate: Option<String>,
    /// One-way delay: 5ms, 250us
    #[arg(long)]
    delay: Option<String>,
    /// Half width of the delay's range: uniform in delay ± jitter
    #[arg(long)]
    jitter: Option<String>,
    /// Probability of loss: 0.01 or 1%
    #[arg(long)]
    loss: Option<String>,
    /// Probability that a packet arrives twice
    #[arg(long)]
    duplicate: Option<String>,
    /// Probability that a packet is delayed behind others
    #[arg(long)]
    reorder: Option<String>,
    /// Extra delay of such a packet (1ms)
    #[arg(long)]
    reorder_by: Option<String>,
    /// Queue length from which ECN-capable packets are marked
    #[arg(long)]
    ecn: Option<String>,
    /// Length of the queue in packets (1000)
    #[arg(long)]
    queue: Option<String>,
    /// Largest number of packets in flight after the queue (65536)
    #[arg(long)]
    flight: Option<String>,
    /// Bytes added to each frame for the rate (0; 24 for Ethernet on copper)
    #[arg(long)]
    overhead: Option<String>,
    /// Settings only for the direction A to B: rate=1gbit,delay=1ms
    #[arg(long, value_name = "KEY=VALUE,…")]
    a_to_b: Option<String>,
    /// Settings only for the direction B to A
    #[arg(long, value_name = "KEY=VALUE,…")]
    b_to_a: Option<String>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Unix socket for `set`, `show` and `stats`
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Print the counters at this interval in seconds
    #[arg(long, value_name = "SECONDS")]
    stats: Option<u64>,
    /// Microseconds for which frames may be gathered under load, to save wake-ups
    #[arg(long, default_value_t = 50)]
    quantum: u32,
    /// Run with real-time priority (SCHED_FIFO)
    #[arg(long)]
    realtime: bool,
}

impl Run {
    /// Settings of a→b and b→a.
    fn settings(&self) -> anyhow::Result<[Settings; 2]> {
        let both = [
            ("rate", &self.rate),
            ("delay", &self.delay),
            ("jitter", &self.jitter),
            ("loss", &self.loss),
            ("duplicate", &self.duplicate),
            ("reorder", &self.reorder),
            ("reorder-by", &self.reorder_by),
            ("ecn", &self.ecn),
            ("queue", &self.queue),
            ("flight", &self.flight),
            ("overhead", &self.overhead),
        ];
        let mut settings = Settings::default();
        for (key, value) in both {
            if let Some(value) = value {
                settings.apply(&format!("{key}={value}"))?;
            }
        }
        let mut directions = [settings.clone(), settings];
        for (settings, own) in directions.iter_mut().zip([&self.a_to_b, &self.b_to_a]) {
            if let Some(text) = own {
                settings.apply_all(text)?;
            }
        }
        Ok(directions)
    }
}

fn run(args: &Run) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let stop = signal_fd(&[libc::SIGINT, libc::SIGTERM])?;
    let open = |interface: &Interface| -> anyhow::Result<Box<dyn PacketIo>> {
        let config = Config { checksum: ChecksumPolicy::Report, ..Config::default() };
        Ok(Box::new(AfPacket::open(interface, config)?))
    };
    let mut control = match &args.control {
        Some(path) => {
            Some(ControlServer::bind(path).with_context(|| format!("control socket {}", path.display()))?)
        }
        None => None,
    };
    let options =
        WireOptions { seed: args.seed, quantum: u64::from(args.quantum) * 1000, ..WireOptions::default() };
    let mut wire = Wire::new([open(&args.a)?, open(&args.b)?], settings, options)?;
    if args.realtime {
        realtime().context("SCHED_FIFO")?;
    }
    println!("rivulet-wire: {} <-> {}", args.a, args.b);
    let _ = std::io::stdout().flush();
    let mut seconds = 0;
    wire.run(stop.as_fd(), control.as_mut(), |wire| {
        seconds += 1;
        if args.stats.is_some_and(|every| every > 0 && seconds % every == 0) {
            print!("{}", stats(wire));
            let _ = std::io::stdout().flush();
        }
    })?;
    print!("{}", stats(&mut wire));
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let reply = match (cli.command, cli.run) {
        (Some(Command::Set { socket, settings }), _) => {
            request(&socket, &format!("set {}", settings.join(" ")))?
        }
        (Some(Command::Show { socket }), _) => request(&socket, "show")?,
        (Some(Command::Stats { socket }), _) => request(&socket, "stats")?,
        (None, Some(args)) => return run(&args),
        (None, None) => bail!("two interfaces are needed"),
    };
    print!("{reply}");
    Ok(())
}
