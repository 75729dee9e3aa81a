//! Headers of segments to a client: those of an answer, segments without data, and the RST.

use core::net::IpAddr;

use rivulet_packet::segment::TcpFlags;

use crate::segment::{Header, Options, Segment, Stamps};

/// The window of every segment: client data is processed or repeated, and none is buffered here.
pub(crate) const WINDOW: u16 = 0xffff;

/// The largest segment size to announce to a peer, on an interface that sends IP packets of `mtu`
/// bytes.
pub(crate) fn longest_segment(mtu: u16, peer: IpAddr) -> u16 {
    mtu.saturating_sub(if peer.is_ipv4() { 40 } else { 60 }).min(1460)
}

/// The header of an answer's segments, of which the client has `at` bytes. Its request, which
/// begins at `seq`, is not acknowledged. `stamp`: TSval.
pub(crate) fn reply(segment: &Segment<'_>, at: u32, seq: u32, stamp: Option<u32>) -> Header {
    let header = &segment.header;
    let stamps = stamp.zip(header.options.stamps).map(|(value, theirs)| Stamps { value, echo: theirs.value });
    Header {
        src: header.dst,
        dst: header.src,
        seq: header.ack.wrapping_sub(at),
        ack: seq,
        flags: TcpFlags(TcpFlags::ACK),
        window: WINDOW,
        options: Options { stamps, ..Options::default() },
    }
}

/// A segment without data.
pub(crate) fn say(segment: &Segment<'_>, flags: u8, ack: u32) -> Header {
    let header = &segment.header;
    // Repeats the client's last echoed timestamp, whatever it is, so that the values never go back.
    let stamps = header.options.stamps.map(|theirs| Stamps { value: theirs.echo, echo: theirs.value });
    Header {
        src: header.dst,
        dst: header.src,
        seq: header.ack,
        ack,
        flags: TcpFlags(flags),
        window: WINDOW,
        options: Options { stamps, ..Options::default() },
    }
}

/// The RST for a connection that is not served, as if no server listened.
#[must_use]
pub fn refusal(segment: &Segment<'_>) -> Header {
    let header = &segment.header;
    let (flags, seq) = match segment.has(TcpFlags::ACK) {
        true => (TcpFlags::RST, header.ack),
        false => (TcpFlags::RST | TcpFlags::ACK, 0),
    };
    Header { seq, window: 0, options: Options::default(), ..say(segment, flags, segment.end()) }
}
