//! `rivulet tls --agent`: serves the services with `tls` in the controller's configuration, one terminator each, and
//! reports their status to the agent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use rivulet_agent::{TerminatorChannel, TlsService, TlsStatus};
use rivulet_server::service;
use rivulet_terminator::{
    Certificate, Config, Counters, FIRST_ATTACH, Files, Forwarded, Terminator, TicketKey, TimeLimits,
};

use crate::process::{stopped, tell_ready};
use crate::serve::metrics;

/// Pause before a service that could not start is tried again: its address may be set later, or its files may change.
const RETRY: Duration = Duration::from_secs(1);

/// Interval of looks for updates, and of the status.
const LOOK: Duration = Duration::from_millis(100);

/// What each terminator may use, and where their counters are served.
#[derive(Debug)]
pub(crate) struct Bounds {
    pub(crate) connections: usize,
    pub(crate) workers: usize,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) door: Door,
}

/// The agent's socket for states of connections. There is none while no service has `plain: trods`.
#[derive(Debug)]
pub(crate) struct Door {
    path: PathBuf,
    was_awaited: bool,
}

impl Door {
    pub(crate) fn new(path: PathBuf) -> Door {
        Door { path, was_awaited: false }
    }

    /// For how long a service that starts now awaits it. A process that starts with its agent awaits it once, and not again
    /// for each service.
    fn patience(&mut self) -> Duration {
        if std::mem::replace(&mut self.was_awaited, true) && !self.path.exists() {
            return Duration::ZERO;
        }
        FIRST_ATTACH
    }
}

/// A service and its terminator.
struct Served {
    service: TlsService,
    terminator: Option<Terminator>,
    /// Why it could not start.
    error: String,
    retry_at: Instant,
}

/// The counters of running terminators, by the names of their services.
type Pages = Arc<Mutex<Vec<(String, Arc<Counters>)>>>;

/// Serves until a signal asks the process to end.
pub(crate) fn run(agent: &Path, mut bounds: Bounds) -> anyhow::Result<()> {
    let channel = TerminatorChannel::start(agent)?;
    let pages = Pages::default();
    if let Some(address) = bounds.metrics {
        let pages = pages.clone();
        let page = move || metrics_page(&pages.lock());
        metrics::listen_with(address, page).with_context(|| format!("--metrics {address}"))?;
    }
    let mut served = BTreeMap::new();
    tell_ready();
    while !stopped() {
        if let Some(services) = channel.updates.try_iter().last() {
            replace(&mut served, services);
        }
        for of in served.values_mut() {
            of.start(&mut bounds);
        }
        *pages.lock() = served.values().filter_map(Served::page).collect();
        channel.set_status(served.values_mut().map(|of| of.status()).collect());
        std::thread::sleep(LOOK);
    }
    let threads: Vec<_> = served
        .into_values()
        .filter_map(|of| of.terminator)
        .map(|t| std::thread::spawn(|| t.stop()))
        .collect();
    for thread in threads {
        thread.join().map_err(|_| anyhow::anyhow!("a terminator panicked"))??;
    }
    Ok(())
}

/// These services are to be served from now on.
fn replace(served: &mut BTreeMap<u32, Served>, services: Vec<TlsService>) {
    let mut before = std::mem::take(served);
    for service in services {
        let of = match before.remove(&service.id) {
            Some(of) if of.is_at_same_place(&service) => of.with(service),
            Some(of) => {
                of.stop_aside();
                Served::new(service)
            }
            None => Served::new(service),
        };
        served.insert(of.service.id, of);
    }
    before.into_values().for_each(Served::stop_aside);
}

impl Served {
    fn new(service: TlsService) -> Served {
        Served { service, terminator: None, error: "not started yet".into(), retry_at: Instant::now() }
    }

    /// Whether only certificates, keys and authorities differ, which a running terminator can replace.
    fn is_at_same_place(&self, service: &TlsService) -> bool {
        let place = |s: &TlsService| (s.sockets.clone(), s.tls.server, s.tls.forwarded);
        place(&self.service) == place(service)
    }

    fn with(mut self, service: TlsService) -> Served {
        if let Some(terminator) = self.terminator.as_ref().filter(|_| self.service.tls != service.tls) {
            // The error is in `Terminator::problem`.
            let _ = terminator.set_files(files(&service.tls));
        }
        self.retry_at = Instant::now();
        self.service = service;
        self
    }

    /// Ends without waiting for the requests in progress.
    fn stop_aside(self) {
        if let Some(terminator) = self.terminator {
            std::thread::spawn(move || terminator.stop());
        }
    }

