//! What tests and benchmarks stand on: network namespaces with unique names, removed on drop, and processes in them.

use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

mod process;
mod user;

pub use process::{PATIENCE, Process, eventually, read_once};
pub use user::Cgroup;

/// A network namespace of `ip netns`, removed with all its interfaces when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// A fresh namespace with loopback up, named from the prefix, this process and a count. `None`, and
    /// a line on standard error that says so, where the user may not make one: the test is to return.
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
    /// On a name that cannot be one.
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
        // Nothing of a test is left in the home of who runs it, nor found there by the next.
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
        // The kernel activates them a little later and drops what is sent before.
        self.wait_until_up(here);
        other.wait_until_up(there);
    }

    /// Waits until the interface has carrier and sends.
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

    /// A counter of its kernel's, as `nstat` calls it (`TcpOutRsts`).
    ///
    /// # Panics
    /// If there is no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.run(&format!("nstat -asz {name}"));
        let line = text.lines().find(|line| line.starts_with(name)).expect("the counter");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    }

    /// A token bucket at an interface's egress, in place of what was there: slow enough that things happen in the
    /// middle of a transfer.
    pub fn shape(&self, name: &str, rate: &str) {
        self.run(&format!("tc qdisc replace dev {name} root tbf rate {rate} burst 64kb limit 256kb"));
    }

    /// Whole frames with checksums, as AF_XDP needs them.
    pub fn offloads_off(&self, name: &str) {
        self.run(&format!("ethtool -K {name} tx off txvlan off gro off"));
    }

    /// No IPv6 in interfaces made from now on, so that the kernel sends nothing by itself.
    pub fn quiet(&self) {
        self.run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    }
}

/// Whether AF_XDP cannot be had on this machine at all (kernel or rights), so that a test is to be skipped; says so on
/// standard error. Why not on some interface is another question.
///
/// # Panics
/// If the kernel is one that should have it ([`rivulet_bpf::kernel::skipped`]).
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
        // A socket that is still open inside keeps the interfaces for a while; nothing to be done here.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}
