//! `rivulet cm serve`: admission, the end of clients and of the daemon, and calls through the
//! daemon.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libcm::{Client, Event, FlowId, Key, Update};
use rivulet_bpf::cm::unified;
use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_pktio::testing::{Cgroup, Netns, Process, eventually};

use crate::cm::BpfFs;

pub(crate) const ALICE: u32 = 54_323;
const BOB: u32 = 54_324;
const MTU: u32 = 1000;
const CHILD: &str = "RIVULET_CM_TEST_CHILD";

/// The daemon's process, and its messages.
pub(crate) type Daemon = (Process, BufReader<std::process::ChildStderr>);

pub(crate) struct Rig {
    bpf: BpfFs,
    pub(crate) ns: Netns,
    cgroup: Cgroup,
    folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Option<Rig> {
        if skipped(Feature::UserCalls) {
            return None;
        }
        let Some(root) = unified() else {
            eprintln!("SKIPPED: no cgroups of version 2 are mounted");
            return None;
        };
        let ns = Netns::new("rvcm-d")?;
        let cgroup = Cgroup::new(&root, &ns);
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Some(Rig { bpf: BpfFs::new(), ns, cgroup, folder })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("cm.sock")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the pinned maps.
    pub(crate) fn state(&self) -> PathBuf {
        self.bpf.path().join("cm")
    }

    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rivulet"));
        self.arguments(&mut command, words);
        command
    }

    fn arguments(&self, command: &mut Command, words: &str) {
        command.args(["cm", "--name", "rvcm_serve", "--state"]).arg(self.state());
        command.args(words.split_whitespace());
    }

    /// Starts the daemon and waits until it admits programs; its later messages are read from the
    /// result.
    pub(crate) fn serve(&self, words: &str) -> Daemon {
        self.start(self.command(&format!("serve {words}")))
    }

    /// Like [`serve`](Self::serve), with this file as /etc/subuid.
    pub(crate) fn serve_with_subuid(&self, words: &str, ranges: &Path) -> Daemon {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /etc/subuid && exec \"$@\""]).arg(ranges);
        command.arg(env!("CARGO_BIN_EXE_rivulet"));
        self.arguments(&mut command, &format!("serve {words}"));
        self.start(command)
    }

    fn start(&self, mut command: Command) -> Daemon {
        command.arg("--socket").arg(self.socket()).arg("--cgroup").arg(self.cgroup.path());
        let mut process = Process(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut said = BufReader::new(process.0.stderr.take().unwrap());
        let mut all = String::new();
        while !all.contains("programs are admitted at") {
            assert!(said.read_line(&mut all).unwrap() > 0, "{all}");
        }
        (process, said)
    }

    pub(crate) fn kill(&self, daemon: Daemon) {
        let (mut process, _) = daemon;
        process.0.kill().unwrap();
        process.0.wait().unwrap();
    }

    pub(crate) fn as_user<T: Send>(&self, uid: u32, f: impl FnOnce() -> T + Send) -> T {
        self.ns.as_user(&self.cgroup, uid, f)
    }

    pub(crate) fn client(&self, uid: u32) -> Client {
        let socket = self.socket();
        self.as_user(uid, || Client::connect(&socket).unwrap())
    }

    /// A user's macroflow, as `status` shows it.
    pub(crate) fn status(&self, uid: u32) -> serde_json::Value {
        let out = self.command("status --json").output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let all: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let all = all["macroflows"].as_array().unwrap();
        all.iter().find(|m| m["user"] == uid).cloned().unwrap_or_default()
    }

    /// Starts a process of a user that has a flow to this port, and requests more than the first
    /// window.
    pub(crate) fn child(&self, uid: u32, port: u16) -> Process {
        let mut child = self.as_user(uid, || {
            let mut command = Command::new("/proc/self/exe");
            command.args(["--exact", "cm_serve::child_process_of_other_tests", "--nocapture"]);
            command.env(CHILD, format!("{} {port}", self.socket().display()));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        });
        wait_for(&mut child, "ready");
        Process(child)
    }
}

fn wait_for(child: &mut Child, word: &str) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(word)), "the child ended");
}

