//! A port in the packet path.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rivulet_link::{Link, Settings};
use rivulet_pktio::{Checksum, IoError, PacketIo};

use crate::pcap::PortPcap;
use crate::ports::{NewPort, PortShared};

/// An interface with its port number, and optionally a link and pcap files.
pub struct Port {
    /// Its number.
    pub number: u32,
    /// `None` while its received frames are processed.
    pub io: Option<Box<dyn PacketIo>>,
    /// Shapes sent frames.
    pub link: Option<Link>,
    /// pcap files.
    pub pcap: Option<PortPcap>,
    /// The interface is gone, and its descriptor is out of the poll set.
    pub gone: bool,
    /// Written to since the last flush.
    pub dirty: bool,
    /// Frames that this port sends to itself while its received frames are processed, concatenated.
    pub hairpin: Vec<u8>,
    /// Lengths of the frames in `hairpin`.
    pub hairpin_lens: Vec<usize>,
    /// Frames lost here, in addition to those that `io` and `link` count.
    pub dropped: u64,
    /// Counters and state for other threads.
    pub shared: Arc<PortShared>,
}

/// Largest number of bytes that one received frame may send back to its own port.
const MAX_HAIRPIN: usize = 1 << 20;

impl Port {
    /// Creates an idle port.
    pub fn new(new: NewPort) -> Self {
        Port {
            number: new.number,
            io: Some(new.io),
            link: new.link.map(|settings| Link::new(settings, u64::from(new.number))),
            pcap: new.pcap,
            gone: false,
            dirty: false,
            hairpin: Vec::new(),
            hairpin_lens: Vec::new(),
            dropped: 0,
            shared: new.shared,
        }
    }

    /// Sends a frame from this port. Returns true if the port needs a flush and was not waiting for
    /// one yet.
    pub fn emit(&mut self, now: u64, head: &[u8], rest: &[u8]) -> bool {
        if let Some(pcap) = &mut self.pcap {
            pcap.output.write(head, rest);
        }
        if let Some(link) = &mut self.link {
            link.offer_parts(now, head, rest, Checksum::Verified);
            return false;
        }
        let len = head.len() + rest.len();
        let Some(io) = &mut self.io else {
            if self.hairpin.len() + len > MAX_HAIRPIN {
                self.dropped += 1;
                return false;
            }
            self.hairpin.extend_from_slice(head);
            self.hairpin.extend_from_slice(rest);
            self.hairpin_lens.push(len);
            return false;
        };
        // Without room the frame is dropped and counted there.
        if let Some(room) = io.reserve(len) {
            room[..head.len()].copy_from_slice(head);
            room[head.len()..].copy_from_slice(rest);
            io.commit(len);
        }
        !std::mem::replace(&mut self.dirty, true)
    }

    /// Sends the frames in `hairpin` by the port's own packet I/O, which the caller has taken out
    /// of the port.
    pub fn send_hairpin(&mut self, io: &mut dyn PacketIo) {
        let mut at = 0;
        for len in self.hairpin_lens.drain(..) {
            if let Some(room) = io.reserve(len) {
                room.copy_from_slice(&self.hairpin[at..at + len]);
                io.commit(len);
            }
            at += len;
        }
        self.hairpin.clear();
    }

    /// Sends committed frames.
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.dirty = false;
        self.io.as_mut().map_or(Ok(()), |io| io.flush())
    }

    /// Sends frames that have reached the end of the link.
    pub fn deliver(&mut self, now: u64) -> Result<(), IoError> {
        match (&mut self.link, &mut self.io) {
            (Some(link), Some(io)) if link.next_time().is_some_and(|t| t <= now) => {
                link.deliver(now, &mut **io).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Sets or removes the link. Removing it sends its frames at once.
    pub fn set_link(&mut self, now: u64, settings: Option<Settings>) {
        match (&mut self.link, settings) {
            (Some(link), Some(settings)) => link.set(now, settings),
            (None, Some(settings)) => self.link = Some(Link::new(settings, u64::from(self.number))),
            (Some(link), None) => {
                link.set(now, Settings::default());
                if let Some(io) = &mut self.io {
                    // Frames that cannot be sent are lost with the link.
                    let _ = link.deliver(u64::MAX, &mut **io);
                }
                self.dropped += link_losses(link);
                self.link = None;
            }
            (None, None) => {}
        }
    }

    /// Updates the counters and state for other threads.
    pub fn publish(&mut self) {
        let Some(io) = &mut self.io else { return };
        let stats = io.stats();
        let s = &self.shared;
        s.rx_packets.store(stats.rx_frames, Ordering::Relaxed);
        s.rx_bytes.store(stats.rx_bytes, Ordering::Relaxed);
        s.rx_dropped.store(stats.rx_dropped + stats.rx_errors, Ordering::Relaxed);
        s.tx_packets.store(stats.tx_frames, Ordering::Relaxed);
        s.tx_bytes.store(stats.tx_bytes, Ordering::Relaxed);
        let link = self.link.as_ref().map_or(0, link_losses);
        s.tx_dropped.store(stats.tx_dropped + stats.tx_errors + link + self.dropped, Ordering::Relaxed);
    }
}

/// Frames that a link lost at random or for lack of room.
fn link_losses(link: &Link) -> u64 {
    let c = link.counters();
    c.shaper.queue_drops + c.shaper.flight_drops + c.shaper.lost + c.refused
}
