//! Searches for announced connections of dead replicas, and for connections with a client that
//! sends by itself.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Generation, Pin, Stamped, Trods};
use rivulet_packet::BuildError;
use rivulet_packet::segment::TcpFlags;
use rivulet_plain::{Header, Options, Segment, Stamps, object_isn};

use super::hints::Hint;
use super::read::{Found, Reading, Told, read};
use crate::hold::HoldError;
use crate::wake::{PROBED, Prober};

/// Times of the probes, milliseconds after the first one.
const PROBES: [u64; 16] =
    [0, 30, 70, 120, 180, 250, 330, 420, 520, 640, 780, 1000, 1500, 3000, 10_000, 30_000];
/// For this long the search accepts only an answer to its own probe; after that it accepts any
/// segment of the client.
const FRESH: Duration = Duration::from_millis(200);
/// Time after which the search for a connection ends, even one that another replica should adopt.
const GIVE_UP: Duration = Duration::from_secs(60);
const LEAVE: Duration = Duration::from_secs(5);
/// Number of clients that are probed without a pause, and the pause after them.
const BURST: u32 = 16;
const PACE: Duration = Duration::from_millis(2);
/// How far a probe's acknowledgement number is below the client's next sequence number: the client
/// takes it for an old acknowledgement.
const OLD: u32 = 4096;
/// Limit on the connections that are searched for.
const MAX_LOST: usize = 65_536;

#[derive(Debug)]
struct Lost {
    hint: Option<Hint>,
    /// The replica that should adopt it; `None`: this one.
    other: Option<Pin>,
    began: Instant,
    first: Instant,
    probes: usize,
}

/// The announced connections that this replica searches for.
#[derive(Debug, Default)]
pub(super) struct LostOnes {
    all: HashMap<FlowKey, Lost>,
    due: BinaryHeap<Reverse<(Instant, FlowKey)>>,
    /// Connections that a client answered with a RST.
    gone: Vec<FlowKey>,
    /// Start of the current burst of probes, and their number so far.
    pace: Option<(Instant, u32)>,
}

impl LostOnes {
    /// Starts the search for a connection.
    pub fn look_for(
        &mut self,
        key: FlowKey,
        hint: Option<Hint>,
        other: Option<Pin>,
        now: Instant,
        programs: &Trods,
    ) -> Result<(), HoldError> {
        if self.all.len() >= MAX_LOST && !self.all.contains_key(&key) {
            return Ok(());
        }
        programs.park(&key)?;
        programs.unpin(&key)?;
        let (probes, at) = match other {
            None => (0, self.next(now)),
            Some(_) => (PROBES.len(), now + LEAVE),
        };
        self.due.push(Reverse((at, key)));
        self.all.insert(key, Lost { hint, other, began: now, first: at, probes });
        Ok(())
    }

    /// Whether a connection is searched for.
    pub fn has(&self, key: &FlowKey) -> bool {
        self.all.contains_key(key)
    }

    /// Whether this replica, and not another one, probes the client.
    pub fn is_probed(&self, key: &FlowKey) -> bool {
        self.all.get(key).is_some_and(|lost| lost.other.is_none())
    }

    /// Whether the search for a connection began at `then` or later.
    pub fn is_since(&self, key: &FlowKey, then: Instant) -> bool {
        self.all.get(key).is_some_and(|lost| lost.began >= then)
    }

    /// Whether the search uses an older hint than this one.
    pub fn is_behind(&self, key: &FlowKey, hint: &Hint) -> bool {
        let known = self.all.get(key).and_then(|lost| lost.hint.as_ref());
        known.is_some_and(|known| hint.is_after(known))
    }

