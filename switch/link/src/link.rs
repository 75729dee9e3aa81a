//! One direction of a link, with frames.

use rivulet_pktio::{Checksum, IoError, PacketIo, TxFrame};

use crate::slab::{Slab, Slot};
use crate::{Counters, Delivery, Settings, Shaper, mark_congestion};

/// Largest number of frames sent in one call.
const BATCH: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Held {
    slot: Slot,
    len: u32,
    checksum: Checksum,
}

/// Counters of a link: of its shaper, and of its far end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Counters of the shaper.
    pub shaper: Counters,
    /// ECN-capable packets with CE set.
    pub ce_marked: u64,
    /// Frames dropped at the far end because the interface had no room or was down.
    pub refused: u64,
}

/// A shaper that stores frames and sends them to an interface when they are due.
pub struct Link {
    shaper: Shaper<Held>,
    slab: Slab,
    due: Vec<Delivery<Held>>,
    ce_marked: u64,
    refused: u64,
}

impl Link {
    /// Creates an empty link; the seed determines its random choices.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        Link {
            shaper: Shaper::new(settings, seed),
            slab: Slab::new(),
            due: Vec::with_capacity(BATCH),
            ce_marked: 0,
            refused: 0,
        }
    }

    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        self.shaper.settings()
    }

    /// See [`Shaper::set`].
    pub fn set(&mut self, now: u64, settings: Settings) {
        self.shaper.set(now, settings);
    }

    /// Counters since the link was created.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        LinkCounters { shaper: self.shaper.counters(), ce_marked: self.ce_marked, refused: self.refused }
    }

    /// Whether the link is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shaper.is_empty()
    }

    /// Adds a frame, or drops and counts it.
    pub fn offer(&mut self, now: u64, frame: &[u8], checksum: Checksum) {
        self.offer_parts(now, frame, &[], checksum);
    }

    /// Like [`offer`](Self::offer), for a frame in two parts.
    pub fn offer_parts(&mut self, now: u64, head: &[u8], rest: &[u8], checksum: Checksum) {
        let Some(slot) = self.slab.put(head, rest) else {
            self.refused += 1;
            return;
        };
        let len = head.len() + rest.len();
        let held = Held { slot, len: len as u32, checksum };
        if let Err((held, _)) = self.shaper.offer(now, len, held) {
            self.slab.release(held.slot);
        }
    }

    /// When to call [`deliver`](Self::deliver) next, in nanoseconds.
    #[must_use]
    pub fn next_time(&self) -> Option<u64> {
        self.shaper.next_time()
    }

    /// Sends the frames due by `now` and returns how many the interface accepted. Frames without
    /// room are dropped and counted, as by a device with a full ring.
    pub fn deliver(&mut self, now: u64, io: &mut dyn PacketIo) -> Result<usize, IoError> {
        let mut total = 0;
        let mut result = Ok(());
        loop {
            let mut copies = 0;
            self.due.clear();
            // Leave room for a duplicated frame.
            while copies + 2 <= BATCH {
                let Some(delivery) = self.shaper.pop(now) else { break };
                copies += usize::from(delivery.copies);
                if delivery.mark && delivery.copies > 0 {
                    let Held { slot, len, .. } = delivery.item;
                    let marked = mark_congestion(&mut self.slab.get_mut(slot)[..len as usize]);
                    self.ce_marked += u64::from(marked);
                }
                self.due.push(delivery);
            }
            if self.due.is_empty() {
                return result.map(|()| total);
            }
            let mut frames = [TxFrame::default(); BATCH];
            let mut n = 0;
            for delivery in &self.due {
                let Held { slot, len, checksum } = delivery.item;
                let frame = &self.slab.get(slot)[..len as usize];
                for _ in 0..delivery.copies {
                    frames[n] = TxFrame { checksum, ..TxFrame::new(frame) };
                    n += 1;
                }
            }
            let sent = if n == 0 { Ok(0) } else { io.send(&frames[..n]) };
            let took = *sent.as_ref().unwrap_or(&0);
            total += took;
            self.refused += (n - took) as u64;
            for delivery in &self.due {
                self.slab.release(delivery.item.slot);
            }
            if let Err(e) = sent {
                // The other due frames are dropped too.
                result = Err(e);
            }
        }
    }
}
