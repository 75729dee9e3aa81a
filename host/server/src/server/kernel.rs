//! What the kernel's TCP has while a service's plain TCP changes hands. What is said of a connection of the kernel's may look like anything: its
//! sequence numbers and timestamps are by chance. So it is asked.

use std::hash::{BuildHasher, RandomState};

use rivulet_pktio::sockets::{Held, Sockets};
use rivulet_plain::Segment;

/// Between two questions about a connection of which the kernel had nothing, microseconds. A packet may be seen here some microseconds before the
/// kernel has made its socket, and is seen when the kernel has ended it.
const AGAIN: u64 = 1_000;
/// For so long the last answer is remembered: longer than between two keep-alives.
const REMEMBERED: u64 = 600_000_000;
/// Connections for which it is, a megabyte; one that finds another in its place takes it.
const PLACES: usize = 1 << 16;

/// The kernel's connections, while there are some beside those without state.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    sockets: Option<Sockets>,
    hasher: RandomState,
    /// Hashes of connections of which it had nothing, and when that was known last.
    lacking: Box<[(u64, u64)]>,
}

impl Kernel {
    /// From now on it is asked, or no more.
    pub fn prepare(&mut self, asked: bool, netns: Option<&str>) {
        if !asked {
            *self = Kernel::default();
        } else if self.sockets.is_none() {
            match Sockets::open(netns).and_then(|sockets| sockets.check().map(|()| sockets)) {
                Ok(sockets) => {
                    self.sockets = Some(sockets);
                    self.lacking = vec![(0, 0); PLACES].into();
                }
                Err(e) => tracing::warn!(
                    error = %e,
                    "while plain TCP changes hands, connections of the kernel's that come to another replica hang, and large downloads \
                     whose replica died (a kernel with tcp_diag tells whose they are)"
                ),
            }
        }
    }

    /// Whether it has the connection of a client's segment. It may, where that is not known.
    pub fn has(&self, segment: &Segment<'_>) -> bool {
        self.held(segment).is_none_or(|held| held == Held::Connection)
    }

    /// Whether it has nothing of it, and had nothing before. Never, where that is not known.
    pub fn lacks(&mut self, segment: &Segment<'_>, now: u64) -> bool {
        let held = self.held(segment);
        let flow = self.hasher.hash_one((segment.header.src, segment.header.dst));
        let Some(place) = self.lacking.get_mut(flow as usize % PLACES) else { return false };
        let age = now.saturating_sub(place.1);
        match held {
            Some(Held::Nothing) if place.0 != flow || age > REMEMBERED => *place = (flow, now),
            Some(Held::Nothing) if age >= AGAIN => {
                place.1 = now - AGAIN;
                return true;
            }
            // Another one between the same ports.
            Some(Held::Connection) if place.0 == flow => *place = (0, 0),
            _ => {}
        }
        false
    }

    fn held(&self, segment: &Segment<'_>) -> Option<Held> {
        let (service, client) = (segment.header.dst, segment.header.src);
        let held = self.sockets.as_ref()?.held(service, client);
        held.inspect_err(|e| tracing::debug!(%client, error = %e, "sockets")).ok()
    }
}
