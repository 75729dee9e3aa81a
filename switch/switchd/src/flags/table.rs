//! The flags: BMv2's, with their support here, and ours.

use std::fmt::Write as _;

/// Value of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// None.
    Nothing,
    /// Required.
    Value,
    /// A directory, with this default.
    DirectoryOr(&'static str),
}

/// Support of a BMv2 flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// It works as in BMv2.
    Yes,
    /// It is accepted with this warning.
    No(&'static str),
    /// It is not a BMv2 flag.
    Ours,
}

/// A flag.
#[derive(Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its long name, without dashes.
    pub name: &'static str,
    /// Its short name.
    pub short: Option<char>,
    /// What follows it.
    pub takes: Takes,
    /// Whether it can be given several times.
    pub repeats: bool,
    /// Support of the flag.
    pub served: Served,
    /// Text in the help.
    pub help: &'static str,
}

const fn flag(name: &'static str, takes: Takes, served: Served, help: &'static str) -> Flag {
    Flag { name, short: None, takes, repeats: false, served, help }
}

const fn short(mut flag: Flag, letter: char) -> Flag {
    flag.short = Some(letter);
    flag
}

const fn repeated(mut flag: Flag) -> Flag {
    flag.repeats = true;
    flag
}

use Served::{No, Ours, Yes};
use Takes::{DirectoryOr, Nothing, Value};

const NO_THRIFT: Served = No("there is no Thrift server; tables are written over P4Runtime");
const NO_NANOMSG: Served = No("there is no nanomsg");

/// Flags before the separator: those of BMv2's `OptionsParser`, then ours.
pub const GENERAL: &[Flag] = &[
    short(flag("help", Nothing, Yes, "display this help message"), 'h'),
    repeated(short(
        flag(
            "interface",
            Value,
            Yes,
            "<port-num>@<interface-name>: attach an interface as a port; repeatable",
        ),
        'i',
    )),
    flag(
        "pcap",
        DirectoryOr("."),
        Yes,
        "write pcap files for each interface into this directory, default '.'",
    ),
    flag("use-files", Value, No("packets are not read from files"), "read and write packets from files"),
    flag("packet-in", Value, NO_NANOMSG, "receive packets on a nanomsg socket"),
    flag("thrift-port", Value, NO_THRIFT, "TCP port of the Thrift server"),
    flag("device-id", Value, Yes, "device ID (default 0)"),
    flag("nanolog", Value, NO_NANOMSG, "IPC socket for nanomsg logs"),
    flag("log-console", Nothing, Yes, "log to standard output"),
    flag("log-file", Value, Yes, "log to this file, '.txt' appended"),
    short(
        flag(
            "log-level",
            Value,
            Yes,
            "trace, debug (both log every packet's path), info (default), warn, error, off",
        ),
        'L',
    ),
    flag("log-flush", Nothing, Yes, "flush the log file after every message"),
    flag("log-file-max-size", Value, Yes, "bytes of a log file before rotation (default 5242880)"),
    flag("log-file-max-files", Value, Yes, "rotated log files to keep (default 3)"),
    flag("notifications-addr", Value, NO_NANOMSG, "nanomsg address for notifications"),
    flag("debugger", Nothing, No("there is no debugger; see --trace"), "activate the debugger"),
    flag("debugger-addr", Value, No("there is no debugger; see --trace"), "nanomsg address of the debugger"),
    flag("restore-state", Value, No("state is written over P4Runtime"), "restore state from a file"),
    flag("dump-packet-data", Value, Yes, "bytes of each packet to log on receipt and on sending"),
    short(flag("version", Nothing, Yes, "display version information"), 'v'),
    flag("json-version", Nothing, Yes, "display the highest BMv2 JSON version supported"),
    flag("no-p4", Nothing, Yes, "start without a program"),
    flag("max-port-count", Value, Yes, "most interfaces at a time (default 512)"),
    flag("p4info", Value, Ours, "P4Info of the JSON file, so that tables can be written at once"),
    flag(
        "io",
        Value,
        Ours,
        "packet I/O: af_packet (default), af_xdp, auto (AF_XDP where the interface allows)",
    ),
    repeated(flag(
        "link",
        Value,
        Ours,
        "<port-num>@rate=..,delay=..,loss=..: shape what leaves a port; repeatable",
    )),
    flag("trace", Nothing, Ours, "print every packet's way through the program"),
    flag("trace-file", Value, Ours, "write every packet's way into this file"),
    flag("trace-json", Value, Ours, "the same as JSON, a line a packet"),
    flag(
        "control-socket",
        Value,
        Ours,
        "serve ports, links and traces (rivulet.switch.v1) on this Unix socket, to its owner alone",
    ),
    flag("metrics-addr", Value, Ours, "serve metrics for Prometheus at this address"),
    flag("workers", Value, Ours, "threads that process packets (default 1)"),
    flag(
        "bare-forwarder",
        Nothing,
        Ours,
        "no P4: joins the first port to the second and so on, for measuring",
    ),
];

/// Flags after the separator: those of simple_switch_grpc's `main.cpp`.
pub const TARGET: &[Flag] = &[
    flag("disable-swap", Nothing, No("a pipeline is always replaced at run time"), "disable JSON swapping"),
    flag("grpc-server-addr", Value, Yes, "bind the P4Runtime server here (default 127.0.0.1:9559)"),
    flag("grpc-server-ssl", Nothing, Yes, "serve P4Runtime over TLS; needs a certificate and a key"),
    flag(
        "grpc-server-cacert",
        Value,
        Yes,
        "PEM file of the authority that clients' certificates are verified against",
    ),
    flag("grpc-server-cert", Value, Yes, "PEM file of the server's certificate"),
    flag("grpc-server-key", Value, Yes, "PEM file of its private key"),
    flag("grpc-server-with-client-auth", Nothing, Yes, "require a client certificate"),
    flag("cpu-port", Value, Yes, "port number for packet-in and packet-out; without it there is none"),
    flag("drop-port", Value, Yes, "port number that drops (default 511)"),
    flag("dp-grpc-server-addr", Value, No("packets come from interfaces only"), "packets over gRPC"),
    flag("priority-queues", Value, Yes, "priority queues of a port (default 1)"),
    flag(
        "max-mc-groups",
        Value,
        No("multicast groups are not bounded"),
        "maximum number of multicast groups",
    ),
    flag("max-l1-entries", Value, No("multicast nodes are not bounded"), "maximum number of L1 entries"),
    flag("max-l2-entries", Value, No("multicast replicas are not bounded"), "maximum number of L2 entries"),
    flag("load-modules", Value, No("extern modules are not loaded"), "extern modules (.so)"),
];

/// Appends a help text.
pub(super) fn describe(table: &[Flag], text: &mut String) {
    for flag in table {
        let short = flag.short.map_or(String::new(), |c| format!("-{c} [ "));
        let close = if flag.short.is_some() { " ]" } else { "" };
        let value = match flag.takes {
            Nothing => "",
            Value => " arg",
            DirectoryOr(_) => " [=arg]",
        };
        let left = format!("  {short}--{}{close}{value}", flag.name);
        let note = match flag.served {
            No(why) => format!(" (accepted, not served: {why})"),
            Yes | Ours => String::new(),
        };
        let _ = writeln!(text, "{left:<36} {}{note}", flag.help);
    }
}
