//! A lane to the back end: a socket with its own port for one request at a time.
//!
//! The port identifies the request that a datagram answers, also in protocols without a request
//! number. Late answers find the port closed, or another number expected.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use arrayvec::ArrayVec;
use rivulet_packet::EthHeader;
use rivulet_plain::dns::{self, MAX_QUERIES, Queries, Reply};
use rivulet_plain::{Ask, MAX_ANSWER, Protocol, Segment};

use super::{BackEnd, BackEndCounters};

/// Progress of one query of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The query was sent as a datagram.
    Asked,
    /// The query was queued for TCP.
    ByTcp,
    /// The answer has come; its range in the buffer.
    There(usize, usize),
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) client: SocketAddr,
    pub(super) service: SocketAddr,
    pub(super) ask: Ask,
    /// When it was last sent, microseconds.
    pub(super) asked: u64,
    /// A number that no other request has.
    pub(super) ticket: u64,
    /// The query id of its first query towards the back end.
    pub(super) id: u16,
    /// A query was sent more than once, so duplicate answers may arrive.
    again: bool,
    parts: ArrayVec<Part, MAX_QUERIES>,
}

impl Pending {
    pub(super) fn new(client: SocketAddr, service: SocketAddr, ask: Ask, ticket: u64, id: u16) -> Pending {
        Pending { client, service, ask, asked: 0, ticket, id, again: false, parts: ArrayVec::new() }
    }
}

/// Classification of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    /// The last missing answer; [`Lane::answer`] returns all.
    All,
    /// All are there, but they are longer than the limit.
    TooLong,
    /// One of several.
    Some,
    /// The query with this index must be sent by TCP.
    Truncated(usize),
    /// Not for this request.
    Foreign,
}

/// A lane; its buffers are reused by later requests.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) socket: UdpSocket,
    pub(super) pending: Option<Pending>,
    /// The client's frame.
    frame: Vec<u8>,
    /// Answers, framed, in the order of arrival.
    answers: Vec<u8>,
}

/// A socket on a random port, connected to the back end.
pub(super) fn open(back_end: &BackEnd) -> io::Result<UdpSocket> {
    let any: SocketAddr = match back_end.address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(back_end.address)?;
    Ok(socket)
}

/// The payload of the segment in a frame.
pub(super) fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    let (ethernet, _) = EthHeader::parse(frame).ok()?;
    Segment::parse(frame.get(ethernet.length()..)?).ok()
}

impl Lane {
    pub(super) fn open(back_end: &BackEnd) -> io::Result<Lane> {
        Ok(Lane { socket: open(back_end)?, pending: None, frame: Vec::new(), answers: Vec::new() })
    }

    /// Opens a new socket, so that datagrams for the old one cannot be mistaken for answers.
    pub(super) fn reopen(&mut self, back_end: &BackEnd) -> io::Result<()> {
        self.socket = open(back_end)?;
        Ok(())
    }

    /// The client's frame.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The bytes of the request.
    pub(super) fn request(&self) -> &[u8] {
        let length = self.pending.as_ref().map_or(0, |pending| pending.ask.length);
        segment(&self.frame).and_then(|segment| segment.payload.get(..length)).unwrap_or_default()
    }

    /// Starts the request of this frame.
    pub(super) fn begin(&mut self, frame: &[u8], pending: Pending) {
        self.pending = Some(pending);
        self.answers.clear();
        self.renew(frame);
    }

    /// The client repeated it: updates its acknowledgement and window.
    pub(super) fn renew(&mut self, frame: &[u8]) {
        self.frame.clear();
        self.frame.extend_from_slice(frame);
    }

