//! Large answers on the turn: what their clients acknowledge is taken, what may be sent is, and whoever is silent is asked when
//! his time has come.

use rivulet_packet::{EthHeader, eth};
use rivulet_pktio::{Backend, Checksum, IoError, PacketIo, Segmentation, SegmentationKind, TxFrame};
use rivulet_plain::{Asked, Packet, Reason, Segment, Stamp, is_placed, is_under_way};

use super::Server;
use super::kernel::Kernel;
use super::plain::{Door, Objects};

/// Where a client's segments go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    pub(super) ethernet: EthHeader,
    pub(super) ether_type: u16,
}

/// What a segment is to the large answers.
pub(super) enum Heard {
    /// Nothing: it is to be judged.
    Not,
    /// Of one of their clients. There may be something to send.
    Taken,
    /// It looks like one of those, and is none.
    Nobodys,
    /// It looks like one of those, and is the kernel's.
    Kernels,
    /// It may be one of those, and another replica's kernel may have it.
    Elsewhere,
}

impl Objects {
    /// Takes a segment that looks like one of a large answer's client. `kernel` may have its connection, while there are such; the others have
    /// been asked if it was `handed` on.
    pub(super) fn hear(
        &mut self,
        segment: &Segment<'_>,
        path: Option<u16>,
        back: Back,
        now: u64,
        kernel: Option<&Kernel>,
        handed: bool,
    ) -> Heard {
        let Some(downloads) = self.downloads.as_mut().filter(|_| is_under_way(segment)) else {
            return Heard::Not;
        };
        let lacks_the_beginning =
            segment.header.options.stamps.is_some_and(|stamps| Stamp::parse(stamps.echo) != Stamp::Large);
        if lacks_the_beginning && !downloads.knows(segment) {
            return Heard::Not;
        }
        let site = &self.replica.site;
        if let Some(kernel) = kernel
            && !downloads.knows(segment)
            && is_placed(site, segment)
        {
            if kernel.has(segment) {
                return Heard::Kernels;
            }
            if !handed {
                return Heard::Elsewhere;
            }
        }
        let refused = downloads.hear(site, segment, path, back, now);
        if let Some(reason) = refused {
            tracing::trace!(client = %segment.header.src, ?reason, "a large answer");
        }
        match refused {
            Some(Reason::Cookie | Reason::Stamp) => Heard::Nobodys,
            _ => Heard::Taken,
        }
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

/// Octets of data that are sent in one piece at most, for the kernel or the device to cut: what an IP packet takes beside its headers.
const MOST: u32 = 65_000;
/// Octets of Ethernet, IP and TCP headers.
const HEADERS: usize = 14 + 40 + 60;

/// Hands the interface several segments in one piece; how many pieces it took.
fn send_whole(packet: &Packet<'_, Back>, size: u16, io: &mut dyn PacketIo) -> Result<usize, IoError> {
    let Back { ethernet, ether_type } = packet.way;
    if ethernet.vlan.is_some() {
        // Not every kernel finds the headers behind a tag.
        return Ok(0);
    }
    let mut head = [0; HEADERS];
    let lead = ethernet.length();
    let (true, Ok((length, body))) =
        (ethernet.fill(&mut head, ether_type), packet.write_head(&mut head[lead..]))
    else {
        // Not put together by anybody.
        return Ok(1);
    };
    let length = lead + length;
    let (kind, start) = match ether_type {
        eth::IPV4 => (SegmentationKind::Tcp4, lead + 20),
        _ => (SegmentationKind::Tcp6, lead + 40),
    };
    let checksum = Checksum::Partial { start: start as u16, offset: 16 };
    let segmentation = Some(Segmentation { kind, size, header_len: length as u16 });
    io.send(&[TxFrame { head: &head[..length], body, checksum, segmentation }])
}

/// Which large answers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Whose client was heard last.
    Heard,
    /// And those whose client has been silent for as long as they wait: of use only when all that came is heard.
    Silent,
}

impl Server {
    /// Sends what large answers have to send, as far as there is room.
    pub(super) fn send_downloads(&mut self, who: Who) {
        let now = self.now();
        let mut most = if self.io.backend() == Backend::AfPacket { MOST } else { 0 };
        for n in 0..self.running.len() {
            while self.has_room() {
                let Some(Door::Objects(objects)) = &mut self.running[n].plain else { break };
                let Objects { replica, downloads: Some(downloads) } = objects.as_mut() else { break };
                let heard = downloads.next_heard(&replica.site, now, most);
                let silent = || (who == Who::Silent).then(|| downloads.next(&replica.site, now)).flatten();
                let Some(packet) = heard.or_else(silent) else { break };
                let Back { ethernet, ether_type } = packet.way;
                if let Some(size) = packet.cut() {
                    match send_whole(&packet, size, self.io.as_mut()) {
                        Ok(1..) => {}
                        // Segment by segment it waits for room.
                        Ok(0) => {
                            most = 0;
                            downloads.put_back(&packet);
                        }
                        Err(e) => {
                            self.trouble(&e);
                            return;
                        }
                    }
                    continue;
                }
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

    /// Tells the large answers what is known of the other replicas.
    pub(super) fn tell_of_others(&mut self) {
        let ((since, died), now) = (self.place.seats().others(), self.now());
        for running in &mut self.running {
            let Some(Door::Objects(objects)) = &mut running.plain else { continue };
            if let Some(downloads) = &mut objects.downloads {
                downloads.know_others(since, died, now);
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
