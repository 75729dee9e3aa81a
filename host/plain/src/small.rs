//! The server's step: the answer to a client's segment, as a function of that segment, the keys,
//! the table of objects and the minute. No connection state is kept, so every replica computes the
//! same.
//!
//! A request is acknowledged when the client has the whole answer and not before: until then it
//! repeats the request, which carries everything that a replica needs (the client's offset, its
//! SACK blocks, its window) to send the missing part.

use core::net::IpAddr;
use std::sync::Arc;

use rivulet_packet::segment::TcpFlags;

use crate::answer::{Answer, Ends, Outcome};
use crate::codec::{BARE_SEGMENT, Class, CookieKeys, Flow, MAX_ANSWER, MAX_START, Place, is_bare_start};
use crate::decision::{ACK, Decision, FIN_ACK, Under, have};
use crate::flight::{Cut, Flight, Piece, Span, is_boundary};
use crate::head::{Parsed, Request, begins_a_request, parse};
use crate::objects::Table;
use crate::say::{longest_segment, reply};
use crate::segment::Segment;
use crate::stamp::{Answering, Opened, Scale, Stamp};
use crate::syn::welcome;
use crate::verdict::{Asked, Cause, Handoff, Handshake, Reason, Verdict};

/// A service with its objects, as all its replicas know it.
#[derive(Clone, Debug)]
pub struct Site {
    /// The keys of its cookies.
    pub keys: CookieKeys,
    /// The objects that it serves.
    pub table: Arc<Table>,
    /// Limit on the IP packets that this replica sends, bytes.
    pub mtu: u16,
    /// Whether answers longer than [`MAX_ANSWER`] are sent here too ([`Verdict::Begin`]); otherwise the kernel's TCP sends them.
    pub large: bool,
}

/// How a request is answered.
enum Told {
    Small(Answer),
    /// A large answer, with the number of its object.
    Large(Answer, u16),
}

/// A segment with its connection and what is needed to answer it.
struct Talk<'a> {
    site: &'a Site,
    segment: &'a Segment<'a>,
    flow: &'a Flow,
}

impl Site {
    /// Judges a segment from a client. `minute` counts from 1970; `path`: the longest IP packet
    /// that the path to the client is known to carry.
    #[must_use]
    pub fn judge<'t>(&'t self, segment: &Segment<'_>, minute: u32, path: Option<u16>) -> Verdict<'t> {
        match self.decide(segment, &Flow::new(segment.header.src, segment.header.dst), minute) {
            Decision::Answer(under) => Verdict::Answer(self.flight(segment, &under, path, |_| true)),
            Decision::Continue(under, handshake) => {
                let flight = self.flight(segment, &under, path, |_| true);
                Verdict::Continue(Handoff { handshake, flight, at: under.at })
            }
            other => other.verdict(segment),
        }
    }

    /// Decides on a segment, without making any segments to send.
    pub(crate) fn decide(&self, segment: &Segment<'_>, flow: &Flow, minute: u32) -> Decision {
        let header = &segment.header;
        if segment.has(TcpFlags::RST) {
            return Decision::Drop(Reason::Reset);
        }
        if segment.has(TcpFlags::SYN) {
            return welcome(&self.keys, self.mss(header.src.ip()), segment, flow, minute);
        }
        if !segment.has(TcpFlags::ACK) {
            return Decision::Drop(Reason::Flags);
        }
        let stamps = header.options.stamps;
        let Some(place) = flow.place(&self.keys, header.ack, stamps.is_some()) else {
            return Decision::Drop(Reason::Cookie);
        };
        let talk = Talk { site: self, segment, flow };
        match (place, stamps) {
            (Place::Stamped { class, at, fin }, Some(stamps)) => {
                talk.stamped(class, at, fin, Stamp::parse(stamps.echo), minute)
            }
            (Place::Bare { at, sequence }, _) => talk.bare(at, sequence),
            (Place::BareEnd { fin }, _) => talk.bare_end(fin),
            (Place::Stamped { .. }, None) => Decision::Drop(Reason::Stamp),
        }
    }

