//! Drops segments of a user-space stack before the kernel's TCP, which would answer them with
//! resets.
//!
//! The guard is an nftables drop at `netdev` ingress, after the packet taps, so AF_PACKET sockets
//! still get every frame. Each process has its own table, named after its pid and start time. A
//! killed process deliberately leaves its table behind: until the process is back, the kernel sends
//! nothing to its peers. The next [`KernelGuard`] in that namespace removes the tables of dead
//! processes.

mod draining;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::{Command, Stdio};

use crate::filter::TcpRule;
use crate::in_netns;
pub use draining::Share;

const PREFIX: &str = "rivulet_guard_";
const TCP_HEADER_LONGER_THAN_20: &str = "@th,96,4 >= 6";

/// Why the drop could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// The `nft` command cannot be run.
    #[error("cannot run nft (Debian package nftables): {0}")]
    Run(io::Error),
    /// `nft` failed with this message.
    #[error("nft: {0}")]
    Refused(String),
    /// The namespace cannot be entered.
    #[error(transparent)]
    Netns(#[from] crate::OpenError),
    /// The interface name does not fit into a rule.
    #[error("{0:?} is not an interface name")]
    Name(String),
}

/// One process's nftables table of family `netdev`. Dropping it removes the table; after a `kill
/// -9` [`remove_stale`] does.
#[derive(Debug)]
pub struct Table {
    netns: Option<String>,
    name: String,
}

impl Table {
    /// Chooses a unique name. [`Table::replace`] installs the table.
    #[must_use]
    pub fn new(netns: Option<&str>) -> Self {
        // Number of this process's tables.
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Table::of(std::process::id(), count, netns)
    }

    fn of(pid: u32, count: u32, netns: Option<&str>) -> Self {
        let start = start_time(pid).unwrap_or_default();
        Table { netns: netns.map(Into::into), name: format!("{PREFIX}{pid}_{start}_{count}") }
    }

    /// Leaves these sets and chains to another running process: they get the name of its first
    /// [`Table::new`] and are removed with it.
    pub fn leave(pid: u32, netns: Option<&str>, body: &str) -> Result<(), GuardError> {
        std::mem::ManuallyDrop::new(Table::of(pid, 0, netns)).replace(body)
    }

    /// Atomically replaces the table's content by these sets and chains.
    pub fn replace(&self, body: &str) -> Result<(), GuardError> {
        let script = format!(
            "add table netdev {0}\ndelete table netdev {0}\ntable netdev {0} {{\n{body}}}\n",
            self.name
        );
        nft(self.netns.as_deref(), &["-f", "-"], &script).map(drop)
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // On failure the namespace is gone, or the next process removes the table.
        let _ = nft(self.netns.as_deref(), &["delete", "table", "netdev", &self.name], "");
    }
}

/// An installed drop; dropping this value removes it.
#[derive(Debug)]
pub struct KernelGuard {
    table: Table,
}

impl KernelGuard {
    /// Drops at ingress of each interface what any rule matches, then removes the tables of dead
    /// processes. The interfaces are in `netns` (a name of `ip netns` or a path), or in the
    /// namespace of the calling thread.
    pub fn install(netns: Option<&str>, interfaces: &[&str], rules: &[TcpRule]) -> Result<Self, GuardError> {
        Self::install_sharing(netns, interfaces, &whole(rules))
    }

    /// The same, leaving a share of each rule's segments to the kernel.
    pub fn install_sharing(
        netns: Option<&str>,
        interfaces: &[&str],
        rules: &[(TcpRule, Share)],
    ) -> Result<Self, GuardError> {
        let guard = KernelGuard { table: Table::new(netns) };
        guard.share(interfaces, rules)?;
        // Last, so that there is no gap between the dead process's drop and ours.
        remove_stale(netns)?;
        Ok(guard)
    }

