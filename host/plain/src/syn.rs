//! The answer to a client's SYN.

use rivulet_packet::segment::TcpFlags;

use crate::codec::{BARE_SEGMENT, Class, CookieKeys, Flow};
use crate::decision::Decision;
use crate::say::WINDOW;
use crate::segment::{Header, Options, Segment, Stamps};
use crate::stamp::{Scale, Stamp};
use crate::verdict::{Cause, Reason};

/// The answer to a SYN, never longer than the SYN. `mss`: the largest segment size to announce.
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
    // Without the option the client's MSS is 536 (RFC 9293 section 3.7.1).
    let smaller = offered.mss.unwrap_or(536).min(mss);
    let first = header.seq.wrapping_add(1);
    let (isn, stamps, scale) = match (offered.stamps, Class::of(smaller)) {
        (Some(stamps), Some(class)) => {
            let scale = Scale::of(offered.scale.unwrap_or(0));
            let value = Stamp::opening(flow, keys, minute, first, scale);
            let stamps = Stamps { value, echo: stamps.value };
            (flow.stamped(keys.current, class), Some(stamps), offered.scale.map(|_| 0))
        }
        // The kernel's TCP serves clients with a window or a path that is too small for one
        // segment.
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
