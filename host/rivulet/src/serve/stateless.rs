//! The file server as a minisocket application: nothing of a connection is kept between two
//! requests.
//!
//! The input continuation holds the [`Session`]: the next output offset, and the request head that
//! is being read. An output continuation holds an [`Answer`], which determines every byte of the
//! response. So any replica can continue any request, even one that did not exist when the
//! connection began.

use rivulet_packet::Consumed;
use rivulet_server::{Application, EventKind, Minisocket};
use rivulet_transport::TOKEN_LENGTH;
use rivulet_transport::server::{Answer as Say, Head, InputEvent, Refusal, Reply};
use rivulet_transport::{MAX_OPAQUE, MAX_UCONT, UserContinuation, operation_id};

use super::plain::date;
use crate::http::{Answer, Input, Promise, ReadError, Session, Site};

/// Bits of an output offset that lie within one stream's region.
const REGION: u32 = 48;
/// Limit on the answers promised in one response: as many as fit into a packet with the input
/// continuation.
const PROMISES: usize = 4;
/// Delay after which a client requests again content that is being hashed, milliseconds.
const HASHING: u16 = 20;
/// Longest payload of a packet, bytes.
const PAYLOAD: usize = 9000;

/// The file server.
pub struct Files {
    site: Site,
    /// Buffer for the data of a packet.
    data: Box<[u8]>,
}

/// The application for Rivulet's clients: the files, or one that refuses everything if a back end
/// answers plain clients.
pub(super) fn application(site: Option<&Site>) -> Box<dyn Application + Send> {
    match site {
        Some(site) => Box::new(Files::new(site.for_thread())),
        None => Box::new(Nothing),
    }
}

/// Refuses every request.
struct Nothing;

impl Application for Nothing {
    fn event(&mut self, _: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        Err(Refusal::User)
    }
}

/// Parsed input that can be acknowledged.
struct Understood {
    consumed: Consumed,
    /// The input continuation, then the output continuations, sealed.
    sealed: Vec<Vec<u8>>,
    promises: Vec<Promise>,
    /// Output offset at which the stream ends, if it ends now.
    end: Option<u64>,
    waiting: bool,
}

impl Files {
    /// Serves the files and uploads of `site`.
    #[must_use]
    pub fn new(site: Site) -> Files {
        Files { site, data: vec![0; PAYLOAD].into() }
    }

    /// Parses the requests in the input, for a response with this head; depends on the request
    /// alone.
    fn understand(
        &self,
        msk: &Minisocket<'_, '_>,
        input: &InputEvent<'_>,
        head: &Head,
        data: &mut [u8],
    ) -> Result<Understood, Refusal> {
        let room = head.room;
        let start = u64::from(input.stream) << REGION;
        let before = match &input.continuation {
            None => Session::new(start),
            Some(c) => Session::decode(c.opaque).map_err(|_| Refusal::User)?,
        };
        let given = Input {
            connection: msk.connection(),
            client: msk.client().ip(),
            stream: input.stream,
            offset: input.offset,
            data: input.data,
            fin: input.fin,
        };
        let mut limit = PROMISES;
        loop {
            let mut session = before.clone();
            let mut promises = Vec::new();
            let progress = session.feed(&given, &self.site, date(), limit, &mut promises);
            let mut sealed = Vec::new();
            if !progress.unchanged || msk.input_ages() {
                let mut opaque = Vec::with_capacity(MAX_OPAQUE);
                session.encode(&mut opaque);
                let (valid_start, valid_end) = session.good_for(progress.goes_on);
                let ahead = UserContinuation {
                    input: true,
                    stream: input.stream,
                    valid_start,
                    valid_end,
                    identity: operation_id(msk.connection(), input.stream, valid_start),
                    opaque: &opaque,
                };
                sealed.push(seal(msk, &ahead)?);
            }
            let need = |sealed: &[Vec<u8>]| 11 + sealed.iter().map(|s| 2 + s.len()).sum::<usize>();
            let closes = session.closed && promises.last().is_none_or(|p| !closes(&p.answer));
            // An answer that fits completely into this response needs no continuation: if the
            // response is lost, the client sends again the input from which it was made.
            let left = room.saturating_sub(need(&sealed));
            let whole = head.want.is_none() && !closes && !progress.waiting && promises.len() == 1;
            if !whole || !self.fits(&promises[0], left, data) {
                for promise in &promises {
                    sealed.push(seal(msk, &output(input.stream, promise))?);
                }
            }
            if need(&sealed) <= room || limit == 1 {
                return Ok(Understood {
                    consumed: Consumed {
                        stream: input.stream,
                        offset: input.offset + progress.consumed as u64,
                    },
                    sealed,
                    end: closes.then_some(session.next),
                    promises,
                    waiting: progress.waiting,
                });
            }
            // Parses fewer requests; the client sends the others again.
            limit = 1;
        }
    }

