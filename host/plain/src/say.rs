//! Headers of segments to a client: the answer to its SYN, the header of an answer's pieces,
//! segments without data, and the refusal.

use core::net::IpAddr;

use rivulet_packet::segment::TcpFlags;

use crate::codec::{BARE_SEGMENT, Class, CookieKeys, Flow};
use crate::segment::{Header, Options, Segment, Stamps};
use crate::small::Decision;
use crate::stamp::{Scale, Stamp};
use crate::verdict::{Cause, Reason};

/// The window of every segment of ours: what a client sends is taken or repeated, nothing waits here.
const WINDOW: u16 = 0xffff;

/// The largest segment size to announce to a peer, on an interface that sends IP packets of `mtu`
/// bytes.
pub(crate) fn longest_segment(mtu: u16, peer: IpAddr) -> u16 {
    mtu.saturating_sub(if peer.is_ipv4() { 40 } else { 60 }).min(1460)
}

/// The answer to a SYN, never longer than the SYN; `mss` is the longest segment that is announced to its client.
pub(crate) fn welcome(
    keys: &CookieKeys,
    mss: u16,
    segment: &Segment<'_>,
    flow: &Flow,
    minute: u32,
) -> Decision {
    let header = &segment.header;
    if header.flags.0 & (TcpFlags::ACK | TcpFlags::FIN) != 0 {
        return Decision::Drop(Reason::Flags);
    }
    let offered = header.options;
    // Without the option it is 536 (RFC 9293 section 3.7.1).
    let smaller = offered.mss.unwrap_or(536).min(mss);
    let first = header.seq.wrapping_add(1);
    let (isn, stamps, scale) = match (offered.stamps, Class::of(smaller)) {
        (Some(stamps), Some(class)) => {
            let scale = Scale::of(offered.scale.unwrap_or(0));
            let value = Stamp::opening(flow, keys, minute, first, scale);
            let stamps = Stamps { value, echo: stamps.value };
            (flow.stamped(keys.current, class), Some(stamps), offered.scale.map(|_| 0))
        }
        // A window that is never as large as a segment, or a path that takes none, is the kernel's affair.
        (None, _) if u32::from(smaller).min(header.window.into()) >= BARE_SEGMENT => {
            (flow.bare(keys.current, first), None, None)
        }
        _ => return Decision::Kernel(Cause::Syn),
    };
    Decision::Welcome(Header {
        src: header.dst,
        dst: header.src,
        seq: isn,
        ack: first,
        flags: TcpFlags(TcpFlags::SYN | TcpFlags::ACK),
        window: WINDOW,
        options: Options {
            mss: offered.mss.map(|_| mss),
            scale,
            sack_permitted: offered.sack_permitted,
            stamps,
            ..Options::default()
        },
    })
}

/// The header of each piece of an answer of which the client has `at` bytes. Its request, which
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
    // Its own timestamp again: the last one, whatever it is, so that the client's never goes back.
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

/// The end of a connection that is not served: to the client it is as if no server listened.
#[must_use]
pub fn refusal(segment: &Segment<'_>) -> Header {
    let header = &segment.header;
    let (flags, seq) = match segment.has(TcpFlags::ACK) {
        true => (TcpFlags::RST, header.ack),
        false => (TcpFlags::RST | TcpFlags::ACK, 0),
    };
    Header { seq, window: 0, options: Options::default(), ..say(segment, flags, segment.end()) }
}