    /// Sends all queries without an answer.
    pub(super) fn send(
        &mut self,
        protocol: Protocol,
        now: u64,
        counters: &mut BackEndCounters,
    ) -> io::Result<()> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        pending.again |= pending.asked != 0;
        pending.asked = now.max(1);
        let length = pending.ask.length;
        let data = segment(&self.frame).and_then(|segment| segment.payload.get(..length)).unwrap_or_default();
        let mut sent = Ok(());
        match protocol {
            Protocol::Http => {
                if pending.parts.is_empty() {
                    pending.parts.push(Part::Asked);
                }
                counters.queries += 1;
                sent = send(&self.socket, data);
            }
            Protocol::Dns => {
                for (number, query) in queries(data).iter().enumerate() {
                    if number >= pending.parts.len() {
                        pending.parts.push(Part::Asked);
                    }
                    if pending.parts[number] == Part::Asked {
                        counters.queries += 1;
                        let id = pending.id.wrapping_add(number as u16);
                        sent = sent.and(send(&self.socket, &query.datagram(id)));
                    }
                }
            }
        }
        self.pending = Some(pending);
        sent
    }

    /// Whether a datagram may arrive that would pass for an answer to the next request.
    pub(super) fn is_tainted(&self, protocol: Protocol, given_up: bool) -> bool {
        // DNS has query ids for that.
        protocol == Protocol::Http && self.pending.as_ref().is_some_and(|pending| given_up || pending.again)
    }

    /// Handles a datagram from the back end.
    pub(super) fn take(&mut self, protocol: Protocol, datagram: &[u8]) -> Got {
        let Some(mut pending) = self.pending.take() else { return Got::Foreign };
        let got = match protocol {
            Protocol::Http if !datagram.starts_with(b"HTTP/1.") => Got::Foreign,
            Protocol::Http => match datagram.len() <= MAX_ANSWER as usize {
                true => {
                    self.answers.extend_from_slice(datagram);
                    Got::All
                }
                false => Got::TooLong,
            },
            Protocol::Dns => {
                let id = rivulet_plain::dns::number(datagram).unwrap_or_default();
                let number = usize::from(id.wrapping_sub(pending.id));
                self.judge(&mut pending, number, |query| query.judge(id, datagram), datagram)
            }
        };
        self.pending = Some(pending);
        got
    }

    /// Handles the answer to a query sent by TCP.
    pub(super) fn take_by_tcp(&mut self, number: usize, message: &[u8]) -> Got {
        let Some(mut pending) = self.pending.take() else { return Got::Foreign };
        if let Some(part @ Part::ByTcp) = pending.parts.get_mut(number) {
            *part = Part::Asked;
        }
        let got = self.judge(&mut pending, number, |_| Reply::Answer(None), message);
        self.pending = Some(pending);
        got
    }

    fn judge(
        &mut self,
        pending: &mut Pending,
        number: usize,
        reply: impl Fn(&dns::Query<'_>) -> Reply,
        message: &[u8],
    ) -> Got {
        let length = pending.ask.length;
        let data = segment(&self.frame).and_then(|segment| segment.payload.get(..length)).unwrap_or_default();
        let queries = queries(data);
        let (Some(query), Some(part @ Part::Asked)) = (queries.get(number), pending.parts.get_mut(number))
        else {
            return Got::Foreign;
        };
        match reply(query) {
            Reply::Foreign => Got::Foreign,
            Reply::ByTcp => {
                *part = Part::ByTcp;
                Got::Truncated(number)
            }
            Reply::Answer(opt) => {
                let start = self.answers.len();
                if !query.append(message, opt, MAX_ANSWER as usize - start, &mut self.answers) {
                    return Got::TooLong;
                }
                *part = Part::There(start, self.answers.len());
                match pending.parts.iter().all(|part| matches!(part, Part::There(..))) {
                    true => Got::All,
                    false => Got::Some,
                }
            }
        }
    }

    /// All answers in the order of their queries; `order` is scratch memory.
    pub(super) fn answer<'a>(&'a self, order: &'a mut Vec<u8>) -> &'a [u8] {
        let parts = self.pending.as_ref().map(|pending| &pending.parts[..]).unwrap_or_default();
        // A single answer, or HTTP's.
        if parts.len() <= 1 {
            return &self.answers;
        }
        order.clear();
        for part in parts {
            if let Part::There(from, to) = *part {
                order.extend_from_slice(self.answers.get(from..to).unwrap_or_default());
            }
        }
        order
    }
}

/// The queries of a request that was parsed before.
fn queries(data: &[u8]) -> Queries<'_> {
    dns::queries(data).unwrap_or_default()
}

fn send(socket: &UdpSocket, datagram: &[u8]) -> io::Result<()> {
    match socket.send(datagram) {
        // The error is about an earlier datagram; the back end may be up again.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => socket.send(datagram).map(|_| ()),
        other => other.map(|_| ()),
    }
}
