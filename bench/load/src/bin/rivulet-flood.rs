//! The command `rivulet-flood`: attackers of one class, for the benches. Use it in a network of your own.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use rivulet_load::flood::{Attack, Class, run};

/// Sends packets of one kind of attack to a server; prints one line of JSON with what was sent.
#[derive(Parser)]
#[command(name = "rivulet-flood", version)]
struct Options {
    /// The server.
    server: SocketAddr,
    /// What to send.
    #[arg(long, value_enum)]
    class: Class,
    /// The server's key file: what an attacker could have learned from connections of his own is made with it.
    #[arg(long)]
    keys: Option<PathBuf>,
    /// Packets a second.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    rate: u32,
    /// For how long.
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
