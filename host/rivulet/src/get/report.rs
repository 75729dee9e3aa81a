//! What a download reports at its end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rivulet_client::Statistics;
use serde::Serialize;

use super::args::GetArgs;
use super::meter::Reading;

/// Result of the download of one URL.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub url: String,
    pub ok: bool,
    pub error: Option<String>,
    pub status: Option<u16>,
    pub file: Option<PathBuf>,
    /// Size of the whole content in bytes, if known.
    pub size: Option<u64>,
    /// `rivulet`, or `tcp` if the server supports nothing else.
    pub transport: &'static str,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    #[serde(flatten)]
    pub reading: Reading,
    pub smoothed_rtt_us: Option<u64>,
    pub counts: Option<Counts>,
}

/// Counters of the connection that carried the download, including earlier downloads on it.
#[derive(Debug, Serialize)]
pub(super) struct Counts {
    requests: u64,
    responses: u64,
    declared_lost: u64,
    spurious: u64,
    probes: u64,
    timeouts: u64,
    restarts: u64,
    rekeys: u64,
    mispredicted: u64,
    ignored: u64,
}

impl From<Statistics> for Counts {
    fn from(s: Statistics) -> Counts {
        Counts {
            requests: s.requests,
            responses: s.responses,
            declared_lost: s.declared,
            spurious: s.spurious,
            probes: s.probes,
            timeouts: s.timeouts,
            restarts: s.restarts,
            rekeys: s.rekeys,
            mispredicted: s.mispredicted,
            ignored: s.ignored,
        }
    }
}

/// Prints a report, as the flags ask for it.
pub(super) fn tell(args: &GetArgs, report: &Report, stdout_is_taken: bool) -> anyhow::Result<()> {
    if args.json {
        let text = serde_json::to_string(report)?;
        if stdout_is_taken {
            eprintln!("{text}");
        } else {
            println!("{text}");
        }
    } else if !args.quiet && report.ok {
        let r = &report.reading;
        let losses = match &report.counts {
            Some(c) => {
                format!("{} packets lost, {} timeouts, {} restarts", c.declared_lost, c.timeouts, c.restarts)
            }
            None => String::new(),
        };
        eprintln!(
            "{}: {} bytes in {:.3} s, {:.1} Mb/s over {}; {losses}; longest pause {:.0} ms",
            report.file.as_deref().unwrap_or(Path::new("-")).display(),
            r.bytes,
            r.seconds,
            r.mbit_per_s,
            report.transport,
            r.longest_gap_ms,
        );
    }
    Ok(())
}
