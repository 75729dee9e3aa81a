//! Interaction with the kernel: the drop before its TCP, and its interface events.

use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use rivulet_pktio::filter::TcpRule;
use rivulet_pktio::guard::{KernelGuard, remove_stale};
use rivulet_pktio::monitor::{LinkEvent, LinkMonitor};
use rivulet_pktio::testing::{Netns, PATIENCE};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns, internet_sum};

pub(crate) const PREFIX: &str = "pio-";

fn pair() -> Option<(Netns, Netns)> {
    let (a, b) = (Netns::new(PREFIX)?, Netns::new(PREFIX)?);
    a.quiet();
    b.quiet();
    a.veth("va", &b, "vb");
    a.ip("addr add 10.0.0.1/24 dev va");
    b.ip("addr add 10.0.0.2/24 dev vb");
    Some((a, b))
}

/// A SYN from 10.0.0.1 to port 80 of 10.0.0.2 whose only option is kind 253 with this ExID.
fn syn(to: [u8; 6], from: [u8; 6], exid: u16) -> Vec<u8> {
    let mut f = [to, from].concat();
    f.extend([8, 0, 0x45, 0, 0, 48, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend([0x1f, 0x90, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0x70, 2, 0x10, 0, 0, 0, 0, 0]);
    f.extend([253, 8, (exid >> 8) as u8, exid as u8, 0, 0, 0, 0]);
    let sum = !internet_sum(&f[14..34], 0);
    f[24..26].copy_from_slice(&sum.to_be_bytes());
    let pseudo = internet_sum(&f[26..34], internet_sum(&[0, 6, 0, 28], 0));
    let sum = !internet_sum(&f[34..], pseudo);
    f[50..52].copy_from_slice(&sum.to_be_bytes());
    f
}

/// How long a test waits for something that must not happen.
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

/// Sends a SYN with the ExID; the tap of `b` sees it, and the kernel of `b` answers it if `answer`.
fn expect(a: &Netns, b: &Netns, exid: u16, answer: bool, why: &str) {
    let mut wire = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    let mut tap = AfPacket::open(&b.interface("vb"), Config::default()).unwrap();
    let frame = syn(tap.link().unwrap().mac, wire.link().unwrap().mac, exid);
    wire.send(&[TxFrame::new(&frame)]).unwrap();
    let (mut seen, mut answered) = (false, false);
    let mut deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline && !(seen && answered) {
        for i in 0..tap.recv().unwrap() {
            if tap.frame(i).data == frame.as_slice() && !std::mem::replace(&mut seen, true) && !answer {
                deadline = Instant::now() + SILENCE;
            }
        }
        for i in 0..wire.recv().unwrap() {
            let f = wire.frame(i).data;
            answered |= f.len() > 36 && f[12..14] == [8, 0] && f[23] == 6 && f[36..38] == [0x1f, 0x90];
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((seen, answered), (true, answer), "{why}");
}

fn tables(ns: &Netns) -> usize {
    ns.run("nft list tables netdev").lines().filter(|l| l.contains("rivulet_guard_")).count()
}

#[test]
fn the_kernel_answers_plain_tcp_only_and_taps_see_all() {
    let Some((a, b)) = pair() else { return };
    a.ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev va");
    b.run("sysctl -qw net.ipv4.conf.vb.arp_announce=0");
    // b must know a's address to answer.
    let mac = AfPacket::open(&a.interface("va"), Config::default()).unwrap().link().unwrap().mac;
    let mac = mac.map(|b| format!("{b:02x}")).join(":");
    b.ip(&format!("neigh add 10.0.0.1 lladdr {mac} dev vb"));
    expect(&a, &b, 0x5256, true, "without a guard: a reset");

    let ours = TcpRule { exid: Some(0x5256), ..TcpRule::default() };
    let guard = KernelGuard::install(Some(b.name()), &["vb"], std::slice::from_ref(&ours)).unwrap();
    expect(&a, &b, 0x5256, false, "with a guard");
    expect(&a, &b, 0x5257, true, "another ExID is the kernel's");

    let elsewhere = TcpRule { destinations: vec!["10.0.0.9".parse().unwrap()], ..ours.clone() };
    guard.update(&["vb"], &[elsewhere]).unwrap();
    expect(&a, &b, 0x5256, true, "another address is the kernel's");
    let here = TcpRule { destinations: vec!["10.0.0.2".parse().unwrap()], ..ours };
    guard.update(&["vb"], &[here]).unwrap();
    expect(&a, &b, 0x5256, false, "this address is ours");

    a.ip("neigh flush dev va");
    a.ip("neigh del 10.0.0.2 dev va");
    let _listener = in_netns(Some(b.name()), || TcpListener::bind("10.0.0.2:81").unwrap()).unwrap();
    in_netns(Some(a.name()), || TcpStream::connect("10.0.0.2:81").unwrap()).unwrap();
    drop(guard);
    assert_eq!(tables(&b), 0);
    expect(&a, &b, 0x5256, true, "without a guard again");
}

#[test]
fn only_tables_of_dead_processes_are_removed() {
    let Some((_, b)) = pair() else { return };
    let rule = TcpRule { destination_ports: vec![80..=80], ..TcpRule::default() };
    let guard = KernelGuard::install(Some(b.name()), &["vb"], std::slice::from_ref(&rule)).unwrap();
    // Like a killed process: a table without an owner.
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    b.run(&format!("nft add table netdev rivulet_guard_{}_1_0", dead.id()));
    b.run("nft add table netdev somebody_elses");
    assert_eq!(tables(&b), 2);
    assert_eq!(remove_stale(Some(b.name())).unwrap(), 1);
    assert_eq!(tables(&b), 1);
    assert!(b.run("nft list tables netdev").contains("somebody_elses"));
    drop(guard);
    assert_eq!(tables(&b), 0);
}

#[test]
fn a_bad_name_is_an_error_and_leaves_nothing() {
    let Some((_, b)) = pair() else { return };
    for name in ["a\"b", "", "x; flush ruleset"] {
        assert!(
            KernelGuard::install(Some(b.name()), &["vb", name], &[TcpRule::default()]).is_err(),
            "{name}"
        );
    }
    assert_eq!(tables(&b), 0);
    assert!(KernelGuard::install(Some("pio-no-such-namespace"), &["vb"], &[]).is_err());
}

#[test]
fn monitor_reports_up_down_mtu_and_removal() {
    let Some((a, b)) = pair() else { return };
    let mut monitor = LinkMonitor::open(Some(a.name())).unwrap();
    let mut wait_for = |what: &str, wanted: &dyn Fn(&LinkEvent) -> bool| {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match monitor.next_event().unwrap() {
                Some(event) if wanted(&event) => return,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        panic!("not told: {what}");
    };
    let va = |wanted_up: bool, wanted_mtu: u32| move |e: &LinkEvent| matches!(e, LinkEvent::Changed { name, up, mtu, .. } if name == "va" && *up == wanted_up && *mtu == wanted_mtu);
    b.ip("link set vb down");
    wait_for("no carrier", &va(false, 1500));
    b.ip("link set vb up");
    wait_for("carrier", &va(true, 1500));
    a.ip("link set va mtu 1400");
    wait_for("MTU", &va(true, 1400));
    b.ip("link del vb");
    wait_for("removal", &|e| matches!(e, LinkEvent::Removed { name, .. } if name == "va"));
}
