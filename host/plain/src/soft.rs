//! What may be forgotten at any time: the answers lately under way, so that an acknowledgement without a request is enough
//! to send what was lost, or what the client's window did not take before. It makes answers come sooner and changes no
//! octet of them: everything it sends, the client's next repetition of its request would bring too.

use crate::answer::Answer;
use crate::codec::{Class, Flow, MAX_ANSWER};
use crate::flight::{Cut, EVERYWHERE, Flight};
use crate::segment::Segment;
use crate::small::{Decision, Site, Under, have};
use crate::stamp::Answering;
use crate::verdict::{Handoff, Handshake, Reason, Verdict};

/// Octets for which one bit of [`Slot::again`] stands: no segment is as short, unless a window made it so.
const GRAIN: u32 = 512;
/// As many octets beyond a hole are enough to take what is missing for lost (RFC 6675's three segments, about).
const REORDERED: u32 = 3 * EVERYWHERE;

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The words of its flow.
    flow: Flow,
    answer: Answer,
    start: u32,
    /// The sequence number of the request.
    seq: u32,
    stamp: Option<Answering>,
    cut: Cut,
    /// Octets of the answer.
    length: u32,
    /// Octets that were sent, whatever became of them.
    high: u32,
    /// Segments that were sent again: each is once.
    again: u32,
}

/// Answers under way, a bounded number; a new one takes the place of an older one.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[Option<Slot>]>,
}

impl Ring {
    /// A ring for so many answers, rounded up to a power of two.
    #[must_use]
    pub fn new(size: usize) -> Ring {
        Ring { slots: vec![None; size.max(1).next_power_of_two()].into() }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.slots.fill(None);
    }

    /// Octets that it takes, however many connections there are.
    #[must_use]
    pub fn octets(&self) -> usize {
        size_of_val(&*self.slots)
    }

    fn slot(&mut self, flow: &Flow) -> &mut Option<Slot> {
        let at = flow.spread() as usize & (self.slots.len() - 1);
        &mut self.slots[at]
    }
}

/// A service, and what this replica of it may forget.
#[derive(Debug)]
pub struct Replica {
    /// The service.
    pub site: Site,
    /// The memory, if there is one.
    pub ring: Option<Ring>,
}

impl Replica {
    /// What a segment from a client comes to: as [`Site::judge`] says, and more where the ring remembers.
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
                    .and_then(|slot| heard(site, slot, segment, at, path))
                    .unwrap_or(Verdict::Drop(Reason::Acknowledgement))
            }
            Decision::Welcome(header) => {
                // Another connection from the same port.
                if slot.as_ref().is_some_and(|slot| slot.flow == flow) {
                    *slot = None;
                }
                Verdict::Say(header)
            }
            other => other.verdict(segment),
        }
    }
}

/// Remembers an answer, and gives what is sent of it.
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

/// What becomes of a client that sends more requests while an answer is under way, `at` bytes of all answers having come: the
/// kernel takes it over. It needs the answer, to repeat it, and so can only where the answer is remembered; else the client
/// repeats its requests when it has the answer.
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
    // A client sends no more than our window before it hears from the kernel.
    let is_near = segment.header.seq.wrapping_sub(receive_next) <= u32::from(u16::MAX);
    if slot.answer.closes() || !is_near {
        return None;
    }
    let (mss, scale, answer) = (class.mss(), Some(stamp.scale), Some(stamp.value()));
    let handshake = Handshake { mss, scale, receive_next, start: slot.start, answer };
    let under = Under { answer: slot.answer, at, seq: slot.seq, stamp: slot.stamp, cut: slot.cut };
    Some(Handoff { handshake, flight: site.flight(segment, &under, None, |_| false), at })
}

/// What is sent to a client that has so much of an answer.
fn heard<'t>(
    site: &'t Site,
    slot: &mut Slot,
    segment: &Segment<'_>,
    at: u32,
    path: Option<u16>,
) -> Option<Verdict<'t>> {
    // Of a connection that came after, or from before.
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
