//! A network of a client, a router and two replicas.

use super::Netns;

/// A client (`10.0.0.2`), a router and two replicas (`10.0.1.2`, `10.0.2.2`), each replica with the service address `10.9.0.1`,
/// which the router sends to the first. The names of the namespaces begin with `prefix`. The router's interfaces are `c`, `r1`
/// and `r2`; its nftables chain `ip t f` sees what it forwards, and the second replica's `ip t i` what that one receives.
///
/// `None`, with a line on standard error, where namespaces cannot be made.
///
/// # Panics
/// If a command fails.
#[must_use]
pub fn two_replicas(prefix: &str) -> Option<[Netns; 4]> {
    let ns = |name: &str| Netns::new(&format!("{prefix}{name}"));
    let [client, router, r1, r2] = [ns("c")?, ns("r")?, ns("1")?, ns("2")?];
    for ns in [&client, &router, &r1, &r2] {
        ns.quiet();
    }
    router.run("sysctl -qw net.ipv4.ip_forward=1");
    for (n, (ns, there)) in [(&client, "c"), (&r1, "r1"), (&r2, "r2")].into_iter().enumerate() {
        ns.veth("eth0", &router, there);
        ns.ip(&format!("addr add 10.0.{n}.2/24 dev eth0"));
        router.ip(&format!("addr add 10.0.{n}.1/24 dev {there}"));
        ns.ip(&format!("route add default via 10.0.{n}.1"));
    }
    for ns in [&r1, &r2] {
        ns.ip("addr add 10.9.0.1/32 dev lo");
    }
    router.ip("route add 10.9.0.1 via 10.0.1.2");
    router.run("nft add table ip t");
    router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    r2.run("nft add table ip t");
    r2.run("nft add chain ip t i { type filter hook input priority 0 ; }");
    Some([client, router, r1, r2])
}