    /// Whether an answer is available and has at most `room` bytes.
    fn fits(&self, promise: &Promise, room: usize, data: &mut [u8]) -> bool {
        let Ok(answer) = Answer::decode(&promise.answer) else { return false };
        let length = promise.end.saturating_sub(promise.start);
        length <= room as u64
            && matches!(
                self.read(&answer, promise.start, promise.start, room, data),
                Say::Data { data, .. } if data.len() as u64 == length
            )
    }

    /// The output that a head requests, as much as fits into `room`.
    fn wanted<'d>(
        &self,
        msk: &Minisocket<'_, '_>,
        index: usize,
        head: &Head,
        room: usize,
        data: &'d mut [u8],
    ) -> Say<'d> {
        let Some(want) = head.want else { return Say::None };
        let c = match msk.output_continuation(index) {
            Ok(c) => c,
            Err(refusal) => return refusal.answer(),
        };
        let Ok(answer) = Answer::decode(c.opaque) else {
            return Say::Error { code: 400, message: "a continuation of another service" };
        };
        let length = room.min(want.length as usize).min(data.len());
        self.read(&answer, c.valid_start, want.offset, length, data)
    }

    /// Reads bytes of an answer that begins at output offset `start`.
    fn read<'d>(
        &self,
        answer: &Answer<'_>,
        start: u64,
        offset: u64,
        length: usize,
        data: &'d mut [u8],
    ) -> Say<'d> {
        let at = offset.saturating_sub(start);
        let left = answer.len().saturating_sub(at);
        let length = left.min(length as u64) as usize;
        let Some(data) = data.get_mut(..length) else { return Say::None };
        match answer.read(at, data, &self.site.objects) {
            Ok(()) => Say::Data { offset, data, end: answer.closes() && length as u64 == left },
            Err(ReadError::NotYet) => Say::Wait { milliseconds: HASHING },
            Err(ReadError::NotMine) => Say::NotMine { code: 404 },
            Err(ReadError::Beyond) => Say::Error { code: 416, message: "beyond the end of the answer" },
        }
    }
}

impl Application for Files {
    fn event(&mut self, msk: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        if msk.kind() == EventKind::Close {
            return Ok(());
        }
        let mut data = std::mem::take(&mut self.data);
        let result = self.answer(msk, &mut data);
        self.data = data;
        result
    }
}

