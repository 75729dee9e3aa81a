//! Real clients read the records. The handshake is rustls's; the server changes its key between two responses of one
//! connection, and a second writer makes the rest of the second response from the middle of a record.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rivulet_tls::{CLOSE_NOTIFY, CipherSuite, ContentType, KEY_UPDATE, Response, TrafficSecret};
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

/// A body with many records of both sizes.
const BODY_BYTES: u64 = 300_000;

/// The offset in the second response at which the second writer begins, in the middle of a record of 16,384 bytes.
const CUT: u64 = 150_000;

const SUITES: [(CipherSuite, SupportedCipherSuite); 3] = [
    (CipherSuite::Aes128GcmSha256, suites::TLS13_AES_128_GCM_SHA256),
    (CipherSuite::Aes256GcmSha384, suites::TLS13_AES_256_GCM_SHA384),
    (CipherSuite::Chacha20Poly1305Sha256, suites::TLS13_CHACHA20_POLY1305_SHA256),
];

#[derive(Debug, Default)]
struct ServerSecret(Mutex<Vec<u8>>);

impl KeyLog for ServerSecret {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if label == "SERVER_TRAFFIC_SECRET_0" {
            *self.0.lock().unwrap() = secret.to_vec();
        }
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
    fn serve(mut self, first_record: u64) {
        let log = Arc::new(ServerSecret::default());
        self.config.key_log = log.clone();
        let (mut socket, _) = self.listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut tls = ServerConnection::new(Arc::new(self.config)).unwrap();
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut socket).unwrap();
        }
        let secret = TrafficSecret::new(self.suite, &log.0.lock().unwrap()).unwrap();

        read_head(&mut tls, &mut socket);
        let first = Content::new(1, first_record);
        socket.write_all(&first.ciphertext(&secret, 0..first.response.ciphertext_bytes())).unwrap();

        read_head(&mut tls, &mut socket);
        // Right before a response: wget takes a kept connection that has bytes to read for a closed one.
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
        // The client closes first, so that its last segments meet no reset.
        let _ = io::copy(&mut socket, &mut io::sink());
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
        let key = secret.record_key();
        let mut out = Vec::new();
        let begin = self.response.record_at(range.start).unwrap().offset;
        for record in self.response.records_from(range.start).take_while(|r| r.offset < range.end) {
            let plaintext = &self.plaintext[record.plaintext.start as usize..record.plaintext.end as usize];
            key.seal(record.number, ContentType::ApplicationData, plaintext, &mut out).unwrap();
        }
        out[(range.start - begin) as usize..(range.end - begin) as usize].to_vec()
    }
}

fn body(seed: u64) -> impl Iterator<Item = u8> {
    (0..BODY_BYTES).map(move |i| ((i * 37 + seed * 11) >> 3) as u8)
}

fn bodies() -> Vec<u8> {
    body(1).chain(body(2)).collect()
}

/// Reads a request's head.
fn read_head(tls: &mut ServerConnection, socket: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match tls.reader().read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                assert_ne!(tls.read_tls(socket).unwrap(), 0, "the client closed early");
                tls.process_new_packets().unwrap();
            }
            other => panic!("no request: {other:?}"),
        }
    }
}

/// Has a program fetch both responses with each cipher suite; `{ca}` and `{url}` in its arguments are replaced.
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
        let serving = thread::spawn(move || server.serve(0));
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
        let serving = thread::spawn(move || server.serve(first_record));
        let mut stream = StreamOwned::new(tls, socket);
        for seed in [1, 2] {
            stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let mut plaintext = vec![0; Content::new(seed, 0).plaintext.len()];
            stream.read_exact(&mut plaintext).unwrap();
            assert!(plaintext == Content::new(seed, 0).plaintext, "{:?}: response {seed}", suite.0);
        }
        // The end is a close_notify: without one this is an error.
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
