//! `rivulet cm`: the Congestion Manager of this host's TCP (docs/congestion-manager.md).

mod serve;
mod status;

use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::{Args, Subcommand};
use rivulet_bpf::cm::{self, BPF_FS, Calls, Cm, Options};

/// Shares one congestion window among all TCP connections of this host to one destination; later
/// connections start with it.
///
/// `load` adds a congestion control to the kernel, with the state that it shares; both stay when
/// this command has ended. Connections use it only when it is chosen: `sysctl
/// net.ipv4.tcp_congestion_control=cm` for all new connections of a network namespace, `ip route
/// ... congctl cm` for a destination, or TCP_CONGESTION for a socket.
#[derive(Args, Debug)]
pub struct CmArgs {
    /// Name of the congestion control: 1 to 15 letters, digits and underscores
    #[arg(long, value_name = "NAME", default_value = "cm", global = true, value_parser = name)]
    name: String,

    /// Folder in a BPF file system for the pinned state, with one folder for each name [default:
    /// /sys/fs/bpf/rivulet-cm]
    #[arg(long, value_name = "DIRECTORY", global = true)]
    state: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Loads the congestion control into the kernel; needs root, or CAP_BPF, CAP_PERFMON and
    /// CAP_NET_ADMIN
    Load {
        /// Initial window of a destination without known state, packets
        #[arg(long, value_name = "PACKETS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
        initial_window: u32,

        /// Maximum number of destinations with kept state; connections to others behave as without
        /// the manager
        #[arg(long, value_name = "COUNT", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
        destinations: u32,
    },
    /// Shows the destinations: connections, window, round trip time, rate
    Status {
        /// As JSON, with the BPF programs' cost in the kernel while kernel.bpf_stats_enabled was 1
        #[arg(long)]
        json: bool,
        /// As metrics for Prometheus: sums over kernel TCP and over each user, and the BPF
        /// programs' cost. For node_exporter's textfile collector, which reads *.prom of its
        /// folder: write elsewhere and rename
        #[arg(long, conflicts_with = "json")]
        metrics: bool,
    },
    /// Admits users' programs with their UDP sockets; needs root. May be killed at any time:
    /// admitted programs continue
    Serve(serve::ServeArgs),
    /// Deletes the state of destinations without connections
    Forget,
    /// Removes the congestion control from the kernel: new connections cannot choose it;
    /// connections that use it keep it until they end
    Unload,
}

/// Checks a name, which the kernel must accept for a congestion control, and a BPF file system for
/// a folder: the latter forbids dots.
fn name(text: &str) -> Result<String, String> {
    let odd = text.chars().find(|c| !c.is_ascii_alphanumeric() && *c != '_');
    match odd {
        Some('.') => Err("a folder of a BPF file system is called so, which takes no dots".into()),
        Some(c) => Err(format!("{c:?} is no letter, digit or underscore")),
        None if (1..=15).contains(&text.len()) => Ok(text.into()),
        None => Err(format!("it has {} characters, and there must be 1 to 15", text.len())),
    }
}

/// Runs the subcommand.
///
/// # Errors
/// What the kernel lacks or refuses, in words for the operator.
pub fn run(args: &CmArgs) -> anyhow::Result<u8> {
    let state = args.state.clone().unwrap_or_else(|| Path::new(BPF_FS).join("rivulet-cm"));
    let folder = state.join(&args.name);
    match &args.command {
        Command::Load { .. } | Command::Serve(_) => cm::own_folder(&state),
        _ => cm::require_own(&state),
    }
    .map_err(|e| anyhow!("{e}"))?;
    match &args.command {
        &Command::Load { initial_window, destinations } => {
            load(&folder, &Options { name: &args.name, initial_window, macroflows: destinations })?;
        }
        Command::Status { json, metrics } => {
            let calls = Calls::pinned(&folder).map_err(|e| anyhow!("{e}"))?;
            let tcp = folder.join("link").exists();
            let mut found = match &calls {
                // Programs can be admitted without the congestion control for TCP.
                Some(_) if !tcp => vec![],
                _ => cm::pinned(&folder).map_err(|e| absent(&state, &args.name, &e))?,
            };
            if let Some(calls) = &calls {
                found.extend(calls.macroflows().map_err(|e| anyhow!("{e}"))?);
            }
            if !json && !metrics {
                print!("{}", status::table(&found));
                return Ok(0);
            }
            let costs = if tcp { cm::costs(&folder) } else { Ok(vec![]) };
            let costs = costs.map_err(|e| absent(&state, &args.name, &e))?;
            let tell = if *json { status::json } else { status::metrics };
            print!("{}", tell(&found, &costs));
        }
        Command::Serve(args) => serve::run(&folder, args)?,
        Command::Forget => {
            let count = cm::forget(&folder).map_err(|e| absent(&state, &args.name, &e))?;
            println!("forgot {count}");
        }
        Command::Unload => cm::unpin(&folder).map_err(|e| absent(&state, &args.name, &e))?,
    }
    Ok(0)
}

fn load(folder: &Path, options: &Options<'_>) -> anyhow::Result<()> {
    if folder.join("link").exists() {
        bail!("{} is loaded already: `rivulet cm unload` takes it out", options.name);
    }
    let mut loaded = Cm::load(options).map_err(|e| anyhow!("cannot load {}: {e}", options.name))?;
    loaded.pin(folder).map_err(|e| anyhow!("{e}"))?;
    eprintln!(
        "{name} is loaded; `sysctl net.ipv4.tcp_congestion_control={name}` has new connections use it",
        name = options.name
    );
    Ok(())
}

fn absent(state: &Path, name: &str, why: &rivulet_bpf::Error) -> anyhow::Error {
    let loaded = cm::list(state).unwrap_or_default();
    let names: Vec<_> = loaded.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    anyhow!("{name} is not loaded; in {} is {names} ({why})", state.display())
}