    /// The largest segment size that is announced to this peer.
    fn mss(&self, peer: IpAddr) -> u16 {
        longest_segment(self.mtu, peer)
    }

    /// The segments of an answer for a client's segment: the wanted ones, at most an initial
    /// window.
    pub(crate) fn flight<'t>(
        &'t self,
        segment: &Segment<'_>,
        under: &Under,
        path: Option<u16>,
        wanted: impl FnMut(&Piece) -> bool,
    ) -> Flight<'t> {
        let header = &segment.header;
        let octets = under.answer.octets(&self.table);
        let scale = under.stamp.map_or(Scale::default(), |stamp| stamp.scale);
        let reply = reply(segment, under.at, under.seq, under.stamp.map(Answering::value));
        let mtu = self.mtu.min(path.unwrap_or(u16::MAX));
        let span = Span {
            cut: under.cut,
            from: under.at,
            window: under.at.saturating_add(scale.window(header.window)),
            path: u32::from(mtu).saturating_sub(reply.length() as u32),
            length: octets.len(),
            closes: under.answer.closes(),
        };
        Flight { pieces: span.pieces(&have(segment, under.at), wanted), octets, header: reply }
    }
}

impl Talk<'_> {
    /// A connection with timestamps: the echoed one identifies the last data that arrived in order.
    fn stamped(&self, class: Class, at: u32, fin: bool, stamp: Stamp, minute: u32) -> Decision {
        let header = &self.segment.header;
        let answering = match stamp {
            Stamp::Kernel => return Decision::Kernel(Cause::Adopted),
            Stamp::Large => return Decision::Drop(Reason::Stamp),
            Stamp::Opening { .. } => {
                if at != 0 || fin {
                    return Decision::Drop(Reason::Stamp);
                }
                if !self.segment.has_data_or_fin() {
                    return Decision::Heard { start: 0, at: 0 };
                }
                return match stamp.opens(self.flow, &self.site.keys, minute, header.seq) {
                    // The client closes without a request.
                    Opened::Yes(_) if self.segment.payload.is_empty() => {
                        Decision::Say(FIN_ACK, header.seq.wrapping_add(1))
                    }
                    Opened::Yes(scale) => self.begin(header.seq, self.segment.payload, class, 0, scale),
                    // The beginning of the client's data may be lost.
                    Opened::No if self.segment.payload.is_empty() => Decision::Drop(Reason::Early),
                    Opened::No => Decision::Ahead(class, 0),
                };
            }
            Stamp::Answer(answering) => answering,
        };
        let Some(behind) = at.checked_sub(answering.start).filter(|behind| *behind <= MAX_ANSWER) else {
            return Decision::Drop(Reason::Stamp);
        };
        if fin {
            // The client has everything, and no further answer can follow a FIN.
            return match self.segment.has_data_or_fin() {
                true => Decision::Say(ACK, self.segment.end()),
                false => Decision::Drop(Reason::Acknowledgement),
            };
        }
        let beyond = answering.beyond(header.seq);
        if !is_boundary(class, behind) {
            return self.has_all(class, at, answering, beyond);
        }
        if !self.segment.has_data_or_fin() {
            return Decision::Heard { start: answering.start, at: behind };
        }
        if self.segment.payload.is_empty() {
            return Decision::Drop(Reason::Early);
        }
        if beyond >= 0 {
            return Decision::Ahead(class, at);
        }
        if answering.version != self.version() {
            return Decision::Drop(Reason::Version);
        }
        // A repeated request, if it ends at the same sequence number as the request that was
        // answered.
        let decision = self.ask(header.seq, self.segment.payload, class, answering.start, answering.scale);
        match decision {
            Decision::Answer(Under { stamp: Some(now), .. }) if now != answering => {
                Decision::Drop(Reason::Split)
            }
            Decision::Answer(under) => {
                let cut = Cut::again(class, behind, &have(self.segment, behind));
                Decision::Answer(Under { at: behind, cut, ..under })
            }
            // The kernel's TCP cannot take over in the middle of an answer.
            Decision::Kernel(_) => Decision::Drop(Reason::Split),
            other => other,
        }
    }

    /// The client has the whole answer, but not its FIN.
    fn has_all(&self, class: Class, at: u32, answering: Answering, beyond: i32) -> Decision {
        let segment = self.segment;
        let header = &segment.header;
        let skip = usize::try_from(-beyond).unwrap_or(0);
        if beyond > 0 {
            // Another request is in progress or lost; no byte of its answer has arrived in order.
            return match (self.segment.payload, self.segment.has_data_or_fin()) {
                ([], true) => Decision::Drop(Reason::Early),
                ([], false) => Decision::Heard { start: at, at: 0 },
                _ => Decision::Ahead(class, at),
            };
        }
        if let Some(next) = segment.payload.get(skip..).filter(|next| !next.is_empty()) {
            let seq = header.seq.wrapping_add(skip as u32);
            return match at.is_multiple_of(64) && at <= MAX_START {
                true => self.begin(seq, next, class, at, answering.scale),
                false => Decision::Drop(Reason::Stamp),
            };
        }
        if segment.has(TcpFlags::FIN) {
            return match segment.payload.len() == skip {
                true => Decision::Say(FIN_ACK, segment.end()),
                false => Decision::Drop(Reason::Early),
            };
        }
        // The answered request is acknowledged even if the client only acknowledges the answer;
        // otherwise the client would repeat the request. A FIN that was lost with the window's last
        // byte is sent again.
        let closes = || {
            let again = self.ask(header.seq, segment.payload, class, answering.start, answering.scale);
            matches!(again, Decision::Answer(under) if under.answer.closes())
        };
        let flags = if !segment.payload.is_empty() && closes() { FIN_ACK } else { ACK };
        Decision::Say(flags, segment.end())
    }

    /// A connection without timestamps, in the middle of its only answer.
    fn bare(&self, at: u32, sequence: u32) -> Decision {
        let header = &self.segment.header;
        if !self.segment.has_data_or_fin() {
            return Decision::Heard { start: 0, at };
        }
        if !is_bare_start(sequence, header.seq) {
            return Decision::Drop(Reason::Early);
        }
        if self.segment.payload.is_empty() {
            return match at {
                0 => Decision::Say(FIN_ACK, header.seq.wrapping_add(1)),
                _ => Decision::Drop(Reason::Early),
            };
        }
        let full = u32::from(self.site.mss(header.src.ip()));
        match self.outcome(self.segment.payload, full, Ends::Bare(header.seq)) {
            Ok((Told::Small(answer), _)) => {
                let under = Under { answer, at, seq: header.seq, stamp: None, cut: Cut::Bare };
                Decision::Answer(under)
            }
            // Eight bits identify the first segment, so data that looks like the middle of a
            // request is refused. Only timestamps would show the offset.
            Ok((Told::Large(..), _)) => Decision::Kernel(Cause::Object),
            Err(cause) if at == 0 && begins_a_request(self.segment.payload) => {
                let (mss, receive_next) = (BARE_SEGMENT as u16, header.seq);
                Decision::Adopt(cause, Handshake { mss, scale: None, receive_next, start: 0, answer: None })
            }
            Err(cause) if at == 0 => Decision::Kernel(cause),
            Err(_) => Decision::Drop(Reason::Split),
        }
    }

    /// The client has the whole answer.
    fn bare_end(&self, fin: bool) -> Decision {
        match (self.segment.has_data_or_fin(), fin) {
            (false, _) => Decision::Drop(Reason::Acknowledgement),
            (true, true) => Decision::Say(ACK, self.segment.end()),
            (true, false) => Decision::Say(FIN_ACK, self.segment.end()),
        }
    }

    fn version(&self) -> u8 {
        (self.site.table.version() & 3) as u8
    }

    /// A new request that begins at `seq`, with its answer at `start`. The kernel takes over
    /// requests that it must answer, and clients that send more requests without waiting: the
    /// timestamps of an answer have no room for the answers after it (docs/plain.md).
    fn begin(&self, seq: u32, payload: &[u8], class: Class, start: u32, scale: Scale) -> Decision {
        let handshake = |receive_next, answer| Handshake {
            mss: class.mss(),
            scale: Some(scale),
            receive_next,
            start,
            answer,
        };
        match self.ask(seq, payload, class, start, scale) {
            // On a new connection a large answer outlives its replica, and most clients open one
            // after a reset.
            Decision::Kernel(Cause::Object) if start > 0 && self.site.large => {
                Decision::Kernel(Cause::Object)
            }
            Decision::Kernel(cause) => Decision::Adopt(cause, handshake(seq, None)),
            Decision::Answer(under @ Under { answer, stamp: Some(stamp), .. }) if !answer.closes() => {
                let length = stamp.length_from(seq);
                let behind = payload.get(length as usize..).unwrap_or_default();
                // Empty lines after a request are ignored (RFC 9112 section 2.2).
                match behind.iter().all(|b| matches!(b, b'\r' | b'\n')) {
                    true => Decision::Answer(under),
                    false => {
                        let next = seq.wrapping_add(length);
                        Decision::Continue(under, handshake(next, Some(stamp.value())))
                    }
                }
            }
            other => other,
        }
    }

    /// The decision for a request that begins at `seq`, with its answer at `start`.
    fn ask(&self, seq: u32, payload: &[u8], class: Class, start: u32, scale: Scale) -> Decision {
        match self.outcome(payload, class.segment(), Ends::Stamped) {
            Ok((Told::Large(answer, object), _)) => match self.site.large && start == 0 {
                true => Decision::Begin(Asked { answer, object, class, scale }),
                false => Decision::Kernel(Cause::Object),
            },
            Ok((Told::Small(mut answer), length)) => {
                // An answer that would begin beyond the cookie's reach is not started.
                if !answer.closes() && start + 2 * MAX_ANSWER > MAX_START {
                    match answer.closing(&self.site.table, Ends::Stamped) {
                        Outcome::Answer(closing) => answer = closing,
                        Outcome::Kernel | Outcome::Large(..) => return Decision::Kernel(Cause::Object),
                    }
                }
                let next = (seq.wrapping_add(length) & 0xfff) as u16;
                let stamp = Answering { start, next, version: self.version(), scale };
                Decision::Answer(Under { answer, at: 0, seq, stamp: Some(stamp), cut: Cut::Full(class) })
            }
            Err(cause) => Decision::Kernel(cause),
        }
    }

    /// The answer to a request, and the request's length. A request longer than the client's
    /// segments never arrives complete: only its request line counts, and one byte is acknowledged.
    fn outcome(&self, payload: &[u8], full: u32, ends: Ends) -> Result<(Told, u32), Cause> {
        let table = &self.site.table;
        let (outcome, length) = match parse(payload) {
            Parsed::Whole(request) => {
                // Without timestamps a second request could not be distinguished from the first.
                let close = request.close || matches!(ends, Ends::Bare(_));
                (Answer::to(&Request { close, ..request }, table, ends), request.length as u32)
            }
            Parsed::Line(request) if payload.len() as u32 >= full => {
                (Answer::to(&Request { length: 1, ..request }, table, ends), 1)
            }
            Parsed::Line(_) | Parsed::Split => return Err(Cause::Split),
            Parsed::Bad(status) => (Answer::refused(status, table, ends), payload.len() as u32),
            Parsed::Body | Parsed::Other => return Err(Cause::Request),
        };
        match outcome {
            Outcome::Answer(answer) => Ok((Told::Small(answer), length)),
            Outcome::Large(answer, object) => Ok((Told::Large(answer, object), length)),
            Outcome::Kernel => Err(Cause::Object),
        }
    }
}
