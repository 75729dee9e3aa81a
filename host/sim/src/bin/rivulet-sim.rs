//! Runs the simulator's experiments at full size and prints their figures as JSON.

use std::time::Instant;

use clap::{Parser, Subcommand};
use rivulet_sim::experiments::{completion, crowd, fairness, overshoot, sharing, sprayed, spraying, stall};
use rivulet_sim::managed::Style;
use rivulet_sim::tor::Policy;
use rivulet_sim::{MILLISECOND, SECOND, random, stats};
use serde_json::{Value, json};

/// Experiments on the transport in virtual time. Every figure is a function of the seed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// First seed.
    #[arg(long, default_value_t = 0, global = true)]
    seed: u64,
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Random transfers over damaged networks and dying replicas.
    Transfers {
        /// Number of transfers
        #[arg(long, default_value_t = 10_000)]
        count: u64,
    },
    /// Prints the packets of one random transfer as the client sent and received them
    Trace,
    /// Completion time against SACK-Reno with RACK.
    Completion {
        /// Transfers for each loss rate
        #[arg(long, default_value_t = 1000)]
        count: usize,
    },
    /// Share of one flow among flows of the reference TCP
    Fairness {
        /// Number of seeds
        #[arg(long, default_value_t = 30)]
        seeds: u64,
        /// Seconds of virtual time for each run
        #[arg(long, default_value_t = 300)]
        time: u64,
        /// Numbers of reference flows
        #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
        others: Vec<usize>,
    },
    /// Death of a replica, by policy, replicas and window.
    Spraying {
        /// Number of seeds for each case
        #[arg(long, default_value_t = 10)]
        seeds: u64,
    },
    /// Figure 17: shares of two clients whose packets go round robin to two replicas
    Sprayed {
        /// Number of seeds for each case
        #[arg(long, default_value_t = 30)]
        seeds: u64,
        /// Seconds of virtual time for each run
        #[arg(long, default_value_t = 4)]
        time: u64,
    },
    /// Different speeds of two replicas
    Skew,
    /// Longest interruption of a download when a replica dies, by replicas, rate and round trip
    Stall {
        /// Number of kills for each case
        #[arg(long, default_value_t = 100)]
        kills: u64,
    },
    /// Downloads that overshoot a drop-tail queue in slow start.
    Overshoot {
        /// Number of seeds for each case
        #[arg(long, default_value_t = 5)]
        seeds: u64,
    },
    /// The Congestion Manager: groups of connections beside one Reno connection, loss, repeated
    /// fetches
    Sharing {
        /// Number of seeds
        #[arg(long, default_value_t = 30)]
        seeds: u64,
        /// Seconds of virtual time for each run
        #[arg(long, default_value_t = 300)]
        time: u64,
    },
    /// Many clients at once.
    Crowd {
        /// Number of clients
        #[arg(long, default_value_t = 10_000)]
        clients: usize,
        /// Bytes for each client
        #[arg(long, default_value_t = 100_000)]
        size: u64,
    },
}

fn main() {
    let arguments = Arguments::parse();
    let seed = arguments.seed;
    let begin = Instant::now();
    let mut figures = match arguments.experiment {
        Experiment::Transfers { count } => transfers(seed, count),
        Experiment::Trace => {
            let (report, log) = random::trace(seed);
            log.iter().for_each(|line| println!("{line}"));
            json!({ "scenario": format!("{:?}", random::scenario(seed)), "report": format!("{report:?}") })
        }
        Experiment::Completion { count } => completions(seed, count),
        Experiment::Fairness { seeds, time, others } => shares(seed, seeds, time, &others),
        Experiment::Spraying { seeds } => deaths(seed, seeds),
        Experiment::Sprayed { seeds, time } => sprays(seed, seeds, time * SECOND),
        Experiment::Skew => skews(seed),
        Experiment::Stall { kills } => stalls(seed, kills),
        Experiment::Overshoot { seeds } => overshoots(seed, seeds),
        Experiment::Sharing { seeds, time } => managed(seed, seeds, time * SECOND),
        Experiment::Crowd { clients, size } => {
            let c = crowd::run(seed, clients, size);
            let failed: Vec<_> = c.others.iter().take(5).map(|o| format!("{o:?}")).collect();
            json!({ "clients": clients, "size": size, "done": c.done, "others": failed,
                    "virtual_seconds": c.time, "events": c.events })
        }
    };
    figures["seed"] = json!(seed);
    figures["wall_seconds"] = json!((begin.elapsed().as_secs_f64() * 10.0).round() / 10.0);
    println!("{figures:#}");
}

