//! The command `rivulet-flood`: attackers of one class, for the benches. Use it only in your own network.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rivulet_load::flood::{Attack, Class, run};

/// Sends packets of one kind of attack to a server; prints one line of JSON with the counts.
#[derive(Parser)]
#[command(name = "rivulet-flood", version)]
struct Options {
    /// The server.
    server: SocketAddr,
    /// Kind of packets.
    #[arg(long, value_enum)]
    class: Class,
    /// The server's key file, with which the packets that an attacker could record from own connections are
    /// made.
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Packets a second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    rate: u32,
    /// Duration in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The attackers' address; ports differ.
    #[arg(long)]
    source: Option<IpAddr>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let attack = Attack {
        server: options.server,
        class: options.class,
        keys: options.keys,
        rate: options.rate,
        length: Duration::from_secs_f64(options.seconds.clamp(0.0, 60.0)),
        source: options.source,
    };
    println!("{}", serde_json::to_string(&run(&attack)?)?);
    Ok(())
}