impl Files {
    fn answer(&self, msk: &mut Minisocket<'_, '_>, data: &mut [u8]) -> Result<(), Refusal> {
        // The acknowledgement of input goes into a response without requested data, if there is
        // one, so that it takes no room from data.
        let apt = |wanted: bool| {
            let fits = |h: &Head| h.carries_input_and_token() && h.is_for_application();
            msk.heads().iter().position(|h| fits(h) && h.want.is_none() != wanted)
        };
        let place = apt(false).or_else(|| apt(true));
        let understood = msk.input().and_then(|input| match (input, place) {
            (Some(input), Some(place)) => {
                let head = msk.heads()[place];
                self.understand(msk, &input, &head, data).map(|told| Some((place, told)))
            }
            _ => Ok(None),
        });
        // If the input is refused, acknowledgement and requested data remain valid: dropping the
        // request would look like a loss to the client, which would send the input again and again.
        let mut understood = understood.unwrap_or_else(|refusal| {
            msk.refuse_part(&refusal);
            None
        });
        // Data of a new promise can be sent at once, in responses without requested data.
        let mut ahead: Option<(u64, Promise)> = None;
        let (mut given, mut renewed) = (false, false);
        for index in 0..msk.heads().len() {
            let head = msk.heads()[index];
            if !head.is_for_application() {
                continue;
            }
            let mut reply = Reply::default();
            let mut told = understood.take_if(|(place, _)| *place == index).map(|(_, told)| told);
            if let Some(told) = &mut told {
                ahead = told.promises.drain(..).next().map(|promise| (promise.start, promise));
            }
            let sealed: Vec<&[u8]> =
                told.iter().flat_map(|told| told.sealed.iter().map(Vec::as_slice)).collect();
            let mut end = None;
            if let Some(told) = &told {
                reply.uconts = &sealed;
                reply.consumed = Some(told.consumed);
                end = told.end;
                if told.waiting {
                    reply.answer = Say::Wait { milliseconds: HASHING };
                }
            }
            // An answer may take longer than its continuation is valid, so the client gets one
            // under the newest epoch, once for each request, until it uses that one.
            let anew = if told.is_some() || renewed { None } else { msk.sealed_anew(index) };
            let anew: Vec<&[u8]> = anew.iter().map(Vec::as_slice).collect();
            if !anew.is_empty() {
                reply.uconts = &anew;
                renewed = true;
            }
            let room = head.room.saturating_sub(reply.overhead());
            // WAIT replaces requested data, which the client requests again. If it only saw that
            // none of its input was consumed, it would take the input as too short, and wait until
            // the application writes more.
            let waits = told.as_ref().is_some_and(|told| told.waiting);
            if head.want.is_some() && !waits {
                reply.answer = self.wanted(msk, index, &head, room, data);
            } else if let Some(offset) = end {
                reply.answer = Say::Data { offset, data: &[], end: true };
            } else if let Some((next, promise)) = &mut ahead
                && let Ok(answer) = Answer::decode(&promise.answer)
                && *next < promise.end
                && room > 0
            {
                reply.answer = self.read(&answer, promise.start, *next, room, data);
                if let Say::Data { data, .. } = reply.answer {
                    *next += data.len() as u64;
                }
            }
            // A token for the client's next connection goes into an otherwise unused place: after
            // the end of an answer.
            let takes = !given && head.carries_input_and_token() && has_place(&reply, room);
            let token = if takes { msk.address_token() } else { None };
            if let Some(token) = &token {
                reply.token = Some(token);
                given = true;
            }
            let last = matches!(reply.answer, Say::Data { end: true, .. });
            if let Err(e) = msk.send(index, &reply) {
                tracing::debug!(error = %e, "response not built");
            } else if last && msk.kind() == EventKind::Open {
                // This is the only answer of a connection that ends with it: the rest of the first
                // window would be empty.
                msk.drop_event();
                break;
            }
        }
        Ok(())
    }
}

fn output<'a>(stream: u16, promise: &'a Promise) -> UserContinuation<'a> {
    UserContinuation {
        input: false,
        stream,
        valid_start: promise.start,
        valid_end: promise.end,
        identity: Answer::decode(&promise.answer).map(|a| a.identity()).unwrap_or_default(),
        opaque: &promise.answer,
    }
}

fn seal(msk: &Minisocket<'_, '_>, what: &UserContinuation<'_>) -> Result<Vec<u8>, Refusal> {
    let mut out = [0; MAX_UCONT];
    let length = msk.seal(what, &mut out).map_err(|_| Refusal::User)?;
    Ok(out[..length].to_vec())
}

/// Whether the data leaves room for an address token, which is the case at the end of an answer.
fn has_place(reply: &Reply<'_>, room: usize) -> bool {
    matches!(reply.answer, Say::Data { data, .. } if room.saturating_sub(data.len()) > TOKEN_LENGTH)
}

fn closes(answer: &[u8]) -> bool {
    Answer::decode(answer).is_ok_and(|answer| answer.closes())
}
