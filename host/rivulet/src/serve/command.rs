//! The serving process: one thread on the packet path, the agent and the kernel's listeners beside it.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context;
use rivulet_agent::{Agent, Status};
use rivulet_pktio::Interface;
use rivulet_server::service::Service;
use rivulet_server::{Config, Server};

use super::address::ServiceAddresses;
use super::args::ServeArgs;
use super::stateless::Files;
use super::{metrics, plain};
use crate::http::{Objects, Site, Uploads};
use crate::process::{incarnation, prefer_this_thread, stop_on_signals, stopped};
use crate::second_chance::SecondChance;

/// Between two looks at what is not on the packet path.
const CHORES: Duration = Duration::from_millis(5);
/// Listeners that could not be opened are tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// A replica that starts takes no share of the requests before its files are hashed, this long at most.
const PREPARING: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    stop_on_signals();
    let services = args.services()?;
    let objects = Objects::open(&args.dir).with_context(|| format!("{}", args.dir.display()))?;
    objects.prepare(&args.dir);
    let uploads = match &args.upload {
        Some(dir) => Some(Uploads::open(dir, args.upload_max).with_context(|| dir.display().to_string())?),
        None => None,
    };
    let site = Site { objects, uploads };
    let mut addresses = ServiceAddresses::default();
    if args.setup_address {
        ensure(&mut addresses, &services)?;
    }
    let incarnation = incarnation();
    let interface = Interface::new(None, &args.interface)?;
    let mut second_chance = SecondChance::new(&interface);
    let mut server = Server::open(&Config { interface, services, incarnation })?;
    server.set_delta(!args.no_delta);
    let mut files = Files::new(site.clone());
    let agent = match (args.controller.controllers()?, &args.name) {
        (Some(controllers), Some(name)) => Some(Agent::start(controllers, name, incarnation, server.mac())?),
        _ => None,
    };
    let mut listeners = Listeners::new(site.clone());
    let mut status = Status::default();
    let metrics = metrics::Shared::default();
    if let Some(address) = args.metrics {
        metrics::listen(address, metrics.clone()).with_context(|| format!("metrics at {address}"))?;
    }
    report(&server);
    listeners.ensure(server.services());
    second_chance.ensure(server.services(), server.mac());
    server.hold_back(true);
    prefer_this_thread();

    let started = Instant::now();
    let mut preparing = true;
    let mut chores = Instant::now();
    while !stopped() {
        server.turn(&mut files, CHORES);
        if chores.elapsed() < CHORES {
            continue;
        }
        chores = Instant::now();
        if preparing {
            preparing = site.objects.is_busy() && started.elapsed() < PREPARING;
            server.hold_back(preparing);
        }
        if let Some(agent) = &agent {
            while let Ok((version, services)) = agent.updates.try_recv() {
                take_up(&mut server, version, services, &mut addresses, args.setup_address, &mut status);
                second_chance.ensure(server.services(), server.mac());
            }
            fill(&server, &mut status);
            agent.set_status(&status);
        }
        if args.metrics.is_some() {
            metrics::take(&mut server, &metrics);
        }
        listeners.ensure(server.services());
    }
    tracing::info!("stopping");
    Ok(())
}

/// Takes an update of the controller up; on an error all is as before.
fn take_up(
    server: &mut Server,
    version: u64,
    services: Vec<Service>,
    addresses: &mut ServiceAddresses,
    setup: bool,
    status: &mut Status,
) {
    let result = if setup { ensure(addresses, &services) } else { Ok(()) };
    match result.and_then(|()| server.replace(services).map_err(Into::into)) {
        Ok(()) => {
            (status.version, status.error) = (version, String::new());
            report(server);
        }
        Err(e) => {
            tracing::error!(version, error = %e, "update not taken up");
            status.error = format!("{e:#}");
        }
    }
}

fn ensure(addresses: &mut ServiceAddresses, services: &[Service]) -> anyhow::Result<()> {
    let all: Vec<_> = services.iter().flat_map(|s| s.addresses.iter().copied()).collect();
    addresses.ensure(&all).context("service addresses")
}

fn report(server: &Server) {
    for service in server.services() {
        let place = service.member.map(|m| format!("{}/{}", m.pool, m.replica));
        let sockets: Vec<String> = service.sockets().map(|s| s.to_string()).collect();
        tracing::info!(service = service.name, addresses = sockets.join(" "), member = place, "serving");
    }
}

fn fill(server: &Server, status: &mut Status) {
    let counters = server.counters();
    status.ready = server.is_ready();
    status.reason =
        if status.ready { String::new() } else { "nothing to serve, or the interface is down".into() };
    status.load = server.load() as u32;
    status.requests = counters.requests;
    status.refused = counters.refused_total();
}

/// The kernel's listening sockets.
struct Listeners {
    site: Site,
    open: HashSet<SocketAddr>,
    failed: HashSet<SocketAddr>,
    tried: Instant,
}

impl Listeners {
    fn new(site: Site) -> Listeners {
        Listeners { site, open: HashSet::new(), failed: HashSet::new(), tried: Instant::now() }
    }

    /// Opens what is missing. A service address may stand on this host later than the service is known.
    fn ensure<'a>(&mut self, services: impl Iterator<Item = &'a Service>) {
        let again = self.tried.elapsed() > RETRY;
        if again {
            self.tried = Instant::now();
        }
        for socket in services.filter(|s| s.plain_tcp).flat_map(Service::sockets) {
            if self.open.contains(&socket) || self.failed.contains(&socket) && !again {
                continue;
            }
            match plain::listen(socket, self.site.clone()) {
                Ok(_) => {
                    self.open.insert(socket);
                    self.failed.remove(&socket);
                }
                Err(e) => {
                    if self.failed.insert(socket) {
                        tracing::warn!(address = %socket, error = %e, "no plain TCP yet");
                    }
                }
            }
        }
    }
}
