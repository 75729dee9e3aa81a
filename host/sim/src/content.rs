//! The simulated application: content generated from a seed and served from continuations without
//! other state.
//!
//! A request is 24 bytes: size, seed, and the replica's pause before each answer (0), each 64 bits,
//! big-endian. The answer is that many bytes of [`fill`]. Every replica can produce any part of it
//! from the output continuation.

use rivulet_transport::KeyRing;
use rivulet_transport::server::{Answer, Head, Plan, Refusal, Reply, RespondError};
use rivulet_transport::{MAX_UCONT, UserContinuation};

/// Bytes of a request.
pub const REQUEST: usize = 24;

/// A request for `size` bytes of this seed's content. `end`: the stream ends after it.
pub fn request(size: u64, seed: u64, end: bool) -> [u8; REQUEST] {
    let mut out = [0; REQUEST];
    out[..8].copy_from_slice(&size.to_be_bytes());
    out[8..16].copy_from_slice(&seed.to_be_bytes());
    out[16..].copy_from_slice(&u64::from(end).to_be_bytes());
    out
}

/// Fills `out` with the content from `offset` on.
pub fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let word = |i: u64| {
        let mut z = seed ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).to_be_bytes()
    };
    // The first word may start in the middle.
    let mut next = offset / 8;
    let skip = (offset % 8) as usize;
    let (head, rest) = out.split_at_mut(if skip == 0 { 0 } else { (8 - skip).min(out.len()) });
    if !head.is_empty() {
        head.copy_from_slice(&word(next)[skip..skip + head.len()]);
        next += 1;
    }
    for chunk in rest.chunks_mut(8) {
        chunk.copy_from_slice(&word(next)[..chunk.len()]);
        next += 1;
    }
}

/// Offset of the first byte that differs from the content, from `offset` on.
pub fn mismatch(seed: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let mut expected = vec![0; bytes.len()];
    fill(seed, offset, &mut expected);
    bytes.iter().zip(&expected).position(|(a, b)| a != b).map(|i| offset + i as u64)
}

/// Content of our output continuations.
struct Promise {
    start: u64,
    size: u64,
    seed: u64,
    end: bool,
}

impl Promise {
    fn opaque(&self) -> [u8; 17] {
        let mut out = [0; 17];
        out[..8].copy_from_slice(&self.start.to_be_bytes());
        out[8..16].copy_from_slice(&self.seed.to_be_bytes());
        out[16] = u8::from(self.end);
        out
    }

    fn open(c: &UserContinuation<'_>) -> Option<Self> {
        let (start, seed) = (c.opaque.get(..8)?.try_into().ok()?, c.opaque.get(8..16)?.try_into().ok()?);
        let (start, seed) = (u64::from_be_bytes(start), u64::from_be_bytes(seed));
        Some(Self { start, size: c.valid_end - start, seed, end: *c.opaque.get(16)? != 0 })
    }

    /// The answer from `offset` on, at most `length` and at most `room` bytes.
    fn data<'b>(&self, offset: u64, length: usize, buffer: &'b mut [u8]) -> Answer<'b> {
        let left = (self.start + self.size).saturating_sub(offset);
        let n = length.min(buffer.len()).min(usize::try_from(left).unwrap_or(usize::MAX));
        if n == 0 && !(self.end && left == 0) {
            return Answer::None;
        }
        let data = &mut buffer[..n];
        fill(self.seed, offset - self.start, data);
        Answer::Data { offset, data, end: self.end && n as u64 == left }
    }
}

