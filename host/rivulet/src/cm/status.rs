//! The output of `rivulet cm status`.

use std::collections::BTreeMap;
use std::fmt::Write;

use rivulet_bpf::cm::{Cost, Macroflow};
use serde_json::json;

/// One line for each destination, the busiest first.
pub(super) fn table(macroflows: &[Macroflow]) -> String {
    let mut text = format!(
        "{:<40} {:>4} {:>6} {:>6} {:>10} {:>10} {:>9} {:>9} {:>10}\n",
        "DESTINATION", "DSCP", "USER", "FLOWS", "WINDOW", "THRESHOLD", "OUT", "RTT ms", "Mb/s"
    );
    for m in sorted(macroflows) {
        let n = &m.numbers;
        let threshold = if n.ssthresh >= 1 << 30 { "-".to_owned() } else { n.ssthresh.to_string() };
        // TCP's macroflows belong to no user.
        let user = m.user.map_or("-".to_owned(), |uid| uid.to_string());
        let rtt = if n.srtt == 0 { "-".to_owned() } else { format!("{:.1}", n.srtt as f64 / 1e6) };
        let rate = n.rate().map_or("-".to_owned(), |rate| format!("{:.2}", rate as f64 * 8.0 / 1e6));
        let _ = writeln!(
            text,
            "{:<40} {:>4} {user:>6} {:>6} {:>10} {threshold:>10} {:>9} {rtt:>9} {rate:>10}",
            m.destination.to_string(),
            m.dscp,
            n.flows,
            n.cwnd,
            n.outstanding(),
        );
    }
    text
}

/// All macroflows and costs as JSON; in bytes, nanoseconds, bytes a second.
pub(super) fn json(macroflows: &[Macroflow], costs: &[Cost]) -> String {
    let all: Vec<_> = sorted(macroflows)
        .into_iter()
        .map(|m| {
            let n = &m.numbers;
            json!({
                "destination": m.destination.to_string(), "dscp": m.dscp, "netns": m.netns, "user": m.user, "apart": m.apart,
                "flows": n.flows, "hungry": n.hungry, "joined": n.joined, "window": n.cwnd, "threshold": n.ssthresh,
                "outstanding": n.outstanding(), "sent": n.sent, "reductions": n.reductions,
                "srtt": n.srtt, "rttvar": n.rttvar, "rate": n.rate(),
            })
        })
        .collect();
    let costs: Vec<_> =
        costs.iter().map(|c| json!({ "name": c.name, "runs": c.runs, "time": c.time })).collect();
    format!("{:#}\n", json!({ "macroflows": all, "programs": costs }))
}

/// Prometheus metrics (text format 0.0.4): sums over the macroflows of kernel TCP and of each user,
/// because there may be one macroflow for each client; and the BPF programs' cost while
/// kernel.bpf_stats_enabled was 1.
pub(super) fn metrics(macroflows: &[Macroflow], costs: &[Cost]) -> String {
    let mut sums: BTreeMap<String, [u64; 6]> = BTreeMap::new();
    for m in macroflows {
        let n = &m.numbers;
        // TCP's macroflows belong to no user.
        let owner = m.user.map_or("tcp".to_owned(), |uid| uid.to_string());
        let values = [1, n.flows.into(), n.cwnd, n.outstanding(), n.sent, n.reductions];
        for (sum, value) in sums.entry(owner).or_default().iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
    }
    let mut text = String::new();
    for (at, (name, kind, help)) in MACROFLOWS.iter().enumerate() {
        let _ = writeln!(text, "# HELP rivulet_cm_{name} {help}\n# TYPE rivulet_cm_{name} {kind}");
        for (owner, sums) in &sums {
            let _ = writeln!(text, "rivulet_cm_{name}{{owner=\"{owner}\"}} {}", sums[at]);
        }
    }
    for (name, help, value) in [
        ("program_runs_total", "Runs of a BPF program.", (|c| c.runs as f64) as fn(&Cost) -> f64),
        ("program_seconds_total", "What these took.", |c| c.time as f64 / 1e9),
    ] {
        let _ = writeln!(text, "# HELP rivulet_cm_{name} {help}\n# TYPE rivulet_cm_{name} counter");
        for cost in costs {
            let _ = writeln!(text, "rivulet_cm_{name}{{program=\"{}\"}} {}", cost.name, value(cost));
        }
    }
    text
}

/// Name, type and help of the sums.
const MACROFLOWS: [(&str, &str, &str); 6] = [
    ("macroflows", "gauge", "Destinations whose window is known."),
    ("flows", "gauge", "Connections, and flows of programs."),
    ("window_bytes", "gauge", "Congestion windows."),
    ("outstanding_bytes", "gauge", "What is on its way and not reported."),
    // Macroflows are deleted after a while, so these sums may decrease.
    ("sent_bytes", "gauge", "Sent since the macroflows began."),
    ("reductions", "gauge", "How often windows were reduced since."),
];

fn sorted(macroflows: &[Macroflow]) -> Vec<&Macroflow> {
    let mut all: Vec<_> = macroflows.iter().collect();
    all.sort_by_key(|m| {
        (std::cmp::Reverse((m.numbers.flows, m.numbers.cwnd)), m.destination, m.dscp, m.netns, m.user)
    });
    all
}
