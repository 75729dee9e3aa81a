//! A service in operation.

use rivulet_packet::Segment;
use rivulet_plain::CookieKeys;
use rivulet_transport::KeyRing;
use rivulet_transport::server::{Refusal, Server as Transport};

use crate::server::Door;
use crate::service::{Plain, Service};
use crate::tunnel::Blocks;

/// A service, with its transport and state.
pub(crate) struct Running {
    pub(crate) service: Service,
    pub(crate) keys: KeyRing,
    pub(crate) transport: Transport,
    /// Answers plain clients, if that is done without state.
    pub(crate) plain: Option<Door>,
    /// Cookie keys of connections to the previous content; `None` if the content never changed.
    pub(crate) former: Option<CookieKeys>,
    /// The ToR named an epoch for which there is no key. Cleared by new keys.
    pub(crate) behind: bool,
    /// State for blocks that arrive in tunnels.
    blocks: Blocks,
}

impl Running {
    pub(crate) fn new(service: Service, transport: Transport) -> Running {
        Running {
            keys: service.keys.ring(),
            former: service.content.and_then(|content| service.keys.former_cookies(content.epoch)),
            service,
            transport,
            plain: None,
            behind: false,
            blocks: Blocks::default(),
        }
    }

    /// Whether the ToR block of a request from a tunnel is trusted.
    pub(crate) fn is_tagged(&mut self, segment: &Segment<'_>, now: u64) -> bool {
        self.service.trust_tor && self.blocks.believes(&self.service.keys, segment, now)
    }

    /// Whether a frame from this Ethernet address comes from the ToR, so that its block is trusted.
    /// Other hosts in the rack can send frames past the ToR, with a forged block.
    pub(crate) fn is_from_tor(&self, source: [u8; 6]) -> bool {
        self.service.trust_tor && self.service.member.is_some_and(|member| member.tor_mac == source)
    }

    /// Whether the service is ready: both kinds of epoch are usable, the ToR has not named a newer
    /// one, and plain clients can be answered if that is done without state. `holds`: there are
    /// connections that the kernel took over. They continue even while other content is in force,
    /// as do the kernel's older connections; the controller ensures that no new ones arrive.
    pub(crate) fn is_complete(&self, holds: bool) -> bool {
        let goes_on = holds || self.service.drains == Plain::Kernel;
        let plain = self.service.plain != Plain::Stateless || self.plain.is_some() || goes_on;
        self.keys.opening_epoch(0) != 0 && self.keys.sealing_epoch(0) != 0 && plain && !self.behind
    }

    /// Whether this refusal of a packet from the ToR shows that this replica's keys are outdated,
    /// for example because it cannot reach the controller. It could then only refuse what other
    /// replicas seal, so its heartbeats report that it is not ready.
    pub(crate) fn learn(&mut self, refusal: &Refusal, segment: &Segment<'_>) -> bool {
        if !matches!(refusal, Refusal::SealEpoch | Refusal::NonceEpoch) {
            return false;
        }
        let Ok(request) = segment.request() else { return false };
        let (seal, nonce) = (request.tor.seal_epoch, request.tor.nonce_epoch);
        let lacks =
            seal != 0 && self.keys.seal(seal).is_none() || nonce != 0 && self.keys.nonce(nonce).is_none();
        if lacks && !self.behind {
            tracing::warn!(
                service = self.service.keys.service,
                seal_epoch = seal,
                nonce_epoch = nonce,
                "this replica lacks keys that the ToR uses: not ready until it gets them"
            );
            self.behind = true;
        }
        self.behind
    }
}