fn managed(seed: u64, seeds: u64, time: u64) -> Value {
    let seeds = seed..seed + seeds;
    let interval = |values: &[f64]| {
        let (low, high) = stats::confidence_95(values);
        json!({ "mean": stats::mean(values), "low": low, "high": high })
    };
    let (mut groups, mut losses, mut fetches) = (vec![], vec![], vec![]);
    for style in [None, Some(Style::Grants), Some(Style::Pull)] {
        for count in [1, 2, 4, 8, 16] {
            let all: Vec<_> = seeds.clone().map(|s| sharing::group(s, style, count, time)).collect();
            groups.push(json!({
                "style": format!("{style:?}"), "flows": count,
                "of_reno": interval(&all.iter().map(|s| s.of_reno).collect::<Vec<_>>()),
                "jain": interval(&all.iter().map(|s| s.jain).collect::<Vec<_>>()),
            }));
        }
        let Some(style) = style else { continue };
        for loss in [0.0, 0.001, 0.005, 0.01, 0.02, 0.05] {
            let ratios: Vec<_> = seeds
                .clone()
                .map(|s| sharing::goodput(s, Some(style), loss, time) / sharing::goodput(s, None, loss, time))
                .collect();
            losses.push(json!({ "style": format!("{style:?}"), "loss": loss, "of_reno": interval(&ratios) }));
        }
    }
    let rtt = 75 * MILLISECOND;
    for (style, initial) in
        [(None, 10), (Some(Style::Grants), 1), (Some(Style::Grants), 10), (Some(Style::Pull), 10)]
    {
        let took = sharing::fetches(seed, style, initial, 9, 128 * 1024, rtt, SECOND);
        let ms: Vec<_> = took.iter().map(|t| t.map(|t| t / MILLISECOND)).collect();
        fetches.push(json!({ "style": format!("{style:?}"), "initial_window": initial, "ms": ms }));
    }
    json!({ "groups": groups, "losses": losses, "fetches": fetches })
}

fn transfers(seed: u64, count: u64) -> Value {
    let bad: Vec<_> =
        (seed..seed + count).map(|s| (s, random::transfer(s))).filter(|(_, r)| !r.is_good()).collect();
    let list: Vec<_> = bad
        .iter()
        .take(20)
        .map(|(s, r)| format!("seed {s}: {:?}, {} bytes, {:?}", r.outcome, r.received, r.statistics))
        .collect();
    json!({ "transfers": count, "failed": bad.len(), "failures": list })
}

fn overshoots(seed: u64, seeds: u64) -> Value {
    let mut rows = Vec::new();
    for (rate, rtt) in [(20, 10), (100, 2), (100, 10), (100, 50), (1000, 10)] {
        let size = rate * rtt * 125 * 40; // forty round trips at the full rate
        let all: Vec<_> = (seed..seed + seeds)
            .map(|s| overshoot::overshoot(s, rate * 1_000_000, rtt * MILLISECOND, size))
            .collect();
        let ms = |f: &dyn Fn(&overshoot::Overshoot) -> Option<u64>| {
            let found: Vec<_> = all.iter().filter_map(f).map(|t| t as f64 / MILLISECOND as f64).collect();
            (stats::percentile(&found, 0.5) * 10.0).round() / 10.0
        };
        let (ours, reference) = (ms(&|o| o.ours), ms(&|o| o.reference));
        let count = |f: &dyn Fn(&overshoot::Overshoot) -> u64| all.iter().map(f).sum::<u64>() / seeds;
        rows.push(
            json!({ "mbit": rate, "rtt_ms": rtt, "bytes": size, "ours_ms": ours, "reference_ms": reference,
            "ratio": (ours / reference * 100.0).round() / 100.0, "longest_stall_ms": ms(&|o| Some(o.stall)),
            "declared": count(&|o| o.statistics.declared), "timeouts": count(&|o| o.statistics.timeouts),
            "stuck": all.iter().filter(|o| o.ours.is_none()).count() }),
        );
    }
    json!({ "rows": rows })
}

fn completions(seed: u64, count: usize) -> Value {
    let row = |p: f64| {
        let s = completion::run(p, seed, count);
        json!({
            "loss": s.loss, "transfers": s.count, "stuck": s.stuck,
            "ratio_median": s.ratio.0, "ratio_99": s.ratio.1,
            "control_median": s.control.0, "control_99": s.control.1,
            "over_typical_median": s.over_typical[0].0, "over_typical_99": s.over_typical[0].1,
            "reference_over_typical_99": s.over_typical[1].1,
            "time_99_ratio": s.tail, "seconds_50_90_99": s.ours, "reference_seconds_50_90_99": s.reference,
            "ratio_median_p_both_ways": s.both_ways.0, "ratio_99_p_both_ways": s.both_ways.1,
        })
    };
    let losses = [0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2];
    json!({ "completion": losses.into_iter().map(row).collect::<Vec<_>>() })
}

fn shares(seed: u64, seeds: u64, time: u64, others: &[usize]) -> Value {
    let row = |n: &usize| {
        let shares: Vec<f64> = (seed..seed + seeds).map(|s| fairness::share(s, *n, time * SECOND)).collect();
        let (low, high) = stats::confidence_95(&shares);
        json!({ "reno_flows": n, "share_mean": stats::mean(&shares), "low": low, "high": high })
    };
    json!({ "seeds": seeds, "seconds": time, "fairness": others.iter().map(row).collect::<Vec<_>>() })
}

