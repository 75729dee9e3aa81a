//! Real clients read the records. rustls does the handshake. The server changes its key between two
//! responses of a connection, and a second writer makes the rest of the second response from the
//! middle of a record on.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use rivulet_tls::{
    CLOSE_NOTIFY, CipherSuite, ContentType, KEY_UPDATE, Message, Receiver, Response, TrafficSecret,
    record_bytes,
};
use rustls::{
    ClientConfig, ClientConnection, KeyLog, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    SupportedCipherSuite,
    crypto::{
        CryptoProvider,
        ring::{cipher_suite as suites, default_provider},
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
    version::TLS13,
};

use crate::ciphertext_from;

/// A body with many records of both sizes.
const BODY_BYTES: u64 = 300_000;

/// The offset in the second response at which the second writer begins, in the middle of a record of 16,384 bytes.
const CUT: u64 = 150_000;

pub const SUITES: [(CipherSuite, SupportedCipherSuite); 3] = [
    (CipherSuite::Aes128GcmSha256, suites::TLS13_AES_128_GCM_SHA256),
    (CipherSuite::Aes256GcmSha384, suites::TLS13_AES_256_GCM_SHA384),
    (CipherSuite::Chacha20Poly1305Sha256, suites::TLS13_CHACHA20_POLY1305_SHA256),
];

#[derive(Debug, Default)]
pub struct Secrets(Mutex<HashMap<String, Vec<u8>>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().insert(label.to_owned(), secret.to_vec());
    }
}

impl Secrets {
    pub fn get(&self, label: &str, suite: CipherSuite) -> TrafficSecret {
        TrafficSecret::new(suite, &self.0.lock().unwrap()[label]).unwrap()
    }
}

struct Server {
    listener: TcpListener,
    certificate: rcgen::CertifiedKey<rcgen::KeyPair>,
    suite: CipherSuite,
    config: ServerConfig,
}

impl Server {
    fn new((suite, rustls_suite): (CipherSuite, SupportedCipherSuite), tickets: usize) -> Self {
        let certificate = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
        let provider = CryptoProvider { cipher_suites: vec![rustls_suite], ..default_provider() };
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.cert.der().clone()], key)
            .unwrap();
        config.send_tls13_tickets = tickets;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self { listener, certificate, suite, config }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Serves one connection with two requests; application data begins at record `first_record`.
    /// Calls `on_key_update` after each KeyUpdate of the client, and returns how many of them
    /// requested one of ours.
    fn serve(mut self, first_record: u64, mut on_key_update: impl FnMut()) -> usize {
        let log = Arc::new(Secrets::default());
        self.config.key_log = log.clone();
        let (mut socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut tls = ServerConnection::new(Arc::new(self.config)).unwrap();
        // One record at a time, so that rustls reads nothing behind the client's Finished.
        while tls.is_handshaking() {
            tls.read_tls(&mut &read_record(&mut socket)[..]).unwrap();
            tls.process_new_packets().unwrap();
            while tls.wants_write() {
                tls.write_tls(&mut socket).unwrap();
            }
        }
        let secret = log.get("SERVER_TRAFFIC_SECRET_0", self.suite);
        let mut receiver = Receiver::new(log.get("CLIENT_TRAFFIC_SECRET_0", self.suite), 0);

        let mut requests = read_head(&mut receiver, &mut socket, &mut on_key_update);
        let first = Content::new(1, first_record);
        socket.write_all(&first.ciphertext(&secret, 0..first.response.ciphertext_bytes())).unwrap();

        requests += read_head(&mut receiver, &mut socket, &mut on_key_update);
        // Sent right before a response, because wget does not reuse a connection after a KeyUpdate.
        let key = secret.record_key();
        let mut update = Vec::new();
        key.seal(first.response.next_record(), ContentType::Handshake, &KEY_UPDATE, &mut update).unwrap();
        socket.write_all(&update).unwrap();
        let secret = secret.next_generation();
        let second = Content::new(2, 0);
        socket.write_all(&second.ciphertext(&secret, 0..CUT)).unwrap();
        let end = second.response.ciphertext_bytes();
        socket.write_all(&second.ciphertext(&secret.clone(), CUT..end)).unwrap();
        let mut close = Vec::new();
        let key = secret.record_key();
        key.seal(second.response.next_record(), ContentType::Alert, &CLOSE_NOTIFY, &mut close).unwrap();
        socket.write_all(&close).unwrap();
        // Waits for the client to close first, so that its last segments cause no reset.
        let _ = io::copy(&mut socket, &mut io::sink());
        requests
    }
}

/// A response and its plaintext.
struct Content {
    plaintext: Vec<u8>,
    response: Response,
}

impl Content {
    fn new(seed: u64, first_record: u64) -> Self {
        let mut plaintext = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n").into_bytes();
        let response = Response::new(0, first_record, plaintext.len() as u64, BODY_BYTES).unwrap();
        plaintext.extend(body(seed));
        Self { plaintext, response }
    }

    fn ciphertext(&self, secret: &TrafficSecret, range: std::ops::Range<u64>) -> Vec<u8> {
        let mut out = ciphertext_from(self.response, range.start, &secret.record_key(), &self.plaintext);
        out.truncate((range.end - range.start) as usize);
        out
    }
}

fn body(seed: u64) -> impl Iterator<Item = u8> {
    (0..BODY_BYTES).map(move |i| ((i * 37 + seed * 11) >> 3) as u8)
}

