//! Recognises segments of clients in the middle of a large answer, and finds that answer.

use rivulet_packet::segment::TcpFlags;

use super::stamp::{Download, LargeStamp};
use crate::answer::Answer;
use crate::codec::Flow;
use crate::segment::{Segment, Stamps};
use crate::small::Site;
use crate::stamp::Stamp;

/// An answer, the length of its head, and its whole length.
type Found = (Answer, u32, u32);

/// The large answer that a timestamp names, with the length of its head and its whole length.
pub(super) fn answer(site: &Site, of: Download) -> Option<(Found, u32)> {
    let answer = Answer::large(of.object, &site.table)?;
    let (head, length) = answer.lengths(&site.table);
    Some(((answer, head, length), length))
}

/// Whether echo and acknowledgement of a segment fit those of a large answer's client, which
/// others' do only by chance.
#[must_use]
pub fn is_placed(site: &Site, segment: &Segment<'_>) -> bool {
    let header = &segment.header;
    let flow = Flow::new(header.src, header.dst);
    header.options.stamps.is_some_and(|Stamps { echo, .. }| {
        let find = |of| answer(site, of);
        let version = site.table.version();
        LargeStamp::place((&flow, &site.keys), version, (header.ack, echo), find).is_some()
    })
}

/// Whether a segment comes from a client in the middle of a large answer: by its timestamp, or
/// because the client has bytes without the answer's beginning.
#[must_use]
pub fn is_under_way(segment: &Segment<'_>) -> bool {
    let large = segment.header.options.stamps.is_some_and(|stamps| match Stamp::parse(stamps.echo) {
        Stamp::Large => true,
        Stamp::Opening { .. } => {
            !segment.has_data_or_fin() && !segment.header.options.sack.blocks().is_empty()
        }
        _ => false,
    });
    large && segment.has(TcpFlags::ACK) && !segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::RST)
}
