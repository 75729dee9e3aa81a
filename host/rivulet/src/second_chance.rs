//! The second chance of plain TCP, as in GLB: a segment without a socket on this host goes back to
//! the ToR, which sends it to the slot's other candidate. So the plain connections of a drained
//! replica continue, although its slots name another replica first.
//!
//! It is an nftables table. A RST of the kernel shows that it has no socket: the RST is dropped,
//! its connection is noted, and the client's next segment is forwarded to the ToR with this host's
//! Ethernet address as source. The ToR keeps that source address when it forwards the segment, and
//! a replica returns only segments that have the ToR's own address, so that each makes one extra
//! hop at most. For a returned segment the RST is sent, until a segment of the connection comes
//! from the ToR itself, because a drained replica gets its segments directly once it is readmitted.
//! The RST is also sent for segments from a tunnel of another rack's ToR, which take another path
//! through the kernel, and when the tables are full.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rivulet_bpf::trods::{KNOWN, UNKNOWN};
use rivulet_packet::option::EX_ID;
use rivulet_pktio::Interface;
use rivulet_pktio::guard::{GuardError, Table, with_option};
use rivulet_server::service::Service;

/// Limit on the remembered connections of each address family.
const CONNECTIONS: u32 = 65536;
/// How long a connection is remembered after its last segment, seconds.
const REMEMBERED: u32 = 600;
/// Limit on the time between a segment from the ToR itself and the kernel's RST for it, seconds;
/// usually it takes microseconds.
const STRAIGHT: u32 = 5;
/// Limit on segments of unknown connections of a service under TRODS, per second and as a burst:
/// more than a drained replica's clients send. Beyond it clients retransmit, or it is a flood.
const STRAYS: u32 = 20_000;
/// Netfilter priority: before the drops of the guard's table, so that their order does not matter.
const PRIORITY: i32 = -10;

/// The second chance of one interface.
#[derive(Debug)]
pub struct SecondChance {
    table: Table,
    interface: String,
    /// The installed rules, and the index of their interface.
    body: String,
    anew: u64,
    failed: bool,
}

impl SecondChance {
    /// Starts without rules; [`SecondChance::ensure`] installs them.
    #[must_use]
    pub fn new(interface: &Interface) -> SecondChance {
        let interface = interface.name().to_owned();
        SecondChance { table: Table::new(None), interface, body: String::new(), anew: 0, failed: false }
    }

    /// Forwards segments of these services from now on. `mac` is this host's Ethernet address;
    /// `anew` changes when the interface was created again, because the kernel may have dropped its
    /// rules. If the kernel or `nft` cannot do it, a warning is logged once, and draining breaks
    /// plain connections.
    pub fn ensure<'a>(&mut self, services: impl Iterator<Item = &'a Service>, mac: [u8; 6], anew: u64) {
        let body = body(&self.interface, services, mac);
        if (body == self.body && anew == self.anew) || (body.is_empty() && self.body.is_empty()) {
            return;
        }
        self.anew = anew;
        match self.install(&body) {
            Ok(()) => self.failed = false,
            Err(e) if self.failed => tracing::debug!(error = %e, "no second chance for plain TCP"),
            Err(e) => {
                tracing::warn!(error = %e, "draining will break plain TCP");
                self.failed = true;
            }
        }
        // Failed rules are not tried again before they change.
        self.body = body;
    }

    fn install(&self, body: &str) -> Result<(), GuardError> {
        if Interface::new(None, &self.interface).is_err() || self.interface.contains(['"', '\\']) {
            return Err(GuardError::Name(self.interface.clone()));
        }
        self.table.replace(body)?;
        // The former process's table is removed only now, so that there is no moment without rules.
        rivulet_pktio::guard::remove_stale(None).map(drop)
    }

    /// The installed rules, for a process that gets [the table](Table::leave); `None` if there are
    /// none.
    pub fn body(&self) -> Option<&str> {
        Some(&*self.body).filter(|body| !body.is_empty())
    }
}

