//! Clients with certificates, and session tickets under given keys.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use rivulet_terminator::{Files, TicketKey};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ClientConfig, HandshakeKind};

use crate::{Rig, client_config, connect_with, get};

/// An authority for clients' certificates.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: rcgen::Issuer::new(params, key), pem }
    }

    /// The configuration of a client with a certificate of this authority.
    fn client(&self, rig: &Rig) -> ClientConfig {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        let chain = vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()];
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(rig.authority()).unwrap()).unwrap();
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap()
    }

    fn file(&self, rig: &Rig) -> PathBuf {
        let path = rig.folder.path().join("clients.pem");
        std::fs::write(&path, &self.pem).unwrap();
        path
    }
}

/// Whether a client with this configuration gets a response.
fn is_served(rig: &Rig, config: &ClientConfig) -> bool {
    let mut stream = connect_with(config.clone(), rig.address());
    // With TLS 1.3, a client learns of the refusal only after its own part of the handshake.
    let sent = write!(stream, "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
    sent.is_ok() && std::io::Read::read(&mut stream, &mut [0; 12]).is_ok_and(|count| count > 0)
}

#[test]
fn client_needs_certificate_of_configured_authority() {
    let rig = Rig::new();
    let (authority, other) = (Authority::new(), Authority::new());
    // A session from before the authority was configured.
    let early = client_config(&rig.authority(), &[]);
    assert!(is_served(&rig, &early));
    let files = crate::Certificate { chain: rig.authority(), key: rig.folder.path().join("first.key") };
    let files =
        Files { certificates: vec![files], client_ca: Some(authority.file(&rig)), ..Files::default() };
    rig.terminator.set_files(files).unwrap();
    assert!(!is_served(&rig, &early), "a former session is not resumed");
    assert!(!is_served(&rig, &client_config(&rig.authority(), &[])), "no certificate");
    assert!(!is_served(&rig, &other.client(&rig)), "of another authority");
    for versions in [&[&rustls::version::TLS13], &[&rustls::version::TLS12]] {
        assert!(!is_served(&rig, &client_config(&rig.authority(), versions)), "no certificate");
    }
    let alice = authority.client(&rig);
    for _ in 0..2 {
        let mut stream = connect_with(alice.clone(), rig.address());
        get(&mut stream, "/1");
        get(&mut stream, "/1");
        assert_eq!(stream.conn.handshake_kind(), Some(HandshakeKind::Full), "no session is resumed");
    }
}

#[test]
fn server_gets_only_verified_client_name() {
    let rig = Rig::new();
    let authority = Authority::new();
    let forged = "X-Forwarded-Client-Name: CN=mallory\r\nx_forwarded_client_name: CN=mallory\r\n\
        Client-Cert: :bWFsbG9yeQ==:\r\nConnection: X-Forwarded-Client-Name\r\n";
    let names = |config: ClientConfig| {
        let mut stream = connect_with(config, rig.address());
        let fields = ["", forged].map(|fields| {
            write!(stream, "GET /head HTTP/1.1\r\nHost: h\r\n{fields}\r\n").unwrap();
            let head = String::from_utf8(crate::read_response(&mut stream).1).unwrap();
            let lines = head.lines().filter(|l| l.to_lowercase().contains("client")).map(str::to_owned);
            lines.collect::<Vec<_>>()
        });
        assert_eq!(fields[0], fields[1], "the client's own fields change nothing");
        fields[0].clone()
    };
    assert!(names(client_config(&rig.authority(), &[])).is_empty());
    let files = crate::Certificate { chain: rig.authority(), key: rig.folder.path().join("first.key") };
    let files =
        Files { certificates: vec![files], client_ca: Some(authority.file(&rig)), ..Files::default() };
    rig.terminator.set_files(files).unwrap();
    assert_eq!(names(authority.client(&rig)), ["X-Forwarded-Client-Name: CN=alice"]);
}

#[test]
fn bad_authority_file_is_reported_by_name() {
    let rig = Rig::new();
    let pair = crate::Certificate { chain: rig.authority(), key: rig.folder.path().join("first.key") };
    for (content, problem) in [
        ("", "no authority"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "cannot be used"),
    ] {
        let path = rig.folder.path().join("bad.pem");
        std::fs::write(&path, content).unwrap();
        let files = Files { certificates: vec![pair.clone()], client_ca: Some(path), ..Files::default() };
        let error = rig.terminator.set_files(files).unwrap_err().to_string();
        assert!(error.contains("bad.pem") && error.contains(problem), "{error}");
    }
}

#[test]
fn session_resumes_until_its_key_expires() {
    let rig = Rig::new();
    let pair = crate::Certificate { chain: rig.authority(), key: rig.folder.path().join("first.key") };
    let give = |seeds: &[u8]| {
        let given_tickets = seeds.iter().map(|&seed| TicketKey::new([seed; 32])).collect();
        let files = Files { certificates: vec![pair.clone()], given_tickets, ..Files::default() };
        rig.terminator.set_files(files).unwrap();
    };
    let visit = |config: &ClientConfig| {
        let mut stream = connect_with(config.clone(), rig.address());
        get(&mut stream, "/1");
        stream.conn.handshake_kind().unwrap()
    };
    give(&[1]);
    let (first, second) = (client_config(&rig.authority(), &[]), client_config(&rig.authority(), &[]));
    assert_eq!((visit(&first), visit(&second)), (HandshakeKind::Full, HandshakeKind::Full));
    give(&[2, 1]);
    assert_eq!(visit(&first), HandshakeKind::Resumed, "its key still opens");
    give(&[3, 2]);
    assert_eq!(visit(&first), HandshakeKind::Resumed, "the resumed session got a ticket of the newer key");
    assert_eq!(visit(&second), HandshakeKind::Full, "the key is gone");
    assert!(!format!("{:?}", TicketKey::new([7; 32])).contains('7'));
}
