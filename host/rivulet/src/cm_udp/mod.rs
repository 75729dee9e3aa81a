//! `cm-udp`: bulk transfers and echoes over UDP by each of the Congestion Manager's interfaces, and over TCP beside them, to compare
//! what a packet costs (the paper's Figure 6 and Table 1).

mod args;
mod failure;
mod flight;
mod outcome;
mod receive;
mod send;
mod socket;
mod tcp;
mod wire;

use clap::Parser;

use args::{Cli, Command};

/// Runs the command; its exit code.
#[must_use]
pub fn main() -> u8 {
    let done = match Cli::parse().command {
        Command::Receive(args) => receive::run(&args),
        Command::Send(args) => send::run(&args),
    };
    match done {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("cm-udp: {}", failure.message());
            failure.code()
        }
    }
}
