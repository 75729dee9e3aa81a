//! The step for a service with a back end: a program that uses UDP, one datagram each way.
//!
//! A request is not answered at once but becomes a question to the back end ([`Judged::Ask`]); with
//! its answer the same segment becomes the answer's segments ([`Relay::answer`]). State in between
//! may be lost: the client repeats its request, and the back end is asked again. A connection has
//! one request and one answer, which ends with FIN.
//!
//! The back end determines the bytes of an answer, so they cannot be padded, and they may differ
//! the next time. So an answer is sent in one segment, which the client has whole or not at all. A
//! longer answer is sent only if the back end is configured as deterministic.

use rivulet_packet::segment::TcpFlags;

use crate::answer_bytes::AnswerBytes;
use crate::codec::{BARE_END, BARE_SEGMENT, BARE_SEQUENCE, Class, CookieKeys, Flow, MAX_ANSWER};
use crate::decision::{ACK, Decision, FIN_ACK, have};
use crate::dns::{self, Fault};
use crate::flight::{Cut, Flight, Piece, Pieces, Span, is_boundary};
use crate::head::{Parsed, parse};
use crate::say::{longest_segment, reply, say};
use crate::segment::{Header, Segment};
use crate::stamp::{Opened, Scale, Stamp};
use crate::syn::welcome;
use crate::verdict::{Cause, Handshake, Reason, Verdict};
use crate::whole::Whole;

/// The protocol of a back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// DNS over UDP.
    Dns,
    /// A request of HTTP in a datagram, and the whole response in another.
    Http,
}

/// A service with a back end, as all its replicas know it.
#[derive(Clone, Copy, Debug)]
pub struct Relay {
    /// The keys of its cookies.
    pub keys: CookieKeys,
    /// The back end's protocol.
    pub protocol: Protocol,
    /// The back end gives the same bytes for the same request, from any replica and a minute later.
    pub deterministic: bool,
    /// Limit on the IP packets that this replica sends, bytes.
    pub mtu: u16,
}

/// A request for the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Length of the request, a part of the segment's data.
    pub length: usize,
    /// Bytes of the answer that the client has; a FIN counts as one.
    at: u32,
    by: By,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// A connection with timestamps on which nothing was sent yet.
    Opening(Class, Scale),
    /// A connection with timestamps and this answer in progress.
    Answer(Whole),
    /// A connection without timestamps.
    Bare,
}

/// The verdict on a segment before the back end is queried.
#[derive(Clone, Debug)]
pub enum Judged {
    /// Send nothing.
    Drop(Reason),
    /// Send one segment without data.
    Say(Header),
    /// Send this query to the back end.
    Ask(Ask),
    /// Pass the segment to the kernel's TCP.
    Kernel(Cause),
    /// Let the kernel take over with this segment, the first with data; the back end is then
    /// queried by TCP.
    Adopt(Cause, Handshake),
}

impl Relay {
    /// Judges a segment from a client at a [`minute`](crate::minute).
    #[must_use]
    pub fn judge(&self, segment: &Segment<'_>, minute: u32) -> Judged {
        let header = &segment.header;
        let flow = Flow::new(header.src, header.dst);
        if segment.has(TcpFlags::RST) {
            return Judged::Drop(Reason::Reset);
        }
        if segment.has(TcpFlags::SYN) {
            let mss = longest_segment(self.mtu, header.src.ip());
            return match welcome(&self.keys, mss, segment, &flow, minute).verdict(segment) {
                Verdict::Say(header) => Judged::Say(header),
                Verdict::Kernel(cause) => Judged::Kernel(cause),
                Verdict::Drop(reason) => Judged::Drop(reason),
                Verdict::Answer(_) | Verdict::Begin(_) | Verdict::Adopt(..) | Verdict::Continue(_) => {
                    Judged::Drop(Reason::Flags)
                }
            };
        }
        if !segment.has(TcpFlags::ACK) {
            return Judged::Drop(Reason::Flags);
        }
        let stamps = header.options.stamps;
        // A position in a kernel connection means nothing here.
        if stamps.is_some_and(|stamps| Stamp::parse(stamps.echo) == Stamp::Kernel) {
            return Judged::Kernel(Cause::Adopted);
        }
        let Some(distance) = flow.distance(&self.keys, header.ack, stamps.is_some()) else {
            return Judged::Drop(Reason::Cookie);
        };
        match stamps {
            Some(stamps) => match (Whole::parse(stamps.echo), Stamp::parse(stamps.echo)) {
                (Some(whole), _) => self.under_way(segment, distance, whole),
                (None, stamp) => self.opening(segment, &flow, distance, stamp, minute),
            },
            None => self.bare(segment, distance),
        }
    }

