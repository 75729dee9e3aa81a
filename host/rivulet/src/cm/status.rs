//! What `rivulet cm status` prints.

use std::fmt::Write;

use rivulet_bpf::cm::{Cost, Macroflow};
use serde_json::json;

/// A line a destination, the busiest first.
pub(super) fn table(macroflows: &[Macroflow]) -> String {
    let mut text = format!(
        "{:<40} {:>4} {:>6} {:>6} {:>10} {:>10} {:>9} {:>9} {:>10}\n",
        "DESTINATION", "DSCP", "USER", "FLOWS", "WINDOW", "THRESHOLD", "OUT", "RTT ms", "Mb/s"
    );
    for m in sorted(macroflows) {
        let n = &m.numbers;
        let threshold = if n.ssthresh >= 1 << 30 { "-".to_owned() } else { n.ssthresh.to_string() };
        // TCP's are everybody's.
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

/// All of it; bytes, nanoseconds, bytes a second.
pub(super) fn json(macroflows: &[Macroflow], costs: &[Cost]) -> String {
    let all: Vec<_> = sorted(macroflows)
        .into_iter()
        .map(|m| {
            let n = &m.numbers;
            json!({
                "destination": m.destination.to_string(), "dscp": m.dscp, "netns": m.netns, "user": m.user,
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

fn sorted(macroflows: &[Macroflow]) -> Vec<&Macroflow> {
    let mut all: Vec<_> = macroflows.iter().collect();
    all.sort_by_key(|m| {
        (std::cmp::Reverse((m.numbers.flows, m.numbers.cwnd)), m.destination, m.dscp, m.netns, m.user)
    });
    all
}
