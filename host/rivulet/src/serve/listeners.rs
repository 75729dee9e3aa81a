//! The kernel's TCP beside ours, on the same addresses and ports.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rivulet_server::service::{Plain, Service};

use super::plain;
use crate::http::Site;

/// Listeners that could not be opened are tried again after this.
const RETRY: Duration = Duration::from_secs(1);

/// The kernel's listening sockets.
pub(super) struct Listeners {
    site: Site,
    open: HashSet<SocketAddr>,
    failed: HashSet<SocketAddr>,
    tried: Instant,
}

impl Listeners {
    pub(super) fn new(site: Site) -> Listeners {
        Listeners { site, open: HashSet::new(), failed: HashSet::new(), tried: Instant::now() }
    }

    /// Opens what is missing. A service address may stand on this host later than the service is known.
    pub(super) fn ensure<'a>(&mut self, services: impl Iterator<Item = &'a Service>) {
        let again = self.tried.elapsed() > RETRY;
        if again {
            self.tried = Instant::now();
        }
        for socket in services.filter(|s| s.plain == Plain::Kernel).flat_map(Service::sockets) {
            if self.open.contains(&socket) || self.failed.contains(&socket) && !again {
                continue;
            }
            match plain::listen(socket, self.site.clone()) {
                Ok(_) => {
                    self.open.insert(socket);
                    self.failed.remove(&socket);
                }
                Err(e) => {
                    if self.failed.insert(socket) {
                        tracing::warn!(address = %socket, error = %e, "no plain TCP yet");
                    }
                }
            }
        }
    }
}
