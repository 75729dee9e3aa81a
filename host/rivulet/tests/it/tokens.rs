//! Address tokens outlive the process that received them. Needs root; skipped if namespaces cannot
//! be created.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use rivulet_transport::{TOKEN_LENGTH, WINDOW_TOKEN_LENGTH};

use crate::rig::{RIVULET, Rig, shim, url};

/// Runs `rivulet get` of the file, as a user with this folder for state.
fn get(rig: &Rig, state: &Path) -> Output {
    let mut command = rig.get(&["--json"]);
    command.env("RIVULET_STATE", state).arg("-o").arg(rig.out()).arg(url("file"));
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out
}

fn kept(state: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(state.join("tokens")).unwrap();
    text.lines().skip(1).map(str::to_owned).collect()
}

/// Number of responses that the server sends for one download.
fn responses(rig: &Rig, download: impl FnOnce()) -> u64 {
    let before = rig.metric("rivulet_responses_total");
    download();
    rig.metric("rivulet_responses_total") - before
}

fn rig() -> Option<(Rig, PathBuf, rivulet_pktio::testing::Process)> {
    let rig = Rig::new()?;
    let server = rig.serve(&["--metrics", "127.0.0.1:9090"]);
    rig.file("file", 300_000);
    let state = rig.dir.path().join("home/state");
    Some((rig, state, server))
}

#[test]
fn next_process_uses_and_renews_the_address_token() {
    let Some((rig, state, _server)) = rig() else { return };
    get(&rig, &state);
    let first = kept(&state);
    assert_eq!(first.len(), 1);
    assert!(first[0].starts_with("10.9.0.1:80 10.88.0.1 "), "{first:?}");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&state.join("tokens"))), (0o700, 0o600));
    get(&rig, &state);
    let second = kept(&state);
    assert!(second.len() == 1 && second != first, "{first:?}, {second:?}");
    // Any program's connections use the token, too.
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).env("RIVULET_STATE", &state);
    let out =
        command.args(["run", "--", "curl", "-sS", "-o"]).arg(rig.out()).arg(url("file")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let third = kept(&state);
    assert!(third.len() == 1 && third != second, "{second:?}, {third:?}");
    // The server accepts the token: the SYN gets the initial window for its answer, including
    // responses that carry nothing.
    rig.file("small", 3);
    let small = |state: &Path| {
        let mut command = rig.get(&["-q"]);
        let out =
            command.env("RIVULET_STATE", state).arg("-o").arg(rig.out()).arg(url("small")).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    let with = responses(&rig, || small(&state));
    // If the machine pauses for a second, the client repeats its request, so the smallest count of
    // several runs is used.
    let without = (0..8).map(|_| responses(&rig, || small(Path::new("")))).min().unwrap();
    assert!(with >= 10 && without < 5, "{with} and {without}");
}

/// The number of answered requests shows it: a request in the first window gets up to ten responses
/// if the token has a window, otherwise two.
#[test]
fn next_process_resumes_the_returned_window() {
    let Some((rig, state, _server)) = rig() else { return };
    rig.file("file", 1_500_000);
    // The server accepts a returned window only once it remembers a whole horizon.
    get(&rig, &state);
    let octets = |line: &str| line.rsplit(' ').next().unwrap().len() / 2;
    assert_eq!(octets(&kept(&state)[0]), TOKEN_LENGTH, "from a server that has just started");
    std::thread::sleep(Duration::from_millis(4100));
    let requests = |state: &Path| {
        let before = rig.metric("rivulet_requests_total");
        get(&rig, state);
        rig.metric("rivulet_requests_total") - before
    };
    let without = requests(Path::new(""));
    // A lost packet or a pause of the machine costs the window, so several runs are made, of which
    // some begin with one.
    let fewest = (0..8).map(|_| requests(&state)).min().unwrap();
    assert_eq!(octets(&kept(&state)[0]), WINDOW_TOKEN_LENGTH);
    assert!(fewest + 15 < without, "{fewest} requests with a window, {without} without");
}

#[test]
fn invalid_token_file_is_reported_and_kept() {
    let Some((rig, state, _server)) = rig() else { return };
    std::fs::create_dir_all(&state).unwrap();
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    let file = state.join("tokens");
    std::fs::write(&file, "my notes\n").unwrap();
    let out = get(&rig, &state);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains(file.to_str().unwrap()) && said.contains("remove it"), "{said}");
    assert_eq!(std::fs::read(&file).unwrap(), b"my notes\n");
}
