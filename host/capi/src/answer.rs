//! Sends the application's answer to one event.

use rivulet_packet::Consumed;
use rivulet_server::{Application, Minisocket};
use rivulet_transport::server::{Answer, Refusal, Reply};
use rivulet_transport::{MAX_OPAQUE, MAX_UCONT, UserContinuation, operation_id};

use crate::event::{Event, wanted};
use crate::state::{InputContinuation, Source};

const PAYLOAD: usize = 9000;

/// Answers an event with these sources in order.
pub struct Answering<'a> {
    /// The event.
    pub event: &'a Event,
    /// The parts of the answer, in order.
    pub sources: &'a [Source],
    /// A response packet carried the answer.
    pub done: bool,
}

impl Application for Answering<'_> {
    fn event(&mut self, msk: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        let event = self.event;
        let heads = msk.heads().iter().enumerate();
        let heads = heads.filter(|(_, h)| h.is_for_application());
        // The packet that the application chose if it can carry the input's acknowledgement, else
        // the first that can.
        let chosen = heads.clone().nth(event.carrier);
        let mut places = chosen.into_iter().chain(heads).filter(|(_, h)| h.carries_input_and_token());
        let Some((place, _)) = places.next() else {
            return Ok(());
        };
        let consumed = event.offset + event.consumed as u64;
        let mut next = event.next();
        let start = next;
        let mut sealed = Vec::new();
        for source in self.sources.iter().filter(|s| s.len() > 0) {
            let end = next + source.len();
            sealed.push(seal(msk, event, false, next, end, &source.encode())?);
            next = end;
        }
        let ahead = InputContinuation { next, user: event.user.clone() };
        sealed.insert(0, seal(msk, event, true, consumed, consumed, &ahead.encode())?);
        let sealed: Vec<&[u8]> = sealed.iter().map(Vec::as_slice).collect();
        let mut data = [0; PAYLOAD];
        for index in 0..msk.heads().len() {
            let head = msk.heads()[index];
            if !head.is_for_application() {
                continue;
            }
            let mut reply = Reply::default();
            if index == place {
                reply.uconts = &sealed;
                reply.consumed = Some(Consumed { stream: event.stream, offset: consumed });
            }
            let room = head.room.saturating_sub(reply.overhead());
            reply.answer = if head.want.is_some() {
                wanted(msk, index, room, &mut data)
            } else if index == place {
                first(self.sources, start, room, &mut data)
            } else {
                Answer::None
            };
            if msk.send(index, &reply).is_err() {
                // Send only the continuations: the client requests the data with them.
                reply.answer = Answer::None;
                msk.send(index, &reply).map_err(|_| Refusal::TooSmall)?;
            }
            self.done |= index == place;
        }
        Ok(())
    }
}

/// The answer's first bytes, as many as fit.
fn first<'d>(sources: &[Source], start: u64, room: usize, data: &'d mut [u8]) -> Answer<'d> {
    let Some(source) = sources.first() else { return Answer::None };
    let length = source.len().min(room as u64).min(data.len() as u64) as usize;
    let end = source.is_last() && length as u64 == source.len();
    if length == 0 && !end {
        return Answer::None;
    }
    let data = &mut data[..length];
    if source.read(0, data) { Answer::Data { offset: start, data, end } } else { Answer::None }
}

fn seal(
    msk: &Minisocket<'_, '_>,
    event: &Event,
    input: bool,
    valid_start: u64,
    valid_end: u64,
    opaque: &[u8],
) -> Result<Vec<u8>, Refusal> {
    let what = UserContinuation {
        input,
        stream: event.stream,
        valid_start,
        valid_end,
        identity: operation_id(msk.connection(), event.stream, event.offset),
        opaque: opaque.get(..opaque.len().min(MAX_OPAQUE)).unwrap_or_default(),
    };
    let mut out = [0; MAX_UCONT];
    let length = msk.seal(&what, &mut out).map_err(|_| Refusal::User)?;
    Ok(out[..length].to_vec())
}
