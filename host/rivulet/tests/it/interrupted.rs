//! Downloads in which the client or the path changes: a client that is stopped for a while, a path
//! that loses packets, an address translator (nftables masquerade, with the kernel's connection
//! tracking), and one that loses its entries.

use std::fs::{self, File};
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, Process};

use crate::rig::Rig;

const METRICS: &[&str] = &["--metrics", "127.0.0.1:9090"];

fn signal(process: u32, signal: libc::c_int) {
    // SAFETY: a signal to a child of this test that was not waited for.
    assert_eq!(unsafe { libc::kill(process as libc::pid_t, signal) }, 0);
}

/// After it continues, a stopped client sends no request with a continuation that is too old.
fn stop_in_the_middle(seconds: u64) {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(METRICS);
    let content = rig.file("file", 20_000_000);
    rig.server.shape("s0", "40mbit");
    let download = rig.download(&[]);
    rig.progress(3_000_000);
    signal(download.id(), libc::SIGSTOP);
    std::thread::sleep(Duration::from_secs(seconds));
    signal(download.id(), libc::SIGCONT);
    rig.finished(download, &content);
    for reason in ["stale", "forged"] {
        let refused = rig.metric(&format!("rivulet_refused_total{{reason=\"{reason}\"}}"));
        assert_eq!(refused, 0, "requests refused as {reason} after {seconds} s");
    }
}

#[test]
fn client_stopped_for_one_second_resumes() {
    stop_in_the_middle(1);
}

#[test]
fn client_stopped_for_five_seconds_resumes() {
    stop_in_the_middle(5);
}

/// Retransmissions leave the server.
#[test]
fn lost_packets_are_retransmitted_by_the_server() {
    let Some((rig, router)) = Rig::with_router() else { return };
    router.run("nft add table ip loss");
    router.run("nft add chain ip loss f { type filter hook forward priority 0 ; }");
    router.run("nft add rule ip loss f iifname r1 numgen random mod 50 0 counter drop");
    let log = rig.dir.path().join("log");
    let mut command = rig.serve_command(&rig.www(), METRICS);
    command.env("RIVULET_LOG", "debug").stderr(File::create(&log).unwrap());
    let _server = rig.started(Process(command.spawn().unwrap()));
    let content = rig.file("file", 3_000_000);
    rig.finished(rig.download(&[]), &content);
    let lost = counted(&router, "loss");
    assert!(lost > 20, "{lost} packets lost");
    let log = fs::read_to_string(&log).unwrap();
    let unbuilt: Vec<_> = log.lines().filter(|line| line.contains("response not built")).collect();
    assert!(unbuilt.is_empty(), "{} of {lost}: {}", unbuilt.len(), unbuilt[0]);
}

/// Packets that the rules of a table counted.
fn counted(router: &Netns, table: &str) -> u64 {
    let rules = router.run(&format!("nft list table ip {table}"));
    let numbers =
        rules.split("packets ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    numbers.sum()
}

/// Translates all connections to these ports of the router; counts segments that its connection
/// tracking considers invalid.
fn masquerade(router: &Netns, ports: &str) {
    router.run("sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0");
    router.run("nft add table ip nat");
    router.run("nft add chain ip nat post { type nat hook postrouting priority 100 ; }");
    router
        .run(&format!("nft add rule ip nat post oifname r1 ip protocol tcp counter masquerade to :{ports}"));
    router.run("nft add table ip strict");
    router.run("nft add chain ip strict f { type filter hook forward priority 0 ; }");
    router.run("nft add rule ip strict f ct state invalid counter");
}

#[test]
fn strict_address_translator_sees_no_invalid_segment() {
    let Some((rig, router)) = Rig::with_router() else { return };
    masquerade(&router, "20000-20999");
    let _server = rig.serve(METRICS);
    let content = rig.file("file", 5_000_000);
    rig.finished(rig.download(&[]), &content);
    assert_eq!(counted(&router, "nat"), 1, "one connection was translated");
    assert_eq!(counted(&router, "strict"), 0, "packets called invalid");
    assert_eq!(rig.metric("rivulet_refused_total{reason=\"forged\"}"), 0);
}

#[test]
fn download_resumes_when_the_translator_forgets() {
    let Some((rig, router)) = Rig::with_router() else { return };
    masquerade(&router, "20000-20999");
    let _server = rig.serve(METRICS);
    let content = rig.file("file", 20_000_000);
    rig.server.shape("s0", "40mbit");
    let download = rig.download(&[]);
    for (octets, ports) in [(3_000_000, "30000-30999"), (9_000_000, "40000-40999")] {
        rig.progress(octets);
        // From now on from another port, which the server has not seen.
        router.run("nft flush chain ip nat post");
        let rule =
            format!("nft add rule ip nat post oifname r1 ip protocol tcp counter masquerade to :{ports}");
        router.run(&rule);
        in_netns(Some(router.name()), forget_connections).unwrap();
    }
    let report = rig.finished(download, &content);
    assert_eq!(report["transport"], "rivulet");
    assert!(counted(&router, "nat") > 0, "it was translated anew");
    assert!(rig.metric("rivulet_refused_total{reason=\"forged\"}") > 0, "the old address is no longer its");
}

/// Does what `conntrack -F` does: IPCTNL_MSG_CT_DELETE of all entries
/// (linux/netfilter/nfnetlink_conntrack.h).
fn forget_connections() {
    const DELETE: u16 = 1 << 8 | 2;
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut message = Vec::new();
    message.extend(20u32.to_ne_bytes());
    message.extend(DELETE.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]);
    // struct nfgenmsg: any family, version 0.
    message.extend([0; 4]);
    // SAFETY: plain system calls on live buffers; the descriptor is closed.
    unsafe {
        let socket =
            libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER);
        assert!(socket >= 0);
        assert_eq!(libc::send(socket, message.as_ptr().cast(), message.len(), 0), message.len() as isize);
        let mut answer = [0u8; 64];
        let n = libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0);
        libc::close(socket);
        assert!(n >= 20 && answer[16..20] == [0; 4], "{:?}", &answer[..n.max(0) as usize]);
    }
}
