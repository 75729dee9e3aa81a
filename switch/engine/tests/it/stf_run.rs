//! The output format of `stf-run`, whose lines `make bench-switch` counts.

use std::path::{Path, PathBuf};
use std::process::Command;

const ROUTER: &[u8] = include_bytes!("../../benches/router.json");

/// A packet to 10.0.1.1, and the same packet after the router.
const IN: &str = "020000000009 020000000008 0800 4500003200010000 4011 65b9 0a000001 0a000101";
const OUT: &str = "020000000202 020000000009 0800 4500003200010000 3f11 66b9 0a000001 0a000101";

/// A temporary directory for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("stf-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn put(&self, name: &str, program: &[u8], stf: &str) {
        std::fs::write(self.0.join(name).with_extension("json"), program).unwrap();
        std::fs::write(self.0.join(name).with_extension("stf"), stf).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(folder: &Path, flags: &[&str]) -> (Option<i32>, Vec<String>) {
    let done = Command::new(env!("CARGO_BIN_EXE_stf-run")).args(flags).arg(folder).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    (done.status.code(), text.lines().map(str::to_string).collect())
}

fn routed(expected: &str) -> String {
    format!(
        "# a comment\nadd routes hdr.ipv4.dst_addr:0x0a000100/24 forward(port:2, next_hop:0x020000000202)\n\
         packet 1 {IN}\nexpect 2 {expected}$\n"
    )
}

#[test]
fn all_passed_is_one_line_and_success() {
    let folder = Folder::new("passed");
    folder.put("router", ROUTER, &routed(OUT));
    // A program without a test and a test without a program are ignored.
    std::fs::write(folder.0.join("alone.stf"), "packet 1 00").unwrap();
    std::fs::write(folder.0.join("other.json"), "{}").unwrap();
    for flags in [&[][..], &["--interpret"]] {
        assert_eq!(run(&folder.0, flags), (Some(0), vec!["1 run, 1 passed, 0 failed".into()]), "{flags:?}");
    }
}

#[test]
fn each_failure_is_a_line_with_its_reason() {
    let folder = Folder::new("failed");
    folder.put("a-good", ROUTER, &routed(OUT));
    folder.put("b-other-bytes", ROUTER, &routed(IN));
    folder.put("c-nothing-came", ROUTER, &format!("packet 1 {IN}\nexpect 2 {OUT}\n"));
    folder.put(
        "d-too-much-came",
        ROUTER,
        &routed(OUT).replace("expect 2", "# expect 2").replace("packet 1", "packet 2"),
    );
    folder.put("e-no-program", b"{}", "packet 1 00\n");
    folder.put("f-no-such-table", ROUTER, "add nothing x:1 forward(port:2)\n");
    for flags in [&[][..], &["--interpret"]] {
        let (code, lines) = run(&folder.0, flags);
        assert_eq!(code, Some(1), "{lines:?}");
        let (last, failed) = lines.split_last().unwrap();
        assert_eq!(last, "6 run, 1 passed, 5 failed");
        let begins = [
            "FAILED b-other-bytes: port 2 packet 0: expected ",
            "FAILED c-nothing-came: port 2: expected 1 packets, got 0",
            "FAILED d-too-much-came: port 2: expected 0 packets, got 1 ",
            "FAILED e-no-program: does not load: ",
            "FAILED f-no-such-table: line 1: no table nothing",
        ];
        assert_eq!(failed.len(), begins.len(), "{failed:?}");
        for (line, begin) in failed.iter().zip(begins) {
            assert!(line.starts_with(begin), "{line}");
        }
    }
}

#[test]
fn missing_directory_is_an_error() {
    assert_eq!(run(Path::new("/nonexistent/stf"), &[]).0, Some(2));
}
