//! Soft state: the answers that were sent recently, so that an acknowledgement without a request
//! suffices to send data that was lost or exceeded the client's window. Without it the same bytes
//! would be sent later, when the client repeats its request.

use crate::answer::Answer;
use crate::codec::{Class, Flow, MAX_ANSWER};
use crate::decision::{Decision, Under, have};
use crate::flight::{Cut, EVERYWHERE, Flight};
use crate::segment::Segment;
use crate::small::Site;
use crate::stamp::Answering;
use crate::verdict::{Handoff, Handshake, Reason, Verdict};

/// Bytes for one bit of [`Slot::again`]: segments are longer, unless a window limits them.
const GRAIN: u32 = 512;
/// Bytes after a hole that show a loss (about the three segments of RFC 6675).
const REORDERED: u32 = 3 * EVERYWHERE;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The words of its flow.
    flow: Flow,
    answer: Answer,
    start: u32,
    /// The sequence number at which the request begins.
    seq: u32,
    stamp: Option<Answering>,
    cut: Cut,
    /// Length of the answer, bytes.
    length: u32,
    /// End of the bytes that were sent so far.
    high: u32,
    /// Bit set of the segments that were retransmitted; each is retransmitted once at most.
    again: u32,
}

/// Answers in progress, a bounded number; a new one replaces an older one.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[Option<Slot>]>,
}

impl Ring {
    /// A ring for `size` answers, rounded up to a power of two.
    #[must_use]
    pub fn new(size: usize) -> Ring {
        Ring { slots: vec![None; size.max(1).next_power_of_two()].into() }
    }

    /// Drops all answers.
    pub fn clear(&mut self) {
        self.slots.fill(None);
    }

    /// Memory in bytes, which does not depend on the number of connections.
    #[must_use]
    pub fn octets(&self) -> usize {
        size_of_val(&*self.slots)
    }

    fn slot(&mut self, flow: &Flow) -> &mut Option<Slot> {
        let at = flow.spread() as usize & (self.slots.len() - 1);
        &mut self.slots[at]
    }
}

/// A service, with the soft state of this replica.
#[derive(Debug)]
pub struct Replica {
    /// The service.
    pub site: Site,
    /// The soft state; `None`: this replica remembers nothing.
    pub ring: Option<Ring>,
}

impl Replica {
    /// The verdict on a client's segment: that of [`Site::judge`], or a better one if the ring has
    /// the answer.
    #[must_use]
    pub fn receive<'t>(&'t mut self, segment: &Segment<'_>, minute: u32, path: Option<u16>) -> Verdict<'t> {
        let flow = Flow::new(segment.header.src, segment.header.dst);
        let site = &self.site;
        let decision = site.decide(segment, &flow, minute);
        let Some(slot) = self.ring.as_mut().map(|ring| ring.slot(&flow)) else {
            return match decision {
                Decision::Answer(under) => Verdict::Answer(site.flight(segment, &under, path, |_| true)),
                Decision::Continue(under, handshake) => {
                    let flight = site.flight(segment, &under, path, |_| true);
                    Verdict::Continue(Handoff { handshake, flight, at: under.at })
                }
                other => other.verdict(segment),
            };
        };
        match decision {
            Decision::Answer(under) => Verdict::Answer(begin(site, slot, flow, segment, &under, path)),
            Decision::Continue(under, handshake) => {
                let flight = begin(site, slot, flow, segment, &under, path);
                Verdict::Continue(Handoff { handshake, flight, at: under.at })
            }
            Decision::Ahead(class, at) => {
                let there = slot.as_ref().filter(|slot| slot.flow == flow);
                there
                    .and_then(|slot| ahead(site, slot, segment, class, at))
                    .map_or(Verdict::Drop(Reason::Early), Verdict::Continue)
            }
            Decision::Heard { start, at } => {
                let there = slot.as_mut().filter(|slot| slot.flow == flow && slot.start == start);
                there
                    .and_then(|slot| next_segments(site, slot, segment, at, path))
                    .unwrap_or(Verdict::Drop(Reason::Acknowledgement))
            }
            Decision::Welcome(header) => {
                // The slot may hold another connection from the same port.
                if slot.as_ref().is_some_and(|slot| slot.flow == flow) {
                    *slot = None;
                }
                Verdict::Say(header)
            }
            other => other.verdict(segment),
        }
    }
}

