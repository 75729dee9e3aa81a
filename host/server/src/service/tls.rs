//! HTTPS of a service: `rivulet tls` ends TLS before a server of plain HTTP (`docs/tls.md`).

use std::net::SocketAddr;

use crate::keys::Secret;
use crate::limits::{MAX_CERTIFICATES, MAX_PATH_BYTES, is_host};

/// Maximum number of ticket keys.
const MAX_TICKET_KEYS: usize = 16;

/// TLS before a server of plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Chosen by the name that a client asks for; the first is for other clients.
    pub certificates: Vec<Certificate>,
    /// The server of plain HTTP.
    pub server: SocketAddr,
    /// How the server learns the client's address.
    pub forwarded: Forwarded,
    /// File with the authorities of clients' certificates; `None`: clients need no certificate.
    pub client_ca: Option<String>,
    /// Keys of session tickets, oldest first.
    pub ticket_keys: Vec<TicketKey>,
    /// Epoch of the key that seals new tickets; 0: none yet.
    pub usable_ticket: u16,
}

/// Absolute paths of PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, then the intermediate ones.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

/// How a server behind TLS learns the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// By the fields `X-Forwarded-For`, `-Proto` and `-Host`.
    Headers,
    /// By the PROXY protocol, version 2.
    Proxy,
    /// Not at all.
    None,
}

/// A key of session tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketKey {
    /// 1 to 65,535.
    pub epoch: u16,
    /// The key.
    pub key: Secret<32>,
}

impl Tls {
    /// The first value that is out of range, if any. `own`: where the service is.
    pub(super) fn problem(&self, mut own: impl Iterator<Item = SocketAddr>) -> Option<&'static str> {
        let is_file = |path: &str| {
            path.starts_with('/') && path.len() <= MAX_PATH_BYTES && !path.as_bytes().contains(&0)
        };
        let mut files =
            self.certificates.iter().flat_map(|c| [&c.certificate, &c.key]).chain(&self.client_ca);
        let server = self.server;
        let is_server = server.port() != 0 && (server.ip().is_loopback() || is_host(server.ip()));
        let epochs: Vec<u16> = self.ticket_keys.iter().map(|key| key.epoch).collect();
        let distinct =
            epochs.iter().enumerate().all(|(n, epoch)| *epoch != 0 && !epochs[..n].contains(epoch));
        [
            ((1..=MAX_CERTIFICATES).contains(&self.certificates.len()), "TLS has not 1 to 64 certificates"),
            (files.all(|path| is_file(path)), "a file of TLS is at no absolute path"),
            (is_server, "the server behind TLS is not on loopback or a host"),
            (own.all(|socket| socket != server), "the server behind TLS is the service itself"),
            (epochs.len() <= MAX_TICKET_KEYS && distinct, "the ticket keys are not 16 epochs at most"),
            (
                self.usable_ticket == 0 || epochs.contains(&self.usable_ticket),
                "the usable ticket epoch has no key",
            ),
        ]
        .into_iter()
        .find_map(|(holds, what)| (!holds).then_some(what))
    }

    /// The ticket keys in the order of a terminator: the usable one first.
    #[must_use]
    pub fn tickets(&self) -> Vec<&TicketKey> {
        let mut keys: Vec<_> = self.ticket_keys.iter().rev().collect();
        keys.sort_by_key(|key| key.epoch != self.usable_ticket);
        keys
    }
}
