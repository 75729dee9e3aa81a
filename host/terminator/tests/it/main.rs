//! Tests of the terminator with real sockets, between TLS clients and a server of plain HTTP.

mod authorities;
mod backend;
mod clients;
mod corpus;
mod files;
mod hostile;
mod http;
mod protect;
mod records;

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rivulet_terminator::{Certificate, Config, FIRST_ATTACH, Files, Forwarded, Terminator, TimeLimits};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

use backend::Backend;

const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a self-signed certificate for these names, and its key.
fn certificate(folder: &Path, name: &str, names: &[&str]) -> Certificate {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = rcgen::generate_simple_self_signed(names).unwrap();
    let files =
        Certificate { chain: folder.join(format!("{name}.pem")), key: folder.join(format!("{name}.key")) };
    fs::write(&files.chain, certificate.cert.pem()).unwrap();
    write_private(&files.key, &certificate.signing_key.serialize_pem());
    files
}

fn write_private(path: &Path, content: &str) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A terminator with a server behind it, and the folder with their files.
struct Rig {
    folder: tempfile::TempDir,
    backend: Backend,
    terminator: Terminator,
}

impl Rig {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backend = Backend::start();
        let files = Files {
            certificates: vec![certificate(folder.path(), "first", &["127.0.0.1", "localhost"])],
            ..Files::default()
        };
        let mut config = config(files, backend.address());
        change(&mut config);
        Self { terminator: Terminator::start(config).unwrap(), folder, backend }
    }

    fn address(&self) -> SocketAddr {
        self.terminator.addresses().unwrap()[0]
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("first.pem")
    }

    fn connect(&self) -> StreamOwned<ClientConnection, TcpStream> {
        connect_with(client_config(&self.authority(), &[]), self.address())
    }

    /// The value of a counter on the metrics page.
    fn count(&self, metric: &str) -> u64 {
        let page = self.terminator.counters().page();
        let line = page.lines().find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{metric} is not on {page}")).parse().unwrap()
    }

    /// Waits until a counter has this value.
    fn wait_for(&self, metric: &str, value: u64) {
        for _ in 0..6_000 {
            if self.count(metric) == value {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{metric} is {}, not {value}", self.count(metric));
    }
}

fn config(files: Files, server: SocketAddr) -> Config {
    Config {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        server,
        files,
        forwarded: Forwarded::Fields,
        max_connections: 64,
        limits: TimeLimits::default(),
        workers: 2,
        observer: None,
        agent: None,
        agent_patience: FIRST_ATTACH,
    }
}

fn client_config(authority: &Path, versions: &[&'static SupportedProtocolVersion]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let versions = if versions.is_empty() { rustls::ALL_VERSIONS } else { versions };
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

fn connect_with(config: ClientConfig, address: SocketAddr) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(tls, socket)
}

/// Reads a head, including its empty line.
fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Reads a response with a Content-Length.
fn read_response(stream: &mut impl Read) -> (String, Vec<u8>) {
    let head = read_head(stream);
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

/// Sends a GET and reads its response.
fn get(stream: &mut (impl Read + Write), path: &str) -> (String, Vec<u8>) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_response(stream)
}