/// Stores an answer and returns its first segments.
fn begin<'t>(
    site: &'t Site,
    slot: &mut Option<Slot>,
    flow: Flow,
    segment: &Segment<'_>,
    under: &Under,
    path: Option<u16>,
) -> Flight<'t> {
    let flight = site.flight(segment, under, path, |_| true);
    let high = flight.pieces().iter().map(|piece| piece.to).max().unwrap_or(0);
    *slot = Some(Slot {
        flow,
        answer: under.answer,
        start: under.stamp.map_or(0, |stamp| stamp.start),
        seq: under.seq,
        stamp: under.stamp,
        cut: under.cut,
        length: flight.octets.len(),
        high: high.max(under.at),
        again: 0,
    });
    flight
}

/// Passes a connection to the kernel if the client sends further requests while an answer is in
/// progress; `at`: bytes of all answers that the client has. The kernel may have to retransmit the
/// answer, so this works only while the ring has it; otherwise the client repeats its requests once
/// it has the answer.
fn ahead<'t>(
    site: &'t Site,
    slot: &Slot,
    segment: &Segment<'_>,
    class: Class,
    at: u32,
) -> Option<Handoff<'t>> {
    let stamp = slot.stamp?;
    let at = at.checked_sub(slot.start).filter(|at| *at <= slot.length)?;
    let receive_next = slot.seq.wrapping_add(stamp.length_from(slot.seq));
    // A client sends at most one of this server's windows before the kernel's first segment.
    let is_near = segment.header.seq.wrapping_sub(receive_next) <= u32::from(u16::MAX);
    if slot.answer.closes() || !is_near {
        return None;
    }
    let (mss, scale, answer) = (class.mss(), Some(stamp.scale), Some(stamp.value()));
    let handshake = Handshake { mss, scale, receive_next, start: slot.start, answer };
    let under = Under { answer: slot.answer, at, seq: slot.seq, stamp: slot.stamp, cut: slot.cut };
    Some(Handoff { handshake, flight: site.flight(segment, &under, None, |_| false), at })
}

/// The segments for a client that has this much of an answer.
fn next_segments<'t>(
    site: &'t Site,
    slot: &mut Slot,
    segment: &Segment<'_>,
    at: u32,
    path: Option<u16>,
) -> Option<Verdict<'t>> {
    // The segment belongs to a later or an earlier connection between the same ports.
    let sent = segment.header.seq.wrapping_sub(slot.seq);
    if sent == 0 || sent > u32::from(u16::MAX) || at >= slot.length || at > MAX_ANSWER {
        return None;
    }
    let beyond = have(segment, at);
    let top = beyond.iter().map(|&(_, to)| to).max().unwrap_or(0);
    let under = |at| Under { answer: slot.answer, at, seq: slot.seq, stamp: slot.stamp, cut: slot.cut };
    let flight = if top > at {
        let above = |to: u32| -> u32 { beyond.iter().map(|&(a, b)| b.saturating_sub(a.max(to))).sum() };
        let mut again = slot.again;
        let flight = site.flight(segment, &under(at), path, |piece| {
            let bit = 1 << (piece.from / GRAIN % 32);
            let lost = piece.to <= top && (above(piece.to) >= REORDERED || top >= slot.length);
            let wanted = lost && again & bit == 0;
            again |= if wanted { bit } else { 0 };
            wanted
        });
        slot.again = again;
        flight
    } else if at >= slot.high {
        let flight = site.flight(segment, &under(at), path, |_| true);
        slot.high = flight.pieces().iter().map(|piece| piece.to).max().unwrap_or(slot.high).max(slot.high);
        flight
    } else {
        return None;
    };
    (!flight.pieces().is_empty()).then_some(Verdict::Answer(flight))
}