    /// The client has only the SYN-ACK.
    fn opening(
        &self,
        segment: &Segment<'_>,
        flow: &Flow,
        distance: u32,
        stamp: Stamp,
        minute: u32,
    ) -> Judged {
        let seq = segment.header.seq;
        if distance & !6 != 0 {
            return Judged::Drop(Reason::Stamp);
        }
        if !segment.has_data_or_fin() {
            return Judged::Drop(Reason::Acknowledgement);
        }
        match stamp.opens(flow, &self.keys, minute, seq) {
            // The client closes without a request.
            Opened::Yes(_) if segment.payload.is_empty() => tell(segment, FIN_ACK, seq.wrapping_add(1)),
            Opened::Yes(scale) => {
                let by = By::Opening(Class::numbered(distance >> 1), scale);
                self.ask(segment, 0, by).unwrap_or_else(|cause| adopt(segment, cause, by))
            }
            Opened::No => Judged::Drop(Reason::Stamp),
        }
    }

    /// The client is in the middle of an answer, whose length is in its last timestamp.
    fn under_way(&self, segment: &Segment<'_>, distance: u32, whole: Whole) -> Judged {
        let speaks = segment.has_data_or_fin();
        let Some(at) = distance.checked_sub(2 * u32::from(whole.class.number())) else {
            return Judged::Drop(Reason::Stamp);
        };
        if at > whole.length + 1 {
            return Judged::Drop(Reason::Stamp);
        }
        // The client has the whole answer and FIN.
        if at > whole.length {
            return if speaks {
                tell(segment, ACK, segment.end())
            } else {
                Judged::Drop(Reason::Acknowledgement)
            };
        }
        // The client has everything except FIN, for which its window had no room.
        if at == whole.length {
            return tell(segment, FIN_ACK, segment.end());
        }
        if !self.deterministic || at == 0 || !is_boundary(whole.class, at) {
            return Judged::Drop(Reason::Stamp);
        }
        match segment.payload {
            [] if speaks => Judged::Drop(Reason::Early),
            [] => Judged::Drop(Reason::Acknowledgement),
            _ => self.ask(segment, at, By::Answer(whole)).unwrap_or(Judged::Drop(Reason::Split)),
        }
    }

    /// A connection without timestamps. The cookie has bits of the client's first sequence number,
    /// so the sequence number of a request gives the distance of its acknowledgement from the
    /// cookie.
    fn bare(&self, segment: &Segment<'_>, distance: u32) -> Judged {
        let header = &segment.header;
        if !segment.has_data_or_fin() {
            return Judged::Drop(Reason::Acknowledgement);
        }
        // Whatever the first sequence number was, the client has a part of an answer; where answers
        // have one segment, that is all of it.
        if distance & !BARE_SEQUENCE >= BARE_END && !self.deterministic {
            return tell(segment, ACK, segment.end());
        }
        match (distance.checked_sub(header.seq & BARE_SEQUENCE), segment.payload) {
            (Some(0), []) => tell(segment, FIN_ACK, header.seq.wrapping_add(1)),
            (Some(0), data) => self.ask(segment, 0, By::Bare).unwrap_or_else(|cause| match self.protocol {
                // Eight bits identify a first segment, because the kernel must not begin in the
                // middle of a stream.
                Protocol::Dns if dns::begins_a_query(data) => adopt(segment, cause, By::Bare),
                _ => Judged::Kernel(cause),
            }),
            // All or part of the answer, or a segment that does not begin at the request: the back
            // end's answer decides.
            (Some(at), [_, ..]) => self.ask(segment, at, By::Bare).unwrap_or(Judged::Drop(Reason::Split)),
            _ => Judged::Drop(Reason::Early),
        }
    }

    fn ask(&self, segment: &Segment<'_>, at: u32, by: By) -> Result<Judged, Cause> {
        let data = segment.payload;
        let length = match self.protocol {
            Protocol::Dns => {
                let queries = dns::queries(data).map_err(|fault| match fault {
                    Fault::Split => Cause::Split,
                    Fault::Other => Cause::Request,
                })?;
                queries.iter().map(|query| query.message().len() + 2).sum()
            }
            Protocol::Http => match parse(data) {
                Parsed::Whole(request) => request.length,
                Parsed::Line(_) | Parsed::Split => return Err(Cause::Split),
                Parsed::Bad(_) | Parsed::Body | Parsed::Other => return Err(Cause::Request),
            },
        };
        Ok(Judged::Ask(Ask { length, at, by }))
    }

