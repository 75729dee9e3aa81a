//! A service that is served.

use rivulet_packet::Segment;
use rivulet_plain::CookieKeys;
use rivulet_transport::KeyRing;
use rivulet_transport::server::{Refusal, Server as Transport};

use crate::server::Door;
use crate::service::{Plain, Service};
use crate::tunnel::Blocks;

/// A service, and what it is served with.
pub(crate) struct Running {
    pub(crate) service: Service,
    pub(crate) keys: KeyRing,
    pub(crate) transport: Transport,
    /// For plain clients, if they are answered without state.
    pub(crate) plain: Option<Door>,
    /// Cookies of connections to the content of before; none where it never changed.
    pub(crate) former: Option<CookieKeys>,
    /// The ToR named an epoch whose key is not held. New keys make it false again.
    pub(crate) behind: bool,
    /// What was seen of blocks in tunnels.
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

    /// Whether the ToR block of a request that came in a tunnel is believed.
    pub(crate) fn is_tagged(&mut self, segment: &Segment<'_>, now: u64) -> bool {
        self.service.trust_tor && self.blocks.believes(&self.service.keys, segment, now)
    }

    /// Whether a frame from this Ethernet address comes from the ToR, whose block is believed. Others within the rack can
    /// send frames here too, past the ToR, with a block of their own.
    pub(crate) fn is_from_tor(&self, source: [u8; 6]) -> bool {
        self.service.trust_tor && self.service.member.is_some_and(|member| member.tor_mac == source)
    }

    /// Both kinds of epoch are usable, and the ToR has not named a newer one; plain clients that are to be answered without
    /// state can be. `holds`: there are connections that the kernel took over. Those go on, and so do the kernel's own of before,
    /// where the content here is not the one in force: the controller sees to it that nothing new comes.
    pub(crate) fn is_complete(&self, holds: bool) -> bool {
        let goes_on = holds || self.service.drains == Plain::Kernel;
        let plain = self.service.plain != Plain::Stateless || self.plain.is_some() || goes_on;
        self.keys.opening_epoch(0) != 0 && self.keys.sealing_epoch(0) != 0 && plain && !self.behind
    }

    /// A refusal of what the ToR handed on may tell that this replica's keys are old, as when it cannot reach the controller: what others
    /// seal it can only refuse, so its heartbeats say that it is not ready and the ToR leaves it out. Tells whether so.
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
                "the ToR uses keys that are not here: not ready until they come"
            );
            self.behind = true;
        }
        self.behind
    }
}
