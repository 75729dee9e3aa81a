//! The sender: one loop for each style, and the results.

mod alf;
mod buffered;
mod bulk;
mod lane;
mod patience;
mod rate;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use libcm::{Client, daemon};
use serde::Serialize;

use super::args::{SendArgs, Style};
use super::failure::Failure;
use super::outcome::Outcome;
use super::socket::Clock;
use super::tcp;

#[derive(Serialize)]
struct Report<'a> {
    style: Style,
    size: u32,
    count: u64,
    echo: bool,
    seconds: f64,
    /// Processor time of this process, and of the kernel on its behalf.
    cpu_seconds: f64,
    us_a_packet: f64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

pub(super) fn run(args: &SendArgs) -> Result<(), Failure> {
    if args.flows.is_some() && args.style != Style::Bulk {
        return Err(Failure::Flags(anyhow!("--flows is of --style bulk: the other styles have one socket")));
    }
    let (outcome, seconds, cpu_seconds) = if args.style.is_tcp() {
        timed(|| tcp::send(args))?
    } else {
        let mut client = connect(args.daemon.clone())?;
        timed(|| match args.style {
            Style::Buffered => buffered::run(args, &mut client),
            Style::Bulk => bulk::run(args, &mut client),
            Style::Rate => rate::run(args, &mut client),
            _ => alf::run(args, &mut client),
        })?
    };
    let us_a_packet = seconds * 1e6 / outcome.packets.max(1) as f64;
    let report = Report {
        style: args.style,
        size: args.size,
        count: args.count,
        echo: args.echo,
        seconds,
        cpu_seconds,
        us_a_packet,
        outcome: &outcome,
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).context("JSON").map_err(Failure::Local)?);
        return Ok(());
    }
    let Outcome { arrived, lost, packets, .. } = outcome;
    println!(
        "{arrived} of {} arrived, {lost} lost: {packets} packets of up to {} bytes in {seconds:.3} s, {us_a_packet:.2} us each, \
         {cpu_seconds:.3} s of the processor",
        args.count, args.size
    );
    Ok(())
}

/// Runs it; returns the result, its duration and its processor time in seconds.
fn timed(run: impl FnOnce() -> Result<Outcome, Failure>) -> Result<(Outcome, f64, f64), Failure> {
    let (clock, before) = (Clock::start(), processor());
    let outcome = run()?;
    Ok((outcome, clock.now() as f64 / 1e9, processor() - before))
}

fn processor() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn connect(daemon: Option<PathBuf>) -> Result<Client, Failure> {
    let daemon = daemon.or_else(|| std::env::var_os("RIVULET_CM").map(PathBuf::from));
    let daemon = daemon.unwrap_or_else(|| PathBuf::from(daemon::SOCKET));
    let at = daemon.display();
    let why = |e| anyhow!("no Congestion Manager at {at}: is `rivulet cm serve` running? {e}");
    Client::connect(&daemon).map_err(|e| Failure::Daemon(why(e)))
}