fn bodies() -> Vec<u8> {
    body(1).chain(body(2)).collect()
}

/// Reads one record from the socket.
fn read_record(socket: &mut TcpStream) -> Vec<u8> {
    let mut record = vec![0; 5];
    socket.read_exact(&mut record).unwrap();
    record.resize(record_bytes(&record).unwrap().unwrap(), 0);
    socket.read_exact(&mut record[5..]).unwrap();
    record
}

/// Reads records until a request's head is complete. Returns how many KeyUpdates the client
/// requested.
fn read_head(receiver: &mut Receiver, socket: &mut TcpStream, mut on_key_update: impl FnMut()) -> usize {
    let (mut head, mut requests) = (Vec::new(), 0);
    while !head.ends_with(b"\r\n\r\n") {
        match receiver.receive(&mut read_record(socket)).unwrap() {
            Message::Data(data) => head.extend_from_slice(data),
            Message::KeyUpdate { requested } => {
                requests += usize::from(requested);
                on_key_update();
            }
            other => panic!("no request: {other:?}"),
        }
    }
    requests
}

/// Has a program fetch both responses with each cipher suite. `{ca}` and `{url}` in its arguments
/// are replaced.
fn fetch_with(program: &str, arguments: &[&str]) {
    if Command::new(program).arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no {program}");
        return;
    }
    for suite in SUITES {
        let server = Server::new(suite, 0);
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        fs::write(&ca, server.certificate.cert.pem()).unwrap();
        let url = format!("https://{}", server.address());
        let arguments =
            arguments.iter().map(|a| a.replace("{ca}", ca.to_str().unwrap()).replace("{url}", &url));
        let mut command = Command::new(program);
        command.args(arguments).env("NO_PROXY", "*").env("no_proxy", "*");
        let serving = thread::spawn(move || server.serve(0, || ()));
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} with {:?}: {errors}", suite.0);
        assert!(output.stdout == bodies(), "{program} with {:?} got other bytes", suite.0);
        serving.join().unwrap();
    }
}

#[test]
fn curl_reads_both_responses() {
    fetch_with("curl", &["-q", "-sS", "--max-time", "60", "--cacert", "{ca}", "{url}/1", "{url}/2"]);
}

#[test]
fn wget_reads_both_responses() {
    fetch_with(
        "wget",
        &["-q", "-t", "1", "-T", "60", "--ca-certificate={ca}", "-O", "-", "{url}/1", "{url}/2"],
    );
}

#[test]
fn python_reads_both_responses() {
    const SCRIPT: &str = "
import http.client, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
connection = http.client.HTTPSConnection(sys.argv[2].removeprefix('https://'), context=context, timeout=60)
for path in '/1', '/2':
    connection.request('GET', path)
    sys.stdout.buffer.write(connection.getresponse().read())
";
    fetch_with("python3", &["-c", SCRIPT, "{ca}", "{url}"]);
}

#[test]
fn openssl_updates_its_key_and_gets_an_update() {
    let Ok(version) = Command::new("openssl").arg("version").output() else {
        eprintln!("SKIPPED: there is no openssl");
        return;
    };
    for suite in SUITES {
        let server = Server::new(suite, 0);
        let mut client = Command::new("openssl")
            // s_client reads commands only without `-ign_eof`, which `-quiet` sets. Its requests
            // are padded.
            .args(["s_client", "-quiet", "-no_ign_eof", "-record_padding", "512"])
            .args(["-connect", &server.address().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
        let (updated, updates) = mpsc::channel();
        let serving = thread::spawn(move || server.serve(0, || updated.send(()).unwrap()));
        for seed in [1, 2] {
            input.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let expected = Content::new(seed, 0).plaintext;
            let mut plaintext = vec![0; expected.len()];
            output.read_exact(&mut plaintext).unwrap();
            assert!(plaintext == expected, "{:?}: response {seed} of {version:?}", suite.0);
            if seed == 1 {
                // The command with which s_client sends a KeyUpdate that requests one of ours.
                input.write_all(b"K\n").unwrap();
                updates.recv_timeout(Duration::from_secs(60)).unwrap();
            }
        }
        drop(input);
        assert!(client.wait().unwrap().success());
        assert_eq!(serving.join().unwrap(), 1);
    }
}

/// Fetches both responses with rustls's client, from a server that sends this many session tickets.
fn fetch_with_rustls(tickets: usize, first_record: u64) {
    for suite in SUITES {
        let server = Server::new(suite, tickets);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(server.certificate.cert.der().to_vec())).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let serving = thread::spawn(move || server.serve(first_record, || ()));
        let mut stream = StreamOwned::new(tls, socket);
        for seed in [1, 2] {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut plaintext = vec![0; Content::new(seed, 0).plaintext.len()];
            stream.read_exact(&mut plaintext).unwrap();
            assert!(plaintext == Content::new(seed, 0).plaintext, "{:?}: response {seed}", suite.0);
        }
        // The connection must end with a close_notify; otherwise this is an error.
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        drop(stream);
        serving.join().unwrap();
    }
}

#[test]
fn without_tickets_data_begins_at_record_zero() {
    fetch_with_rustls(0, 0);
}

#[test]
fn all_tickets_fill_one_record_before_data() {
    fetch_with_rustls(1, 1);
    fetch_with_rustls(2, 1);
}