    /// The verdict on the segment that caused the query, with the answer's bytes; `None` if there
    /// are more than [`MAX_ANSWER`]. [`Reason::Changed`]: the connection can no longer be
    /// completed.
    #[must_use]
    pub fn answer<'o>(
        &self,
        segment: &Segment<'_>,
        ask: &Ask,
        octets: Option<&'o [u8]>,
        path: Option<u16>,
    ) -> Verdict<'o> {
        let header = &segment.header;
        let mut octets = octets.unwrap_or_default();
        if let By::Answer(before) = ask.by {
            // A request that is repeated together with later data is answered as before.
            octets = octets.get(..before.length as usize).unwrap_or_default();
        }
        // 0 marks an answer that cannot be sent here; no back end answers with zero bytes.
        let length = u32::try_from(octets.len()).ok().filter(|length| *length <= MAX_ANSWER).unwrap_or(0);
        let (stamp, cut) = match ask.by {
            // The back end's answer has changed, so the part that the client has cannot be
            // completed.
            By::Answer(before) if Whole::of(octets, before.class, before.scale) != before => {
                return Verdict::Drop(Reason::Changed);
            }
            By::Answer(before) => (Some(before), Cut::again(before.class, ask.at, &have(segment, ask.at))),
            // The back end's answer cannot be sent here: drop if the client has a part of another answer, else the kernel adopts.
            _ if length == 0 && ask.at > 0 => return Verdict::Drop(Reason::Changed),
            by if length == 0 => return by.adoption(segment, Cause::Object),
            By::Opening(class, scale) => (Some(Whole::of(octets, class, scale)), Cut::Full(class)),
            By::Bare if ask.at == length + 1 => return flags_only(segment, ACK),
            By::Bare if ask.at == length => return flags_only(segment, FIN_ACK),
            By::Bare if ask.at > length || !ask.at.is_multiple_of(BARE_SEGMENT) => {
                return Verdict::Drop(Reason::Early);
            }
            By::Bare => (None, Cut::Bare),
        };
        let reply = reply(segment, ask.at, header.seq, stamp.map(Whole::value));
        let mtu = self.mtu.min(path.unwrap_or(u16::MAX));
        let room = u32::from(mtu).saturating_sub(reply.length() as u32);
        let scale = stamp.map_or(Scale::default(), |stamp| stamp.scale);
        let window = ask.at.saturating_add(scale.window(header.window));
        let pieces = if self.deterministic {
            let span = Span { cut, from: ask.at, window, path: room, length, closes: true };
            span.pieces(&have(segment, ask.at), |_| true)
        } else {
            let full = match cut {
                Cut::Full(class) => class.segment(),
                Cut::Narrow | Cut::Bare => BARE_SEGMENT,
            };
            // The segment is sent with FIN or not at all, so that a client that has it has
            // everything.
            if length > full.min(room) || window <= length {
                return ask.by.adoption(segment, Cause::Object);
            }
            Pieces::from_iter([Piece { from: 0, to: length, fin: true }])
        };
        Verdict::Answer(Flight { octets: AnswerBytes::of(octets), header: reply, pieces })
    }
}

impl By {
    /// How the kernel takes over a connection of which nothing was sent.
    fn handshake(self, segment: &Segment<'_>) -> Option<Handshake> {
        let (mss, scale) = match self {
            By::Opening(class, scale) => (class.mss(), Some(scale)),
            By::Bare => (BARE_SEGMENT as u16, None),
            By::Answer(_) => return None,
        };
        Some(Handshake { mss, scale, receive_next: segment.header.seq, start: 0, answer: None })
    }

    fn adoption(self, segment: &Segment<'_>, cause: Cause) -> Verdict<'static> {
        self.handshake(segment).map_or(Verdict::Kernel(cause), |handshake| Verdict::Adopt(cause, handshake))
    }
}

fn adopt(segment: &Segment<'_>, cause: Cause, by: By) -> Judged {
    by.handshake(segment).map_or(Judged::Kernel(cause), |handshake| Judged::Adopt(cause, handshake))
}

fn tell(segment: &Segment<'_>, flags: u8, ack: u32) -> Judged {
    Judged::Say(say(segment, flags, ack))
}

fn flags_only(segment: &Segment<'_>, flags: u8) -> Verdict<'static> {
    Decision::Say(flags, segment.end()).verdict(segment)
}
