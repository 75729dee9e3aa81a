//! The channel between an agent process and the TLS terminator of its host (`rivulet tls`): the agent's protocol on the
//! agent's socket. The terminator gets the services with TLS, with their ticket keys and no other keys, and reports their
//! status, which the agent adds to its own report.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::mpsc;

use rivulet_server::service::Tls;
use tokio::sync::watch;

use crate::address::Controllers;
use crate::proto::{Hello, Report, Service, TlsStatus, Update};
use crate::{AgentError, convert, upstream};

/// The error of a service that no terminator reports.
const NOT_ATTACHED: &str =
    "rivulet tls is not attached to the agent: start it (systemctl enable --now rivulet-tls)";
/// Longest error of a terminator, in bytes.
const MAX_ERROR: usize = 500;

/// A service of HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsService {
    /// Number of the service.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Where clients connect.
    pub sockets: Vec<SocketAddr>,
    /// Certificates, server and ticket keys.
    pub tls: Tls,
}

/// The terminator's side of the channel. Its thread runs until the process ends.
#[derive(Debug)]
pub struct TerminatorChannel {
    /// All services with TLS, whenever they change.
    pub updates: mpsc::Receiver<Vec<TlsService>>,
    report: watch::Sender<Report>,
}

impl TerminatorChannel {
    /// Attaches to the agent with this socket, now and whenever it comes back.
    ///
    /// # Errors
    /// The path is not usable, or no thread can be started.
    pub fn start(agent: &Path) -> Result<TerminatorChannel, AgentError> {
        let controllers = Controllers::new(&[format!("unix:{}", agent.display())], None)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, updates) = mpsc::channel();
        let (report, reported) = watch::channel(Report::default());
        let hello = Hello { terminator: true, version: env!("CARGO_PKG_VERSION").into(), ..Hello::default() };
        std::thread::Builder::new().name("agent".into()).spawn(move || {
            // The sender lives as long as the thread: the hello never changes.
            let (_hello, hello) = watch::channel(hello);
            runtime.block_on(upstream::keep(&controllers, hello, reported, |update| {
                sender.send(services(&update)).is_ok()
            }));
        })?;
        Ok(TerminatorChannel { updates, report })
    }

    /// Sets the status of the next report; a change of more than counts is sent soon.
    pub fn set_status(&self, tls: Vec<TlsStatus>) {
        self.report.send_if_modified(|before| {
            let is_urgent = urgent(&before.tls) != urgent(&tls);
            before.tls = tls;
            is_urgent
        });
    }
}

/// The services of an update for terminators. One that cannot be read is left out: the agent has refused it.
fn services(update: &Update) -> Vec<TlsService> {
    let service = |from: &Service| {
        let address = |bytes: &Vec<u8>| convert::address(bytes);
        let addresses: Vec<IpAddr> = from.addresses.iter().map(address).collect::<Option<_>>()?;
        let port = u16::try_from(from.port).ok()?;
        let sockets = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        let tls = convert::tls(from.tls.as_ref()?, &from.name).ok()?;
        Some(TlsService { id: from.id, name: from.name.clone(), sockets, tls })
    };
    update.services.iter().filter_map(service).collect()
}

/// What a terminator gets of an update: the accepted services with TLS.
pub(crate) fn part_for_terminators(update: &Update, refused: &[u32]) -> Update {
    let part = |service: &Service| Service {
        id: service.id,
        name: service.name.clone(),
        addresses: service.addresses.clone(),
        port: service.port,
        tls: service.tls.clone(),
        ..Service::default()
    };
    let services = update.services.iter().filter(|s| s.tls.is_some() && !refused.contains(&s.id));
    Update { version: update.version, services: services.map(part).collect() }
}

/// The status of each service with TLS, of what the attached terminators report: the newest that serves it, else the
/// newest. Errors name their service.
pub(crate) fn statuses(update: Option<&Update>, refused: &[u32], reports: &[&[TlsStatus]]) -> Vec<TlsStatus> {
    let Some(update) = update else { return Vec::new() };
    let wanted = update.services.iter().filter(|s| s.tls.is_some() && !refused.contains(&s.id));
    let status = |service: &Service| {
        let own = || reports.iter().rev().flat_map(|r| r.iter()).filter(|s| s.service == service.id);
        let mut status = own().find(|s| s.serving).or_else(|| own().next()).cloned().unwrap_or_else(|| {
            let error = NOT_ATTACHED.to_owned();
            TlsStatus { service: service.id, error, ..TlsStatus::default() }
        });
        let longest = MAX_ERROR.min(status.error.len());
        let end = (0..=longest).rev().find(|&n| status.error.is_char_boundary(n)).unwrap_or(0);
        status.error.truncate(end);
        status
    };
    wanted.map(status).collect()
}

/// The first error in words, with the name of its service.
pub(crate) fn trouble(update: Option<&Update>, statuses: &[TlsStatus]) -> Option<String> {
    let status = statuses.iter().find(|status| !status.error.is_empty())?;
    let service = update?.services.iter().find(|service| service.id == status.service)?;
    Some(format!("{}: TLS: {}", service.name, status.error))
}

/// The part of statuses whose change is sent soon.
pub(crate) fn urgent(statuses: &[TlsStatus]) -> Vec<TlsStatus> {
    let part = |s: &TlsStatus| TlsStatus {
        service: s.service,
        error: s.error.clone(),
        serving: s.serving,
        ticket_epoch: s.ticket_epoch,
        ..TlsStatus::default()
    };
    statuses.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{CookieKey, NonceKey, SealKey, Tls, TorKey};

    #[test]
    fn terminators_get_no_keys_but_those_of_tickets() {
        let service = |id, tls| Service {
            id,
            seal_keys: vec![SealKey { epoch: 1, master: vec![1; 16] }],
            nonce_keys: vec![NonceKey::default()],
            cookie_keys: vec![CookieKey::default()],
            tor_keys: vec![TorKey::default()],
            slot_key: vec![1; 8],
            tls,
            ..Service::default()
        };
        let services =
            vec![service(1, None), service(2, Some(Tls::default())), service(3, Some(Tls::default()))];
        let part = part_for_terminators(&Update { version: 7, services }, &[3]);
        let expected = Service { id: 2, tls: Some(Tls::default()), ..Service::default() };
        assert_eq!(part, Update { version: 7, services: vec![expected] });
    }
}
