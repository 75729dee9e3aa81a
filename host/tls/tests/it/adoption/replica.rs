//! A minimal replica: one connection, an unmodified HTTP server behind it, and a file as the store.
//! It follows the record rule, and stores a state before it sends bytes that depend on it.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use rivulet_pktio::repair;
use rivulet_tls::{Message, Position, Receiver, Resumption, Source, State, Writer, flow_place, record_bytes};
use rivulet_trods::{
    Record, Tuple,
    head::{self, Framing, Method},
    record::{Body, Handshake, Response},
    store::RecordKeys,
};
use rustls::{
    ServerConfig, ServerConnection,
    crypto::{CryptoProvider, ring::default_provider},
    pki_types::{CertificateDer, PrivateKeyDer},
    version::TLS13,
};

use crate::clients::{SUITES, Secrets};

pub const SERVICE: &str = "10.9.0.1:443";
pub const ORIGIN: &str = "127.0.0.1:8080";

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// The keys of the service, which all its replicas have.
pub fn keys() -> RecordKeys {
    RecordKeys::new(5, 1, &[(1, [7; 16])])
}

/// The connection of one client.
pub struct Served {
    socket: TcpStream,
    state: State,
    receiver: Receiver,
    writer: Writer,
    store: PathBuf,
    /// Bytes of a response after which it sends nothing more, as if the server hung.
    limit: u64,
}

/// Reads one record.
fn read_record(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut record = vec![0; 5];
    socket.read_exact(&mut record)?;
    record.resize(record_bytes(&record).unwrap().unwrap(), 0);
    socket.read_exact(&mut record[5..])?;
    Ok(record)
}

/// Path of the stored state of a client's connection.
pub fn stored_at(folder: &Path) -> PathBuf {
    folder.join("state")
}

/// Runs the first replica: it serves one client after the other until it is killed. It stops
/// sending after `limit` bytes of a response, so that no client finishes before the test has killed
/// it, even on a slow machine.
pub fn serve(folder: &Path, suite: usize, limit: u64) {
    let (suite, rustls_suite) = SUITES[suite];
    let key = PrivateKeyDer::try_from(fs::read(folder.join("key.der")).unwrap()).unwrap();
    let certificate = CertificateDer::from(fs::read(folder.join("cert.der")).unwrap());
    let provider = CryptoProvider { cipher_suites: vec![rustls_suite], ..default_provider() };
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.send_tls13_tickets = 0;
    let listener = TcpListener::bind(SERVICE).unwrap();
    fs::write(folder.join("listens"), "").unwrap();
    loop {
        let (mut socket, _) = listener.accept().unwrap();
        let log = Arc::new(Secrets::default());
        config.key_log = log.clone();
        let mut tls = ServerConnection::new(Arc::new(config.clone())).unwrap();
        // One record at a time, so that rustls reads nothing behind the client's Finished.
        while tls.is_handshaking() {
            tls.read_tls(&mut &read_record(&mut socket).unwrap()[..]).unwrap();
            tls.process_new_packets().unwrap();
            while tls.wants_write() {
                tls.write_tls(&mut socket).unwrap();
            }
        }
        let tcp = repair::read(&socket).unwrap();
        let position =
            |label, sequence| Position { secret: log.get(label, suite), generation: 0, record: 0, sequence };
        let handshake = Handshake {
            client_isn: 0,
            service_isn: 0,
            mss: tcp.mss,
            scales: tcp.scales,
            sack: tcp.sack,
            timestamp: tcp.timestamp,
            first_timestamp: None,
            stamps: None,
            at_ms: now_ms(),
        };
        let http = Record {
            tuple: Tuple { client: tcp.remote, service: tcp.local },
            handshake,
            version: 0,
            unprotected: false,
            response_at: 0,
            responses: Vec::new(),
            request_at: 0,
            requests: Vec::new(),
            client_fin: false,
            tls: None,
        };
        let state = State {
            http,
            write: position("SERVER_TRAFFIC_SECRET_0", tcp.send_next),
            read: position("CLIENT_TRAFFIC_SECRET_0", tcp.receive_next),
            key_updates: 0,
            client_fin: false,
        };
        let served = Served::new(socket, state, stored_at(folder));
        Served { limit, ..served }.serve().unwrap();
    }
}

impl Served {
    fn new(socket: TcpStream, state: State, store: PathBuf) -> Served {
        let receiver = Receiver::new(state.read.secret.clone(), state.read.record);
        let writer = Writer::new(state.write.clone());
        Served { socket, state, receiver, writer, store, limit: u64::MAX }
    }

