//! The channel of a serving process to a controller.

use std::collections::BTreeMap;
use std::sync::mpsc;

use rivulet_server::service::Service;
use tokio::sync::watch;

use crate::Accepted;
use crate::address::Controllers;
use crate::proto::{Hello, Report, TrodsStatus};
use crate::{AgentError, terminator, upstream};

/// Status of the packet path, for the next report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Version of the update in force.
    pub version: u64,
    /// Whether the packet path is ready.
    pub ready: bool,
    /// Why it is not ready.
    pub reason: String,
    /// Requests waiting.
    pub load: u32,
    /// Requests answered since the start.
    pub requests: u64,
    /// Requests refused since the start.
    pub refused: u64,
    /// Error of the last update.
    pub error: String,
    /// Numbers of the services that are not served because of that error.
    pub refused_services: Vec<u32>,
    /// Counters of TRODS; `None` while no service uses it.
    pub trods: Option<TrodsCounts>,
    /// Version of the content that stateless TCP serves.
    pub content: Option<u32>,
}

/// Counters of TRODS since this process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrodsCounts {
    /// Incarnation in the keys of this process's records; the controller sends it to the other
    /// replicas.
    pub incarnation: u32,
    /// Connections with a stored record.
    pub protected: u64,
    /// Connections that continued unprotected, by reason: at most 32 reasons of at most 32
    /// characters a-z, 0-9 and `_`.
    pub unprotected: BTreeMap<&'static str, u64>,
    /// Connections of other replicas that this one adopted.
    pub adopted: u64,
    /// Connections of other replicas that this one reset, for example because objects differ.
    pub refused: u64,
    /// The resets by reason, with the limits of `unprotected`.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Connections resumed within an object whose bytes were not compared.
    pub trusted: u64,
    /// Client segments outside the server's window, which were ignored.
    pub outside: u64,
    /// Connections that this replica handed to others while draining.
    pub moved: u64,
    /// Connections watched now; while draining, those still to move.
    pub watched: u64,
    /// This replica does not know the others' pins yet and would lose client data of their
    /// connections.
    pub asks: bool,
}

impl From<&TrodsCounts> for TrodsStatus {
    fn from(counts: &TrodsCounts) -> TrodsStatus {
        let by_reason = |counts: &BTreeMap<&'static str, u64>| {
            counts.iter().map(|(&reason, &count)| (reason.to_owned(), count)).collect()
        };
        TrodsStatus {
            incarnation: counts.incarnation,
            protected: counts.protected,
            unprotected: by_reason(&counts.unprotected),
            refusals: by_reason(&counts.refusals),
            trusted: counts.trusted,
            outside: counts.outside,
            adopted: counts.adopted,
            refused: counts.refused,
            moved: counts.moved,
            watched: counts.watched,
            asks: counts.asks,
        }
    }
}

impl From<&Status> for Report {
    fn from(status: &Status) -> Report {
        Report {
            version_in_force: status.version,
            ready: status.ready,
            reason: status.reason.clone(),
            load: status.load,
            requests_total: status.requests,
            refused_total: status.refused,
            error: status.error.clone(),
            trods: status.trods.as_ref().map(TrodsStatus::from),
            content: status.content,
            refused_services: status.refused_services.clone(),
            // As of the moment at which it is sent.
            clock_ms: 0,
            tls: Vec::new(),
        }
    }
}

/// Services of an update that are not served, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    services: Vec<u32>,
    why: String,
}

impl Refusal {
    /// The refused services of an update.
    pub(crate) fn of(accepted: &Accepted, version: u64) -> Refusal {
        let why = accepted.error();
        if !why.is_empty() {
            tracing::error!(version, error = why, "services refused");
        }
        Refusal { services: accepted.refused_ids(), why }
    }

    /// Their numbers.
    pub(crate) fn services(&self) -> &[u32] {
        &self.services
    }

    /// Adds them to a report.
    pub(crate) fn add_to(&self, report: &mut Report) {
        report.refused_services.extend_from_slice(&self.services);
        report.refused_services.sort_unstable();
        report.refused_services.dedup();
        if report.error.is_empty() {
            report.error.clone_from(&self.why);
        }
    }
}

/// The part of a report whose change is sent soon; counters wait for the next regular report.
pub(crate) fn urgent(report: &Report) -> Report {
    let trods =
        report.trods.as_ref().map(|t| TrodsStatus { incarnation: t.incarnation, ..TrodsStatus::default() });
    let tls = terminator::urgent(&report.tls);
    Report { load: 0, requests_total: 0, refused_total: 0, trods, tls, ..report.clone() }
}

/// The running channel. Accepted updates arrive at `updates`; its thread runs until the process
/// ends.
#[derive(Debug)]
pub struct Agent {
    /// Version and services of each checked update.
    pub updates: mpsc::Receiver<(u64, Vec<Service>)>,
    report: watch::Sender<Report>,
    hello: watch::Sender<Hello>,
    /// Services of the last update that are not served.
    refused: std::sync::Arc<parking_lot::Mutex<Refusal>>,
}

impl Agent {
    /// Registers as `name` at the first of `controllers` that answers, and stays registered. This
    /// host's agent ([`Relay`](crate::Relay)) also counts as a controller. `incarnation` and `mac`
    /// are those of this process's heartbeats.
    pub fn start(
        controllers: Controllers,
        name: &str,
        incarnation: u32,
        mac: [u8; 6],
    ) -> Result<Agent, AgentError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, updates) = mpsc::channel();
        let (report, reported) = watch::channel(Report::default());
        let refused = std::sync::Arc::new(parking_lot::Mutex::new(Refusal::default()));
        let of_thread = refused.clone();
        let (said, hello) = watch::channel(hello(name, incarnation, mac));
        std::thread::Builder::new().name("agent".into()).spawn(move || {
            runtime.block_on(upstream::keep(&controllers, hello, reported, |update| {
                let version = update.version;
                let accepted = crate::services(&update);
                tracing::info!(version, services = accepted.services.len(), "update");
                *of_thread.lock() = Refusal::of(&accepted, version);
                sender.send((version, accepted.services)).is_ok()
            }));
        })?;
        Ok(Agent { updates, report, hello: said, refused })
    }

    /// Sets the Ethernet address of the heartbeats. If it changed, the agent registers again,
    /// because the ToR drops heartbeats from addresses that the controller does not know.
    pub fn set_mac(&self, mac: [u8; 6]) {
        self.hello.send_if_modified(|hello| {
            let other = hello.mac != mac;
            if other {
                hello.mac = mac.to_vec();
            }
            other
        });
    }

    /// Sets the content of the next report.
    pub fn set_status(&self, status: &Status) {
        let mut report = Report::from(status);
        self.refused.lock().add_to(&mut report);
        self.report.send_if_modified(|before| {
            let told = urgent(before) == urgent(&report);
            *before = report;
            !told
        });
    }
}

/// The message that identifies the agent.
pub(crate) fn hello(name: &str, incarnation: u32, mac: [u8; 6]) -> Hello {
    Hello {
        name: name.to_owned(),
        incarnation,
        mac: mac.to_vec(),
        version: env!("CARGO_PKG_VERSION").into(),
        terminator: false,
    }
}
