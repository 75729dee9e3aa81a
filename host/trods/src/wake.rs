//! Probes clients of dead replicas, because a client that only receives sends nothing by itself.
//!
//! TCP has to acknowledge a segment outside of the window (RFC 9293 section 3.10.7.4), and the ACK
//! shows the client's state. The probe's timestamp must be new, or PAWS drops it without an ACK
//! (RFC 7323 section 5.2).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rivulet_packet::BuildError;
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::repair::Connection;
use rivulet_plain::{Header, ObjectStamp, Options, Segment, Stamps};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};

use crate::record::{Body, Record};

/// Milliseconds added to the TSval that the dead replica would send now, to cover the difference of
/// two hosts' clocks.
const MARGIN: u32 = 2000;
/// Limit on the client's data that was never stored: a window.
pub(crate) const MAX_UNKNOWN: u32 = 1 << 16;
/// Further back than the client can be, and still "before" it in 32-bit sequence arithmetic.
const MAX_BACK: u64 = (1 << 31) - 2;
/// Indices of timestamps in the BPF programs' format: one of them is not behind the client's,
/// whatever that is.
pub(crate) const PROBED: [u8; 3] = [0, 11, 22];
/// Length of a segment that every client accepts (RFC 9293 section 3.7.1).
const MIN_SEGMENT: u16 = 536;
/// Number of versions that the former replica may have stored before the adopter's first one counts
/// as newer.
const VERSIONS: u32 = 1 << 16;
/// The window in a probe, unscaled. The client ignores it, because the probe's acknowledgement is
/// old.
const WINDOW: u16 = 1024;

/// A client's position in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment answers a probe, so everything sent before the probe has arrived or is lost.
    /// Otherwise more data may arrive and change the client's state. Clients without duplicate SACK
    /// (RFC 2883) never show this.
    pub fresh: bool,
    /// The next sequence number that the client expects.
    pub ack: u32,
    /// The client's receive window, bytes from `ack` on.
    pub window: u32,
    /// End of all data that the client has sent, if the segment shows it: a segment without data
    /// has the client's next number (RFC 9293 section 3.10.7.4).
    pub sent: Option<u32>,
}

/// What a client's segment shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The client has the connection and waits at this position.
    Waits(Place),
    /// The client sent a RST: it no longer has the connection, and the record is useless.
    Gone,
    /// Nothing: the segment comes from elsewhere, or belongs to another connection.
    Nothing,
}

/// A TSval for segments that this replica sends now, later than all that the dead replica may have
/// sent.
#[must_use]
pub fn timestamp(record: &Record, now_ms: u64) -> Option<u32> {
    let passed = now_ms.saturating_sub(record.handshake.at_ms) as u32;
    record.handshake.timestamp.map(|value| value.wrapping_add(passed).wrapping_add(MARGIN))
}

/// A probe: an IP packet with one byte that the client has had for long. A byte of data is needed
/// because stacks limit their ACKs to segments without data; and they report this byte in a
/// duplicate SACK, which distinguishes the answer from other acknowledgements.
///
/// # Errors
/// [`BuildError`]: the record's addresses are of two families.
pub fn probe(record: &Record, now_ms: u64) -> Result<Vec<u8>, BuildError> {
    packet(record, timestamp(record, now_ms))
}

/// The segments of one probe: several if the client's last timestamp is unknown.
fn probes(record: &Record, now_ms: u64) -> Result<Vec<Vec<u8>>, BuildError> {
    match record.handshake.stamps.and_then(ObjectStamp::parse) {
        Some(base) => {
            let values = PROBED.map(|index| ObjectStamp { index, ..base }.value());
            values.into_iter().map(|value| packet(record, Some(value))).collect()
        }
        None => Ok(vec![probe(record, now_ms)?]),
    }
}

fn packet(record: &Record, timestamp: Option<u32>) -> Result<Vec<u8>, BuildError> {
    let header = Header {
        src: record.tuple.service,
        dst: record.tuple.client,
        seq: probed(record),
        ack: record.acknowledged(),
        flags: TcpFlags(TcpFlags::ACK),
        window: WINDOW,
        options: Options { stamps: timestamp.map(|value| Stamps { value, echo: 0 }), ..Options::default() },
    };
    let mut packet = vec![0; header.length() + 1];
    header.finish(&mut packet, 1)?;
    Ok(packet)
}