    /// Continues another replica's connection, on a socket that sends from the number that the
    /// client has acknowledged.
    pub fn adopt(socket: TcpStream, state: State, store: PathBuf, acked: u32) -> io::Result<Served> {
        let mut resumption = Resumption::begin(&state, acked).map_err(io::Error::other)?;
        let mut served = Served::new(socket, state, store);
        let mut out = Vec::new();
        while let Some(needed) = resumption.next(&mut out).map_err(io::Error::other)? {
            let response = &served.state.http.responses[needed.response];
            let source = Source::of(response, needed.from).map_err(io::Error::other)?;
            resumption.write(source.stored, &mut out).map_err(io::Error::other)?;
            let mut answers = source.answers();
            if answers.missing() > 0 {
                let mut origin = TcpStream::connect(ORIGIN)?;
                origin.write_all(&source.request)?;
                let (mut bytes, mut plaintext) = (vec![0; 1 << 16], Vec::new());
                while answers.missing() > 0 {
                    let count = origin.read(&mut bytes)?;
                    assert!(count > 0, "the server ended early");
                    answers.read(&bytes[..count], &mut plaintext).map_err(io::Error::other)?;
                    resumption.write(&plaintext, &mut out).map_err(io::Error::other)?;
                    plaintext.clear();
                    served.socket.write_all(&out)?;
                    out.clear();
                }
            }
        }
        served.socket.write_all(&out)?;
        served.writer = resumption.into_writer();
        Ok(served)
    }

    /// Answers the client's requests until the client ends its data.
    pub fn serve(mut self) -> io::Result<()> {
        loop {
            let mut record = match read_record(&mut self.socket) {
                // Some clients end without a close_notify.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                record => record?,
            };
            let length = record.len() as u32;
            let message = self.receiver.receive(&mut record).map_err(io::Error::other)?;
            match message {
                Message::Data(data) => self.state.http.requests.extend_from_slice(data),
                Message::CloseNotify => {
                    let mut out = Vec::new();
                    self.writer.close_notify(&mut out).map_err(io::Error::other)?;
                    return self.socket.write_all(&out);
                }
                other => return Err(io::Error::other(format!("{other:?}"))),
            }
            self.state.read.sequence = self.state.read.sequence.wrapping_add(length);
            self.state.read.record = self.receiver.next_record();
            while let Ok(Some(request)) = head::request(&self.state.http.requests) {
                let rest = self.state.http.requests.split_off(request.length);
                let request = std::mem::replace(&mut self.state.http.requests, rest);
                self.answer(&request)?;
            }
        }
    }

    fn answer(&mut self, request: &[u8]) -> io::Result<()> {
        let mut origin = TcpStream::connect(ORIGIN)?;
        origin.write_all(request)?;
        let (mut bytes, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        let (head, body) = loop {
            let count = origin.read(&mut chunk)?;
            bytes.extend_from_slice(&chunk[..count]);
            if let Some(said) = head::response(&bytes, Method::Get).unwrap() {
                let Framing::Length(body) = said.framing else { panic!("no length") };
                break (bytes[..said.length].to_vec(), body);
            }
        };
        let length = head.len() as u64 + body;
        let http = &mut self.state.http;
        http.request_at = http.request_at.wrapping_add(request.len() as u32);
        // The client requests the next object once it has the one before.
        let before: u64 = http.responses.iter().map(|response| response.length).sum();
        http.response_at = http.response_at.wrapping_add(before as u32);
        http.version += 1;
        let (mut left, mut out) = (length, Vec::new());
        let stored =
            Body::Object { request: request.to_vec(), head: head.clone(), check: (0, 0), digest: None };
        http.responses = vec![Response { length, passed: length, close: false, body: stored }];
        self.state.write = self.writer.position().clone();
        self.store()?;
        self.writer.begin(head.len() as u64, body).map_err(io::Error::other)?;
        while left > 0 {
            self.writer.write(&bytes, &mut out).map_err(io::Error::other)?;
            self.socket.write_all(&out)?;
            left -= bytes.len() as u64;
            if length - left >= self.limit {
                loop {
                    std::thread::park();
                }
            }
            (bytes, out) = (Vec::new(), Vec::new());
            if left > 0 {
                let count = origin.read(&mut chunk)?;
                bytes.extend_from_slice(&chunk[..count]);
            }
        }
        Ok(())
    }

    fn store(&self) -> io::Result<()> {
        let sealed = self.state.seal(&keys(), &flow_place(&self.state.tuple())).unwrap();
        let new = self.store.with_extension("new");
        fs::write(&new, [self.state.tuple().client.to_string().as_bytes(), b"\n", &sealed].concat())?;
        fs::rename(new, &self.store)
    }
}

/// The state of the only connection in the store.
pub fn load(store: &Path) -> State {
    let bytes = fs::read(store).unwrap();
    let line = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    let client: SocketAddr = std::str::from_utf8(&bytes[..line]).unwrap().parse().unwrap();
    let tuple = Tuple { client, service: SERVICE.parse().unwrap() };
    State::open_flow(&keys(), &tuple, &bytes[line + 1..]).unwrap()
}
