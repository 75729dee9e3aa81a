//! The serving process: the packet path (one thread or several), and beside it the agent and the
//! kernel's listeners.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rivulet_agent::{Agent, PendingUpdate, Status};
use rivulet_pktio::Interface;
use rivulet_plain::Protocol;
use rivulet_server::service::Service;
use rivulet_server::{Config, Server, incarnation};

use super::address::ServiceAddresses;
use super::args::ServeArgs;
use super::connections::Connections;
use super::dns_relay;
use super::listeners::Listeners;
use super::metrics;
use super::plain;
use super::shelf::{SOON, Shelf, Wanted};
use super::stateless::application;
use super::workers::Workers;
use crate::http::{Objects, Site, Uploads};
use crate::process::{STARTING, prefer_this_thread, stop_on_signals, stopped, tell_ready};
use crate::second_chance::SecondChance;

/// Interval of work outside of the packet path.
const CHORES: Duration = Duration::from_millis(5);

/// Limit on the time for which a starting replica gets no requests, because its files are being
/// hashed.
const PREPARING: Duration = Duration::from_secs(30);

/// Serves until SIGTERM or SIGINT.
pub fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    stop_on_signals();
    let services = args.services()?;
    let back_end = args.back_end()?;
    let site = args.dir.as_deref().map(|dir| open(dir, args)).transpose()?;
    let mut addresses = ServiceAddresses::default();
    if args.setup_address {
        ensure(&mut addresses, &services)?;
    }
    let incarnation = incarnation();
    let interface = Interface::new(None, &args.interface)?;
    let mut second_chance = SecondChance::new(&interface);
    let config = Config { interface, services, incarnation, io: args.io };
    let mut servers = Server::open_workers(&config, args.workers.into())?;
    let connections = Connections::default();
    let doorway = match (&site, back_end) {
        (Some(site), _) => Some(plain::doorway(site, connections.clone())),
        (None, Some(back_end)) if back_end.protocol == Protocol::Dns => {
            Some(dns_relay::doorway(back_end.address, connections.clone()))
        }
        // Programs behind `udp://` cannot be reached by TCP.
        _ => None,
    };
    let doorway = doorway.transpose().context("a thread for adopted connections")?;
    for server in &mut servers {
        server.set_delta(!args.no_delta);
        server.set_congestion(args.congestion);
        if let Some(doorway) = &doorway {
            server.set_doorway(doorway.clone());
        }
        server.set_ring(!args.no_ring);
        server.set_large(args.large);
    }
    let marks = args.marks()?;
    let mut shelf =
        args.dir.as_deref().map(|dir| Shelf::new(dir, args.upload.is_some(), args.large, marks.as_ref()));
    if let Some(shelf) = &mut shelf
        && let Some(table) = shelf.await_table(&config.services)?
    {
        servers.iter_mut().for_each(|server| server.set_objects(table.clone()));
    }
    if let Some(back_end) = back_end {
        tracing::info!(address = %back_end.address, back_end.deterministic, "back end of stateless TCP");
        for server in &mut servers {
            server.set_back_end(back_end).with_context(|| format!("back end at {}", back_end.address))?;
        }
    }
    let mut server = servers.remove(0);
    let mut application = application(site.as_ref());
    let agent = match (args.controller.controllers()?, &args.name) {
        (Some(controllers), Some(name)) => Some(Agent::start(controllers, name, incarnation, server.mac())?),
        _ => None,
    };
    let mut listeners = site.clone().map(|site| Listeners::new(site, connections.clone()));
    let mut status = Status::default();
    let metrics = metrics::Shared::of(args.workers.into(), connections.clone());
    if let Some(address) = args.metrics {
        metrics::listen(address, metrics.clone()).with_context(|| format!("metrics at {address}"))?;
    }
    tracing::info!(io = %server.backend(), "packet I/O");
    let workers = Workers::start(servers, site.as_ref(), &metrics)?;
    report(&server);
    listen(listeners.as_mut(), &mut server);
    second_chance.ensure(server.services(), server.mac(), server.reopened());
    server.hold_back(true);
    prefer_this_thread();

    let started = Instant::now();
    let (mut preparing, mut starting) = (true, true);
    let mut chores = Instant::now();
    let mut due = PendingUpdate::default();
    let mut known = (server.mac(), server.reopened());
    while !stopped() {
        server.turn(application.as_mut(), CHORES);
        if chores.elapsed() < CHORES {
            continue;
        }
        chores = Instant::now();
        workers.check()?;
        server.set_open_connections(connections.open());
        if known != (server.mac(), server.reopened()) {
            known = (server.mac(), server.reopened());
            second_chance.ensure(server.services(), server.mac(), server.reopened());
            if let Some(agent) = &agent {
                agent.set_mac(server.mac());
            }
        }
        if preparing {
            let busy = site.as_ref().is_some_and(|site| site.objects.is_busy());
            preparing = busy && started.elapsed() < PREPARING;
            server.hold_back(preparing);
        }
        if starting && (server.is_ready() || started.elapsed() > STARTING) {
            starting = false;
            tell_ready();
        }
        metrics.take(0, &mut server);
        if let Some(agent) = &agent {
            if let Some((version, services)) = due.take(&agent.updates) {
                let setup = args.setup_address;
                let listeners = listeners.as_mut();
                let mut place =
                    Place { server: &mut server, workers: &workers, shelf: shelf.as_mut(), listeners };
                match place.take_up(version, &services, &mut addresses, setup, &mut status) {
                    taken @ (Taken::Up | Taken::Partly) => {
                        second_chance.ensure(server.services(), server.mac(), server.reopened());
                        if matches!(taken, Taken::Partly) {
                            due.again(version, services);
                        }
                    }
                    Taken::NotYet => due.later(version, services, SOON),
                    Taken::Failed => due.again(version, services),
                }
            }
            fill(&server, &metrics, listeners.as_ref(), &mut status);
            agent.set_status(&status);
        }
        listen(listeners.as_mut(), &mut server);
    }
    tracing::info!("stopping");
    // Heartbeats report the exit now, and the ToR sends nothing more. Without this, the kernel's
    // listener would get the segments of Rivulet's clients once the packet path is gone, and accept
    // them as plain TCP until this process has ended.
    server.leave(application.as_mut());
    Ok(())
}

