//! Which connections the kernel's TCP has while plain TCP of a service moves between the kernel and
//! stateless TCP. The segments do not show it, because the kernel's sequence numbers and timestamps
//! are random. So the kernel is queried (sock_diag).

use std::hash::{BuildHasher, RandomState};

use rivulet_pktio::sockets::{Held, Sockets};
use rivulet_plain::Segment;

/// Time between two queries about a connection that the kernel did not have, microseconds. A
/// segment may arrive here some microseconds before the kernel has made its socket, and is seen
/// here after the kernel has closed it.
const AGAIN: u64 = 1_000;
/// How long the last result is remembered, microseconds: longer than the interval between two
/// keep-alives.
const REMEMBERED: u64 = 600_000_000;
/// Number of connections remembered, in a megabyte; a new one replaces the one in its slot.
const PLACES: usize = 1 << 16;

/// Queries about the kernel's connections, while a service has such connections beside stateless
/// ones.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    sockets: Option<Sockets>,
    hasher: RandomState,
    /// Hashes of connections that the kernel did not have, with the time of the last query.
    lacking: Box<[(u64, u64)]>,
}

impl Kernel {
    /// Switches the queries on or off.
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
                    "while plain TCP moves between the kernel and stateless TCP, kernel connections that reach another replica stall, and so \
                     do large downloads after the death of their replica (a kernel with tcp_diag can look connections up)"
                ),
            }
        }
    }

    /// Whether the kernel has, or may have, the connection of a client's segment. True if that is
    /// unknown.
    pub fn has(&self, segment: &Segment<'_>) -> bool {
        self.held(segment).is_none_or(|held| held == Held::Connection)
    }

    /// Whether the kernel does not have it, and did not have it before either. False if that is
    /// unknown.
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
            // Another connection of the same ports.
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
