//! The event queue: turns requests with input into events, and answers all other requests itself.

use std::net::SocketAddr;

use rivulet_server::{Application, Detached, EventKind, Minisocket};
use rivulet_transport::server::{Answer, Refusal, Reply};

use crate::state::{InputContinuation, Source};

/// Bits of an output offset within one stream's region.
const REGION: u32 = 48;
const PAYLOAD: usize = 9000;

/// A minisocket, as C sees it.
#[derive(Debug)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventKind,
    /// The client.
    pub peer: SocketAddr,
    /// Stream of the input.
    pub stream: u16,
    /// Offset of the input's first byte.
    pub offset: u64,
    /// The input.
    pub input: Vec<u8>,
    /// The client ends the stream after this input.
    pub last: bool,
    /// Continuation that came with the input; `None` on a new connection.
    pub ahead: Option<InputContinuation>,
    /// Number of response packets that congestion control allows.
    pub packets: usize,
    /// The request packet; `None` for a close.
    pub detached: Option<Detached>,
    /// Bytes of the input that were consumed.
    pub consumed: usize,
    /// The application's user continuation.
    pub user: Vec<u8>,
    /// Index of the response packet that carries the user continuation.
    pub carrier: usize,
    /// Detached: survives the next call of `msk_events`.
    pub kept: bool,
}

impl Event {
    /// Offset of the next output byte.
    pub fn next(&self) -> u64 {
        self.ahead.as_ref().map_or(u64::from(self.stream) << REGION, |ahead| ahead.next)
    }
}

/// Turns requests with input into events and answers all others.
pub struct Collector<'a> {
    /// Destination of the events.
    #[expect(clippy::vec_box, reason = "handed to C as pointers")]
    pub events: &'a mut Vec<Box<Event>>,
}

impl Application for Collector<'_> {
    fn event(&mut self, msk: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        let input = msk.input().and_then(|input| {
            let ahead =
                match input.as_ref().and_then(|input| Some((input.offset, input.continuation.as_ref()?))) {
                    None => None,
                    Some((offset, c)) if c.valid_start != offset => return Err(Refusal::User),
                    Some((_, c)) => Some(InputContinuation::decode(c.opaque).ok_or(Refusal::User)?),
                };
            Ok(input.map(|input| (input, ahead)))
        });
        // Refusing an input refuses only that part: treat the request as one without input.
        let input = input.unwrap_or_else(|refusal| {
            msk.refuse_part(&refusal);
            None
        });
        let Some((input, ahead)) = input else {
            if msk.kind() == EventKind::Close {
                self.events.push(Box::new(bare(msk)));
            } else {
                answer_wants(msk);
            }
            return Ok(());
        };
        let mut event = Event {
            stream: input.stream,
            offset: input.offset,
            input: input.data.to_vec(),
            last: input.fin,
            consumed: input.data.len(),
            user: ahead.as_ref().map(|a| a.user.clone()).unwrap_or_default(),
            ahead,
            packets: msk.heads().iter().filter(|h| h.is_for_application()).count(),
            ..bare(msk)
        };
        event.detached = Some(msk.detach());
        self.events.push(Box::new(event));
        Ok(())
    }
}

fn bare(msk: &Minisocket<'_, '_>) -> Event {
    Event {
        kind: msk.kind(),
        peer: msk.client(),
        stream: 0,
        offset: 0,
        input: Vec::new(),
        last: false,
        ahead: None,
        packets: 0,
        detached: None,
        consumed: 0,
        user: Vec::new(),
        carrier: 0,
        kept: false,
    }
}

/// Sends again output that earlier answers promised, from its continuations.
fn answer_wants(msk: &mut Minisocket<'_, '_>) {
    let mut data = [0; PAYLOAD];
    let mut renewed = false;
    for index in 0..msk.heads().len() {
        let head = msk.heads()[index];
        if head.is_for_application() && head.want.is_some() {
            // A long answer outlives the key epoch of its continuation: once a request the client
            // gets one sealed in the newest epoch.
            let anew = if renewed { None } else { msk.sealed_anew(index) };
            renewed |= anew.is_some();
            let anew: Vec<&[u8]> = anew.iter().map(Vec::as_slice).collect();
            let mut reply = Reply { uconts: &anew, ..Reply::default() };
            reply.answer = wanted(msk, index, head.room.saturating_sub(reply.overhead()), &mut data);
            // If the reply does not fit, the library answers without data.
            let _ = msk.send(index, &reply);
        }
    }
}

/// Output that the request of head `index` asks for, up to `room` bytes.
pub fn wanted<'d>(msk: &Minisocket<'_, '_>, index: usize, room: usize, data: &'d mut [u8]) -> Answer<'d> {
    let Some(want) = msk.heads().get(index).and_then(|head| head.want) else { return Answer::None };
    let c = match msk.output_continuation(index) {
        Ok(c) => c,
        Err(refusal) => return refusal.answer(),
    };
    let Some(source) = Source::decode(c.opaque) else {
        return Answer::Error { code: 400, message: "the continuation belongs to another service" };
    };
    let at = want.offset - c.valid_start;
    let left = source.len().saturating_sub(at);
    let length = left.min(want.length.into()).min(room as u64).min(data.len() as u64) as usize;
    let data = &mut data[..length];
    if source.read(at, data) {
        Answer::Data { offset: want.offset, data, end: source.is_last() && length as u64 == left }
    } else {
        Answer::NotMine { code: 404 }
    }
}
