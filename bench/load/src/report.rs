//! Results of the clients, and the line of JSON with their sum.

use std::time::Duration;

use serde::Serialize;

use crate::response::WrongBody;

/// Results of one client.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Duration of each complete request, microseconds.
    pub latencies_us: Vec<u32>,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Failed requests with an answer that differs from the served bytes.
    pub wrong: u64,
    /// Reason of the first failure.
    pub first_error: Option<String>,
    /// Every request, if it is logged.
    pub log: Option<Vec<Row>>,
}

/// A logged request.
#[derive(Clone, Debug)]
pub struct Row {
    /// Due time, by the system's monotonic clock, microseconds.
    pub began_us: u64,
    /// Duration, microseconds.
    pub took_us: u64,
    /// Reason of the failure; empty: none.
    pub problem: String,
}

impl Outcome {
    /// Counts an answered request.
    pub fn answered(&mut self, took: Duration, bytes: u64) {
        self.latencies_us.push(took.as_micros().try_into().unwrap_or(u32::MAX));
        self.bytes += bytes;
    }

    /// Counts a failed request.
    pub fn fail(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        self.wrong += u64::from(error.is::<WrongBody>());
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
    }
}

/// The line of JSON that the program prints.
#[derive(Serialize)]
pub struct Report {
    transport: &'static str,
    clients: u32,
    seconds: f64,
    requests: u64,
    errors: u64,
    wrong: u64,
    first_error: Option<String>,
    bytes: u64,
    mbps: f64,
    requests_per_second: f64,
    latency_us: Percentiles,
    /// Bytes of each client, for Jain's index.
    shares: Vec<u64>,
}

#[derive(Serialize)]
struct Percentiles {
    mean: f64,
    p50: u32,
    p90: u32,
    p99: u32,
    max: u32,
}

impl Report {
    /// Sums up the clients' results.
    #[must_use]
    pub fn new(transport: &'static str, clients: u32, outcomes: Vec<Outcome>, took: Duration) -> Report {
        let shares: Vec<u64> = outcomes.iter().map(|o| o.bytes).collect();
        let errors = outcomes.iter().map(|o| o.errors).sum();
        let wrong = outcomes.iter().map(|o| o.wrong).sum();
        let first_error = outcomes.iter().find_map(|o| o.first_error.clone());
        let mut latencies: Vec<u32> = outcomes.into_iter().flat_map(|o| o.latencies_us).collect();
        latencies.sort_unstable();
        let seconds = took.as_secs_f64();
        let bytes: u64 = shares.iter().sum();
        let at = |percent: usize| {
            let last = latencies.len().saturating_sub(1);
            latencies.get((latencies.len() * percent / 100).min(last)).copied().unwrap_or(0)
        };
        Report {
            transport,
            clients,
            seconds,
            requests: latencies.len() as u64,
            errors,
            wrong,
            first_error,
            bytes,
            mbps: bytes as f64 * 8.0 / seconds / 1e6,
            requests_per_second: latencies.len() as f64 / seconds,
            latency_us: Percentiles {
                mean: latencies.iter().copied().map(f64::from).sum::<f64>() / latencies.len().max(1) as f64,
                p50: at(50),
                p90: at(90),
                p99: at(99),
                max: latencies.last().copied().unwrap_or(0),
            },
            shares,
        }
    }
}
