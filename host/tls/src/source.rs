//! Where the plaintext of a stored response comes from: from the state, and from the local server, whose answer must be of the
//! object that the client was receiving. The rules of identity are those of TRODS.

use rivulet_trods::{
    adopt::{Answer, Refusal, object_requests, same_object},
    head::MAX_HEAD,
    record::{Body, MAX_CHECK, Response},
};

/// The plaintext of a response from one of its bytes on.
#[derive(Debug)]
pub struct Source<'a> {
    /// Bytes that the state has.
    pub stored: &'a [u8],
    /// What the server is sent for the rest, empty if there is none; [`answers`](Self::answers) reads what it sends back.
    pub request: Vec<u8>,
    response: &'a Response,
    from: u64,
    length: u64,
}

impl<'a> Source<'a> {
    /// From this byte of the response on, counted from the beginning of its head.
    ///
    /// # Errors
    /// [`Refusal::Unknown`] if the response can only be generated again, which is not supported.
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
    /// The head of the answer with the body's known beginning.
    CheckHead,
    /// The known beginning.
    Compare { is_whole: bool },
    /// The head of the answer with the rest.
    RestHead,
    /// This many bytes before the wanted ones, or before the known beginning.
    Through(u64, Part),
    /// The wanted ones.
    Rest,
}

/// What follows the bytes that are dropped.
#[derive(Clone, Copy, Debug)]
enum Part {
    Known,
    Rest,
}

/// Reads the server's answers: nothing is given out before the answer is known to be of the same object.
#[derive(Debug)]
pub struct Answers {
    response: Response,
    from: u64,
    /// Wanted bytes that did not come yet.
    length: u64,
    /// Bytes that wait for more, at most a head and the compared beginning.
    input: Vec<u8>,
    step: Step,
    /// Bytes and CRC-32C of the body's known beginning, if it is to be compared.
    check: Option<(u32, u32)>,
}

impl Answers {
    /// Bytes of the body that did not come yet.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.length
    }

    /// Takes bytes of the server, and appends the plaintext that they bring to `out`.
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
                    // A head or beginning that does not fit into the room is refused by `look`.
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

    /// Moves on in a body, and returns the number of bytes that belong to this step.
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

    /// Looks at a head or the known beginning in the input; false if more is needed.
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
                // A whole answer goes on behind the known beginning, which may hold wanted bytes.
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