pub(crate) fn flow(client: &mut Client, port: u16) -> (UdpSocket, Key, FlowId) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let destination = format!("127.0.0.1:{port}").parse().unwrap();
    let key = Key { source: socket.local_addr().unwrap(), destination, protocol: 17, dscp: 0 };
    let flow = client.open(&key, MTU).unwrap();
    (socket, key, flow)
}

pub(crate) fn sends(client: &mut Client) -> usize {
    std::iter::from_fn(|| client.poll().unwrap()).filter(|e| matches!(e, Event::Send(_))).count()
}

/// The process that other tests start; does nothing in an ordinary run.
#[test]
fn child_process_of_other_tests() {
    let Ok(told) = std::env::var(CHILD) else { return };
    let (path, port) = told.split_once(' ').unwrap();
    let mut client = Client::connect(Path::new(path)).unwrap();
    let (_socket, _, flow) = flow(&mut client, port.parse().unwrap());
    client.request(flow, 100).unwrap();
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn grants_of_killed_program_pass_to_others() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.serve("");
    let mut child = rig.child(ALICE, 9);
    let mut client = rig.client(ALICE);
    let flow = rig.as_user(ALICE, || {
        let (_, _, flow) = flow(&mut client, 9);
        assert!(!client.proxied());
        client.request(flow, 10).unwrap();
        flow
    });
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    eventually("its flow is closed", || rig.status(ALICE)["flows"] == 1);
    let mut granted = 0;
    eventually("its grants are ours", || {
        granted += sends(&mut client);
        granted == 10
    });
    rig.as_user(ALICE, || assert!(client.request(flow, 1).is_ok()));
    // A process that drops its client is no longer registered.
    drop(client);
    eventually("ours is closed", || rig.status(ALICE)["flows"] == 0);
}

#[test]
fn next_daemon_finds_the_clients_of_a_killed_one() {
    let Some(rig) = Rig::new() else { return };
    let daemon = rig.serve("");
    let (mut first, mut second) = (rig.child(ALICE, 9), rig.child(ALICE, 9));
    let mut client = rig.client(BOB);
    let (socket, key, flow) = rig.as_user(BOB, || flow(&mut client, 9));
    rig.kill(daemon);
    // No state is lost while no daemon runs.
    rig.as_user(BOB, || {
        client.request(flow, 5).unwrap();
        assert_eq!(sends(&mut client), 5);
        socket.send_to(&[1; 500], key.destination).unwrap();
        client.update(flow, &Update { nsent: 200, nrecd: 200, rtt: 1_000_000, ..Update::default() }).unwrap();
    });
    assert_eq!(rig.status(BOB)["outstanding"], 300);
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    assert_eq!(rig.status(ALICE)["flows"], 2, "nobody saw it");
    let daemon = rig.serve("");
    eventually("the next one does", || rig.status(ALICE)["flows"] == 1);
    assert_eq!((&rig.status(BOB)["outstanding"], &rig.status(BOB)["flows"]), (&300.into(), &1.into()));
    second.0.kill().unwrap();
    second.0.wait().unwrap();
    eventually("of one that another let in too", || rig.status(ALICE)["flows"] == 0);
    rig.as_user(BOB, || client.request(flow, 1).unwrap());
    // The thread has the user's rights.
    rig.as_user(BOB, || drop(client));
    assert_eq!(rig.status(BOB)["flows"], 0, "a client closes its flows itself");
    // Two daemons at one socket would not know each other's clients.
    let mut other = rig.command("serve --socket");
    let other = other.arg(rig.socket()).output().unwrap();
    assert!(String::from_utf8_lossy(&other.stderr).contains("another process serves"), "{other:?}");
    rig.kill(daemon);
    let unload = rig.command("unload").output().unwrap();
    assert!(unload.status.success(), "{}", String::from_utf8_lossy(&unload.stderr));
}

/// Makes bpf(2) fail with EPERM on this thread (linux/filter.h, linux/seccomp.h).
fn forbid_bpf() {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        statement(0x20, 0, 0, 0),
        statement(0x15, 0, 1, libc::SYS_bpf as u32),
        statement(0x06, 0, 0, 0x0005_0000 | libc::EPERM as u32),
        statement(0x06, 0, 0, 0x7fff_0000),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives through the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}

