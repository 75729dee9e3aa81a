//! TLS of the gRPC server.

use std::fmt;

use tonic::transport::{Certificate, Identity, ServerTlsConfig};

/// The server's certificate and the requirements for clients, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, followed by the intermediate ones up to a root.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The authority that signs clients' certificates.
    pub client_authority: Option<Vec<u8>>,
    /// Refuse clients without a certificate; no effect without an authority.
    pub client_required: bool,
}

impl fmt::Debug for Tls {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.client_authority.is_some();
        write!(f, "Tls {{ client_authority: {authority}, client_required: {} }}", self.client_required)
    }
}

impl Tls {
    pub(crate) fn config(&self) -> ServerTlsConfig {
        let config = ServerTlsConfig::new().identity(Identity::from_pem(&self.certificate, &self.key));
        match &self.client_authority {
            None => config,
            Some(authority) => config
                .client_ca_root(Certificate::from_pem(authority))
                .client_auth_optional(!self.client_required),
        }
    }
}
