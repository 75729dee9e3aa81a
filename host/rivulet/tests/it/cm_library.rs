//! `cm.h`: the example, and a program that calls every function, compiled against the installed
//! library and run as an unprivileged user.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::cm_serve::{ALICE, Rig};

const LIBCM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../libcm");

/// Installs the library below this folder like `make install-libcm`. Cargo built it for this test.
fn install(into: &Path) -> PathBuf {
    let me = std::env::current_exe().unwrap();
    let prefix = into.join("usr");
    let mut command = Command::new(format!("{LIBCM}/install.sh"));
    command.arg(me.parent().unwrap()).env_remove("DESTDIR").env_remove("LIBDIR").env("PREFIX", &prefix);
    assert!(command.status().unwrap().success());
    prefix
}

fn pkg_config(prefix: &Path) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs", "rivulet-cm"]);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

fn compile(source: &str, prefix: &Path, into: &Path) -> PathBuf {
    let source = Path::new(LIBCM).join(source);
    let program = into.join(source.file_stem().unwrap());
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(source);
    command.args(pkg_config(prefix)).arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    let out = command.output().expect("cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

fn run(rig: &Rig, program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env("RIVULET_CM", rig.socket());
    let Output { status, stdout, stderr } = rig.as_user(ALICE, || command.output().unwrap());
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// A folder that any user can read.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn c_program_can_call_every_function() {
    let Some(rig) = Rig::new() else { return };
    let _daemon = rig.serve("");
    let folder = folder();
    let prefix = install(folder.path());
    let program = compile("tests/calls.c", &prefix, folder.path());
    let receiver = rig.as_user(ALICE, || UdpSocket::bind("127.0.0.1:0").unwrap());
    let port = receiver.local_addr().unwrap().port().to_string();
    assert_eq!(run(&rig, &program, &[&port]), "all of it\n");
}

/// Starts a receiver that returns the first eight bytes of each packet; returns its port.
fn answering(rig: &Rig) -> String {
    let receiver = rig.as_user(ALICE, || UdpSocket::bind("127.0.0.1:0").unwrap());
    let port = receiver.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || {
        let mut octets = [0; 2000];
        while let Ok((1000, from)) = receiver.recv_from(&mut octets) {
            receiver.send_to(&octets[..8], from).unwrap();
        }
    });
    port
}

/// Checks that 300 datagrams of 1000 bytes were sent, and that the outcome of each is known.
fn all_was_sent(rig: &Rig) {
    let status = rig.status(ALICE);
    assert_eq!((&status["outstanding"], &status["flows"]), (&0.into(), &0.into()));
    // The one byte more is the program's test of a port without a receiver.
    assert_eq!(status["sent"].as_u64().unwrap() / 1000, 300);
}

#[test]
fn c_program_uses_buffered_sockets_and_signals() {
    let Some(rig) = Rig::new() else { return };
    rig.ns.ip("link set lo mtu 1500");
    let _daemon = rig.serve("");
    let folder = folder();
    let prefix = install(folder.path());
    let program = compile("tests/buffered.c", &prefix, folder.path());
    let said = run(&rig, &program, &[&answering(&rig), "300"]);
    assert!(said.ends_with(" of 300 arrived\n"), "{said}");
    all_was_sent(&rig);
}

#[test]
fn library_example_sends_only_granted_packets() {
    let Some(rig) = Rig::new() else { return };
    // With this MTU no more packets are in flight than the receiver's socket can hold.
    rig.ns.ip("link set lo mtu 1500");
    let _daemon = rig.serve("");
    let folder = folder();
    let prefix = install(folder.path());
    let program = compile("examples/alf.c", &prefix, folder.path());
    let said = run(&rig, &program, &["127.0.0.1", &answering(&rig), "300"]);
    assert!(said.contains(" of 300 arrived, rate "), "{said}");
    all_was_sent(&rig);
}