/// Builds the answers of a plan and passes each packet to `send`.
///
/// # Errors
/// [`Refusal`]: the request was dropped.
pub fn answer(plan: &Plan<'_>, keys: &KeyRing, mut send: impl FnMut(Vec<u8>)) -> Result<(), Refusal> {
    let mut sealed = ([0; MAX_UCONT], [0; MAX_UCONT]);
    let mut lengths = None;
    let mut consumed = None;
    let mut promise = None;
    if let Some(input) = plan.input(keys)? {
        // Offset of the stream's next answer: from the input continuation, or the start of the
        // stream's region.
        let next = match &input.continuation {
            Some(c) => c.opaque.try_into().map(u64::from_be_bytes).map_err(|_| Refusal::User)?,
            None => u64::from(input.stream) << 48,
        };
        // Consume only whole requests; the client sends the rest again.
        let taken = if input.data.len() >= REQUEST { REQUEST } else { 0 };
        let (stream, at) = (input.stream, input.offset + taken as u64);
        let mut after = next;
        if taken > 0 {
            let word = |i: usize| {
                let mut w = [0; 8];
                w.copy_from_slice(&input.data[i..i + 8]);
                u64::from_be_bytes(w)
            };
            let p = Promise {
                start: next,
                size: word(0) & ((1 << 47) - 1),
                seed: word(8),
                end: word(16) & 1 != 0,
            };
            after = next + p.size;
            promise = Some(p);
        }
        let cont = |is_input, start, end, opaque| UserContinuation {
            input: is_input,
            stream,
            valid_start: start,
            valid_end: end,
            identity: [0; 16],
            opaque,
        };
        let opaque = after.to_be_bytes();
        let seal = |c: &UserContinuation<'_>, out: &mut [u8]| {
            plan.seal_ucont(keys, c, out).map_err(|_| Refusal::User)
        };
        let input_length = seal(&cont(true, at, u64::MAX, &opaque), &mut sealed.0)?;
        let output_length = match &promise {
            // An empty answer needs a continuation for its end: make it valid for one byte.
            Some(p) => {
                seal(&cont(false, p.start, (p.start + p.size).max(p.start + 1), &p.opaque()), &mut sealed.1)?
            }
            None => 0,
        };
        lengths = Some((input_length, output_length));
        consumed = Some(rivulet_packet::Consumed { stream, offset: at });
    }
    let mut first = true;
    for (i, head) in plan.heads().iter().enumerate() {
        if !head.is_for_application() {
            respond(plan, i, &Reply::default(), keys, &mut send);
            continue;
        }
        let mut buffer = [0; 9000];
        let mut list: Vec<&[u8]> = vec![];
        let mut reply = Reply::default();
        // A retransmission cannot acknowledge input.
        if head.carries_input_and_token()
            && std::mem::take(&mut first)
            && let Some((input_length, output_length)) = lengths
        {
            list.push(&sealed.0[..input_length]);
            if output_length > 0 {
                list.push(&sealed.1[..output_length]);
            }
            (reply.uconts, reply.consumed) = (&list, consumed);
            let room = head.room.saturating_sub(reply.overhead());
            if let Some(p) = &promise {
                reply.answer = p.data(p.start, room, &mut buffer);
            }
        } else {
            reply.answer = wanted(plan, head, keys, &mut buffer)?;
        }
        respond(plan, i, &reply, keys, &mut send);
    }
    Ok(())
}

fn wanted<'b>(
    plan: &Plan<'_>,
    head: &Head,
    keys: &KeyRing,
    buffer: &'b mut [u8],
) -> Result<Answer<'b>, Refusal> {
    let Some(want) = head.want else { return Ok(Answer::None) };
    let c = plan.output_continuation(&want, keys)?;
    let p = Promise::open(&c).ok_or(Refusal::User)?;
    Ok(p.data(want.offset, head.room.min(want.length as usize), buffer))
}

fn respond(plan: &Plan<'_>, index: usize, reply: &Reply<'_>, keys: &KeyRing, send: &mut impl FnMut(Vec<u8>)) {
    let mut packet = vec![0; 9100];
    let sent = match plan.respond(index, reply, keys, &mut packet) {
        Err(RespondError::Room { .. }) => plan.respond(index, &Reply::default(), keys, &mut packet),
        other => other,
    };
    if let Ok(sent) = sent {
        packet.truncate(sent.length);
        send(packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_independent_of_the_pieces() {
        let mut whole = [0; 100];
        fill(7, 3, &mut whole);
        for (from, to) in [(0, 1), (1, 30), (5, 5), (6, 100), (13, 14), (29, 77)] {
            let mut part = vec![0; to - from];
            fill(7, 3 + from as u64, &mut part);
            assert_eq!(part, whole[from..to], "{from} to {to}");
        }
        assert_eq!(mismatch(7, 3, &whole), None);
        whole[40] ^= 1;
        assert_eq!(mismatch(7, 3, &whole), Some(43));
    }
}
