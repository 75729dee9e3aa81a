//! Certificates by name, changed files, and files that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rivulet_terminator::{Certificate, Files, StartError, Terminator};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};

use crate::{Rig, certificate, config, get, write_private};

/// Accepts any certificate, because the test examines it.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// The certificate that a client gets if it requests this name.
fn presented(rig: &Rig, name: &str) -> CertificateDer<'static> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = std::net::TcpStream::connect(rig.address()).unwrap();
    let mut stream = StreamOwned::new(tls, socket);
    get(&mut stream, "/1");
    stream.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

fn leaf(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).unwrap()
}

#[test]
fn certificate_is_chosen_by_name() {
    let rig = Rig::with(|config| {
        let folder = config.files.certificates[0].chain.parent().unwrap().to_owned();
        config.files.certificates.push(certificate(&folder, "exact", &["a.example", "B.example"]));
        config.files.certificates.push(certificate(&folder, "wild", &["*.c.example"]));
    });
    let file = |name: &str| leaf(&rig.folder.path().join(name));
    for (name, expected) in [
        ("a.example", "exact.pem"),
        ("A.EXAMPLE", "exact.pem"),
        ("b.example", "exact.pem"),
        ("x.c.example", "wild.pem"),
        ("c.example", "first.pem"),
        ("x.y.c.example", "first.pem"),
        ("unknown.example", "first.pem"),
        // The client sends no SNI.
        ("127.0.0.1", "first.pem"),
    ] {
        assert_eq!(presented(&rig, name), file(expected), "{name}");
    }
}

#[test]
fn changed_certificate_is_used_unless_broken() {
    let rig = Rig::new();
    let (chain, key) = (rig.authority(), rig.folder.path().join("first.key"));
    let mut kept = rig.connect();
    get(&mut kept, "/1");
    let old = leaf(&chain);
    assert_eq!(presented(&rig, "localhost"), old);
    // The new chain without its key is refused, and the former pair stays in use.
    let new = certificate(rig.folder.path(), "new", &["localhost"]);
    fs::copy(&new.chain, &chain).unwrap();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(presented(&rig, "localhost"), old);
    fs::copy(&new.key, &key).unwrap();
    let mut rounds = 0;
    while presented(&rig, "localhost") != leaf(&new.chain) {
        rounds += 1;
        assert!(rounds < 600, "the new certificate is not used");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Existing connections continue.
    get(&mut kept, "/1");
}

fn start_error(files: Files) -> String {
    match Terminator::start(config(files, "127.0.0.1:1".parse().unwrap())) {
        Err(StartError::File(error)) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("the files were accepted"),
    }
}

#[test]
fn file_errors_name_file_and_problem() {
    let folder = tempfile::tempdir().unwrap();
    let good = certificate(folder.path(), "good", &["localhost"]);
    let other = certificate(folder.path(), "other", &["localhost"]);
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        write_private(&path, content);
        path
    };
    let open = folder.path().join("open.key");
    fs::copy(&good.key, &open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let away = folder.path().join("away.pem");
    let empty = file("empty.pem", "");
    let garbage = file("garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let encrypted = file(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    for (chain, key, named, problem) in [
        (&away, &good.key, "away.pem", "No such file"),
        (&empty, &good.key, "empty.pem", "no BEGIN CERTIFICATE"),
        (&garbage, &good.key, "garbage.pem", "cannot be read"),
        (&good.chain, &away, "away.pem", "No such file"),
        (&good.chain, &empty, "empty.pem", "no private key"),
        (&good.chain, &encrypted, "encrypted.key", "not encrypted"),
        (&good.chain, &other.key, "other.key", "not the private key of"),
        (&good.chain, &open, "open.key", "chmod 600"),
    ] {
        let pair = Certificate { chain: chain.clone(), key: key.clone() };
        let error = start_error(Files { certificates: vec![pair], ..Files::default() });
        assert!(error.contains(named) && error.contains(problem), "{error}");
    }
    let ticket_keys = Some(file("short", "abcd"));
    let error = start_error(Files { certificates: vec![good], ticket_keys, ..Files::default() });
    assert!(error.contains("short: line 1"), "{error}");
}

#[test]
fn address_in_use_is_reported() {
    let rig = Rig::new();
    let pair = certificate(rig.folder.path(), "again", &["localhost"]);
    let mut config = config(Files { certificates: vec![pair], ..Files::default() }, rig.address());
    config.listen = vec![rig.address()];
    let error = Terminator::start(config).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains(&rig.address().to_string()) && error.contains("in use"), "{error}");
}

#[test]
fn given_files_are_used_unless_bad() {
    let rig = Rig::new();
    let mut kept = rig.connect();
    get(&mut kept, "/1");
    let old = leaf(&rig.authority());
    let next = certificate(rig.folder.path(), "next", &["localhost"]);
    let away = Certificate { chain: rig.folder.path().join("away.pem"), ..next.clone() };
    let files = |pair: &Certificate| Files { certificates: vec![pair.clone()], ..Files::default() };
    let error = rig.terminator.set_files(files(&away)).unwrap_err().to_string();
    assert!(error.contains("away.pem") && rig.terminator.problem() == Some(error));
    assert_eq!(presented(&rig, "localhost"), old, "the former certificate stays in use");
    // The missing file appears.
    fs::copy(&next.chain, &away.chain).unwrap();
    let mut rounds = 0;
    while rig.terminator.problem().is_some() {
        rounds += 1;
        assert!(rounds < 600, "the file is not read");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(presented(&rig, "localhost"), leaf(&next.chain));
    let last = certificate(rig.folder.path(), "last", &["localhost"]);
    rig.terminator.set_files(files(&last)).unwrap();
    assert_eq!(presented(&rig, "localhost"), leaf(&last.chain));
    get(&mut kept, "/1");
}
