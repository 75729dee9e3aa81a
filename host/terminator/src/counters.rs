//! Counters that all workers share, and the metrics page.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::channel::Channel;
use crate::exchange::Events;
use crate::gauge::Gauge;
use crate::handshake::Failure;

/// Counters of a terminator. All but `open` only grow.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) open: AtomicUsize,
    pub(crate) in_handshake: Gauge,
    protected: AtomicU64,
    adopted: AtomicU64,
    /// Number of unprotected connections, by reason.
    unprotected: Mutex<BTreeMap<&'static str, u64>>,
    accepted: AtomicU64,
    refused: AtomicU64,
    tls13: AtomicU64,
    tls12: AtomicU64,
    resumed: AtomicU64,
    plain_http: AtomicU64,
    not_tls: AtomicU64,
    bad_handshakes: AtomicU64,
    late_handshakes: AtomicU64,
    broken: AtomicU64,
    late: AtomicU64,
    requests: AtomicU64,
    repeatable_responses: AtomicU64,
    other_responses: AtomicU64,
    tunnels: AtomicU64,
    refused_requests: AtomicU64,
    bad_responses: AtomicU64,
}

/// Sums over all connections, for the agent's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that are now in their handshake.
    pub in_handshake: u64,
    /// Connections that began at this replica and had a stored state.
    pub protected: u64,
    /// Connections that no other replica can continue, from the beginning or from some request on, by reason.
    pub unprotected: BTreeMap<&'static str, u64>,
    /// Connections of other replicas that continue here.
    pub adopted: u64,
    /// Successful handshakes.
    pub handshakes: u64,
    /// Handshakes among these that resumed a session.
    pub resumed: u64,
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Counters {
    pub(crate) fn count_accepted(&self) {
        increment(&self.accepted);
    }

    pub(crate) fn count_refused(&self) {
        increment(&self.refused);
    }

    pub(crate) fn count_handshake(&self, channel: &Channel, resumed: bool) {
        match channel {
            Channel::Records(_) => increment(&self.tls13),
            Channel::Library(_) => {
                increment(&self.tls12);
                self.count_unprotected("tls12");
            }
        }
        if resumed {
            increment(&self.resumed);
        }
    }

    /// Counts a connection whose first state is stored.
    pub(crate) fn count_protected(&self) {
        increment(&self.protected);
    }

    pub(crate) fn count_adopted(&self) {
        increment(&self.adopted);
    }

    /// Counts a connection that no other replica can continue. `reason`: at most 32 characters a to
    /// z, 0 to 9 and `_`.
    pub(crate) fn count_unprotected(&self, reason: &'static str) {
        *self.unprotected.lock().entry(reason).or_default() += 1;
    }

    /// The sums for the agent's report.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        Totals {
            in_handshake: self.in_handshake.get(),
            protected: get(&self.protected),
            unprotected: self.unprotected.lock().clone(),
            adopted: get(&self.adopted),
            handshakes: get(&self.tls13) + get(&self.tls12),
            resumed: get(&self.resumed),
        }
    }

    pub(crate) fn count_failure(&self, failure: Failure) {
        increment(match failure {
            Failure::PlainHttp => &self.plain_http,
            Failure::NotTls => &self.not_tls,
            Failure::Refused => &self.bad_handshakes,
        });
    }

    pub(crate) fn count_late_handshake(&self) {
        increment(&self.late_handshakes);
    }

    pub(crate) fn count_broken(&self) {
        increment(&self.broken);
    }

    pub(crate) fn count_late(&self) {
        increment(&self.late);
    }

    pub(crate) fn add(&self, events: &Events) {
        if *events == Events::default() {
            return;
        }
        for (counter, count) in [
            (&self.requests, events.requests),
            (&self.repeatable_responses, events.repeatable_responses),
            (&self.other_responses, events.other_responses),
            (&self.tunnels, events.tunnels),
            (&self.refused_requests, events.refused_requests),
            (&self.bad_responses, events.bad_responses),
        ] {
            counter.fetch_add(count, Relaxed);
        }
    }

    /// The metrics page, in Prometheus's text format.
    #[must_use]
    pub fn page(&self) -> String {
        let mut out = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, rows: &[(&str, u64)]| {
            // Writing to a String does not fail.
            let _ = writeln!(out, "# HELP rivulet_tls_{name} {help}\n# TYPE rivulet_tls_{name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(out, "rivulet_tls_{name}{labels} {value}");
            }
        };
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        metric("open", "gauge", "Connections that are open.", &[("", self.open.load(Relaxed) as u64)]);
        let help = "Connections in their handshake.";
        metric("in_handshake", "gauge", help, &[("", self.in_handshake.get())]);
        metric("accepted_total", "counter", "Connections accepted.", &[("", get(&self.accepted))]);
        let help = "Connections that were closed at once, as there were too many.";
        metric("refused_total", "counter", help, &[("", get(&self.refused))]);
        let versions = [("{version=\"1.3\"}", get(&self.tls13)), ("{version=\"1.2\"}", get(&self.tls12))];
        let help = "Handshakes that ended well. Connections of TLS 1.2 cannot outlive this process.";
        metric("handshakes_total", "counter", help, &versions);
        metric("resumed_total", "counter", "Handshakes with a session ticket.", &[("", get(&self.resumed))]);
        let help = "Connections that began here and had a stored state.";
        metric("protected_total", "counter", help, &[("", get(&self.protected))]);
        let help = "Connections of other replicas that continue here.";
        metric("adopted_total", "counter", help, &[("", get(&self.adopted))]);
        let unprotected = self.unprotected.lock().clone();
        let labels: Vec<_> = unprotected.keys().map(|reason| format!("{{reason=\"{reason}\"}}")).collect();
        let rows: Vec<_> = labels.iter().map(String::as_str).zip(unprotected.into_values()).collect();
        metric("unprotected_total", "counter", "Connections that end with this process, by reason.", &rows);
        let failures = [
            ("{reason=\"plain_http\"}", get(&self.plain_http)),
            ("{reason=\"not_tls\"}", get(&self.not_tls)),
            ("{reason=\"refused\"}", get(&self.bad_handshakes)),
            ("{reason=\"late\"}", get(&self.late_handshakes)),
        ];
        metric("handshake_failures_total", "counter", "Handshakes that failed, by reason.", &failures);
        let help = "Connections that ended as the client broke TLS behind the handshake.";
        metric("broken_total", "counter", help, &[("", get(&self.broken))]);
        metric(
            "late_total",
            "counter",
            "Connections that ended because a side was too slow.",
            &[("", get(&self.late))],
        );
        metric("requests_total", "counter", "Requests sent to the server.", &[("", get(&self.requests))]);
        let responses = [
            ("{records=\"repeatable\"}", get(&self.repeatable_responses)),
            ("{records=\"other\"}", get(&self.other_responses)),
        ];
        let help = "Responses, by whether another replica could make their records again.";
        metric("responses_total", "counter", help, &responses);
        metric("tunnels_total", "counter", "Connections that became tunnels.", &[("", get(&self.tunnels))]);
        let help = "Requests that were refused here.";
        metric("refused_requests_total", "counter", help, &[("", get(&self.refused_requests))]);
        let help = "Responses that the server did not send, or that broke HTTP.";
        metric("bad_responses_total", "counter", help, &[("", get(&self.bad_responses))]);
        out
    }
}
