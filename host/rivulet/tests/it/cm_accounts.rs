//! `rivulet cm serve` beside users that try to take all of its places, or to keep it from starting:
//! by subordinate user ids, many users, foreign folders in the BPF file system, and the lock.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use libcm::Client;
use rivulet_pktio::testing::Process;

use crate::cm_serve::{ALICE, Rig};

/// The first of Alice's subordinate user ids, and how many the tests use.
const FIRST: u32 = 300_000;
const COUNT: u32 = 70;
/// A script that connects under each of the given user ids, and prints how many were admitted.
const CONNECT: &str = "
import os, socket, sys
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = []
for uid in range(first, first + count):
    os.seteuid(uid)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(path)
    os.seteuid(os.getuid())
    if s.recv(100):
        kept.append(s)
print(len(kept), flush=True)
sys.stdin.read()
";

/// Runs the script, which ends when the process is dropped; returns how many of its connections
/// were admitted.
fn connect(socket: &Path, first: u32, count: u32, prepare: impl FnOnce(&mut Command)) -> (Process, u32) {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", CONNECT]).arg(socket).args([first.to_string(), count.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    prepare(&mut command);
    let mut process = Process(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (process, line.trim().parse().unwrap_or_else(|_| panic!("{line:?}")))
}

/// Makes a command run in a user namespace of Alice's, with her id as 0 and her subordinate ids as
/// 1 and so on.
fn in_own_namespace(command: &mut Command) {
    let ((mut told, tell), (wait, mut go)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    // Does what newuidmap does for a user.
    std::thread::spawn(move || {
        let mut pid = [0; 4];
        told.read_exact(&mut pid).unwrap();
        let map = format!("0 {ALICE} 1\n1 {FIRST} {COUNT}\n");
        fs::write(format!("/proc/{}/uid_map", u32::from_ne_bytes(pid)), map).unwrap();
        go.write_all(&[1]).unwrap();
    });
    let enter = move || {
        // SAFETY: system calls on numbers and live buffers, of the child alone.
        unsafe {
            let pid = std::process::id().to_ne_bytes();
            let mut one = 0u8;
            let done = libc::setresuid(ALICE, ALICE, ALICE) == 0
                && libc::unshare(libc::CLONE_NEWUSER) == 0
                && libc::write(tell.as_raw_fd(), pid.as_ptr().cast(), 4) == 4
                && libc::read(wait.as_raw_fd(), (&raw mut one).cast(), 1) == 1
                && libc::setresuid(0, 0, 0) == 0;
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        }
    };
    // SAFETY: it makes only system calls.
    unsafe { command.pre_exec(enter) };
}

#[test]
fn subordinate_ids_share_the_quota_of_their_owner() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.serve("--programs 4 --all-programs 100");
    let (_first, admitted) = connect(&rig.socket(), 1, COUNT, in_own_namespace);
    assert_eq!(admitted, 4, "of {COUNT} user ids of one user");
    let (_second, admitted) = connect(&rig.socket(), 0, 1, in_own_namespace);
    assert_eq!(admitted, 0, "another namespace of the same user");
    let (_other, admitted) = connect(&rig.socket(), 61_000, 1, |_| {});
    assert_eq!(admitted, 1, "another user");
}

#[test]
fn set_user_id_programs_count_for_the_owner_in_subuid() {
    let Some(rig) = Rig::new() else { return };
    let ranges = rig.folder().join("subuid");
    fs::write(&ranges, format!("{ALICE}:{FIRST}:{COUNT}\n")).unwrap();
    let _daemon = rig.serve_with_subuid("--programs 4 --all-programs 100", &ranges);
    // As after execution of a set-user-ID file of a subordinate id: the effective user is that id,
    // in the initial namespace.
    let (_alices, admitted) = connect(&rig.socket(), FIRST, COUNT, |_| {});
    assert_eq!(admitted, 4, "of {COUNT} user ids of one user");
    let (_others, admitted) = connect(&rig.socket(), FIRST + COUNT, 3, |_| {});
    assert_eq!(admitted, 3, "ids beyond the range are users of their own");
}

#[test]
fn reserved_places_stay_free_under_full_load() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.serve(&format!("--programs 2 --all-programs 6 --reserve {ALICE}"));
    let (_others, admitted) = connect(&rig.socket(), 61_000, COUNT, |_| {});
    assert_eq!(admitted, 4, "as many places as are not kept for Alice");
    let clients = [rig.client(ALICE), rig.client(ALICE)];
    let third = rig.as_user(ALICE, || Client::connect(&rig.socket()));
    assert!(third.is_err(), "--programs holds for her too");
    drop(clients);
    let mut command = rig.command("serve --programs 4 --all-programs 7 --reserve 1 --reserve 2");
    let out = command.output().unwrap();
    assert!(String::from_utf8_lossy(&out.stderr).contains("more than the 7 that there are"), "{out:?}");
}

#[test]
fn foreign_bpf_folders_do_not_block_the_daemon() {
    let Some(rig) = Rig::new() else { return };
    let state = rig.state();
    rig.as_user(ALICE, || fs::create_dir_all(state.join("rvcm_serve/calls-4")).unwrap());
    let status = rig.command("status").output().unwrap();
    assert!(String::from_utf8_lossy(&status.stderr).contains("is a stranger's"), "{status:?}");
    let daemon = rig.serve("");
    drop(rig.client(ALICE));
    assert_eq!(fs::symlink_metadata(&state).unwrap().uid(), 0);
    // Other users cannot change anything in the daemon's folder.
    let made = rig.as_user(ALICE, || fs::create_dir(state.join("rvcm_serve/x")).map_err(|e| e.kind()));
    assert_eq!(made, Err(ErrorKind::PermissionDenied));
    rig.kill(daemon);
    assert!(rig.command("unload").status().unwrap().success());
    fs::remove_dir(&state).unwrap();
    // The same with a symbolic link to a folder of theirs.
    let theirs = state.with_file_name("theirs");
    rig.as_user(ALICE, || {
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::symlink(&theirs, &state).unwrap();
    });
    let _daemon = rig.serve("");
    drop(rig.client(ALICE));
    assert!(fs::symlink_metadata(&state).unwrap().is_dir());
    assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
}

#[test]
fn users_cannot_take_the_daemons_lock() {
    let Some(rig) = Rig::new() else { return };
    let lock = rig.socket().with_extension("lock");
    fs::write(&lock, "").unwrap();
    rig.kill(rig.serve(""));
    let opened = rig.as_user(ALICE, || fs::File::open(&lock).map(drop).map_err(|e| e.kind()));
    assert_eq!(opened, Err(ErrorKind::PermissionDenied), "whoever can open it can lock it");
    // The daemon does not follow a symbolic link in place of its lock file.
    fs::remove_file(&lock).unwrap();
    let kept = rig.folder().join("kept");
    fs::write(&kept, "content").unwrap();
    std::os::unix::fs::symlink(&kept, &lock).unwrap();
    let out = rig.command("serve --socket").arg(rig.socket()).output().unwrap();
    assert!(!out.status.success());
    assert_eq!(fs::read(&kept).unwrap(), b"content");
}
