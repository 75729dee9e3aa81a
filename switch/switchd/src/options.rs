//! Checked options from the command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rivulet_link::Settings;
use rivulet_pktio::Interface;

use crate::flags::{self, Flag, FlagError, GENERAL, Parsed, Served, TARGET};

/// Highest version of BMv2 JSON that is accepted (only the major version counts).
pub const JSON_VERSION: &str = "2.23";

/// Largest port number: BMv2 allows any, and v1model's field has 9 bits. This leaves room for
/// programs with a modified architecture.
pub const MAX_PORT: u32 = 65535;

/// Largest number of worker threads.
pub const MAX_WORKERS: usize = 64;

/// How to exchange packets with the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoChoice {
    /// AF_PACKET, which always works.
    AfPacket,
    /// AF_XDP, or an error with the reason.
    AfXdp,
    /// AF_XDP if the interface supports it, else AF_PACKET.
    Auto,
}

/// Destination of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Warnings and errors to standard error.
    Stderr,
    /// All messages of the level and above to standard output.
    Console,
    /// All messages of the level and above to a rotated file.
    File {
        /// Its name.
        path: PathBuf,
        /// Flush after every message.
        flush: bool,
        /// Bytes before rotation.
        max_size: u64,
        /// Old files kept.
        max_files: usize,
    },
}

/// BMv2's log levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Every step of every packet.
    Trace,
    /// The same.
    Debug,
    /// Events of the switch.
    Info,
    /// Unexpected events.
    Warn,
    /// Failures.
    Error,
    /// No messages.
    Off,
}

/// Destinations of packet traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOptions {
    /// Text to standard output.
    pub console: bool,
    /// Text to a file.
    pub text: Option<PathBuf>,
    /// JSON lines to a file.
    pub json: Option<PathBuf>,
}

impl TraceOptions {
    /// Whether any packet must be traced.
    #[must_use]
    pub fn any(&self) -> bool {
        self.console || self.text.is_some() || self.json.is_some()
    }
}

/// PEM files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that signs clients' certificates.
    pub client_authority: Option<PathBuf>,
    /// Whether clients need a certificate.
    pub client_required: bool,
}

/// Settings of a switch.
#[derive(Clone, Debug)]
pub struct Options {
    /// The JSON file; `None` under `--no-p4`.
    pub config: Option<PathBuf>,
    /// Its P4Info.
    pub p4info: Option<PathBuf>,
    /// Ports and their interfaces.
    pub interfaces: Vec<(u32, Interface)>,
    /// Shaping of ports.
    pub links: Vec<(u32, Settings)>,
    /// Directory of pcap files.
    pub pcap: Option<PathBuf>,
    /// P4Runtime's device id.
    pub device_id: u64,
    /// Destination of messages.
    pub log: LogTarget,
    /// Level of messages.
    pub log_level: LogLevel,
    /// Bytes of each packet to log.
    pub dump_packet_data: usize,
    /// Largest number of ports.
    pub max_port_count: usize,
    /// Address of the P4Runtime server.
    pub grpc_addr: String,
    /// Socket of the service for ports, links and traces.
    pub control_socket: Option<PathBuf>,
    /// TLS files.
    pub tls: Option<TlsFiles>,
    /// Port of packet-in and packet-out.
    pub cpu_port: Option<u32>,
    /// Port number that means "drop".
    pub drop_port: u32,
    /// Number of queues of a port.
    pub priority_queues: u32,
    /// Packet I/O.
    pub io: IoChoice,
    /// Number of worker threads.
    pub workers: usize,
    /// Traces.
    pub trace: TraceOptions,
    /// Address of the metrics.
    pub metrics_addr: Option<String>,
    /// Forward between pairs of ports without P4.
    pub bare_forwarder: bool,
    /// Warnings to print at the start.
    pub warnings: Vec<String>,
}

/// Result of parsing.
#[derive(Debug)]
pub enum Action {
    /// Print this text and exit.
    Print(String),
    /// Start a switch.
    Run(Box<Options>),
}

