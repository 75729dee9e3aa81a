//! The sender: one loop for each style, and the results.

mod alf;
mod buffered;
mod bulk;
mod rate;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow};
use libcm::{Client, FlowId, Status, daemon, path};
use serde::Serialize;

use super::args::{SendArgs, Style};
use super::failure::Failure;
use super::flight::Flight;
use super::socket::{Clock, Socket, TURN, Waiter};
use super::tcp;

/// Time without an answer after which outstanding packets count as lost.
const SILENCE: Duration = Duration::from_secs(1);
/// Consecutive [`SILENCE`]s after which the receiver counts as absent.
const SILENCES: u32 = 5;

/// Result of a run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub arrived: u64,
    pub lost: u64,
    /// Packets that left, and packets that came: of TCP, the kernel's count of segments.
    pub packets: u64,
    pub answers: u64,
    pub calls: Calls,
    /// Rate (bytes a second) and round-trip time (ns) of the flow at the end.
    pub rate: Option<u64>,
    pub rtt: Option<u64>,
    pub proxied: bool,
}

/// Calls that were made, whatever became of them.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Calls {
    pub request: u64,
    pub notify: u64,
    pub update: u64,
    /// Times that the process waited.
    pub wait: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    style: Style,
    size: u32,
    count: u64,
    echo: bool,
    seconds: f64,
    /// Processor time, in this process and in the kernel for it.
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

/// Runs it and returns its duration and its processor time, seconds.
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

/// A socket with its flow.
struct Lane {
    socket: Socket,
    flow: FlowId,
    flight: Flight,
}

impl Lane {
    fn open(args: &SendArgs, client: &mut Client, connected: bool) -> Result<Lane, Failure> {
        let socket = Socket::new(args.to, connected, args.echo, args.size)?;
        let (key, mtu) = path::describe(&socket.udp, args.to)
            .map_err(|e| Failure::of(e, format!("there is no way to {}", args.to)))?;
        fits(args.size, mtu)?;
        let flow = client.open(&key, mtu)?;
        Ok(Lane { socket, flow, flight: Flight::new(args.size) })
    }

    /// The next datagram leaves.
    fn send(&mut self, clock: Clock) -> Result<(), Failure> {
        let number = self.flight.sent();
        self.flight.send(clock.now());
        self.socket.send(number)
    }

    /// Reports the answers to the manager; returns whether there were any.
    fn hear(
        &mut self,
        client: &mut Client,
        clock: Clock,
        patience: &mut Patience,
        calls: &mut Calls,
    ) -> Result<bool, Failure> {
        let mut heard = false;
        for _ in 0..TURN {
            let Some(number) = self.socket.answer()? else { break };
            heard = true;
            patience.reset();
            if let Some(update) = self.flight.answered(number, clock.now()) {
                client.update(self.flow, &update)?;
                calls.update += 1;
            }
        }
        Ok(heard)
    }

    /// Reports that all outstanding packets are lost.
    fn expire(&mut self, client: &mut Client, calls: &mut Calls) -> Result<(), Failure> {
        if let Some(update) = self.flight.expired() {
            client.update(self.flow, &update)?;
            calls.update += 1;
        }
        Ok(())
    }
}

fn fits(size: u32, mtu: u32) -> Result<(), Failure> {
    if size > mtu {
        return Err(Failure::Local(anyhow!(
            "--size {size}: packets to there have up to {mtu} bytes of payload"
        )));
    }
    Ok(())
}

/// Waits for something to happen, and counts how often nothing did.
struct Patience {
    waiter: Waiter,
    silences: u32,
}

impl Patience {
    fn new<'a>(client: &Client, sockets: impl Iterator<Item = &'a Socket>) -> Patience {
        Patience { waiter: Waiter::new(client, sockets.map(|s| &s.udp)), silences: 0 }
    }

    /// Something came.
    fn reset(&mut self) {
        self.silences = 0;
    }

    /// Waits for an event, at most for `time`.
    fn until(&mut self, calls: &mut Calls, time: Duration) -> Result<(), Failure> {
        calls.wait += 1;
        self.waiter.wait(time).map(drop)
    }

    /// False: nothing happened for as long as an answer may take.
    fn wait(&mut self, calls: &mut Calls, args: &SendArgs) -> Result<bool, Failure> {
        calls.wait += 1;
        if self.waiter.wait(SILENCE)? {
            return Ok(true);
        }
        self.silences += 1;
        if self.silences >= SILENCES {
            let seconds = SILENCES * SILENCE.as_secs() as u32;
            return Err(Failure::Receiver(anyhow!("nothing came from {} for {seconds} s", args.to)));
        }
        Ok(false)
    }
}

/// The result of a run over these flows.
fn outcome<'a>(
    client: &mut Client,
    flow: FlowId,
    flights: impl Iterator<Item = &'a Flight>,
    calls: Calls,
) -> Result<Outcome, Failure> {
    let status: Option<Status> = client.query(flow)?;
    let (mut arrived, mut lost, mut packets) = (0, 0, 0);
    for flight in flights {
        arrived += flight.arrived;
        lost += flight.lost;
        packets += flight.sent();
    }
    let (rate, rtt) = (status.map(|s| s.rate), status.map(|s| s.rtt));
    Ok(Outcome { arrived, lost, packets, answers: arrived, calls, rate, rtt, proxied: client.proxied() })
}
