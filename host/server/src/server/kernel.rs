//! What the kernel's TCP has while a service's plain TCP changes hands. What is said of a connection of the kernel's may look like anything: its
//! sequence numbers and timestamps are by chance. So it is asked.

use rivulet_pktio::sockets::{Held, Sockets};
use rivulet_plain::Segment;

/// The kernel's connections, while there are some beside those without state.
#[derive(Debug, Default)]
pub(super) struct Kernel(Option<Sockets>);

impl Kernel {
    /// From now on it is asked, or no more.
    pub fn prepare(&mut self, asked: bool, netns: Option<&str>) {
        if !asked {
            self.0 = None;
        } else if self.0.is_none() {
            match Sockets::open(netns) {
                Ok(sockets) => self.0 = Some(sockets),
                Err(e) => tracing::warn!(
                    error = %e,
                    "while plain TCP changes hands, connections of the kernel's that come to another replica end"
                ),
            }
        }
    }

    /// What it has of the connection of a client's segment; `None` where that is not known.
    pub fn held(&self, segment: &Segment<'_>) -> Option<Held> {
        let (service, client) = (segment.header.dst, segment.header.src);
        self.0
            .as_ref()?
            .held(service, client)
            .inspect_err(|e| tracing::debug!(%client, error = %e, "sockets"))
            .ok()
    }
}
