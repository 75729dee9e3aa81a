//! Provides the plaintext of a stored response: from the state, and for the rest from the local
//! server, which must answer with the same object that the client was receiving. The rules for that
//! are TRODS's.

use rivulet_trods::{
    adopt::{Answer, Refusal, object_requests, same_object},
    head::MAX_HEAD,
    record::{Body, MAX_CHECK, Response},
};

/// The plaintext of a response from a given byte on.
#[derive(Debug)]
pub struct Source<'a> {
    /// Plaintext that the state has.
    pub stored: &'a [u8],
    /// Requests to the server for the rest; empty if there is no rest. [`answers`](Self::answers)
    /// reads the answers.
    pub request: Vec<u8>,
    response: &'a Response,
    from: u64,
    length: u64,
}

impl<'a> Source<'a> {
    /// The plaintext from this byte on, counted from the beginning of the response's head.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] if the response must be generated again, which is not supported.
    pub fn of(response: &'a Response, from: u64) -> Result<Source<'a>, Refusal> {
        let at = usize::try_from(from).unwrap_or(usize::MAX);
        let stored = match &response.body {
            Body::Whole(bytes) | Body::Object { head: bytes, .. } => bytes.get(at..).unwrap_or_default(),
            Body::Generated { .. } => return Err(Refusal::Unknown),
        };
        let mut source = Source { stored, request: Vec::new(), response, from: 0, length: 0 };
        if let Body::Object { head, .. } = &response.body {
            let object = response.object().ok_or(Refusal::Malformed)?;
            source.from = from.saturating_sub(head.len() as u64);
            source.length = object.length.saturating_sub(source.from);
            if source.length > 0 {
                source.request = object_requests(response, source.from).ok_or(Refusal::Malformed)?;
            }
        }
        Ok(source)
    }

    /// The reader of the server's answers to the request.
    #[must_use]
    pub fn answers(&self) -> Answers {
        let check = match &self.response.body {
            Body::Object { check, .. } if check.0 > 0 && self.length > 0 => Some(*check),
            _ => None,
        };
        Answers {
            response: self.response.clone(),
            from: self.from,
            length: self.length,
            input: Vec::new(),
            step: if check.is_some() { Step::CheckHead } else { Step::RestHead },
            check,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reads the head of the answer that has the body's beginning.
    CheckHead,
    /// Compares the body's beginning.
    Compare { is_whole: bool },
    /// Reads the head of the answer that has the rest.
    RestHead,
    /// Skips this many bytes, before the wanted ones or before the beginning to compare.
    Through(u64, Part),
    /// Passes on the wanted bytes.
    Rest,
}

/// What follows the skipped bytes.
#[derive(Clone, Copy, Debug)]
enum Part {
    Known,
    Rest,
}

/// Reads the server's answers. It passes on no byte before the answer is known to be of the same
/// object.
#[derive(Debug)]
pub struct Answers {
    response: Response,
    from: u64,
    /// Wanted bytes that were not received yet.
    length: u64,
    /// Received bytes that are not handled yet: at most a head and the beginning to compare.
    input: Vec<u8>,
    step: Step,
    /// Length and CRC-32C of the body's beginning, if it is to be compared.
    check: Option<(u32, u32)>,
}

impl Answers {
    /// Bytes of the body that were not received yet.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.length
    }

    /// Takes bytes of the server, and appends the resulting plaintext to `out`.
    ///
    /// # Errors
    /// Why the client must be reset instead.
    pub fn read(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        while self.length > 0 {
            let is_head = !matches!(self.step, Step::Through(..) | Step::Rest);
            if is_head {
                let room = (MAX_HEAD + MAX_CHECK).saturating_sub(self.input.len());
                let (more, rest) = bytes.split_at(bytes.len().min(room));
                self.input.extend_from_slice(more);
                bytes = rest;
                if !self.look()? {
                    // `look` refuses a head or beginning that does not fit into the buffer.
                    return Ok(());
                }
                continue;
            }
            let input = std::mem::take(&mut self.input);
            if input.is_empty() {
                let count = self.pass(bytes, out);
                bytes = &bytes[count..];
                if bytes.is_empty() {
                    return Ok(());
                }
            } else {
                let count = self.pass(&input, out);
                self.input.extend_from_slice(&input[count..]);
            }
        }
        Ok(())
    }

    /// Handles bytes of a body, and returns how many of them belong to this step.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let limit = |most: u64| bytes.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let Step::Through(left, part) = self.step else {
            let count = limit(self.length);
            out.extend_from_slice(&bytes[..count]);
            self.length -= count as u64;
            return count;
        };
        let count = limit(left);
        self.step = match (left - count as u64, part) {
            (0, Part::Known) => Step::Compare { is_whole: true },
            (0, Part::Rest) => Step::Rest,
            (left, part) => Step::Through(left, part),
        };
        count
    }

    /// Handles a head or the beginning to compare. Returns false if more bytes are needed.
    fn look(&mut self) -> Result<bool, Refusal> {
        match (self.step, self.check) {
            (Step::CheckHead, Some((count, _))) => {
                let Some(answer) = same_object(&self.response, &self.input, 0, u64::from(count))? else {
                    return Ok(false);
                };
                let Answer { head, before, is_whole } = answer;
                self.input.drain(..head);
                self.step = match is_whole {
                    true => Step::Through(before, Part::Known),
                    false => Step::Compare { is_whole },
                };
            }
            (Step::Compare { is_whole }, Some((count, sum))) => {
                let count = count as usize;
                let Some(body) = self.input.get(..count) else { return Ok(false) };
                if crc32c::crc32c(body) != sum {
                    return Err(Refusal::Content);
                }
                // An answer with the whole object continues after the compared beginning, which may
                // have wanted bytes.
                let had = count.min(usize::try_from(self.from).unwrap_or(usize::MAX));
                self.input.drain(..if is_whole { had } else { count });
                self.step =
                    if is_whole { Step::Through(self.from - had as u64, Part::Rest) } else { Step::RestHead };
            }
            _ => {
                let Some(answer) = same_object(&self.response, &self.input, self.from, self.length)? else {
                    return Ok(false);
                };
                self.input.drain(..answer.head);
                self.step = Step::Through(answer.before, Part::Rest);
            }
        }
        Ok(true)
    }
}