/// Parses a command line without the program's name.
pub fn parse(words: &[String]) -> Result<Action, FlagError> {
    let general = flags::parse(GENERAL, words)?;
    if general.has("help") {
        return Ok(Action::Print(flags::usage()));
    }
    if general.has("version") {
        return Ok(Action::Print(format!("rivulet-switch {}\n", env!("CARGO_PKG_VERSION"))));
    }
    if general.has("json-version") {
        return Ok(Action::Print(format!("{JSON_VERSION}\n")));
    }
    let mut warnings = Vec::new();
    let bare_forwarder = general.has("bare-forwarder");
    let no_p4 = general.has("no-p4") || bare_forwarder;
    let mut rest = general.positional.as_slice();
    let mut config = None;
    if let Some((first, after)) = rest.split_first() {
        if !no_p4 {
            config = Some(PathBuf::from(first));
            rest = after;
        } else if !first.starts_with('-') && Path::new(first).extension().is_some_and(|e| e == "json") {
            warnings.push(format!("{first}: ignored as '--no-p4' was used"));
            rest = after;
        }
    } else if !no_p4 {
        return Err(conflict("please specify an input JSON configuration file"));
    }
    let target = flags::parse(TARGET, rest)?;
    if let Some(extra) = target.positional.first() {
        return Err(conflict(format!("too many positional arguments: '{extra}'")));
    }
    unserved(&general, GENERAL, &mut warnings);
    unserved(&target, TARGET, &mut warnings);
    let mut options = assemble(&general, &target)?;
    options.config = config;
    options.bare_forwarder = bare_forwarder;
    options.warnings.extend(warnings);
    check(&options)?;
    Ok(Action::Run(Box::new(options)))
}

fn conflict(message: impl Into<String>) -> FlagError {
    FlagError::Conflict(message.into())
}

/// Adds a warning for each flag that is accepted without an effect.
fn unserved(parsed: &Parsed, table: &[Flag], warnings: &mut Vec<String>) {
    for name in parsed.given() {
        if let Some(Served::No(why)) = table.iter().find(|f| f.name == name).map(|f| f.served) {
            warnings.push(format!("--{name} is not served: {why}"));
        }
    }
}

fn assemble(general: &Parsed, target: &Parsed) -> Result<Options, FlagError> {
    let path = |flag| general.get(flag).map(PathBuf::from);
    let workers = general.number("workers")?.unwrap_or(1);
    if !(1..=MAX_WORKERS).contains(&workers) {
        return Err(invalid("workers", general, &format!("1 to {MAX_WORKERS}")));
    }
    let mut interfaces = Vec::new();
    for text in general.all("interface") {
        interfaces.push(port_and(text, "interface", "<port-num>@<interface-name>")?);
    }
    let mut links = Vec::new();
    for text in general.all("link") {
        let (port, LinkText(settings)) = port_and(text, "link", "<port-num>@rate=..,delay=..")?;
        links.push((port, settings));
    }
    let io = match general.get("io") {
        None | Some("af_packet") => IoChoice::AfPacket,
        Some("af_xdp") => IoChoice::AfXdp,
        Some("auto") => IoChoice::Auto,
        Some(_) => return Err(invalid("io", general, "af_packet, af_xdp or auto")),
    };
    let mut warnings = Vec::new();
    let tls = tls_files(target, &mut warnings)?;
    let grpc_addr = target.get("grpc-server-addr").unwrap_or("127.0.0.1:9559");
    warnings.extend(exposed(grpc_addr, tls.as_ref()));
    Ok(Options {
        config: None,
        p4info: path("p4info"),
        interfaces,
        links,
        pcap: path("pcap"),
        device_id: general.number("device-id")?.unwrap_or(0),
        log: log_target(general)?,
        log_level: log_level(general)?,
        dump_packet_data: general.number("dump-packet-data")?.unwrap_or(0),
        max_port_count: general.number("max-port-count")?.unwrap_or(512),
        tls,
        grpc_addr: grpc_addr.into(),
        control_socket: path("control-socket"),
        cpu_port: target.number("cpu-port")?,
        drop_port: target.number("drop-port")?.unwrap_or(511),
        priority_queues: target.number("priority-queues")?.unwrap_or(1),
        io,
        workers,
        trace: TraceOptions {
            console: general.has("trace"),
            text: path("trace-file"),
            json: path("trace-json"),
        },
        metrics_addr: general.get("metrics-addr").map(Into::into),
        bare_forwarder: false,
        warnings,
    })
}

fn invalid(flag: &str, parsed: &Parsed, expected: &str) -> FlagError {
    let value = parsed.get(flag).unwrap_or_default().into();
    FlagError::Value { flag: flag.into(), value, expected: expected.into() }
}

