//! Events that are detached, and moved between machines (`msk_detach`, `msk_extract_events`,
//! `msk_install_events`).

use rivulet_packet::Segment;
use rivulet_transport::Time;
use rivulet_transport::equal_in_constant_time;
use rivulet_transport::server::Refusal;

use crate::minisocket::Detached;
use crate::running::Running;
use crate::server::{Application, Origin, Server, common_clock};

/// Bytes of a sealed event besides its frame.
const SEAL: usize = 2 + 8 + 1 + 12;
/// Distinguishes a sealed event from a user continuation under the same key.
const EVENT: &[u8] = b"rivulet event";

impl Server {
    /// Resumes a detached event, also one from another machine: passes it to `application` as if it
    /// had just arrived. An event older than the service's horizon is dropped.
    pub fn resume(&mut self, event: &Detached, application: &mut dyn Application) {
        let age = common_clock().since(event.now);
        let horizon = self.running.iter().map(|r| r.transport.policy.horizon).max().unwrap_or(0);
        if age > horizon {
            self.counters.refuse(&Refusal::Stale);
            return;
        }
        self.await_room();
        self.waited(age);
        self.handle(&event.frame, false, event.now, Origin::Detached { trusted: event.trusted }, application);
        self.flush();
    }

    /// Seals a detached event for another machine with the same keys (`msk_extract_events`). `None`
    /// if its service was removed.
    #[must_use]
    pub fn extract(&self, event: &Detached) -> Option<Vec<u8>> {
        let keys = &self.service_of(&event.frame)?.keys;
        let epoch = keys.sealing_epoch(0);
        let mut out = Vec::with_capacity(event.frame.len() + SEAL);
        out.extend_from_slice(&epoch.to_be_bytes());
        out.extend_from_slice(&event.now.0.to_be_bytes());
        out.push(event.trusted.into());
        out.extend_from_slice(&event.frame);
        let mac = keys.seal(epoch)?.user.mac12(&[EVENT, &out]);
        out.extend_from_slice(&mac);
        Some(out)
    }

    /// Opens an event sealed by [`extract`](Self::extract), here or on another machine
    /// (`msk_install_events`).
    pub fn install(&self, sealed: &[u8]) -> Result<Detached, Refusal> {
        let (body, mac) = sealed.split_last_chunk::<12>().ok_or(Refusal::Forged)?;
        let (epoch, rest) = body.split_first_chunk::<2>().ok_or(Refusal::Forged)?;
        let (now, rest) = rest.split_first_chunk::<8>().ok_or(Refusal::Forged)?;
        let (trusted, frame) = rest.split_first().ok_or(Refusal::Forged)?;
        let service = self.service_of(frame).ok_or(Refusal::Forged)?;
        let keys = service.keys.seal(u16::from_be_bytes(*epoch)).ok_or(Refusal::SealEpoch)?;
        if !equal_in_constant_time(&keys.user.mac12(&[EVENT, body]), mac) {
            return Err(Refusal::Forged);
        }
        Ok(Detached { frame: frame.into(), now: Time(u64::from_be_bytes(*now)), trusted: *trusted != 0 })
    }

    fn service_of(&self, frame: &[u8]) -> Option<&Running> {
        let (_, segment) = Segment::parse_frame(frame).ok()?;
        self.sockets.place(segment.dst).map(|index| &self.running[index])
    }
}
