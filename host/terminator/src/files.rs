//! Certificates, keys and ticket keys: read from files, checked, and read again when a file has changed.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, crypto};
use webpki::EndEntityCert;
use zeroize::Zeroizing;

use crate::file_error::FileError;
use crate::tickets::{TicketKey, TicketKeys};

/// Longest file. Certificate chains are far shorter.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A certificate chain and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// PEM file of the certificate, followed by intermediate certificates.
    pub chain: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// Inode, size and modification time of a file; `None` if it does not exist.
pub(crate) type Fingerprint = Option<(u64, u64, i64, i64)>;

/// The files from which TLS is configured.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Certificates, chosen by the name in the client's SNI. The first one serves all other names,
    /// and clients without SNI.
    pub certificates: Vec<Certificate>,
    /// File of session ticket keys, which all replicas share. Without a file, keys of this process
    /// are used.
    pub ticket_keys: Option<PathBuf>,
    /// Session ticket keys, in place of a file: the first one seals new tickets, and all of them
    /// open old ones.
    pub given_tickets: Vec<TicketKey>,
    /// Authorities that sign clients' certificates (PEM). If set, each client must have a
    /// certificate of one of them. Clients then get no session tickets, because a resumed session
    /// would not be checked again.
    pub client_ca: Option<PathBuf>,
}

impl Files {
    /// Reads all files. `own_tickets` is used if no ticket keys are configured.
    pub(crate) fn load(&self, own_tickets: &Arc<dyn ProducesTickets>) -> Result<ServerConfig, FileError> {
        let provider = Arc::new(crypto::ring::default_provider());
        let mut entries = Vec::new();
        for certificate in &self.certificates {
            entries.push(certificate.load(&provider)?);
        }
        let ticketer: Arc<dyn ProducesTickets> = match &self.ticket_keys {
            Some(path) => Arc::new(TicketKeys::read(path)?),
            None if self.given_tickets.is_empty() => own_tickets.clone(),
            None => Arc::new(TicketKeys::given(&self.given_tickets)),
        };
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("ring has cipher suites of both versions");
        let builder = match &self.client_ca {
            Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(Resolver(entries)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // All tickets fit into one record, so the record number of the first data is known.
        config.send_tls13_tickets = usize::from(self.client_ca.is_none());
        if self.client_ca.is_none() {
            config.ticketer = ticketer;
        }
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // Data before the client's Finished could be replayed.
        config.max_early_data_size = 0;
        Ok(config)
    }

    /// A value that changes when one of the files does.
    pub(crate) fn fingerprint(&self) -> Vec<Fingerprint> {
        let certificates = self.certificates.iter().flat_map(|c| [&c.chain, &c.key]);
        certificates
            .chain(&self.ticket_keys)
            .chain(&self.client_ca)
            .map(|path| {
                let meta = std::fs::metadata(path).ok()?;
                Some((meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()))
            })
            .collect()
    }
}

/// A certificate and its names, in lower case.
struct Entry {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

impl Certificate {
    fn load(&self, provider: &crypto::CryptoProvider) -> Result<Entry, FileError> {
        let (in_chain, in_key) =
            (|p: String| FileError::new(&self.chain, p), |p: String| FileError::new(&self.key, p));
        let chain = read(&self.chain)?;
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&chain)
            .collect::<Result<_, _>>()
            .map_err(|e| in_chain(format!("no PEM file of certificates: {e}")))?;
        let first =
            chain.first().ok_or_else(|| in_chain("it holds no BEGIN CERTIFICATE in PEM".to_owned()))?;
        let leaf = EndEntityCert::try_from(first)
            .map_err(|e| in_chain(format!("its first certificate cannot be read: {e}")))?;
        let names: Vec<String> = leaf.valid_dns_names().map(str::to_ascii_lowercase).collect();
        let key = rivulet_private_file::read(&self.key, MAX_FILE_BYTES).map_err(|e| in_key(e.to_string()))?;
        let key = Zeroizing::new(key);
        let key = PrivateKeyDer::from_pem_slice(&key).map_err(|e| match e {
            rustls::pki_types::pem::Error::NoItemsFound => {
                in_key("it holds no private key in PEM that is not encrypted".into())
            }
            e => in_key(format!("no PEM file of a private key: {e}")),
        })?;
        let key = CertifiedKey::from_der(chain, key, provider).map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => {
                in_key(format!("it is not the private key of {}", self.chain.display()))
            }
            e => in_key(format!("it cannot be used: {e}")),
        })?;
        Ok(Entry { names, key: Arc::new(key) })
    }
}

/// Checks clients' certificates against the authorities of a file.
fn verifier(
    path: &Path,
    provider: Arc<crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, FileError> {
    let error = |problem: String| FileError::new(path, problem);
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(path)?) {
        let certificate = certificate.map_err(|e| error(format!("no PEM file of certificates: {e}")))?;
        authorities.add(certificate).map_err(|e| error(format!("a certificate cannot be used: {e}")))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider)
        .build()
        .map_err(|e| error(format!("it holds no authority of clients' certificates: {e}")))
}

fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    use std::io::Read;
    let error = |e: std::io::Error| FileError::new(path, e.to_string());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(error)?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(FileError::new(path, format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}

/// Chooses a certificate by the name in the client's SNI.
struct Resolver(Vec<Entry>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|entry| &entry.names)).finish()
    }
}

impl Resolver {
    fn with_name(&self, name: &str) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(move |entry| entry.names.iter().any(|n| n == name))
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        // A name may have several certificates, with different types of keys.
        let fits = |entry: &&Entry| entry.key.key.choose_scheme(schemes).is_some();
        let named = hello.server_name().and_then(|name| {
            let name = name.to_ascii_lowercase();
            let wildcard = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
            let by_wildcard = wildcard.as_deref().and_then(|name| self.with_name(name).find(fits));
            self.with_name(&name).find(fits).or(by_wildcard)
        });
        let entry = named.or_else(|| self.0.iter().find(fits))?;
        Some(entry.key.clone())
    }
}
