//! `rivulet tls` as processes: messages, metrics, exit, and sessions that resume at another
//! replica.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use crate::rig::RIVULET;

/// Creates a certificate for 127.0.0.1 and its key, with openssl.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let (chain, key) = (folder.join("site.pem"), folder.join("site.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=rivulet", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args([Path::new("-keyout"), &key, Path::new("-out"), &chain])
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    (chain, key)
}

/// Starts a server that answers each request with `hello` and closes.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                while reader.read_line(&mut line).is_ok_and(|count| count > 2) {
                    line.clear();
                }
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello");
            });
        }
    });
    address
}

/// A process of `rivulet tls`. It is killed when it is dropped.
struct Replica {
    child: Child,
    address: SocketAddr,
    log: BufReader<std::process::ChildStderr>,
}

impl Replica {
    fn start(folder: &Path, arguments: &[&str]) -> Replica {
        let (chain, key) = (folder.join("site.pem"), folder.join("site.key"));
        let mut child = Command::new(RIVULET)
            .args(["tls", "--listen", "127.0.0.1:0", "--server", &server().to_string()])
            .args([Path::new("--certificate"), &chain, Path::new("--key"), &key])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        let address = line.split("HTTPS at ").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        Replica { child, address, log }
    }

    /// The output of `openssl s_client` for one request.
    fn ask(&self, arguments: &[&str]) -> String {
        let mut client = Command::new("openssl")
            .args(["s_client", "-ign_eof", "-connect", &self.address.to_string()])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        client.stdin.take().unwrap().write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        String::from_utf8_lossy(&client.wait_with_output().unwrap().stdout).into_owned()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn tls_session_resumes_at_another_process() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path());
    let keys = folder.path().join("tickets");
    fs::write(&keys, "0f".repeat(32)).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o600)).unwrap();
    let shared = ["--ticket-keys", keys.to_str().unwrap()];
    let replicas = [&shared[..], &shared, &[]].map(|words| Replica::start(folder.path(), words));
    let session = folder.path().join("session");
    let session = session.to_str().unwrap();
    for version in ["-tls1_3", "-tls1_2"] {
        let text = replicas[0].ask(&[version, "-sess_out", session]);
        assert!(text.contains("New, TLS") && text.contains("hello"), "{text}");
        let text = replicas[1].ask(&[version, "-sess_in", session]);
        assert!(text.contains("Reused, TLS") && text.contains("hello"), "{text}");
        // A process with its own ticket keys makes a new session.
        let text = replicas[2].ask(&[version, "-sess_in", session]);
        assert!(text.contains("New, TLS") && text.contains("hello"), "{text}");
    }
}

#[test]
fn tls_counts_on_its_metrics_page_and_ends_by_signal() {
    let folder = tempfile::tempdir().unwrap();
    certificate(folder.path());
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut replica = Replica::start(folder.path(), &["--metrics", &free]);
    assert!(replica.ask(&["-tls1_2"]).contains("hello"));
    let mut stream = TcpStream::connect(&free).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("rivulet_tls_handshakes_total{version=\"1.2\"} 1"), "{page}");
    let terminated = Command::new("kill").arg(replica.child.id().to_string()).status().unwrap();
    assert!(terminated.success() && replica.child.wait().unwrap().success());
    let mut rest = String::new();
    replica.log.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("ERROR"), "{rest}");
}

fn refused(arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = Command::new(RIVULET).arg("tls").args(arguments).output().unwrap();
    assert!(!status.success());
    String::from_utf8_lossy(&stderr).into_owned()
}

#[test]
fn tls_errors_name_the_flag_or_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = certificate(folder.path());
    let (chain, key) = (chain.to_str().unwrap(), key.to_str().unwrap());
    let listen = ["--listen", "127.0.0.1:0"];
    let error =
        refused(&[&listen[..], &["--certificate", chain, "--certificate", chain, "--key", key]].concat());
    assert!(error.contains("2 --certificate and 1 --key"), "{error}");
    let error = refused(&[&listen[..], &["--certificate", key, "--key", key]].concat());
    assert!(error.contains("site.key: it holds no BEGIN CERTIFICATE"), "{error}");
    let error = refused(&[&listen[..], &["--certificate", chain, "--key", "/nowhere.key"]].concat());
    assert!(error.contains("/nowhere.key: No such file"), "{error}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listener = TcpListener::bind(taken).unwrap();
    let error = refused(&["--listen", &taken.to_string(), "--certificate", chain, "--key", key]);
    assert!(error.contains(&format!("cannot listen at {taken}")), "{error}");
    drop(listener);
}
