//! The `rivulet` command.

use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use rivulet_cli::agent::{self, AgentArgs, StandInArgs};
use rivulet_cli::cm::{self, CmArgs};
use rivulet_cli::get::{self, GetArgs};
use rivulet_cli::run::{self, RunArgs};
use rivulet_cli::serve::{self, ServeArgs};
use rivulet_cli::tls::{self, TlsArgs};
use rivulet_server::keys::KeySet;

/// Connections that survive the death of their server.
#[derive(Parser)]
#[command(name = "rivulet", version, about, max_term_width = 100)]
struct Cli {
    /// Log as JSON lines (the level is set by RIVULET_LOG, such as `debug` or `rivulet_server=trace`)
    #[arg(long, global = true)]
    log_json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<ServeArgs>),
    Agent(AgentArgs),
    Tls(TlsArgs),
    #[command(hide = true)]
    StandIn(StandInArgs),
    Get(GetArgs),
    Run(RunArgs),
    Cm(CmArgs),
    /// Makes fresh keys for a service, in a new file that only its owner can read
    Keygen {
        /// The new file; without one the keys go to standard output
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Number of the service
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
        service: u16,
    },
    /// Prints the completion script of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log(cli.log_json);
    let result = match cli.command {
        Command::Serve(args) => serve::serve(&args).map(|()| 0),
        Command::Tls(args) => tls::run(&args).map(|()| 0),
        Command::Agent(args) => agent::run(&args).map(|()| 0),
        Command::StandIn(args) => agent::stand_in(&args).map(|()| 0),
        Command::Get(args) => get::get(&args),
        Command::Run(args) => run::run(&args),
        Command::Cm(args) => cm::run(&args),
        Command::Keygen { file, service } => keygen(file.as_deref(), service),
        Command::Completions { shell } => completions(shell),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("rivulet: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn keygen(file: Option<&Path>, service: u16) -> anyhow::Result<u8> {
    let keys = KeySet::generate(service)?;
    let Some(path) = file else {
        // A shell creates the file of `> FILE` with the ordinary mode, which other users may read.
        if rivulet_private_file::is_open_to_others(&std::io::stdout())? {
            bail!(
                "standard output is a file that others can read: `rivulet keygen FILE` makes one of mode 0600"
            );
        }
        print!("{}", keys.to_toml());
        return Ok(0);
    };
    keys.write(path)?;
    Ok(0)
}

fn completions(shell: Shell) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rivulet", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(0)
}

fn log(json: bool) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("RIVULET_LOG").unwrap_or_else(|_| {
        EnvFilter::new(
            "warn,rivulet_cli::serve=info,rivulet_cli::agent=info,rivulet_agent=info,rivulet_trods=info,rivulet_cli::tls=info,\
             rivulet_terminator=info",
        )
    });
    let stderr = std::io::stderr;
    let in_colour =
        stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(in_colour);
    if json { log.json().init() } else { log.with_target(false).init() }
}
