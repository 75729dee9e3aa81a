//! The first word to a client whose replica is gone: a client that only receives would never speak by itself.
//!
//! A segment that is no longer awaited has to be answered by an acknowledgement (RFC 9293 section 3.10.7.4), which says where the client
//! is. Its timestamp must be a new one, or PAWS has it dropped without a word (RFC 7323 section 5.2).

use rivulet_packet::BuildError;
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::repair::Connection;
use rivulet_plain::{Header, Options, Segment, Stamps};

use crate::record::Record;

/// Milliseconds that are added to the TSval that the other replica should have now, for what clocks of two hosts differ.
const MARGIN: u32 = 2000;
/// What a client may have sent that nobody stored: a window.
const MAX_UNKNOWN: u32 = 1 << 16;
/// Further back than the client can be, and still behind it as numbers go.
const MAX_BACK: u64 = (1 << 31) - 2;
/// The window that is offered, unscaled: of no account to a client that is not listening yet.
const WINDOW: u16 = 1024;

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The next octet that it awaits.
    pub ack: u32,
    /// Octets from there that it takes.
    pub window: u32,
    /// Its next octet: beyond what was stored, if it sent something that nobody acknowledged.
    pub seq: u32,
}

/// What a segment from a client tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It waits here.
    Waits(Place),
    /// It knows nothing of the connection any more: the record is of no use.
    Gone,
    /// Nothing: the segment is not its, or not of this connection.
    Nothing,
}

/// The TSval that an own segment has at this time, later than all that the other replica may have sent.
#[must_use]
pub fn timestamp(record: &Record, now_ms: u64) -> Option<u32> {
    let passed = now_ms.saturating_sub(record.handshake.at_ms) as u32;
    record.handshake.timestamp.map(|value| value.wrapping_add(passed).wrapping_add(MARGIN))
}

/// The probe: an IP packet without data, or, as its repetition, with one octet that the client had long ago. Stacks limit how
/// often they answer the former, not the latter.
///
/// # Errors
/// [`BuildError`]: the record's addresses are of two families.
pub fn probe(record: &Record, now_ms: u64, repeated: bool) -> Result<Vec<u8>, BuildError> {
    let header = Header {
        src: record.tuple.service,
        dst: record.tuple.client,
        seq: record.passed().wrapping_sub((reach(record) + 1).min(MAX_BACK) as u32),
        ack: record.acknowledged(),
        flags: TcpFlags(TcpFlags::ACK),
        window: WINDOW,
        options: Options {
            stamps: timestamp(record, now_ms).map(|value| Stamps { value, echo: 0 }),
            ..Options::default()
        },
    };
    let payload = usize::from(repeated);
    let mut packet = vec![0; header.length() + payload];
    header.finish(&mut packet, payload)?;
    Ok(packet)
}

/// What a segment tells, whose checksum holds ([`Segment::is_intact`]).
#[must_use]
pub fn read(record: &Record, segment: &Segment<'_>, now_ms: u64) -> Told {
    let header = &segment.header;
    let is_theirs = (header.src, header.dst) == (record.tuple.client, record.tuple.service);
    let is_near = header.seq.wrapping_sub(record.acknowledged()) <= MAX_UNKNOWN;
    if !is_theirs || !is_near || segment.has(TcpFlags::SYN) {
        return Told::Nothing;
    }
    if segment.has(TcpFlags::RST) {
        // Of a client that lives it would be answered by a challenge (RFC 5961); nobody is there to make one.
        return Told::Gone;
    }
    let is_echo = match (timestamp(record, now_ms), record.handshake.timestamp, header.options.stamps) {
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
    Told::Waits(Place { ack: header.ack, window: u32::from(header.window) << shift, seq: header.seq })
}

/// The socket that goes on there.
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
        mss: handshake.mss,
        scales: handshake.scales,
        sack: handshake.sack,
        // Later than that of a probe, which the client has heard.
        timestamp: timestamp(record, now_ms).map(|value| value.wrapping_add(MARGIN)),
    }
}

/// Octets before the end of what was let pass at which the client can be.
fn reach(record: &Record) -> u64 {
    record.responses.iter().map(|response| response.passed).sum::<u64>().min(MAX_BACK - 1)
}

impl Record {
    /// The record of the connection as this replica goes on with it: timestamps count from its own socket's.
    #[must_use]
    pub fn taken_over(mut self, connection: &Connection, now_ms: u64) -> Record {
        self.handshake.timestamp = connection.timestamp;
        self.handshake.at_ms = now_ms;
        self
    }
}
