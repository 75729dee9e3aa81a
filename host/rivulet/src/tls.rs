//! `rivulet tls`: the TLS terminator in front of a server of plain HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use rivulet_terminator::{Certificate, Config, FIRST_ATTACH, Files, Forwarded, Terminator, TimeLimits};

use crate::agent::tls_door;
use crate::process::{hide_memory, raise_descriptors, stop_on_signals, stopped, tell_ready};
use crate::serve::metrics;
use crate::tls_services::{self, Bounds, Door};

/// Interval of checks whether the process should end.
const LOOK: Duration = Duration::from_millis(100);

/// Terminates TLS in front of a server of plain HTTP/1.1
///
/// Another replica can make the records of TLS 1.3 connections again. Certificates, keys and ticket
/// keys are read again when their files change.
#[derive(Args, Debug)]
pub struct TlsArgs {
    /// Address where clients connect; may be given several times
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "agent")]
    pub listen: Vec<SocketAddr>,

    /// Certificate and intermediate certificates (PEM); with several, clients choose by name (SNI),
    /// and the first is the default
    #[arg(long = "certificate", value_name = "FILE", requires = "listen")]
    pub certificates: Vec<PathBuf>,

    /// Private key of each --certificate, in their order (PEM, not encrypted)
    #[arg(long = "key", value_name = "FILE", requires = "listen")]
    pub keys: Vec<PathBuf>,

    /// Address of the server of plain HTTP/1.1
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:80")]
    pub server: SocketAddr,

    /// How the server learns the client's address
    #[arg(long, value_name = "HOW", value_enum, default_value = "headers")]
    pub forwarded: ForwardedBy,

    /// Keys of session tickets, one of 64 hexadecimal digits a line, the same at each replica: the
    /// first seals new tickets, all open old ones. Without a file, only this process resumes its
    /// sessions
    #[arg(long, value_name = "FILE")]
    pub ticket_keys: Option<PathBuf>,

    /// Socket of the agent of this replica, which protects the connections of services with `plain: trods`. Without --listen, the services with `tls` in the controller's configuration are
    /// served, with their ticket keys; --connections and --workers are then of each service
    #[arg(long, value_name = "PATH")]
    pub agent: Option<PathBuf>,

    /// Authorities of clients' certificates (PEM): every client must have a certificate of one of them
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub client_ca: Option<PathBuf>,

    /// Limit on simultaneous connections; more are closed at once
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub connections: u32,

    /// Number of threads; by default one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: Option<u16>,

    /// Address that serves counters in Prometheus's text format
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
}

/// A value of `--forwarded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForwardedBy {
    /// The fields X-Forwarded-For, -Proto and -Host of each request
    #[value(name = "headers", alias = "x-forwarded")]
    Fields,
    /// The PROXY protocol, version 2
    Proxy,
    /// Not at all
    None,
}

impl TlsArgs {
    /// Threads of a terminator.
    fn workers(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, Into::into);
        self.workers.map_or_else(all, usize::from)
    }

    fn config(&self) -> anyhow::Result<Config> {
        if self.certificates.is_empty() {
            bail!("--listen without --certificate");
        }
        if self.certificates.len() != self.keys.len() {
            bail!(
                "{} --certificate and {} --key: give each certificate its key, in the same order",
                self.certificates.len(),
                self.keys.len()
            );
        }
        let certificates = self.certificates.iter().zip(&self.keys);
        let certificates =
            certificates.map(|(chain, key)| Certificate { chain: chain.clone(), key: key.clone() }).collect();
        Ok(Config {
            listen: self.listen.clone(),
            server: self.server,
            files: Files {
                certificates,
                ticket_keys: self.ticket_keys.clone(),
                client_ca: self.client_ca.clone(),
                ..Files::default()
            },
            forwarded: match self.forwarded {
                ForwardedBy::Fields => Forwarded::Fields,
                ForwardedBy::Proxy => Forwarded::ProxyProtocol,
                ForwardedBy::None => Forwarded::Nothing,
            },
            max_connections: self.connections as usize,
            limits: TimeLimits::default(),
            workers: self.workers(),
            observer: None,
            agent: self.agent.as_deref().map(tls_door),
            agent_patience: FIRST_ATTACH,
        })
    }
}

/// Serves until a signal asks the process to end.
///
/// # Errors
/// A file that cannot be used, an address on which the process cannot listen, or a thread that
/// failed.
pub fn run(args: &TlsArgs) -> anyhow::Result<()> {
    stop_on_signals();
    hide_memory();
    raise_descriptors();
    if let Some(agent) = args.agent.as_deref().filter(|_| args.listen.is_empty()) {
        let (connections, workers) = (args.connections as usize, args.workers());
        return tls_services::run(
            agent,
            Bounds { connections, workers, metrics: args.metrics, door: Door::new(tls_door(agent)) },
        );
    }
    let terminator = Terminator::start(args.config()?)?;
    let counters = terminator.counters();
    if let Some(address) = args.metrics {
        metrics::listen_with(address, move || counters.page())
            .with_context(|| format!("--metrics {address}"))?;
    }
    for address in terminator.addresses()? {
        tracing::info!("HTTPS at {address}, HTTP of {}", args.server);
    }
    tell_ready();
    while !stopped() && !terminator.has_failed() {
        std::thread::sleep(LOOK);
    }
    terminator.stop()?;
    Ok(())
}
