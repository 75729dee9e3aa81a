//! The flags of `cm-udp`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::wire::{HEAD, LARGEST};

/// Sends packets through one of the Congestion Manager's interfaces, or by TCP, to a receiver that
/// acknowledges or returns each, and prints the cost of a packet.
///
/// Exit codes: 0 it is done, whatever was lost; 1 this host refused something; 2 wrong flags; 3 the
/// daemon of the Congestion Manager is not running, or refused something; 4 no receiver answers.
#[derive(Parser, Debug)]
#[command(name = "cm-udp", version, about, max_term_width = 100)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub(super) enum Command {
    Receive(ReceiveArgs),
    Send(SendArgs),
}

/// Acknowledges what `send` sends, or returns it, by UDP and TCP on the same port, until SIGTERM or
/// SIGINT
#[derive(Args, Debug)]
pub(super) struct ReceiveArgs {
    /// Address of this host, or 0.0.0.0 or [::], and port on which to receive
    #[arg(value_name = "ADDRESS:PORT")]
    pub at: SocketAddr,
}

/// Sends packets to a receiver, and prints their cost
#[derive(Args, Debug)]
pub(super) struct SendArgs {
    /// Address and port of the receiver
    #[arg(value_name = "ADDRESS:PORT")]
    pub to: SocketAddr,

    /// Programming interface that the sender uses
    #[arg(long, value_enum)]
    pub style: Style,

    /// Number of packets
    #[arg(long, value_name = "PACKETS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub count: u64,

    /// Payload of each packet, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(HEAD as i64..=LARGEST as i64))]
    pub size: u32,

    /// Ask the receiver to return each packet instead of acknowledging it
    #[arg(long)]
    pub echo: bool,

    /// Number of sockets, each with its own flow [default: 8 with `bulk`; the other styles have
    /// one]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub flows: Option<u16>,

    /// Name of the congestion control of `tcp-cm`, as given to `rivulet cm load`
    #[arg(long, value_name = "NAME", default_value = "cm")]
    pub congestion: String,

    /// Path of the socket of `rivulet cm serve` [default: $RIVULET_CM, or /run/rivulet-cm/cm.sock]
    #[arg(long, value_name = "PATH")]
    pub daemon: Option<PathBuf>,

    /// Print one JSON object instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Style {
    /// A queue that sends datagrams as they are granted (CM-UDP)
    Buffered,
    /// A request for each packet, and a callback when it may be sent (ALF), from a connected socket
    Alf,
    /// As `alf`, from a socket that is not connected, with cm_notify for each packet
    AlfNoconnect,
    /// As `alf` over several sockets, with one call for all their requests, and one for their
    /// feedback
    Bulk,
    /// Sends by a timer, at the rate that callbacks report; requests no grants
    Rate,
    /// TCP without Nagle's delay, by the Congestion Manager's congestion control
    TcpCm,
    /// TCP without Nagle's delay, by the usual congestion control
    Tcp,
}

impl Style {
    pub fn is_tcp(self) -> bool {
        matches!(self, Style::TcpCm | Style::Tcp)
    }
}
