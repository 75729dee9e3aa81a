//! Connections that were begun without state and that the kernel's TCP takes over (`docs/plain.md`).

mod flows;
mod inject;
mod socket;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rivulet_pktio::in_netns;
use rivulet_pktio::repair::{self, Connection};
use rivulet_plain::{Handshake, Segment, kernel_value};

use self::flows::{Flows, Whose};
use self::inject::Injector;
pub use self::socket::{Adopted, MAX_PATIENCE};
use self::socket::{Clock, Place};
use crate::counters::Unserved;

/// Connections that are held at a time, of all workers.
pub const MAX_ADOPTED: usize = 4096;
/// Octets of the longest packet that is handed over: a jumbo frame's.
const MAX_PACKET: usize = 9216;
/// The window that SYN-ACKs of stateless TCP offer.
const WINDOW: u32 = 0xffff;

/// An application that serves connections of the kernel's TCP.
pub trait Door: Send + Sync {
    /// A connection that was adopted. Called on the packet path: what takes long belongs on another thread.
    fn accept(&self, connection: Adopted);
}

/// Where adopted connections go, for all workers of a replica.
#[derive(Clone)]
pub struct Doorway {
    door: Arc<dyn Door>,
    held: Arc<AtomicUsize>,
    limit: usize,
}

impl Doorway {
    /// At most `limit` connections are held at a time, and never more than [`MAX_ADOPTED`]; those beyond are refused.
    pub fn new(door: Arc<dyn Door>, limit: usize) -> Doorway {
        Doorway { door, held: Arc::default(), limit: limit.min(MAX_ADOPTED) }
    }

    /// How many are held.
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

/// What becomes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    /// The kernel has it.
    Passed,
    /// The kernel was to have it and had no room.
    Lost,
    /// To a connection of some kernel's, not of this one's.
    Stray,
    /// To nobody yet: it is to be judged. `over`: if that brings anything, a connection of the kernel's here is over.
    Free {
        /// There is one between these addresses and ports.
        over: bool,
    },
}

/// The connections that one worker's clients have with the kernel.
#[derive(Debug, Default)]
pub(crate) struct Adopter {
    doorway: Option<Doorway>,
    /// None before it is needed, and where the system does not let it.
    injector: Option<Injector>,
    tried: bool,
    flows: Flows,
    netns: Option<String>,
}

impl Adopter {
    /// Where adopted connections go.
    pub fn set_doorway(&mut self, doorway: Doorway) {
        self.doorway = Some(doorway);
    }

    /// Some service is answered without state. From now on what it cannot answer is adopted, if the system lets us; else a warning
    /// says why, once, and it is refused.
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
                    "what stateless TCP cannot answer is refused: nothing can be adopted"
                );
            }
        }
    }

    /// How many connections are held, of all workers.
    pub fn held(&self) -> usize {
        self.doorway.as_ref().map_or(0, Doorway::held)
    }

    /// Looks at what has ended.
    pub fn tidy(&mut self, now: u64) {
        self.flows.tidy(now);
    }

    /// Looks whose a segment is, and hands it to the kernel if it is the kernel's. `packet` begins with its IP header;
    /// `sum`: its checksum may not be complete; `has`: the kernel has the packet anyway.
    pub fn sort(&mut self, packet: &[u8], segment: &Segment<'_>, sum: bool, has: bool) -> Belongs {
        match self.flows.whose(segment) {
            Whose::Kernel if has => Belongs::Passed,
            Whose::Kernel => self.pass(packet, segment, sum),
            Whose::Stray => Belongs::Stray,
            Whose::Stateless => Belongs::Free { over: false },
            Whose::Another => Belongs::Free { over: true },
        }
    }

    /// A connection of the kernel's is over: there is another between its addresses and ports.
    pub fn forget(&mut self, segment: &Segment<'_>) {
        self.flows.forget(&(segment.header.src, segment.header.dst));
    }

    /// Has the kernel take over the connection from this segment on, and hands it that segment. `unacknowledged`: what was sent
    /// from the segment's acknowledgement on, without state.
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
        // An address of a link says nothing without the link, which the service's address does not name.
        if matches!(header.src.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return Err(Unserved::Kernel);
        }
        let place = Place::take(&doorway.held, doorway.limit).ok_or(Unserved::Full)?;
        let connection = Connection {
            local: header.dst,
            remote: header.src,
            send_next: header.ack,
            receive_next: handshake.receive_next,
            send_window: handshake.scale.map_or(header.window.into(), |scale| scale.window(header.window)),
            receive_window: WINDOW,
            mss: handshake.mss,
            scales: handshake.scale.map(|scale| (scale.shift(), 0)),
            // No segment of a client's says what its SYN did; who does not know SACK blocks passes over them.
            sack: true,
            timestamp: handshake.scale.map(|_| kernel_value(handshake.start)),
        };
        let refused = |e: &dyn std::fmt::Display| {
            tracing::debug!(client = %header.src, error = %e, "not adopted");
            Unserved::Kernel
        };
        let stream = repair::restore_with(&connection, unacknowledged, self.netns.as_deref());
        let stream = stream.map_err(|e| refused(&e))?;
        let place = place.tells(self.flows.add(segment, &handshake));
        let clock = connection.timestamp.map(Clock::new);
        let adopted = Adopted::new(stream, clock, header.src, place).map_err(|e| refused(&e))?;
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
                tracing::debug!(client = %segment.header.src, error = %e, "the kernel did not take a packet");
                Belongs::Lost
            }
        }
    }
}