/// `PORT@SOMETHING`.
fn port_and<T: FromStr>(text: &str, flag: &str, form: &str) -> Result<(u32, T), FlagError>
where
    T::Err: std::fmt::Display,
{
    let bad = |expected| FlagError::Value { flag: flag.into(), value: text.into(), expected };
    let (port, rest) = text.split_once('@').ok_or_else(|| bad(form.into()))?;
    let port: u32 = port.parse().map_err(|_| bad(form.into()))?;
    if port > MAX_PORT {
        return Err(bad(format!("a port number of at most {MAX_PORT}")));
    }
    Ok((port, rest.parse().map_err(|e: T::Err| bad(e.to_string()))?))
}

struct LinkText(Settings);

impl FromStr for LinkText {
    type Err = rivulet_link::SettingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut settings = Settings::default();
        settings.apply_all(text)?;
        Ok(LinkText(settings))
    }
}

/// A warning if other hosts can reach the address without client authentication.
fn exposed(addr: &str, tls: Option<&TlsFiles>) -> Option<String> {
    let host = || addr.rsplit_once(':').map(|(host, _)| host);
    let local = match addr.parse::<SocketAddr>() {
        Ok(addr) => addr.ip().is_loopback(),
        Err(_) => addr.starts_with("unix:") || host() == Some("localhost"),
    };
    (!local && tls.is_none_or(|t| !t.client_required)).then(|| {
        format!(
            "P4Runtime at {addr} accepts every client that can reach it as a controller: bind it to 127.0.0.1 or unix:PATH, or use \
             --grpc-server-ssl with --grpc-server-with-client-auth"
        )
    })
}

/// As in BMv2, the TLS flags have no effect without `--grpc-server-ssl`; this adds a warning.
fn tls_files(target: &Parsed, warnings: &mut Vec<String>) -> Result<Option<TlsFiles>, FlagError> {
    let path = |flag| target.get(flag).map(PathBuf::from);
    let client_required = target.has("grpc-server-with-client-auth");
    let (certificate, key) = (path("grpc-server-cert"), path("grpc-server-key"));
    let client_authority = path("grpc-server-cacert");
    if !target.has("grpc-server-ssl") {
        let any = certificate.is_some() || key.is_some() || client_authority.is_some() || client_required;
        if any {
            warnings.push("TLS is off without --grpc-server-ssl: certificates and keys are ignored".into());
        }
        return Ok(None);
    }
    let (Some(certificate), Some(key)) = (certificate, key) else {
        return Err(conflict("--grpc-server-ssl needs --grpc-server-cert and --grpc-server-key"));
    };
    if client_required && client_authority.is_none() {
        return Err(conflict("--grpc-server-with-client-auth needs --grpc-server-cacert"));
    }
    Ok(Some(TlsFiles { certificate, key, client_authority, client_required }))
}

fn log_level(general: &Parsed) -> Result<LogLevel, FlagError> {
    // BMv2's default is trace, which would slow down every packet here for anyone who wants a log.
    Ok(match general.get("log-level") {
        None | Some("info") => LogLevel::Info,
        Some("trace") => LogLevel::Trace,
        Some("debug") => LogLevel::Debug,
        Some("warn") => LogLevel::Warn,
        Some("error") => LogLevel::Error,
        Some("off") => LogLevel::Off,
        Some(_) => return Err(invalid("log-level", general, "trace, debug, info, warn, error or off")),
    })
}

fn log_target(general: &Parsed) -> Result<LogTarget, FlagError> {
    let max_size = general.number("log-file-max-size")?.unwrap_or(5 << 20);
    let max_files = general.number("log-file-max-files")?.unwrap_or(3);
    if max_size == 0 {
        return Err(conflict("--log-file-max-size must be greater than 0"));
    }
    match (general.has("log-console"), general.get("log-file")) {
        (true, Some(_)) => Err(conflict("--log-console and --log-file are exclusive")),
        (true, None) => Ok(LogTarget::Console),
        (false, None) => Ok(LogTarget::Stderr),
        (false, Some(name)) => Ok(LogTarget::File {
            path: PathBuf::from(format!("{name}.txt")),
            flush: general.has("log-flush"),
            max_size,
            max_files,
        }),
    }
}