/// Opens the sockets on which the kernel's TCP listens; services without one are not ready.
fn listen(listeners: Option<&mut Listeners>, server: &mut Server) {
    let Some(listeners) = listeners else { return };
    listeners.ensure(server.services());
    let lacking = listeners.lacking(server.services());
    server.hold_back_services(lacking);
}

/// Opens the files under a directory, and the storage for uploads.
fn open(dir: &Path, args: &ServeArgs) -> anyhow::Result<Site> {
    let mut objects = Objects::open(dir).with_context(|| format!("{}", dir.display()))?;
    if let Some(marks) = args.marks()? {
        objects = objects.with_marks(marks);
    }
    objects.prepare(dir);
    let uploads = match &args.upload {
        Some(dir) => Some(Uploads::open(dir, args.limits()).with_context(|| dir.display().to_string())?),
        None => None,
    };
    Ok(Site { objects, uploads })
}

/// The parts of a running server.
struct Place<'a> {
    server: &'a mut Server,
    workers: &'a Workers,
    /// `None` if a back end answers instead of files.
    shelf: Option<&'a mut Shelf>,
    /// `None` if a back end answers instead of files.
    listeners: Option<&'a mut Listeners>,
}

/// Result of applying an update.
enum Taken {
    Up,
    /// Applied, except for parts that may follow later.
    Partly,
    /// Not yet applied: the objects of a service are being read.
    NotYet,
    /// The update could not be applied.
    Failed,
}