    /// Ends the search, because another replica has the connection.
    pub fn forget(&mut self, key: &FlowKey, programs: &Trods) -> Result<(), HoldError> {
        if self.all.remove(key).is_some() {
            programs.unpark(key)?;
        }
        Ok(())
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Probes clients, and ends searches that took too long.
    pub fn turn<'r>(
        &mut self,
        now: Instant,
        programs: &Trods,
        prober: &Prober,
        reading: impl Fn(&FlowKey) -> Option<Reading<'r>>,
    ) -> Result<(), HoldError> {
        for key in std::mem::take(&mut self.gone) {
            self.forget(&key, programs)?;
        }
        while let Some(&Reverse((at, key))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            // The client has opened another connection between the same addresses and ports.
            if programs.stamps().get(&key)?.is_some() {
                self.forget(&key, programs)?;
                continue;
            }
            let Some(lost) = self.all.get_mut(&key) else { continue };
            if now >= lost.began + if lost.other.is_some() { LEAVE } else { GIVE_UP } {
                if let Some(pin) = lost.other {
                    programs.pin(&key, pin)?;
                }
                self.all.remove(&key);
                programs.unpark(&key)?;
                continue;
            }
            if lost.probes < PROBES.len() {
                lost.probes += 1;
                let next = PROBES.get(lost.probes).map(|ms| lost.first + Duration::from_millis(*ms));
                self.due.push(Reverse((next.unwrap_or(lost.began + GIVE_UP), key)));
                if let (Some(hint), Some(with)) = (&lost.hint, reading(&key))
                    && let Err(e) = probe(&key, hint, with, prober)
                {
                    tracing::debug!(error = %e, client = %key.client(), "not probed");
                }
            }
        }
        Ok(())
    }

    /// Processes a client's packet; returns the connection if the packet's numbers suffice to
    /// resume it.
    pub fn take_packet(
        &mut self,
        key: &FlowKey,
        packet: &[u8],
        with: Reading<'_>,
        now_ms: u64,
    ) -> Option<Box<Found>> {
        let segment = Segment::parse(packet).ok()?;
        let lost = self.all.get(key);
        let told = read(key, &segment, lost.and_then(|lost| lost.hint.as_ref()), with, now_ms);
        if matches!(told, Told::Gone) {
            self.gone.push(*key);
        }
        let Told::Found(found) = told else { return None };
        let began = lost.map_or(Duration::ZERO, |lost| lost.began.elapsed());
        // If the client has no byte of its response, no data can be on its way to it.
        let waits = !found.fresh && began < FRESH && !found.record.responses.is_empty();
        if waits && lost.is_none() {
            let stamped = Stamped { generation: Generation::default(), ..found.stamped };
            let hint = Hint { is_named: true, ..super::hint(&stamped) };
            let now = Instant::now();
            self.due.push(Reverse((now, *key)));
            let lost = Lost { hint: Some(hint), other: None, began: now, first: now, probes: 0 };
            self.all.insert(*key, lost);
        }
        if waits {
            return None;
        }
        self.all.remove(key);
        Some(found)
    }

    fn next(&mut self, now: Instant) -> Instant {
        let (at, count) = self.pace.filter(|(at, _)| *at >= now).unwrap_or((now, 0));
        let next = if count < BURST { (at, count + 1) } else { (at + PACE, 1) };
        self.pace = Some(next);
        next.0
    }
}

/// Probes the client of an announced connection with the SYN-ACK's sequence number and one byte,
/// under each key, and with several timestamps, one of which is new enough for PAWS.
fn probe(key: &FlowKey, hint: &Hint, with: Reading<'_>, prober: &Prober) -> io::Result<()> {
    let odd = hint.base >> 24 & 1 != 0;
    for (isn_key, _) in with.keys.iter().filter(|(_, of)| *of == odd) {
        let isn = object_isn(*isn_key, key.client(), key.service());
        for index in PROBED {
            let value = hint.base | u32::from(index) << 27;
            let packet = packet(key, hint.client_next, isn, value).map_err(io::Error::other)?;
            prober.send_packet(key.client(), &packet)?;
        }
    }
    Ok(())
}

/// The acknowledgement number of a probe.
pub(super) fn probed_ack(client_next: u32) -> u32 {
    client_next.wrapping_sub(OLD)
}

fn packet(key: &FlowKey, client_next: u32, isn: u32, value: u32) -> Result<Vec<u8>, BuildError> {
    let header = Header {
        src: key.service(),
        dst: key.client(),
        seq: isn,
        ack: probed_ack(client_next),
        flags: TcpFlags(TcpFlags::ACK),
        window: 1024,
        options: Options { stamps: Some(Stamps { value, echo: 0 }), ..Options::default() },
    };
    let mut packet = vec![0; header.length() + 1];
    header.finish(&mut packet, 1)?;
    Ok(packet)
}
