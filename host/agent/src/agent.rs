//! The channel as a serving process holds it.

use std::collections::BTreeMap;
use std::sync::mpsc;

use rivulet_server::service::Service;
use tokio::sync::watch;

use crate::Accepted;
use crate::address::Controllers;
use crate::proto::{Hello, Report, TrodsStatus};
use crate::{AgentError, upstream};

/// What the packet path says of itself, for the next report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Version of the update in force.
    pub version: u64,
    /// The packet path is ready.
    pub ready: bool,
    /// Why not, in words.
    pub reason: String,
    /// Requests waiting.
    pub load: u32,
    /// Requests answered since the start.
    pub requests: u64,
    /// Requests refused since the start.
    pub refused: u64,
    /// What was wrong with the last update.
    pub error: String,
    /// Numbers of its services that are not served because of that.
    pub refused_services: Vec<u32>,
    /// What became of connections with TRODS; none while no service has it.
    pub trods: Option<TrodsCounts>,
    /// Version of the content for plain clients that are answered without state.
    pub content: Option<u32>,
}

/// What became of connections with TRODS since this process began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrodsCounts {
    /// In the keys of this process's records; the other replicas are told.
    pub incarnation: u32,
    /// Connections of which a record was stored.
    pub protected: u64,
    /// Connections that went on without, by reason: at most 32, each of at most 32 letters a to z, digits and `_`.
    pub unprotected: BTreeMap<&'static str, u64>,
    /// Connections of other replicas that go on here.
    pub adopted: u64,
    /// Connections of other replicas that were reset here, as where objects differ.
    pub refused: u64,
    /// Why they were, by reason, as of `unprotected`.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Connections that went on in the middle of an object of which nobody had compared the bytes.
    pub trusted: u64,
    /// Segments from clients that the server's window does not accept: they changed nothing.
    pub outside: u64,
    /// Connections that this replica, while it drains, left to others.
    pub moved: u64,
    /// Connections that are watched now: while it drains, those that are still to move.
    pub watched: u64,
    /// It does not know yet what others hold: what their clients say would be lost on it.
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
        }
    }
}

/// What an update holds that is not served, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal {
    services: Vec<u32>,
    why: String,
}

impl Refusal {
    /// What an update was refused of.
    pub(crate) fn of(accepted: &Accepted, version: u64) -> Refusal {
        let why = accepted.error();
        if !why.is_empty() {
            tracing::error!(version, error = why, "services refused");
        }
        Refusal { services: accepted.refused_ids(), why }
    }

    /// Adds it to a report.
    pub(crate) fn add_to(&self, report: &mut Report) {
        report.refused_services.extend_from_slice(&self.services);
        report.refused_services.sort_unstable();
        report.refused_services.dedup();
        if report.error.is_empty() {
            report.error.clone_from(&self.why);
        }
    }
}

/// What is told soon of a report; counts go with the next one.
pub(crate) fn urgent(report: &Report) -> Report {
    let trods =
        report.trods.as_ref().map(|t| TrodsStatus { incarnation: t.incarnation, ..TrodsStatus::default() });
    Report { load: 0, requests_total: 0, refused_total: 0, trods, ..report.clone() }
}

/// The running channel. Updates that were accepted arrive at the receiver; the thread ends with the
/// process.
#[derive(Debug)]
pub struct Agent {
    /// Version and services of each update, checked.
    pub updates: mpsc::Receiver<(u64, Vec<Service>)>,
    report: watch::Sender<Report>,
    hello: watch::Sender<Hello>,
    /// What did not get to the packet path of the last update.
    refused: std::sync::Arc<parking_lot::Mutex<Refusal>>,
}

impl Agent {
    /// Registers at the first of `controllers` that answers as `name`, for good. An agent on this host
    /// ([`Door`](crate::Door)) is a controller too. `incarnation` is what this process's heartbeats carry, `mac`
    /// the Ethernet address they come from.
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

    /// Heartbeats come from this Ethernet address from now on. Where it is another than before, the agent registers anew:
    /// the ToR believes no heartbeat of an address that the controller does not know.
    pub fn set_mac(&self, mac: [u8; 6]) {
        self.hello.send_if_modified(|hello| {
            let other = hello.mac != mac;
            if other {
                hello.mac = mac.to_vec();
            }
            other
        });
    }

    /// Sets what the next report says.
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

/// Who speaks.
pub(crate) fn hello(name: &str, incarnation: u32, mac: [u8; 6]) -> Hello {
    Hello { name: name.to_owned(), incarnation, mac: mac.to_vec(), version: env!("CARGO_PKG_VERSION").into() }
}
