//! Large answers on the turn: what their clients acknowledge is taken, what may be sent is, and whoever is silent is asked when
//! his time has come.

use rivulet_packet::EthHeader;
use rivulet_plain::{Asked, Segment, is_under_way};

use super::Server;
use super::plain::{Door, Objects};

/// Where a client's segments go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    pub(super) ethernet: EthHeader,
    pub(super) ether_type: u16,
}

impl Objects {
    /// Whether a segment is taken for that of a large answer's client; there may be something to send.
    pub(super) fn hear(&mut self, segment: &Segment<'_>, path: Option<u16>, back: Back, now: u64) -> bool {
        let Some(downloads) = self.downloads.as_mut().filter(|_| is_under_way(segment)) else { return false };
        if let Some(reason) = downloads.hear(&self.replica.site, segment, path, back, now) {
            tracing::trace!(client = %segment.header.src, ?reason, "a large answer");
        }
        true
    }

    /// Begins a large answer.
    pub(super) fn begin(
        &mut self,
        segment: &Segment<'_>,
        asked: &Asked,
        path: Option<u16>,
        back: Back,
        now: u64,
    ) {
        if let Some(downloads) = &mut self.downloads {
            downloads.begin(&self.replica.site, segment, asked, path, back, now);
        }
    }
}

impl Server {
    /// Sends what large answers have to send, as far as there is room.
    pub(super) fn send_downloads(&mut self) {
        let now = self.now();
        for n in 0..self.running.len() {
            while self.has_room() {
                let Some(Door::Objects(objects)) = &mut self.running[n].plain else { break };
                let Objects { replica, downloads } = objects.as_mut();
                let Some(packet) = downloads.as_mut().and_then(|d| d.next(&replica.site, now)) else { break };
                let Back { ethernet, ether_type } = packet.way;
                let (lead, length) = (ethernet.length(), packet.length());
                match self.io.reserve(lead + length) {
                    Some(room) => {
                        if ethernet.fill(room, ether_type) && packet.write(&mut room[lead..]).is_ok() {
                            self.io.commit(lead + length);
                        } else {
                            self.counters.unbuilt += 1;
                        }
                    }
                    None => self.counters.unsent += 1,
                }
            }
        }
    }

    /// When that is next, microseconds; 0 if there is something to send that found no room.
    pub(super) fn downloads_due(&self) -> Option<u64> {
        let doors = self.running.iter().filter_map(|running| match &running.plain {
            Some(Door::Objects(objects)) => objects.downloads.as_ref(),
            _ => None,
        });
        doors.filter_map(|downloads| if downloads.is_busy() { Some(0) } else { downloads.deadline() }).min()
    }
}
