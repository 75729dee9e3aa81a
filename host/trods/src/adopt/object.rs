//! Fetches the rest of an object from the local server: by `Range`, or by reading the whole object
//! up to the client's place if the server sends all of it or the client signed its own `Range`. The
//! client gets nothing before the answer is known to be of the same object.

use std::time::{Duration, Instant};

use super::identity::{Answer, object_requests, same};
use super::origin::Origin;
use super::{AdoptConfig, Adoption, Refusal, Step, Stop};
use crate::digest::{Knowledge, Wanted, needs_digest};
use crate::flow::Unknown;
use crate::head::MAX_HEAD;
use crate::record::{Body, MAX_CHECK};

/// Interval at which an adopted connection checks whether the digest thread has read the object
/// that it waits for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The wanted part of the answer, after the dropped bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The beginning of the body, of which the record holds the checksum.
    Seen,
    /// The rest of the object, with its length in bytes.
    Rest(u64),
}

impl Adoption {
    /// Requests the known beginning of the body, then the rest.
    pub(super) fn ask_object(&mut self, config: &AdoptConfig) -> Result<(), Stop> {
        self.compare_digests(config)?;
        let response = &self.record.responses[self.at];
        let Body::Object { head, check, .. } = &response.body else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let from = self.offset.saturating_sub(head.len() as u64);
        let requests = object_requests(response, from).ok_or(Stop::Refused(Refusal::Malformed))?;
        self.step = if check.0 > 0 { Step::Check } else { Step::Head };
        self.to_origin.extend_from_slice(&requests);
        self.connect(config)
    }

    /// Compares the digest in the record with that of the local server's object.
    fn compare_digests(&mut self, config: &AdoptConfig) -> Result<(), Stop> {
        let response = &self.record.responses[self.at];
        if !needs_digest(response) || self.compared == Some(self.at) {
            return Ok(());
        }
        let Body::Object { digest: theirs, .. } = response.body else { return Ok(()) };
        let wanted = Wanted::of(self.record.tuple.service, response);
        let own = match (&wanted, theirs) {
            (Some(wanted), Some(_)) => config.digests.look_up(wanted, self.record.tuple.client.ip()),
            _ => Knowledge::Unavailable,
        };
        let since = *self.comparing_since.get_or_insert_with(Instant::now);
        match (own, theirs) {
            (Knowledge::Digest(own), Some(theirs)) if own != theirs => {
                return Err(Stop::Refused(Refusal::Content));
            }
            (Knowledge::Digest(_), Some(_)) => {}
            (Knowledge::Asked, _) if since.elapsed() < config.patience => {
                self.retry_at = Some(Instant::now() + LOOK_AGAIN);
                return Err(Stop::Waits);
            }
            _ if config.unknown == Unknown::Trust => self.is_trusted = true,
            _ => return Err(Stop::Refused(Refusal::Unknown)),
        }
        (self.compared, self.comparing_since) = (Some(self.at), None);
        Ok(())
    }

    /// Reads an answer's head, or the bytes to compare.
    pub(super) fn read_object(&mut self, now: Instant) -> Result<(), Stop> {
        self.write_origin(now)?;
        let origin = self.origin.as_mut().ok_or(Stop::Origin)?;
        origin.fill(MAX_HEAD + MAX_CHECK).map_err(|_| Stop::Origin)?;
        let progress = match self.step {
            Step::Check => self.check_head(),
            Step::Compare { is_whole } => self.compare(is_whole),
            _ => self.rest_head(),
        };
        let is_ended = self.origin.as_ref().is_some_and(Origin::is_ended);
        match progress {
            // The server closed in the middle of a head.
            Err(Stop::Waits) if is_ended => Err(Stop::Origin),
            progress => progress,
        }
    }

    /// Reads the head of the answer with the body's known beginning.
    fn check_head(&mut self) -> Result<(), Stop> {
        let response = &self.record.responses[self.at];
        let (Body::Object { check: (count, _), .. }, Some(origin)) = (&response.body, &mut self.origin)
        else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let Answer { head, before, is_whole } = same(response, origin.input(), 0, u64::from(*count))?;
        origin.consume(head);
        self.read_through_counted(before, is_whole);
        self.step = if is_whole { Step::Through(before, Part::Seen) } else { Step::Compare { is_whole } };
        Ok(())
    }

    /// Compares the body's known beginning with the server's bytes.
    fn compare(&mut self, is_whole: bool) -> Result<(), Stop> {
        let response = &self.record.responses[self.at];
        let (Body::Object { head, check: (count, sum), .. }, Some(origin)) =
            (&response.body, &mut self.origin)
        else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let count = *count as usize;
        let body = origin.input().get(..count).ok_or(Stop::Waits)?;
        if crc32c::crc32c(body) != *sum {
            return Err(Stop::Refused(Refusal::Content));
        }
        if !is_whole {
            origin.consume(count);
            self.step = Step::Head;
            return Ok(());
        }
        // The answer has the whole object, so its next bytes are the rest and no second answer is
        // needed.
        let from = self.offset.saturating_sub(head.len() as u64);
        let had = count.min(usize::try_from(from).unwrap_or(usize::MAX));
        origin.consume(had);
        let left = response.length - head.len() as u64 - from;
        self.step = Step::Through(from - had as u64, Part::Rest(left));
        Ok(())
    }

    /// Checks the head of the answer with the rest of the body.
    fn rest_head(&mut self) -> Result<(), Stop> {
        let response = &self.record.responses[self.at];
        let (Body::Object { head, .. }, Some(origin)) = (&response.body, &mut self.origin) else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let from = self.offset.saturating_sub(head.len() as u64);
        let left = response.length - head.len() as u64 - from;
        let Answer { head, before, is_whole } = same(response, origin.input(), from, left)?;
        origin.consume(head);
        self.read_through_counted(before, is_whole);
        self.step = Step::Through(before, Part::Rest(left));
        Ok(())
    }

    fn read_through_counted(&mut self, before: u64, is_whole: bool) {
        if is_whole {
            self.read_through = Some(before);
        }
    }

    /// Reads and drops the next `left` bytes of the answer, which precede the wanted ones. The
    /// client first gets the bytes of the stored head that it lacks.
    pub(super) fn read_through(&mut self, left: u64, wanted: Part, now: Instant) -> Result<(), Stop> {
        let origin = self.origin.as_mut().ok_or(Stop::Origin)?;
        if left > 0 {
            let count = origin.discard(left).map_err(super::stop_origin)?;
            self.active = now;
            self.step = Step::Through(left - count, wanted);
            return Ok(());
        }
        let Part::Rest(rest) = wanted else {
            self.step = Step::Compare { is_whole: true };
            return Ok(());
        };
        let Body::Object { head, .. } = &self.record.responses[self.at].body else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let missing = head.get(usize::try_from(self.offset).unwrap_or(usize::MAX)..).unwrap_or_default();
        self.out.extend_from_slice(missing);
        let count = origin.input().len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        self.out.extend_from_slice(&origin.input()[..count]);
        origin.consume(count);
        self.step = Step::Body(rest - count as u64);
        Ok(())
    }
}