/// The sets and chains; empty unless a service of plain TCP is behind a ToR.
fn body<'a>(interface: &str, services: impl Iterator<Item = &'a Service>, mac: [u8; 6]) -> String {
    let (mut ingress, mut egress) = (String::new(), String::new());
    // Grouped by family and ToR: one set lookup for each packet, however many services there are.
    let mut served: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    // A service of stateless TCP has no sockets, so a missing socket shows nothing.
    for service in services.filter(|s| s.is_kernels() && !s.answers_plain()) {
        let Some(member) = service.member else { continue };
        for &address in &service.addresses {
            served.entry((address.is_ipv6(), member.tor_mac)).or_default().insert((address, service.port));
        }
    }
    let mut text = String::new();
    if served.is_empty() {
        return text;
    }
    for (number, ((v6, tor_mac), sockets)) in served.iter().enumerate() {
        let set = format!("served{number}");
        let elements: Vec<String> =
            sockets.iter().map(|(address, port)| format!("{address} . {port}")).collect();
        let _ = writeln!(
            text,
            " set {set} {{ type {} . inet_service; elements = {{ {} }}; }}",
            if *v6 { "ipv6_addr" } else { "ipv4_addr" },
            elements.join(", ")
        );
        rules(&mut ingress, &mut egress, interface, (&set, *v6), mac, *tor_mac);
    }
    // Accepts most packets first, because each rule costs time: those of connections that TRODS
    // knows here (whatever the sets remember from before the adoption), and everything except RSTs.
    ingress.insert_str(0, &format!("  meta mark {KNOWN:#x} accept\n"));
    egress.insert_str(0, "  tcp flags & rst == 0 accept\n");
    for (family, address) in [("4", "ipv4_addr"), ("6", "ipv6_addr")] {
        for (set, seconds) in [("away", REMEMBERED), ("handed", REMEMBERED), ("straight", STRAIGHT)] {
            let _ = writeln!(
                text,
                " set {set}{family} {{ type {address} . inet_service . {address} . inet_service; flags dynamic,timeout; \
                 timeout {seconds}s; size {CONNECTIONS}; }}"
            );
        }
    }
    for (hook, rules) in [("ingress", ingress), ("egress", egress)] {
        let _ = writeln!(
            text,
            " chain {hook} {{\n  type filter hook {hook} device \"{interface}\" priority {PRIORITY}; policy accept;\n{rules} }}"
        );
    }
    text
}

fn rules(
    ingress: &mut String,
    egress: &mut String,
    interface: &str,
    (set, v6): (&str, bool),
    mac: [u8; 6],
    tor_mac: [u8; 6],
) {
    let (ip, family) = if v6 { ("ip6", 6) } else { ("ip", 4) };
    let (mac, tor) = (colons(mac), colons(tor_mac));
    let here = format!("{ip} daddr . tcp dport @{set}");
    let from = format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport");
    // A RST belongs to the same connection in the other direction.
    let reset = format!("{ip} saddr . tcp sport @{set} tcp flags == rst");
    let to = format!("{ip} daddr . tcp dport . {ip} saddr . tcp sport");
    // Segments of Rivulet's own clients, which are many, are not plain TCP.
    let _ = writeln!(ingress, "  {here} {} accept", with_option(EX_ID));
    // A new connection between the same addresses and ports has its socket here.
    let _ = writeln!(ingress, "  {here} tcp flags & syn == syn delete @away{family} {{ {from} }} accept");
    let _ = writeln!(ingress, "  {here} ether saddr != {tor} update @handed{family} {{ {from} }} accept");
    let _ = writeln!(ingress, "  {here} delete @handed{family} {{ {from} }}");
    let _ = writeln!(
        ingress,
        "  {here} {from} @away{family} update @away{family} {{ {from} }} ether saddr set {mac} ether daddr set {tor} \
         counter fwd to \"{interface}\""
    );
    // The BPF programs of TRODS found no connection. Without a limit the kernel would make a RST
    // for each segment, and the rules below an entry in two sets.
    let _ = writeln!(
        ingress,
        "  {here} meta mark {UNKNOWN:#x} limit rate over {STRAYS}/second burst {STRAYS} packets counter drop"
    );
    let _ = writeln!(ingress, "  {here} update @straight{family} {{ {from} }}");
    let _ = writeln!(egress, "  {reset} {to} @handed{family} counter accept");
    let _ = writeln!(egress, "  {reset} {to} @straight{family} update @away{family} {{ {to} }} counter drop");
}