    /// Starts the terminator if it does not run.
    fn start(&mut self, bounds: &mut Bounds) {
        if self.terminator.as_ref().is_some_and(Terminator::has_failed) {
            self.terminator = None;
        }
        if self.terminator.is_some() || self.retry_at > Instant::now() {
            return;
        }
        match Terminator::start(config(&self.service, bounds)) {
            Ok(terminator) => {
                let addresses: Vec<String> = self.service.sockets.iter().map(ToString::to_string).collect();
                tracing::info!(service = self.service.name, "HTTPS at {}", addresses.join(" "));
                self.terminator = Some(terminator);
            }
            Err(error) => {
                let error = error.to_string();
                if error != self.error {
                    tracing::error!(service = self.service.name, error, "HTTPS is not served");
                }
                self.error = error;
                self.retry_at = Instant::now() + RETRY;
            }
        }
    }

    fn page(&self) -> Option<(String, Arc<Counters>)> {
        Some((self.service.name.clone(), self.terminator.as_ref()?.counters()))
    }

    fn status(&self) -> TlsStatus {
        let Some(terminator) = &self.terminator else {
            return TlsStatus { service: self.service.id, error: self.error.clone(), ..TlsStatus::default() };
        };
        let problem = terminator.problem();
        let totals = terminator.counters().totals();
        TlsStatus {
            service: self.service.id,
            // Ticket keys come with the files.
            ticket_epoch: if problem.is_none() { self.service.tls.usable_ticket.into() } else { 0 },
            error: problem.map_or_else(String::new, |p| format!("{p}; the files of before stay in use")),
            serving: true,
            in_handshake: totals.in_handshake,
            protected: totals.protected,
            unprotected: totals.unprotected.iter().map(|(&reason, &n)| (reason.to_owned(), n)).collect(),
            adopted: totals.adopted,
            handshakes: totals.handshakes,
            resumed: totals.resumed,
        }
    }
}

fn config(service: &TlsService, bounds: &mut Bounds) -> Config {
    Config {
        listen: service.sockets.clone(),
        server: service.tls.server,
        files: files(&service.tls),
        forwarded: match service.tls.forwarded {
            service::Forwarded::Headers => Forwarded::Fields,
            service::Forwarded::Proxy => Forwarded::ProxyProtocol,
            service::Forwarded::None => Forwarded::Nothing,
        },
        max_connections: bounds.connections,
        limits: TimeLimits::default(),
        workers: bounds.workers,
        observer: None,
        agent: Some(bounds.door.path.clone()),
        agent_patience: bounds.door.patience(),
    }
}

fn files(tls: &service::Tls) -> Files {
    let certificate =
        |c: &service::Certificate| Certificate { chain: (&c.certificate).into(), key: (&c.key).into() };
    Files {
        certificates: tls.certificates.iter().map(certificate).collect(),
        given_tickets: tls.tickets().into_iter().map(|key| TicketKey::new(key.key.0)).collect(),
        client_ca: tls.client_ca.as_ref().map(PathBuf::from),
        ..Files::default()
    }
}

/// The pages of all services, each sample with the label `service`.
fn metrics_page(services: &[(String, Arc<Counters>)]) -> String {
    let mut families: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, counters) in services {
        let page = counters.page();
        let mut family = String::new();
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                family = help.split(' ').next().unwrap_or_default().to_owned();
            }
            let lines = families.entry(family.clone()).or_default();
            if line.starts_with('#') {
                if !lines.iter().any(|known| known == line) {
                    lines.push(line.to_owned());
                }
            } else if let Some((metric, value)) = line.rsplit_once(' ') {
                let (metric, labels) = metric.split_once('{').unwrap_or((metric, "}"));
                let comma = if labels == "}" { "" } else { "," };
                lines.push(format!("{metric}{{service=\"{name}\"{comma}{labels} {value}"));
            }
        }
    }
    families.into_values().flatten().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_door_is_awaited_once_and_present_one_always() {
        let folder = tempfile::tempdir().unwrap();
        let mut door = Door::new(folder.path().join("agent.sock.tls"));
        assert_eq!([door.patience(), door.patience()], [FIRST_ATTACH, Duration::ZERO]);
        std::fs::write(&door.path, "").unwrap();
        assert_eq!(door.patience(), FIRST_ATTACH);
    }

    #[test]
    fn metrics_of_two_services_have_one_head_each() {
        let counters = || Arc::new(Counters::default());
        let page = metrics_page(&[("one".into(), counters()), ("two".into(), counters())]);
        assert_eq!(page.matches("# TYPE rivulet_tls_handshakes_total counter\n").count(), 1);
        for name in ["one", "two"] {
            let lines = [
                format!("rivulet_tls_open{{service=\"{name}\"}} 0\n"),
                format!("rivulet_tls_handshakes_total{{service=\"{name}\",version=\"1.3\"}} 0\n"),
            ];
            assert!(lines.iter().all(|line| page.contains(line)), "{page}");
        }
    }
}