impl Place<'_> {
    /// Applies an update of the controller; if that fails, the former services stay.
    fn take_up(
        &mut self,
        version: u64,
        services: &[Service],
        addresses: &mut ServiceAddresses,
        setup: bool,
        status: &mut Status,
    ) -> Taken {
        // A service that cannot be served does not affect the others.
        let (services, unfit) = self.sort_out(services);
        match self.try_up(&services, addresses, setup) {
            Ok(Some(trouble)) => {
                let is_whole = trouble.is_empty();
                let error = unfit.first().map_or(trouble, |service| {
                    format!(
                        "service {}: its plain TCP is the kernel's, and --back-end is for stateless TCP",
                        service.name
                    )
                });
                if !error.is_empty() && error != status.error {
                    tracing::error!(version, error, "not all services are taken up");
                }
                (status.version, status.error) = (version, error);
                status.refused_services = unfit.iter().map(|service| service.keys.service.into()).collect();
                report(self.server);
                if is_whole { Taken::Up } else { Taken::Partly }
            }
            Ok(None) => Taken::NotYet,
            Err(e) => {
                let error = format!("{e:#}");
                if error != status.error {
                    tracing::error!(version, error, "update not taken up");
                    status.error = error;
                }
                Taken::Failed
            }
        }
    }

    /// The services that can be served here, and those that cannot: a back end cannot serve a
    /// service that the kernel's TCP serves.
    fn sort_out(&self, services: &[Service]) -> (Vec<Service>, Vec<Service>) {
        let fits = |service: &Service| self.shelf.is_some() || !service.is_kernels();
        services.iter().cloned().partition(fits)
    }

    /// Applies the services; returns `None` while objects are missing, otherwise a description of
    /// the missing parts.
    fn try_up(
        &mut self,
        services: &[Service],
        addresses: &mut ServiceAddresses,
        setup: bool,
    ) -> anyhow::Result<Option<String>> {
        let wanted = match &mut self.shelf {
            Some(shelf) => shelf.wanted(services)?,
            None => Wanted::Nothing,
        };
        match wanted {
            Wanted::NotYet => return Ok(None),
            Wanted::This(table) => {
                self.workers.set_objects(&table);
                self.server.set_objects(table);
            }
            Wanted::Nothing => {}
        }
        // If a service's addresses are missing, so are its listeners; other services continue.
        let mut trouble = String::new();
        if setup && let Err(e) = ensure(addresses, services) {
            trouble = format!("{e:#}");
        }
        // The sockets must listen before heartbeats report the services.
        if let Some(listeners) = &mut self.listeners {
            listeners.ensure(services.iter());
            self.server.hold_back_services(listeners.lacking(services.iter()));
        }
        self.server.replace(services.to_vec())?;
        self.workers.replace(services);
        Ok(Some(trouble))
    }
}

fn ensure(addresses: &mut ServiceAddresses, services: &[Service]) -> anyhow::Result<()> {
    let mut result = Ok(());
    for service in services {
        let of = addresses.ensure(&service.addresses);
        let of = of.with_context(|| format!("addresses of service {}", service.name));
        result = result.and(of);
    }
    result
}

fn report(server: &Server) {
    for service in server.services() {
        let place = service.member.map(|m| format!("{}/{}", m.pool, m.replica));
        let sockets: Vec<String> = service.sockets().map(|s| s.to_string()).collect();
        tracing::info!(service = service.name, addresses = sockets.join(" "), member = place, "serving");
    }
}

fn fill(server: &Server, metrics: &metrics::Shared, listeners: Option<&Listeners>, status: &mut Status) {
    let counters = metrics.counters();
    status.ready = server.is_ready();
    status.reason = match server.without_content() {
        _ if status.ready => String::new(),
        Some(service) => {
            format!("service {}: what is here is not the content that is in force", service.name)
        }
        None if listeners.is_some_and(|l| l.trouble(server.services()).is_some()) => {
            listeners.and_then(|l| l.trouble(server.services())).unwrap_or_default()
        }
        None if server.back_end_is_dead() => "the back end does not answer".into(),
        None => "nothing to serve, or the interface is down".into(),
    };
    status.content = server.content();
    status.load = server.load() as u32;
    status.requests = counters.requests;
    status.refused = counters.refused_total();
}
