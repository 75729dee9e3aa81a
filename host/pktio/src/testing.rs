//! Helpers for tests and benchmarks: network namespaces with unique names, removed on drop, and
//! processes in them.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

mod process;
mod rack;
mod user;

pub use process::{PATIENCE, Process, eventually, read_once, under_signals};
pub use rack::two_replicas;
pub use user::Cgroup;

/// A network namespace of `ip netns`, removed with all its interfaces when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace with loopback up, named from the prefix, this process and a counter.
    /// `None`, with a line on standard error, if the user may not create one: then the test must
    /// return.
    #[must_use]
    pub fn new(prefix: &str) -> Option<Netns> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        match Command::new("ip").args(["netns", "add", &name]).output() {
            Ok(out) if out.status.success() => {}
            Ok(out) => {
                eprintln!("SKIPPED: no network namespaces: {}", String::from_utf8_lossy(&out.stderr).trim());
                return None;
            }
            Err(e) => {
                eprintln!("SKIPPED: cannot run ip: {e}");
                return None;
            }
        }
        let ns = Netns { name };
        ns.ip("link set lo up");
        Some(ns)
    }

    /// The name, for `ip netns exec` and [`Interface::new`](crate::Interface::new).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An interface of this namespace.
    ///
    /// # Panics
    /// If the name is invalid.
    #[must_use]
    pub fn interface(&self, name: &str) -> crate::Interface {
        crate::Interface::new(Some(&self.name), name).expect("interface name")
    }

    /// `ip -n NAMESPACE ARGS`, split at white space.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, args: &str) {
        let out = Command::new("ip").arg("-n").arg(&self.name).args(args.split_whitespace()).output();
        check(&format!("ip {args}"), out.expect("run ip"));
    }

    /// A command inside the namespace, not yet started.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        // A test must not leave files in the user's home, nor find any there.
        command.args(["netns", "exec", &self.name, program]).env("RIVULET_STATE", "");
        command
    }

    /// Runs a command line inside and returns its standard output.
    ///
    /// # Panics
    /// If it fails.
    pub fn run(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a command");
        check(line, self.command(program).args(words).output().expect("run ip"))
    }

    /// A veth pair, `here` in this namespace and `there` in the other, both up and ready to send.
    pub fn veth(&self, here: &str, other: &Netns, there: &str) {
        self.ip(&format!("link add {here} type veth peer name {there} netns {}", other.name));
        self.ip(&format!("link set dev {here} up"));
        other.ip(&format!("link set dev {there} up"));
        // The kernel activates them a little later and drops frames sent before.
        self.wait_until_up(here);
        other.wait_until_up(there);
    }

    /// Waits until the interface is up with carrier.
    ///
    /// # Panics
    /// If that takes longer than [`PATIENCE`].
    pub fn wait_until_up(&self, name: &str) {
        eventually(name, || self.run(&format!("ip link show dev {name}")).contains("state UP"));
    }

    /// Ethernet address of an interface.
    ///
    /// # Panics
    /// If there is no such interface.
    #[must_use]
    pub fn mac(&self, name: &str) -> [u8; 6] {
        let text = self.run(&format!("cat /sys/class/net/{name}/address"));
        let octets: Vec<u8> = text.trim().split(':').filter_map(|o| u8::from_str_radix(o, 16).ok()).collect();
        octets.try_into().expect("six octets")
    }

    /// A counter of the namespace's kernel, by its name in `nstat` (`TcpOutRsts`).
    ///
    /// # Panics
    /// If there is no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.run(&format!("nstat -asz {name}"));
        let line = text.lines().find(|line| line.starts_with(name)).expect("the counter");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Replaces the interface's egress queue by a token bucket, slow enough that tests can act in
    /// the middle of a transfer.
    pub fn shape(&self, name: &str, rate: &str) {
        self.run(&format!("tc qdisc replace dev {name} root tbf rate {rate} burst 64kb limit 256kb"));
    }

    /// Switches offloads off: AF_XDP needs whole frames with checksums.
    pub fn offloads_off(&self, name: &str) {
        self.run(&format!("ethtool -K {name} tx off txvlan off gro off"));
    }

    /// Disables IPv6 on interfaces created from now on, so that the kernel sends nothing
    /// unrequested.
    pub fn quiet(&self) {
        self.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    }
}

/// Whether this machine cannot use AF_XDP at all (kernel or privileges), so that the test must be
/// skipped; logs it to standard error. A single interface can still be unsuitable.
///
/// # Panics
/// If this kernel should support it ([`rivulet_bpf::kernel::skipped`]).
#[must_use]
pub fn lacks_af_xdp() -> bool {
    rivulet_bpf::kernel::skipped(rivulet_bpf::kernel::Feature::Xdp)
}

fn check(what: &str, out: Output) -> String {
    assert!(out.status.success(), "{what}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

impl Drop for Netns {
    fn drop(&mut self) {
        // A socket still open inside keeps the interfaces for a while; ignore that here.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}
