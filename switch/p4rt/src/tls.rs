//! TLS of the gRPC server.

use std::fmt;

use tonic::transport::{Certificate, Identity, ServerTlsConfig};

/// What the server shows of itself and asks of its clients, all in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, with those between it and a root behind it.
    pub certificate: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The authority that clients' certificates are verified against.
    pub client_authority: Option<Vec<u8>>,
    /// Refuse clients without a certificate. Has no effect without an authority.
    pub client_required: bool,
}

impl fmt::Debug for Tls {
    /// Without the key.
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
