//! Connections that began without state and are taken over by the kernel's TCP (`docs/plain.md`).

mod flows;
mod inject;
mod socket;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rivulet_pktio::in_netns;
use rivulet_pktio::repair::{self, Connection};
use rivulet_plain::{Handshake, Segment, kernel_value};

use self::flows::{Flows, Owner};
use self::inject::Injector;
pub use self::socket::{Adopted, MAX_PATIENCE};
use self::socket::{Clock, Permit};
use crate::counters::Unserved;

/// Maximum number of connections held at a time, over all workers.
pub const MAX_ADOPTED: usize = 4096;
/// The window in SYN-ACKs of stateless TCP.
const WINDOW: u32 = 0xffff;

/// An application that serves connections of the kernel's TCP.
pub trait Door: Send + Sync {
    /// Called with an adopted connection on the packet path; long work belongs on another thread.
    fn accept(&self, connection: Adopted);
}

/// Receives adopted connections from all workers of a replica.
#[derive(Clone)]
pub struct Doorway {
    door: Arc<dyn Door>,
    held: Arc<AtomicUsize>,
    limit: usize,
}

impl Doorway {
    /// At most `limit` connections are held at a time, and never more than [`MAX_ADOPTED`]; further
    /// ones are refused.
    pub fn new(door: Arc<dyn Door>, limit: usize) -> Doorway {
        Doorway { door, held: Arc::default(), limit: limit.min(MAX_ADOPTED) }
    }

    /// The number of connections held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Doorway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorway").field("held", &self.held()).field("limit", &self.limit).finish()
    }
}

/// The owner of a segment, and whether it was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    /// The packet was passed to this host's kernel.
    Passed,
    /// The kernel should have it but had no room.
    Lost,
    /// The packet belongs to a connection of another host's kernel.
    Stray,
    /// No owner is known: judge it. `over`: if it gets an answer, a connection of the kernel here
    /// is over.
    Free {
        /// The kernel has one between these addresses and ports.
        over: bool,
    },
}

/// The kernel's connections with one worker's clients.
#[derive(Debug, Default)]
pub(crate) struct Adopter {
    doorway: Option<Doorway>,
    /// Opened when first needed; stays `None` if the system does not allow it.
    injector: Option<Injector>,
    tried: bool,
    flows: Flows,
    netns: Option<String>,
}

impl Adopter {
    /// Receives adopted connections.
    pub fn set_doorway(&mut self, doorway: Doorway) {
        self.doorway = Some(doorway);
    }

    /// Called when a service is answered without state: connections that cannot be answered so are
    /// adopted. If the system does not allow it, they are refused, and a warning gives the reason
    /// once.
    pub fn prepare(&mut self, netns: Option<&str>) {
        if self.doorway.is_none() || std::mem::replace(&mut self.tried, true) {
            return;
        }
        let able = || -> Result<Injector, String> {
            let checked = in_netns(netns, repair::check).map_err(|e| e.to_string())?;
            checked.map_err(|e| format!("{e} (CAP_NET_ADMIN, a kernel with checkpoint/restore)"))?;
            Injector::open(netns).map_err(|e| format!("raw socket: {e} (CAP_NET_RAW)"))
        };
        match able() {
            Ok(injector) => {
                self.injector = Some(injector);
                self.netns = netns.map(Into::into);
            }
            Err(e) => {
                tracing::warn!(
                    error = e,
                    "the kernel cannot adopt connections: requests that stateless TCP cannot answer are refused"
                );
            }
        }
    }

    /// The number of connections held, over all workers.
    pub fn held(&self) -> usize {
        self.doorway.as_ref().map_or(0, Doorway::held)
    }

    /// Handles connections that have ended.
    pub fn expire(&mut self, now: u64) {
        self.flows.expire(now);
    }

    /// Determines the owner of a segment, and passes it to the kernel if that is the owner.
    /// `packet` begins with its IP header. `sum`: its checksum may be incomplete. `has`: the kernel
    /// has the packet anyway.
    pub fn sort(&mut self, packet: &[u8], segment: &Segment<'_>, sum: bool, has: bool) -> Belongs {
        match self.flows.owner(segment) {
            Owner::Kernel if has => Belongs::Passed,
            Owner::Kernel => self.pass(packet, segment, sum),
            Owner::Stray => Belongs::Stray,
            Owner::Stateless => Belongs::Free { over: false },
            Owner::Another => Belongs::Free { over: true },
        }
    }

    /// A connection of the kernel is over, because a new one uses its addresses and ports.
    pub fn forget(&mut self, segment: &Segment<'_>) {
        self.flows.forget(&(segment.header.src, segment.header.dst));
    }

    /// Lets the kernel take over the connection from this segment on, and passes it the segment.
    /// `unacknowledged`: bytes sent without state from the segment's acknowledgement on.
    pub fn adopt(
        &mut self,
        packet: &[u8],
        segment: &Segment<'_>,
        handshake: Handshake,
        unacknowledged: &[u8],
        sum: bool,
    ) -> Result<Belongs, Unserved> {
        let (Some(doorway), Some(_)) = (&self.doorway, &self.injector) else { return Err(Unserved::Kernel) };
        let header = &segment.header;
        // A link-local address needs its interface, which the service's address does not name.
        if matches!(header.src.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Err(Unserved::Kernel);
        }
        let permit = Permit::take(&doorway.held, doorway.limit).ok_or(Unserved::Full)?;
        let connection = Connection {
            local: header.dst,
            remote: header.src,
            send_next: header.ack,
            receive_next: handshake.receive_next,
            send_window: handshake.scale.map_or(header.window.into(), |scale| scale.window(header.window)),
            receive_window: WINDOW,
            mss: handshake.mss,
            scales: handshake.scale.map(|scale| (scale.shift(), 0)),
            // Segments do not show whether the SYN permitted SACK; a peer without SACK ignores the
            // blocks.
            sack: true,
            timestamp: handshake.scale.map(|_| kernel_value(handshake.start)),
        };
        let refused = |e: &dyn std::fmt::Display| {
            tracing::debug!(client = %header.src, error = %e, "cannot adopt the connection");
            Unserved::Kernel
        };
        let stream = repair::restore_with(&connection, unacknowledged, self.netns.as_deref());
        let stream = stream.map_err(|e| refused(&e))?;
        let permit = permit.report_close(self.flows.add(segment, &handshake));
        let clock = connection.timestamp.map(Clock::new);
        let adopted = Adopted::new(stream, clock, header.src, permit).map_err(|e| refused(&e))?;
        let door = doorway.door.clone();
        let passed = self.pass(packet, segment, sum);
        door.accept(adopted);
        Ok(passed)
    }

    fn pass(&mut self, packet: &[u8], segment: &Segment<'_>, sum: bool) -> Belongs {
        let Some(injector) = &mut self.injector else { return Belongs::Lost };
        match injector.deliver(packet, segment, sum) {
            Ok(()) => Belongs::Passed,
            Err(e) => {
                tracing::debug!(client = %segment.header.src, error = %e, "cannot pass a packet to the kernel");
                Belongs::Lost
            }
        }
    }
}
