//! Controllers' addresses, and TLS for the connections to them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// Timeout of a connection attempt; then the next address is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// Keep-alive interval: a controller that vanished is detected within twice this time.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Longest private key in PEM: an RSA key of 16,384 bits has 13 kB.
const MAX_KEY_BYTES: u64 = 64 << 10;
/// Largest number of controllers of one agent.
const MAX_CONTROLLERS: usize = 16;

/// PEM files for mutual TLS. They are read at every connect, so renewed certificates need no
/// restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authority that signs the controllers' certificates.
    pub authority: PathBuf,
    /// This replica's certificate.
    pub certificate: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

/// Why the list of controllers is not usable.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Not `unix:PATH` or `HOST:PORT`.
    #[error("{0:?} is not a controller's address: unix:PATH or HOST:PORT")]
    Malformed(String),
    /// No controller, or too many.
    #[error("{0} controllers: at least one and at most {MAX_CONTROLLERS} can be named")]
    Count(usize),
    /// TCP without TLS: keys would be exchanged with unauthenticated processes.
    #[error(
        "{0}: keys cross this channel; over TCP it needs mutual TLS, on loopback too (authority, certificate and key)"
    )]
    Bare(String),
    /// A TLS file cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, #[source] std::io::Error),
    /// The files' content is not usable.
    #[error("TLS for {0}: {1}")]
    Tls(String, #[source] tonic::transport::Error),
}

/// Controllers, in the order in which they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers {
    addresses: Vec<String>,
    tls: Option<TlsFiles>,
}

impl Controllers {
    /// Parses `unix:PATH` (relative paths start at the current directory) or `HOST:PORT`, which
    /// needs TLS. Checks all addresses and the TLS files.
    pub fn new(addresses: &[String], tls: Option<TlsFiles>) -> Result<Controllers, AddressError> {
        if addresses.is_empty() || addresses.len() > MAX_CONTROLLERS {
            return Err(AddressError::Count(addresses.len()));
        }
        let addresses: Vec<String> = addresses.iter().map(|a| normal(a)).collect::<Result<_, _>>()?;
        let controllers = Controllers { addresses, tls };
        for index in 0..controllers.addresses.len() {
            controllers.endpoint(index)?;
        }
        Ok(controllers)
    }

    /// Number of controllers; never 0.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.addresses.len()
    }

    /// The address as given, with an absolute path.
    #[must_use]
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.addresses[index % self.addresses.len()]
    }

    /// A new endpoint for a controller.
    pub(crate) fn endpoint(&self, index: usize) -> Result<Endpoint, AddressError> {
        let address = self.name(index);
        let malformed = |_| AddressError::Malformed(address.to_owned());
        let endpoint = match (address.strip_prefix("unix:"), &self.tls) {
            (Some(path), _) => Endpoint::from_shared(format!("unix://{path}")).map_err(malformed)?,
            (None, None) => return Err(AddressError::Bare(address.to_owned())),
            (None, Some(files)) => {
                let config = ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(read(&files.authority)?))
                    .identity(Identity::from_pem(read(&files.certificate)?, read_key(&files.key)?));
                let endpoint = Endpoint::from_shared(format!("https://{address}")).map_err(malformed)?;
                endpoint.tls_config(config).map_err(|e| AddressError::Tls(address.to_owned(), e))?
            }
        };
        Ok(endpoint
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, AddressError> {
    std::fs::read(path).map_err(|e| AddressError::File(path.into(), e))
}

/// Reads a private key; a file that other users can read is refused.
fn read_key(path: &Path) -> Result<Vec<u8>, AddressError> {
    rivulet_private_file::read(path, MAX_KEY_BYTES).map_err(|e| AddressError::File(path.into(), e))
}

fn normal(address: &str) -> Result<String, AddressError> {
    let malformed = || AddressError::Malformed(address.to_owned());
    if let Some(path) = address.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(malformed());
        }
        let path = std::path::absolute(path).map_err(|_| malformed())?;
        return Ok(format!("unix:{}", path.to_str().ok_or_else(malformed)?));
    }
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let six = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_is_one = match six {
        Some(six) => six.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let sign = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_';
            !host.is_empty() && host.chars().all(sign)
        }
    };
    if !host_is_one || port.parse::<u16>().is_ok_and(|p| p == 0) || port.parse::<u16>().is_err() {
        return Err(malformed());
    }
    Ok(address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(address: &str) -> Result<Controllers, AddressError> {
        Controllers::new(&[address.to_owned()], None)
    }

    #[test]
    fn addresses_of_controllers() {
        for good in ["unix:/run/x.sock", "unix:x", "unix:../x y"] {
            one(good).unwrap_or_else(|e| panic!("{good}: {e}"));
        }
        for bad in [
            "",
            "unix:",
            "nowhere",
            "a b:1",
            "localhost:0",
            "localhost:70000",
            "[x]:1",
            "::1:5",
            "http://h:1",
        ] {
            let error = one(bad).expect_err(bad);
            assert!(matches!(error, AddressError::Malformed(_)), "{bad}: {error}");
        }
        assert!(matches!(Controllers::new(&[], None), Err(AddressError::Count(0))));
        let here = std::env::current_dir().unwrap();
        assert_eq!(one("unix:a.sock").unwrap().name(0), format!("unix:{}", here.join("a.sock").display()));
    }

    #[test]
    fn tcp_needs_tls_on_loopback_too() {
        let far = ["192.0.2.1:1", "[fd00::1]:1", "controller.example:1"];
        for tcp in far.into_iter().chain(["127.0.0.1:9559", "[::1]:9559", "localhost:1"]) {
            assert!(matches!(one(tcp), Err(AddressError::Bare(_))), "{tcp}");
        }
        let files = |p: &str| TlsFiles { authority: p.into(), certificate: p.into(), key: p.into() };
        let missing = Controllers::new(&["192.0.2.1:1".into()], Some(files("/no/such/file")));
        assert!(matches!(missing, Err(AddressError::File(..))));
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        // Other users can read this key file, so it is refused.
        std::fs::write(&empty, "").unwrap();
        std::fs::set_permissions(&empty, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let open = Controllers::new(&["192.0.2.1:1".into()], Some(files(empty.to_str().unwrap())));
        assert!(matches!(open, Err(AddressError::File(..))), "{open:?}");
        std::fs::set_permissions(&empty, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let empty = Controllers::new(&["192.0.2.1:1".into()], Some(files(empty.to_str().unwrap())));
        assert!(matches!(empty, Err(AddressError::Tls(..))), "{empty:?}");
    }
}
