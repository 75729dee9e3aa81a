//! `rivulet cm` as an administrator uses it: load, status, unload.

use std::path::Path;
use std::process::{Command, Output};

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_pktio::testing::eventually;

/// A separate BPF file system, unmounted on drop.
pub(crate) struct BpfFs(tempfile::TempDir);

impl BpfFs {
    pub(crate) fn new() -> BpfFs {
        let folder = tempfile::tempdir().unwrap();
        let done = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(folder.path()).status();
        assert!(done.is_ok_and(|s| s.success()), "mount -t bpf");
        BpfFs(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn cm(state: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rivulet"));
    command.args(["cm", "--name", "rvcm_command", "--state"]).arg(state).args(words.split_whitespace());
    command.output().unwrap()
}

fn good(state: &Path, words: &str) -> String {
    let out = cm(state, words);
    assert!(out.status.success(), "cm {words}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn bad(state: &Path, words: &str) -> String {
    let out = cm(state, words);
    assert!(!out.status.success(), "cm {words}");
    String::from_utf8(out.stderr).unwrap()
}

fn available() -> bool {
    let names = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    names.split_whitespace().any(|name| name == "rvcm_command")
}

#[test]
fn congestion_control_is_loaded_shown_and_unloaded() {
    if skipped(Feature::StructOpsLink) {
        return;
    }
    let bpf = BpfFs::new();
    let state = bpf.0.path().join("cm");
    assert!(bad(&state, "status").contains("is not loaded"));
    good(&state, "load --initial-window 3 --destinations 100");
    assert!(available(), "it stays without its loader");
    assert!(bad(&state, "load").contains("is loaded already"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let name = "rvcm_command";
    // SAFETY: the name lives through the call.
    let rc = unsafe {
        use std::os::fd::AsRawFd;
        let length = name.len() as libc::socklen_t;
        let value = name.as_ptr().cast();
        libc::setsockopt(client.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, value, length)
    };
    assert_eq!(rc, 0);
    std::io::Write::write_all(&mut client, b"x").unwrap();
    let table = good(&state, "status");
    assert!(table.lines().any(|line| line.starts_with("127.0.0.1 ")), "{table}");
    let status: serde_json::Value = serde_json::from_str(&good(&state, "status --json")).unwrap();
    let [one] = &status["macroflows"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&one["destination"], &one["flows"]), (&"127.0.0.1".into(), &1.into()));
    let metrics = good(&state, "status --metrics");
    for line in ["rivulet_cm_macroflows{owner=\"tcp\"} 1", "rivulet_cm_flows{owner=\"tcp\"} 1"] {
        assert!(metrics.lines().any(|told| told == line), "{line}: {metrics}");
    }
    assert!(metrics.contains("rivulet_cm_program_runs_total{program=\"cm_tcp_"), "{metrics}");
    assert_eq!(good(&state, "forget"), "forgot 0\n");
    drop((client, listener));
    eventually("it is forgotten", || good(&state, "forget") == "forgot 1\n");
    good(&state, "unload");
    eventually("the name is gone", || !available());
    assert!(bad(&state, "unload").contains("is not loaded"));
}

#[test]
fn missing_bpf_file_system_error_names_the_mount() {
    let text = bad(Path::new("/proc/cm"), "load");
    assert!(text.contains("mount -t bpf"), "{text}");
    let text = bad(Path::new("/nowhere/cm"), "load --initial-window 0");
    assert!(text.contains("1..=100"), "{text}");
}

#[test]
fn invalid_name_error_names_the_flag() {
    for (name, why) in [
        ("a.b", "takes no dots"),
        ("..", "takes no dots"),
        ("a/b", "'/' is no letter"),
        ("", "it has 0 characters"),
        ("sixteen_letters_", "it has 16 characters"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rivulet"));
        let out = command.args(["cm", "status", "--name", name]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            out.status.code() == Some(2) && text.contains("--name") && text.contains(why),
            "{name}: {text}"
        );
    }
}