fn deaths(seed: u64, seeds: u64) -> Value {
    let mut rows = vec![];
    for policy in [Policy::Block, Policy::RoundRobin] {
        for replicas in [2, 3, 8] {
            for window in [10, 50, 100, 200] {
                let runs: Vec<_> = (seed..seed + seeds)
                    .map(|s| spraying::death(s, policy, replicas, window, 20 * SECOND))
                    .collect();
                let median = |f: &dyn Fn(&spraying::Death) -> f64| {
                    stats::percentile(&runs.iter().map(f).collect::<Vec<_>>(), 0.5)
                };
                let back: Vec<_> =
                    runs.iter().filter_map(|r| r.recovery).map(|t| (t / MILLISECOND) as f64).collect();
                rows.push(json!({
                    "policy": format!("{policy:?}"), "replicas": replicas, "bdp": window,
                    "window": median(&|r| r.window as f64),
                    "longest_proof": median(&|r| r.longest_proof as f64),
                    "proof_bytes": median(&|r| r.proof_bytes),
                    "declared": median(&|r| r.declared as f64),
                    "timeouts": median(&|r| r.timeouts as f64),
                    "ms_to_90_percent": stats::percentile(&back, 0.5),
                    "not_within_20_s": runs.len() - back.len(),
                }));
            }
        }
    }
    json!({ "seeds": seeds, "spraying": rows })
}

fn sprays(seed: u64, seeds: u64, time: u64) -> Value {
    type Run = fn(u64, sprayed::Case, u64) -> [u64; 2];
    let runs: [(&str, Run, usize, bool); 5] = [
        ("rivulet", sprayed::sprayed, 166, true),
        ("rivulet", sprayed::sprayed, 42, true),
        ("rivulet", sprayed::sprayed, 166, false),
        ("rivulet", sprayed::sprayed, 42, false),
        ("reference", sprayed::reference, 42, true),
    ];
    let mut rows = vec![];
    for (transport, run, queue, separate) in runs {
        for connections in [1, 2, 4, 8] {
            let case = sprayed::Case { connections, queue, separate };
            let all: Vec<_> = (seed..seed + seeds).map(|s| run(s, case, time)).collect();
            let indices: Vec<_> = all.iter().map(|shares| sprayed::jain(shares)).collect();
            let rates: Vec<_> =
                all.iter().map(|shares| shares.iter().sum::<u64>() as f64 * 8e3 / time as f64).collect();
            let (low, high) = stats::confidence_95(&indices);
            rows.push(json!({ "transport": transport, "connections": connections, "queue": queue,
                "separate": separate, "jain": stats::mean(&indices), "low": low, "high": high,
                "mbps": stats::mean(&rates) }));
        }
    }
    json!({ "seeds": seeds, "seconds": time / SECOND, "sprayed": rows })
}

fn skews(seed: u64) -> Value {
    let mut rows = vec![];
    for policy in [Policy::Block, Policy::RoundRobin] {
        for rtt in [2, 10, 40, 100] {
            for ms in [0, 1, 2, 5, 10] {
                let s = spraying::skew(seed, policy, ms * MILLISECOND, rtt * MILLISECOND);
                rows.push(json!({
                    "policy": format!("{policy:?}"), "rtt_ms": rtt, "skew_ms": ms, "declared": s.declared,
                    "spurious": s.spurious, "ms": s.completion.map(|t| t / MILLISECOND),
                }));
            }
        }
    }
    json!({ "skew": rows })
}

fn stalls(seed: u64, kills: u64) -> Value {
    let bound = rivulet_sim::tor::Config::default().bound / MILLISECOND;
    let row = |(replicas, mbps, rtt): (usize, u64, u64)| {
        let all: Vec<_> = (seed..seed + kills)
            .map(|s| stall::stall(s, replicas, mbps * 1_000_000, rtt * MILLISECOND))
            .collect();
        let longest: Vec<_> = all.iter().map(|s| (s.longest / MILLISECOND) as f64).collect();
        let timeouts = all.iter().filter(|s| s.timeouts > 0).count();
        let back: Vec<_> =
            all.iter().map(|s| s.recovered.map_or(3000.0, |t| t as f64 / MILLISECOND as f64)).collect();
        json!({
            "replicas": replicas, "mbps": mbps, "rtt_ms": rtt, "with_timeout": timeouts,
            "stall_ms": { "p50": stats::percentile(&longest, 0.5), "p90": stats::percentile(&longest, 0.9),
                          "p99": stats::percentile(&longest, 0.99) },
            "recovered_ms": { "p50": stats::percentile(&back, 0.5), "p90": stats::percentile(&back, 0.9) },
            "wanted_ms": { "p50": bound + 3 * rtt, "p99": bound + 6 * rtt },
        })
    };
    let rows: Vec<_> =
        [(2, 100, 10), (3, 100, 10), (8, 100, 10), (3, 20, 10), (3, 100, 2), (3, 100, 50)].map(row).into();
    json!({ "kills": kills, "bound_ms": bound, "stall": rows })
}