/// A probe for a connection of which only the acknowledgement number is known: one byte before the
/// client's window, which every TCP acknowledges (RFC 9293 section 3.10.7.4). It has no timestamp,
/// because none is known. A TCP that requires one (RFC 7323 section 3.2) does not answer; its
/// client retransmits by its own timer.
pub(crate) fn question(service: SocketAddr, client: SocketAddr, acked: u32) -> Result<Vec<u8>, BuildError> {
    let (src, dst, flags) = (service, client, TcpFlags(TcpFlags::ACK));
    // The byte ends before the client's next expected one; otherwise the client would process the
    // probe's acknowledgement number.
    let seq = acked.wrapping_sub(2);
    let header = Header { src, dst, seq, ack: 0, flags, window: WINDOW, options: Options::default() };
    let mut packet = vec![0; header.length() + 1];
    header.finish(&mut packet, 1)?;
    Ok(packet)
}

/// Sends probes through raw sockets, which need no connection in this host's TCP.
#[derive(Debug)]
pub struct Prober {
    v4: OwnedFd,
    /// `None` on a host without IPv6.
    v6: Option<OwnedFd>,
}

impl Prober {
    /// Opens the sockets in the calling thread's network namespace. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// A system call fails.
    pub fn open() -> io::Result<Prober> {
        // With protocol IPPROTO_RAW this process writes the headers (raw(7), ipv6(7)), and the
        // socket never receives.
        let raw = |family| socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW));
        Ok(Prober { v4: raw(AddressFamily::INET)?, v6: raw(AddressFamily::INET6).ok() })
    }

    /// Sends the [`probe`] of a connection. The service's address must be configured on this host.
    ///
    /// # Errors
    /// A system call fails, also because a queue is full.
    pub fn send(&self, record: &Record, now_ms: u64) -> io::Result<()> {
        let packets = probes(record, now_ms).map_err(io::Error::other)?;
        packets.iter().try_for_each(|packet| self.send_packet(record.tuple.client, packet))
    }

    /// Sends an IP packet to a client.
    pub(crate) fn send_packet(&self, client: SocketAddr, packet: &[u8]) -> io::Result<()> {
        let client = client.ip();
        let socket = match client.is_ipv4() {
            true => &self.v4,
            false => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        // A raw socket takes only the address; the port must be 0.
        sendto(socket, packet, SendFlags::DONTWAIT, &SocketAddr::new(client, 0))?;
        Ok(())
    }
}

/// Reads a segment with a valid checksum ([`Segment::is_intact`]).
#[must_use]
pub fn read(record: &Record, segment: &Segment<'_>, now_ms: u64) -> Told {
    let header = &segment.header;
    let is_theirs = (header.src, header.dst) == (record.tuple.client, record.tuple.service);
    let is_near = header.seq.wrapping_sub(record.acknowledged()) <= MAX_UNKNOWN;
    // Stored data that the dead replica never acknowledged is retransmitted.
    let is_again = record.acknowledged().wrapping_sub(header.seq) <= known_client_bytes(record);
    if !is_theirs || !(is_near || is_again) || segment.has(TcpFlags::SYN) {
        return Told::Nothing;
    }
    if segment.has(TcpFlags::RST) {
        if !is_near {
            return Told::Nothing;
        }
        // A client with a live connection would send a challenge ACK instead (RFC 5961). No socket
        // exists here that could have drawn this RST.
        return Told::Gone;
    }
    let first = record.handshake.first_timestamp.or(record.handshake.timestamp);
    let is_echo = match (timestamp(record, now_ms), first, header.options.stamps) {
        (.., stamps) if record.handshake.stamps.is_some() => {
            stamps.and_then(|s| stamp(record, s.echo)).is_some()
        }
        (Some(latest), Some(first), Some(stamps)) => {
            latest.wrapping_sub(stamps.echo) <= latest.wrapping_sub(first)
        }
        (None, None, None) => true,
        _ => false,
    };
    let is_in_object = u64::from(record.passed().wrapping_sub(header.ack)) <= reach(record);
    if !segment.has(TcpFlags::ACK) || !is_echo || !is_in_object {
        return Told::Nothing;
    }
    let shift = record.handshake.scales.map_or(0, |(theirs, _)| theirs);
    let blocks = header.options.sack.blocks();
    Told::Waits(Place {
        fresh: blocks.first() == Some(&(probed(record), probed(record).wrapping_add(1))),
        ack: header.ack,
        window: u32::from(header.window) << shift,
        sent: sent(segment),
    })
}

/// End of all data that the client has sent, if this segment shows it.
pub(crate) fn sent(segment: &Segment<'_>) -> Option<u32> {
    segment.payload.is_empty().then_some(segment.header.seq)
}