/// Checks flags against each other.
fn check(options: &Options) -> Result<(), FlagError> {
    let o = options;
    if o.cpu_port == Some(0) {
        return Err(conflict("--cpu-port must not be 0"));
    }
    if o.cpu_port == Some(o.drop_port) {
        return Err(conflict(format!("port {} cannot be CPU port and drop port", o.drop_port)));
    }
    if !(1..=8).contains(&o.priority_queues) {
        return Err(conflict("--priority-queues: 1 to 8"));
    }
    for (i, (port, interface)) in o.interfaces.iter().enumerate() {
        if o.interfaces[..i].iter().any(|(p, _)| p == port) {
            return Err(conflict(format!("port {port} is given twice")));
        }
        if o.interfaces[..i].iter().any(|(_, other)| other == interface) {
            return Err(conflict(format!("interface {interface} is given twice")));
        }
        if o.cpu_port == Some(*port) {
            return Err(conflict(format!("CPU port {port} is used as a data port")));
        }
        if o.drop_port == *port {
            return Err(conflict(format!("drop port {port} is used as a data port")));
        }
    }
    if o.interfaces.len() > o.max_port_count {
        return Err(conflict(format!("more than {} interfaces (--max-port-count)", o.max_port_count)));
    }
    if let Some((port, _)) = o.links.iter().find(|(p, _)| !o.interfaces.iter().any(|(q, _)| p == q)) {
        return Err(conflict(format!("--link: there is no port {port}")));
    }
    if let Some(dir) = o.pcap.as_ref().filter(|d| !d.is_dir()) {
        return Err(conflict(format!(
            "Directory '{}' specified with '--pcap' does not exist",
            dir.display()
        )));
    }
    if o.workers > 1 {
        let alone = [
            ("--io af_xdp or auto", o.io != IoChoice::AfPacket),
            ("--link", !o.links.is_empty()),
            ("--pcap", o.pcap.is_some()),
        ];
        if let Some((flag, _)) = alone.iter().find(|(_, given)| *given) {
            return Err(conflict(format!("{flag} needs one worker, --workers asks for {}", o.workers)));
        }
    }
    if o.p4info.is_some() && o.config.is_none() {
        return Err(conflict("--p4info without a JSON file"));
    }
    if o.bare_forwarder && (o.interfaces.is_empty() || !o.interfaces.len().is_multiple_of(2)) {
        return Err(conflict("--bare-forwarder needs an even number of interfaces"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Options, FlagError> {
        let words: Vec<String> = line.split_whitespace().map(Into::into).collect();
        match parse(&words)? {
            Action::Run(options) => Ok(*options),
            Action::Print(text) => panic!("prints {text}"),
        }
    }

    /// The command line with which the switch class of p4lang/tutorials starts a switch.
    #[test]
    fn command_line_of_tutorials_is_accepted() {
        let o = run("-i 1@s1-eth1 -i 2@s1-eth2 --pcap /tmp --nanolog ipc:///tmp/bm-0-log.ipc --device-id 3 \
             build/basic.json --log-console --thrift-port 9090 -- --grpc-server-addr 0.0.0.0:50051 --cpu-port 255")
        .unwrap();
        assert_eq!(o.config, Some("build/basic.json".into()));
        assert_eq!((o.device_id, o.cpu_port, o.drop_port), (3, Some(255), 511));
        assert_eq!(o.grpc_addr, "0.0.0.0:50051");
        assert_eq!(o.interfaces[1], (2, "s1-eth2".parse().unwrap()));
        assert_eq!((o.log, o.pcap), (LogTarget::Console, Some("/tmp".into())));
        let warned: Vec<_> = o.warnings.iter().map(|w| w.split(' ').next().unwrap()).collect();
        assert_eq!(warned, ["P4Runtime", "--nanolog", "--thrift-port"], "one line each");
    }

    #[test]
    fn no_p4_ignores_a_program_file() {
        for line in ["--no-p4 -- --cpu-port 510", "--no-p4 x.json -- --cpu-port 510"] {
            let o = run(line).unwrap();
            assert_eq!((o.config, o.cpu_port), (None, Some(510)), "{line}");
            assert_eq!(o.warnings.len(), usize::from(line.contains("json")));
        }
        assert_eq!(run("--no-p4").unwrap().grpc_addr, "127.0.0.1:9559");
    }

    #[test]
    fn address_beyond_this_host_causes_a_warning() {
        let tls = "--grpc-server-ssl --grpc-server-cert c --grpc-server-key k --grpc-server-cacert a";
        for (line, warned) in [
            ("".to_owned(), false),
            ("--grpc-server-addr 127.0.0.1:1".to_owned(), false),
            ("--grpc-server-addr [::1]:1".to_owned(), false),
            ("--grpc-server-addr localhost:1".to_owned(), false),
            ("--grpc-server-addr unix:/tmp/x".to_owned(), false),
            ("--grpc-server-addr 0.0.0.0:1".to_owned(), true),
            ("--grpc-server-addr [::]:1".to_owned(), true),
            ("--grpc-server-addr tor.example:1".to_owned(), true),
            (format!("--grpc-server-addr 10.0.0.1:1 {tls}"), true),
            (format!("--grpc-server-addr 10.0.0.1:1 {tls} --grpc-server-with-client-auth"), false),
        ] {
            let o = run(&format!("--no-p4 -- {line}")).unwrap();
            assert_eq!(!o.warnings.is_empty(), warned, "{line}: {:?}", o.warnings);
        }
        assert_eq!(run("--no-p4 --control-socket /run/s").unwrap().control_socket, Some("/run/s".into()));
    }

    #[test]
    fn own_flags_are_parsed() {
        let o =
            run("x.json -i 1@ns1:veth1 --link 1@rate=10mbit,delay=5ms --io auto --p4info x.txtpb --trace")
                .unwrap();
        assert_eq!(o.interfaces[0].1.netns(), Some("ns1"));
        assert_eq!((o.links[0].0, o.links[0].1.rate, o.links[0].1.delay), (1, Some(10_000_000), 5_000_000));
        assert!(o.io == IoChoice::Auto && o.trace.any());
        assert!(run("--bare-forwarder -i 1@a -i 2@b").unwrap().bare_forwarder);
    }

    #[test]
    fn tls_flags_work_as_in_bmv2() {
        let o = run("x.json -- --grpc-server-cert c --grpc-server-key k").unwrap();
        assert_eq!((o.tls, o.warnings.len()), (None, 1));
        let o = run("x.json -- --grpc-server-ssl --grpc-server-cert c --grpc-server-key k").unwrap();
        let tls = o.tls.unwrap();
        assert_eq!((tls.key, tls.client_authority, tls.client_required), ("k".into(), None, false));
    }

    #[test]
    fn errors_name_the_fault() {
        for (line, wanted) in [
            ("", "please specify an input JSON"),
            ("x.json -- --no-such-target-flag", "unrecognised option '--no-such-target-flag'"),
            ("x.json y.json", "too many positional"),
            ("x.json -- --cpu-port 0", "must not be 0"),
            ("x.json -- --cpu-port 511", "CPU port and drop port"),
            ("x.json -i 510@a -- --cpu-port 510", "used as a data port"),
            ("x.json -i 511@a", "drop port 511"),
            ("x.json -i a", "<port-num>@<interface-name>"),
            ("x.json -i 1@", "is not an interface name"),
            ("x.json -i 70000@a", "at most 65535"),
            ("x.json -i 1@a -i 1@b", "given twice"),
            ("x.json -i 1@a -i 2@a", "given twice"),
            ("x.json --pcap=/no/such/dir", "does not exist"),
            ("x.json --log-console --log-file f", "exclusive"),
            ("x.json -L loud", "trace, debug, info"),
            ("x.json --link 1@delay=1ms", "no port 1"),
            ("x.json -i 1@a --link 1@delay=never", "delay=\"never\""),
            ("x.json -- --grpc-server-ssl", "needs --grpc-server-cert"),
            (
                "x.json -- --grpc-server-ssl --grpc-server-cert c --grpc-server-key k --grpc-server-with-client-auth",
                "needs --grpc-server-cacert",
            ),
            ("x.json --workers 0", "1 to 64"),
            ("x.json -i 1@a --link 1@delay=1ms --workers 2", "--link needs one worker"),
            ("x.json --io auto --workers 2", "needs one worker"),
            ("x.json -- --priority-queues 9", "1 to 8"),
            ("--no-p4 --p4info x", "without a JSON"),
            ("--bare-forwarder -i 1@a", "even number"),
        ] {
            let error = run(line).expect_err(line).to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }
}