#[test]
fn daemon_makes_calls_for_clients_without_bpf() {
    let Some(rig) = Rig::new() else { return };
    let (_daemon, mut said) = rig.serve("");
    let path = rig.socket();
    let mut other = rig.client(BOB);
    let (_socket, _, others) = rig.as_user(BOB, || flow(&mut other, 9));
    let (mut client, (socket, key, flow)) = rig.as_user(ALICE, || {
        forbid_bpf();
        let mut client = Client::connect(&path).unwrap();
        assert!(client.proxied());
        let opened = flow(&mut client, 9);
        (client, opened)
    });
    assert_eq!(client.mtu(flow).unwrap(), MTU);
    client.request(flow, 12).unwrap();
    assert_eq!(sends(&mut client), 10);
    for _ in 0..10 {
        socket.send_to(&[1; 1000], key.destination).unwrap();
    }
    // The bytes are counted, so the flow belongs to the program's namespace and user.
    assert_eq!(rig.status(ALICE)["outstanding"], 10_000);
    let update = Update { nsent: 10_000, nrecd: 10_000, rtt: 1_000_000, ..Update::default() };
    assert!(client.bulk_update(&[(flow, update), (flow, update)]).unwrap().iter().all(Result::is_ok));
    assert_eq!(sends(&mut client), 2);
    assert_eq!(rig.status(ALICE)["window"], 12_000);
    assert!(client.close(others).is_err(), "another user's");
    drop(client);
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains(&format!("of user {ALICE} may not call bpf(2)")), "{line}");
    eventually("it is gone", || rig.status(ALICE)["flows"] == 0);
    assert_eq!(rig.status(BOB)["flows"], 1);
}

#[test]
fn refused_client_gets_an_error_and_nonsense_disconnects() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.serve(&format!("--user {ALICE} --programs 2"));
    let path = rig.socket();
    rig.as_user(BOB, || assert!(Client::connect(&path).is_err()));
    let mut one = rig.client(ALICE);
    let (_socket, _, flow) = rig.as_user(ALICE, || flow(&mut one, 9));
    let two = rig.client(ALICE);
    rig.as_user(ALICE, || assert!(Client::connect(&path).is_err(), "a third"));
    drop(two);
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
    };
    for nonsense in [&b"x"[..], &[0; 5000], &[2, 0, 0, 0], &[255; 100]] {
        rig.as_user(ALICE, || {
            eventually("there is room again", || {
                let flags = SocketFlags::CLOEXEC;
                let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
                connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
                let mut octets = [0; 100];
                let welcome =
                    recv(&socket, &mut octets, rustix::net::RecvFlags::empty()).map_or(0, |got| got.1);
                if welcome == 0 {
                    return false;
                }
                send(&socket, nonsense, SendFlags::NOSIGNAL).unwrap();
                let end = recv(&socket, &mut octets, rustix::net::RecvFlags::empty());
                assert!(matches!(end, Ok((_, 0)) | Err(_)), "{end:?}");
                true
            });
        });
    }
    rig.as_user(ALICE, || one.request(flow, 1).unwrap());
    assert_eq!(sends(&mut one), 1);
}

#[test]
fn daemon_does_not_replace_a_regular_file() {
    let Some(rig) = Rig::new() else { return };
    std::fs::write(rig.socket(), "kept").unwrap();
    let mut command = rig.command("serve");
    command.arg("--socket").arg(rig.socket()).arg("--cgroup").arg(rig.cgroup.path());
    let mut process = Process(command.stderr(Stdio::piped()).spawn().unwrap());
    eventually("it ends", || !process.lives());
    let mut said = String::new();
    process.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("is there and not a socket"), "{said}");
    assert_eq!(std::fs::read(rig.socket()).unwrap(), b"kept");
    std::fs::remove_file(rig.socket()).unwrap();
    // The socket of a killed daemon is replaced.
    let daemon = rig.serve("");
    rig.kill(daemon);
    assert!(rig.socket().exists());
    let _daemon = rig.serve("");
}
