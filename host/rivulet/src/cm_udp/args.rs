//! The flags of `cm-udp`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::wire::{HEAD, LARGEST};

/// Sends packets by one of the Congestion Manager's interfaces, or by TCP, to a receiver that acknowledges or returns each, and says
/// what a packet took.
///
/// Exit codes: 0 it is done, whatever was lost; 1 this host refused something; 2 wrong flags; 3 the daemon of the
/// Congestion Manager is not there, or refused something; 4 nobody receives.
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

/// Acknowledges what `send` sends, or returns it, by UDP and TCP at the same port, until SIGTERM or SIGINT
#[derive(Args, Debug)]
pub(super) struct ReceiveArgs {
    /// Address of this host, or 0.0.0.0 or [::], and port to receive on
    #[arg(value_name = "ADDRESS:PORT")]
    pub at: SocketAddr,
}

/// Sends packets to a receiver, and prints what they took
#[derive(Args, Debug)]
pub(super) struct SendArgs {
    /// Address and port of the receiver
    #[arg(value_name = "ADDRESS:PORT")]
    pub to: SocketAddr,

    /// Programming interface that the sender uses
    #[arg(long, value_enum)]
    pub style: Style,

    /// Packets
    #[arg(long, value_name = "PACKETS", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub count: u64,

    /// Payload of a packet, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(HEAD as i64..=LARGEST as i64))]
    pub size: u32,

    /// Have each packet returned whole, instead of an acknowledgement
    #[arg(long)]
    pub echo: bool,

    /// Sockets, each with a flow of its own [default: 8 with `bulk`; the other styles have one]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub flows: Option<u16>,

    /// What the congestion control of `tcp-cm` is called: the name that `rivulet cm load` gave it
    #[arg(long, value_name = "NAME", default_value = "cm")]
    pub congestion: String,

    /// The socket of `rivulet cm serve` [default: $RIVULET_CM, or /run/rivulet-cm/cm.sock]
    #[arg(long, value_name = "PATH")]
    pub daemon: Option<PathBuf>,

    /// Print one JSON object instead of a sentence
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Style {
    /// A queue whose datagrams leave as they are granted (CM-UDP)
    Buffered,
    /// A request a packet, a callback when it may be sent (ALF), from a connected socket
    Alf,
    /// The same from a socket that is not connected, with cm_notify for each packet
    AlfNoconnect,
    /// As `alf` over several sockets, for all of which one call requests, and one gives feedback
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