fn colons(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    use rivulet_bpf::kernel::{Feature, skipped};
    use rivulet_bpf::trods::{FlowKey, Lease};
    use rivulet_packet::segment::TcpFlags;
    use rivulet_pktio::testing::{Netns, eventually};
    use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns, repair};
    use rivulet_plain::{Header, Options, Segment};
    use rivulet_server::keys::KeySet;
    use rivulet_server::service::{Member, Plain};
    use rivulet_trods::hold::{Hold, Stores, Watch};
    use rivulet_trods::testing::idle;
    use rivulet_trods::{Settings, Tuple};

    use super::*;

    fn service(plain: bool, member: bool) -> Service {
        let place = Member {
            pool: 1,
            replica: 0,
            tor_mac: [2, 0, 0, 0, 0, 0xfe],
            heartbeat: Duration::from_millis(2),
            bound: Duration::from_millis(20),
        };
        Service {
            member: member.then_some(place),
            trust_tor: true,
            ..Service::standalone(
                "www",
                vec!["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()],
                80,
                KeySet::generate(1).unwrap(),
                if plain { Plain::Kernel } else { Plain::None },
            )
        }
    }

    #[test]
    fn only_plain_tcp_behind_a_tor_is_handed_on() {
        let mac = [2, 0, 0, 0, 0, 1];
        for (plain, member) in [(true, false), (false, true), (false, false)] {
            assert_eq!(body("r1-eth0", [service(plain, member)].iter(), mac), "");
        }
        let text = body("r1-eth0", [service(true, true)].iter(), mac);
        for part in [
            r#"hook ingress device "r1-eth0""#,
            r#"hook egress device "r1-eth0""#,
            "policy accept;\n  meta mark 0x54524f4b accept\n",
            "policy accept;\n  tcp flags & rst == 0 accept\n",
            "ip daddr . tcp dport @served0 meta mark 0x54524f55 limit rate over 20000/second",
            "ip daddr . tcp dport @served0 @th,96,4 >= 6 @th,160,8 253 @th,176,16 21078 accept",
            "ip daddr . tcp dport @served0 ether saddr != 02:00:00:00:00:fe update @handed4",
            r#"ether saddr set 02:00:00:00:00:01 ether daddr set 02:00:00:00:00:fe counter fwd to "r1-eth0""#,
            "ip6 saddr . tcp sport @served1 tcp flags == rst ip6 daddr . tcp dport . ip6 saddr . tcp sport @straight6 \
             update @away6",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    /// A client's segment with these bytes.
    fn segment(tuple: Tuple, seq: u32, octets: &[u8]) -> Vec<u8> {
        let (src, dst, flags) = (tuple.client, tuple.service, TcpFlags(TcpFlags::ACK | TcpFlags::PSH));
        let header = Header { src, dst, seq, ack: 900, flags, window: 1000, options: Options::default() };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(octets);
        header.finish(&mut packet, octets.len()).unwrap();
        packet
    }

    /// The ToR's end of the link: sends clients' segments, and receives those that the replica
    /// returns.
    struct Tor {
        io: AfPacket,
        mac: [u8; 6],
        replica: [u8; 6],
    }

    impl Tor {
        /// Sends a client's segment with these bytes, from offset `seq` of its data.
        fn send(&mut self, tuple: Tuple, seq: u32, octets: &[u8]) {
            self.send_all(&[segment(tuple, seq, octets)]);
        }

        fn send_all(&mut self, packets: &[Vec<u8>]) {
            let head = [&self.replica[..], &self.mac, &[8, 0]].concat();
            let frames: Vec<_> =
                packets.iter().map(|packet| TxFrame { body: packet, ..TxFrame::new(&head) }).collect();
            for frames in frames.chunks(64) {
                self.io.send(frames).unwrap();
            }
        }

        /// Number of the client's segments that the replica returned.
        fn handed_on(&mut self, client: SocketAddr) -> usize {
            let ends = [&self.mac[..], &self.replica].concat();
            let mut all = 0;
            while let count @ 1.. = self.io.recv().unwrap() {
                let is_back = |data: &[u8]| {
                    let packet = data.strip_prefix(&ends[..]).and_then(|rest| rest.get(2..));
                    packet.and_then(|p| Segment::parse(p).ok()).is_some_and(|s| s.header.src == client)
                };
                all += (0..count).filter(|n| is_back(self.io.frame(*n).data)).count();
            }
            all
        }
    }

    /// A replica with a service under TRODS, and the rules of the second chance.
    struct Rig {
        watch: Watch<Stores>,
        tor: Tor,
        replica: Netns,
        second_chance: SecondChance,
        _tor: Netns,
    }

    const SERVICE: &str = "10.9.0.1:80";
    /// Text by which the rule that drops segments of unknown connections is found.
    const STRAY: &str = "limit rate over";

    impl Rig {
        fn new(name: &str) -> Option<Rig> {
            if skipped(Feature::Tcx) {
                return None;
            }
            let (tor, replica) = (Netns::new(&format!("{name}-t"))?, Netns::new(&format!("{name}-r"))?);
            tor.veth("c0", &replica, "r0");
            // No kernel has the ToR's address, so the test alone answers for it.
            replica.ip("addr add 10.88.0.2/24 dev r0");
            replica.ip("addr add 10.9.0.1/32 dev lo");
            replica.ip("route add default via 10.88.0.1");
            let (mac, own) = (tor.mac("c0"), replica.mac("r0"));
            replica.ip(&format!("neigh add 10.88.0.1 lladdr {} dev r0", colons(mac)));
            let hold = Hold::open(&replica.interface("r0")).unwrap_or_else(|e| panic!("{e}"));
            let lease = Lease { until: u64::MAX, settling: 0, ..Lease::default() };
            hold.programs().leases().unwrap().set(0, lease).unwrap();
            let mut watch = Watch::new(hold, Stores::default()).unwrap();
            watch.set_services(&[(SERVICE.parse().unwrap(), 0, Settings::default())]).unwrap();
            let mut service = service(true, true);
            service.member.as_mut().unwrap().tor_mac = mac;
            let second_chance = in_netns(Some(replica.name()), || {
                let mut second_chance = SecondChance::new(&Interface::new(None, "r0").unwrap());
                second_chance.ensure([service].iter(), own, 0);
                second_chance
            });
            let io = AfPacket::open(&tor.interface("c0"), Config::default()).unwrap();
            let (tor, _tor) = (Tor { io, mac, replica: own }, tor);
            Some(Rig { watch, tor, replica, second_chance: second_chance.unwrap(), _tor })
        }

        /// Lowers the limit on segments of unknown connections to what a busy machine exceeds.
        fn limit_strays(&self, a_second: u32) {
            let limit = |packets| format!("over {packets}/second burst {packets} packets");
            let second_chance = &self.second_chance;
            let body = second_chance.body().unwrap().replace(&limit(STRAYS), &limit(a_second));
            assert!(body.contains(&limit(a_second)), "{body}");
            in_netns(Some(self.replica.name()), || second_chance.install(&body).unwrap()).unwrap();
        }

        /// A socket of the replica's kernel.
        fn socket(&self, tuple: Tuple) -> TcpStream {
            let connection = repair::Connection {
                local: tuple.service,
                remote: tuple.client,
                send_next: 900,
                receive_next: 30,
                send_window: 1000,
                receive_window: 1000,
                mss: 1460,
                scales: None,
                sack: false,
                timestamp: None,
            };
            let stream = repair::restore(&connection, Some(self.replica.name())).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        }

        /// Packet count of the rule that contains this text.
        fn count(&self, part: &str) -> u64 {
            let rules = self.replica.run("nft list ruleset");
            let rule = rules.lines().find(|line| line.contains(part)).unwrap();
            let count = rule.split("counter packets ").nth(1).unwrap();
            count.split(' ').next().unwrap().parse().unwrap()
        }
    }

    fn tuple(client: SocketAddr) -> Tuple {
        Tuple { client, service: SERVICE.parse().unwrap() }
    }

    /// Segments of the connection arrived here while it was unknown; later this replica adopts it.
    #[test]
    fn adopted_connection_is_no_longer_forwarded() {
        let Some(mut rig) = Rig::new("again") else { return };
        let tuple = tuple("10.88.0.1:1025".parse().unwrap());
        let key = FlowKey::new(tuple.client, tuple.service);
        eventually("the ToR gets it back", || {
            rig.tor.send(tuple, 30, b"x");
            rig.tor.handed_on(tuple.client) > 0
        });

        let record = idle(tuple, 900, 30);
        rig.watch.adopt(&record, record.response_at).unwrap();
        let mut stream = rig.socket(tuple);
        rig.watch.begin(&key).unwrap();
        rig.tor.handed_on(tuple.client);
        let mut got = [0; 8];
        eventually("its socket gets it", || {
            rig.tor.send(tuple, 30, b"GET");
            match stream.read(&mut got) {
                Ok(count) => count == 3,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    false
                }
            }
        });
        assert_eq!((&got[..3], rig.tor.handed_on(tuple.client)), (&b"GET"[..], 0));
        // The set still has the connection, for the case that it is held elsewhere again.
        rig.watch.hold().programs().free(&key).unwrap();
        eventually("the ToR gets it back", || {
            rig.tor.send(tuple, 33, b"x");
            rig.tor.handed_on(tuple.client) > 0
        });
    }

    /// A replica is drained, and gets its connections directly again when it is readmitted and
    /// others hold them.
    #[test]
    fn segment_forwarded_here_once_is_forwarded_when_direct() {
        let Some(mut rig) = Rig::new("straight") else { return };
        let tuple = tuple("10.88.0.1:1025".parse().unwrap());
        let (tor, another) = (rig.tor.mac, [2, 0, 0, 0, 0, 7]);
        rig.tor.mac = another;
        eventually("its reset goes out", || {
            rig.tor.send(tuple, 30, b"x");
            rig.count("@handed4 counter") > 0
        });
        rig.tor.mac = tor;
        assert_eq!(rig.tor.handed_on(tuple.client), 0);
        eventually("the ToR gets it back", || {
            rig.tor.send(tuple, 30, b"x");
            rig.tor.handed_on(tuple.client) > 0
        });
    }

    /// Sends acknowledgements of connections that do not exist, and as many of one that exists and
    /// has no TRODS limits.
    #[test]
    fn flood_of_stray_segments_is_dropped_before_kernel() {
        let Some(mut rig) = Rig::new("stray") else { return };
        let limit = 200;
        rig.limit_strays(limit);
        let known = tuple("10.88.0.1:1025".parse().unwrap());
        let _stream = rig.socket(known);
        let one = vec![segment(known, 30, b""); 4 * limit as usize];
        rig.tor.send_all(&one);
        assert_eq!(rig.count(STRAY), 0);
        let mut sent = 0;
        let mut clients = (0..).map(|n: u32| SocketAddr::from(((0x0a0a_0000 + n).to_be_bytes(), 1025)));
        eventually("some are dropped", || {
            let strays = clients.by_ref().take(4 * limit as usize);
            let strays: Vec<_> = strays.map(|client| segment(tuple(client), 30, b"")).collect();
            rig.tor.send_all(&strays);
            sent += strays.len() as u64;
            rig.count(STRAY) > 0
        });
        let (strays, resets) = (rig.count(STRAY), rig.count("@straight4 update @away4"));
        assert!(strays + resets <= sent, "{strays} of {sent} are dropped, and {resets} were answered");
        // Like a drained replica's connections, the first ones are not dropped.
        let first = tuple("10.10.0.0:1025".parse().unwrap());
        rig.tor.handed_on(first.client);
        eventually("the ToR gets it back", || {
            rig.tor.send(first, 30, b"");
            rig.tor.handed_on(first.client) > 0
        });
    }
}