    /// Atomically replaces interfaces and rules. Before Linux 6.16 every interface must exist, and
    /// the caller must repeat this when an interface was recreated, because the kernel deletes the
    /// drop with the interface. Since then the drop waits for interfaces of that name.
    pub fn update(&self, interfaces: &[&str], rules: &[TcpRule]) -> Result<(), GuardError> {
        self.share(interfaces, &whole(rules))
    }

    /// The same, leaving a share of each rule's segments to the kernel. Looks up the kernel's
    /// present connections again.
    pub fn share(&self, interfaces: &[&str], rules: &[(TcpRule, Share)]) -> Result<(), GuardError> {
        let mut script = draining::sets(self.table.netns.as_deref(), rules)?;
        let (mut ingress, mut egress) = (String::new(), String::new());
        let mut dropped = Endpoints::default();
        for (rule, share) in rules {
            if *share != Share::None || !dropped.add(rule) {
                draining::lines(rule, *share, &mut ingress, &mut egress);
            }
        }
        dropped.write(&mut ingress);
        for (i, name) in interfaces.iter().enumerate() {
            if crate::Interface::new(None, name).is_err() || name.contains(['"', '\\']) {
                return Err(GuardError::Name((*name).into()));
            }
            // Older kernels lack the egress hook.
            let leaves = (!egress.is_empty()).then_some(("egress", &egress));
            for (hook, lines) in [("ingress", &ingress)].into_iter().chain(leaves) {
                let _ = writeln!(script, " chain {hook}_{i} {{");
                let _ = writeln!(
                    script,
                    "  type filter hook {hook} device \"{name}\" priority 0; policy accept;"
                );
                script.push_str(lines);
                let _ = writeln!(script, " }}");
            }
        }
        self.table.replace(&script)
    }

    /// Name of the nftables table, family `netdev`.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.name()
    }
}

/// Leaves no segment of these rules to the kernel.
fn whole(rules: &[TcpRule]) -> Vec<(TcpRule, Share)> {
    rules.iter().map(|rule| (rule.clone(), Share::None)).collect()
}