/// Whether a segment probably comes from the record's client, whatever it has received since: an
/// attacker's random numbers are too far away.
#[must_use]
pub fn is_of(record: &Record, segment: &Segment<'_>) -> bool {
    let header = &segment.header;
    let is_theirs = (header.src, header.dst) == (record.tuple.client, record.tuple.service);
    let distance = |a: u32, b: u32| (a.wrapping_sub(b) as i32).unsigned_abs();
    let is_near = distance(header.seq, record.acknowledged()) <= 16 * MAX_UNKNOWN
        && distance(header.ack, record.passed()) <= 1024 * MAX_UNKNOWN;
    is_theirs
        && is_near
        && segment.has(TcpFlags::ACK)
        && !segment.has(TcpFlags::SYN)
        && !segment.has(TcpFlags::RST)
}

/// The RST for a segment of a connection that no longer exists (RFC 9293 section 3.10.7.1), with an
/// acknowledgement, so that the BPF programs let it out. `None` for a segment without an
/// acknowledgement.
pub(crate) fn reset(segment: &Segment<'_>) -> Option<Vec<u8>> {
    let theirs = &segment.header;
    if !segment.has(TcpFlags::ACK) {
        return None;
    }
    let next = theirs.seq.wrapping_add(segment.payload.len() as u32);
    let header = Header {
        src: theirs.dst,
        dst: theirs.src,
        seq: theirs.ack,
        ack: next.wrapping_add(u32::from(segment.has(TcpFlags::FIN))),
        flags: TcpFlags(TcpFlags::RST | TcpFlags::ACK),
        window: 0,
        options: Options::default(),
    };
    let mut packet = vec![0; header.length()];
    header.finish(&mut packet, 0).ok()?;
    Some(packet)
}

/// The fields of a timestamp that BPF programs made, if it belongs to this connection.
#[must_use]
pub(crate) fn stamp(record: &Record, value: u32) -> Option<ObjectStamp> {
    let base = record.handshake.stamps?;
    ObjectStamp::parse(value).filter(|stamp| ObjectStamp { index: 0, object: 0, ..*stamp }.value() == base)
}

/// The state of the adopter's socket for a client at `place`.
#[must_use]
pub fn connection(record: &Record, place: &Place, now_ms: u64) -> Connection {
    let handshake = &record.handshake;
    Connection {
        local: record.tuple.service,
        remote: record.tuple.client,
        send_next: place.ack,
        receive_next: record.acknowledged(),
        send_window: place.window,
        receive_window: MAX_UNKNOWN - 1,
        mss: handshake.mss.min(halves(place.window)),
        scales: handshake.scales,
        sack: handshake.sack,
        // Later than the timestamp of the probe, which the client has received.
        timestamp: timestamp(record, now_ms).map(|value| value.wrapping_add(MARGIN)),
    }
}

/// The largest segment size for a client with this window. If the window has room for less than two
/// segments, the kernel would wait for more room, three seconds each time (RFC 9293 section
/// 3.8.6.2.1); for its own connections it bounds the size at the handshake. A client with a closed
/// window is about to open it.
fn halves(window: u32) -> u16 {
    match u16::try_from(window) {
        Ok(0) | Err(_) => u16::MAX,
        Ok(window) => (window / 2).max(MIN_SEGMENT),
    }
}

/// Bytes of the client in the record, its FIN included.
fn known_client_bytes(record: &Record) -> u32 {
    let answered = record.responses.iter().map(|response| match &response.body {
        Body::Object { request, .. } | Body::Generated { request, .. } => request.len(),
        Body::Whole(_) => 0,
    });
    (answered.sum::<usize>() + record.requests.len()) as u32 + u32::from(record.client_fin)
}

/// The sequence number of a probe. Several probes with different timestamps must not change the one
/// that the client echoes, so they are one byte further back, at a byte that the client had before
/// its last acknowledgement.
fn probed(record: &Record) -> u32 {
    old(record).wrapping_sub(u32::from(record.handshake.stamps.is_some()))
}

/// A sequence number before everything that the client may lack: it has that byte, and acknowledges
/// it again.
fn old(record: &Record) -> u32 {
    record.passed().wrapping_sub((reach(record) + 1).min(MAX_BACK) as u32)
}

/// Distance from the end of the released data back to the furthest place where the client can be.
fn reach(record: &Record) -> u64 {
    record.responses.iter().map(|response| response.passed).sum::<u64>().min(MAX_BACK - 1)
}

impl Record {
    /// The record of the connection as this replica resumes it: timestamps count from its new
    /// socket. Its version exceeds all versions that the former replica may have stored since; that
    /// one was muted by then, but may have stored more records.
    #[must_use]
    pub fn taken_over(mut self, connection: &Connection, now_ms: u64) -> Record {
        self.version = (self.version | (VERSIONS - 1)).saturating_add(1);
        self.handshake.first_timestamp = self.handshake.first_timestamp.or(self.handshake.timestamp);
        self.handshake.timestamp = connection.timestamp;
        self.handshake.at_ms = now_ms;
        self
    }
}