/// Removes the tables of processes that have ended, and returns how many there were.
pub fn remove_stale(netns: Option<&str>) -> Result<usize, GuardError> {
    let tables = nft(netns, &["list", "tables", "netdev"], "")?;
    let mut removed = 0;
    for table in tables.lines().filter_map(|line| line.trim().strip_prefix("table netdev ")) {
        if is_stale(table) {
            nft(netns, &["delete", "table", "netdev", table], "")?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether this is a table of ours whose process has ended. The start time detects a reused pid.
fn is_stale(table: &str) -> bool {
    let Some(owner) = table.strip_prefix(PREFIX) else { return false };
    let mut parts = owner.split('_').map(str::parse::<u64>);
    let (Some(Ok(pid)), Some(Ok(start))) = (parts.next(), parts.next()) else { return false };
    u32::try_from(pid).ok().and_then(start_time) != Some(start)
}

/// When a process started, in clock ticks since boot: field 22 of `/proc/PID/stat` (proc(5)).
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Field 2 is the command in parentheses and may hold anything.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The nftables expression for TCP segments that begin with the experimental option with this
/// identifier (RFC 6994).
#[must_use]
pub fn with_option(exid: u16) -> String {
    format!("{TCP_HEADER_LONGER_THAN_20} @th,160,8 253 @th,176,16 {exid}")
}

/// Addresses and ports whose segments are dropped, as a set: one lookup a packet.
#[derive(Default)]
struct Endpoints {
    /// Sets by option (ExID) and family (true: IPv6).
    sets: BTreeMap<(Option<u16>, bool), EndpointSet>,
}

type EndpointSet = BTreeSet<(IpAddr, u16)>;

impl Endpoints {
    /// Adds a rule that lists addresses and single ports; returns false for any other rule.
    fn add(&mut self, rule: &TcpRule) -> bool {
        let ports = &rule.destination_ports;
        if rule.destinations.is_empty() || ports.is_empty() || ports.iter().any(|p| p.start() != p.end()) {
            return false;
        }
        for &address in &rule.destinations {
            let set = self.sets.entry((rule.exid, address.is_ipv6())).or_default();
            set.extend(ports.iter().map(|port| (address, *port.start())));
        }
        true
    }

    fn write(&self, chain: &mut String) {
        for ((exid, v6), set) in &self.sets {
            let family = if *v6 { "ip6" } else { "ip" };
            let elements: Vec<String> =
                set.iter().map(|(address, port)| format!("{address} . {port}")).collect();
            let option = exid.map_or_else(String::new, |exid| format!(" {}", with_option(exid)));
            let _ = writeln!(
                chain,
                "  meta l4proto tcp {family} daddr . tcp dport {{ {} }}{option} counter drop",
                elements.join(", ")
            );
        }
    }
}

/// One nftables expression for each IP family that a rule can match.
fn rule_lines(rule: &TcpRule) -> Vec<String> {
    let any = rule.destinations.is_empty();
    let mut lines = Vec::new();
    for v6 in [false, true] {
        let family = if v6 { "ip6" } else { "ip" };
        let mut line = String::from("meta l4proto tcp");
        let mine: Vec<String> =
            rule.destinations.iter().filter(|a| a.is_ipv6() == v6).map(ToString::to_string).collect();
        if !mine.is_empty() {
            let _ = write!(line, " {family} daddr {{ {} }}", mine.join(", "));
        }
        let ports: Vec<String> =
            rule.destination_ports.iter().map(|r| format!("{}-{}", r.start(), r.end())).collect();
        if !ports.is_empty() {
            let _ = write!(line, " tcp dport {{ {} }}", ports.join(", "));
        }
        if let Some(exid) = rule.exid {
            let _ = write!(line, " {}", with_option(exid));
        }
        if any || !mine.is_empty() {
            lines.push(line);
        }
        if any {
            // Without addresses one expression matches both families.
            break;
        }
    }
    lines
}

fn nft(netns: Option<&str>, args: &[&str], input: &str) -> Result<String, GuardError> {
    in_netns(netns, || {
        let mut child = Command::new("nft")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(GuardError::Run)?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the child does not read, its standard error has the reason.
            let _ = stdin.write_all(input.as_bytes());
        }
        let out = child.wait_with_output().map_err(GuardError::Run)?;
        if !out.status.success() {
            return Err(GuardError::Refused(String::from_utf8_lossy(&out.stderr).trim().into()));
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tables_of_dead_processes_are_stale() {
        let pid = std::process::id();
        let start = start_time(pid).unwrap();
        assert!(!is_stale(&format!("{PREFIX}{pid}_{start}_0")));
        assert!(is_stale(&format!("{PREFIX}{pid}_{}_0", start + 1)), "pid reused");
        assert!(is_stale(&format!("{PREFIX}4194305_1_0")), "pid gone");
        for other in ["filter", PREFIX, "rivulet_guard_x_1_0", "rivulet_guard_1"] {
            assert!(!is_stale(other), "{other}");
        }
    }

    #[test]
    fn a_rule_becomes_one_line_a_family() {
        let rule = TcpRule { exid: Some(0x5256), ..TcpRule::default() };
        assert_eq!(rule_lines(&rule), ["meta l4proto tcp @th,96,4 >= 6 @th,160,8 253 @th,176,16 21078"]);
        let rule = TcpRule {
            destinations: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            destination_ports: vec![80..=80, 8000..=8999],
            ..TcpRule::default()
        };
        assert_eq!(
            rule_lines(&rule),
            [
                "meta l4proto tcp ip daddr { 10.0.0.1 } tcp dport { 80-80, 8000-8999 }",
                "meta l4proto tcp ip6 daddr { fd00::1 } tcp dport { 80-80, 8000-8999 }"
            ]
        );
        let v6_only = TcpRule { destinations: vec!["fd00::1".parse().unwrap()], ..TcpRule::default() };
        assert_eq!(rule_lines(&v6_only).len(), 1);
    }
}
