//! Large answers in the event loop: handles acknowledgements, sends what the windows allow, and
//! probes silent clients when their timers are due.

use rivulet_packet::eth;
use rivulet_pktio::{Backend, Checksum, IoError, PacketIo, Segmentation, SegmentationKind, TxFrame};
use rivulet_plain::{Asked, Packet, Reason, Segment, Stamp, is_placed, is_under_way};

use super::Server;
use super::door::{Back, Door, Objects};
use super::kernel::Kernel;

/// How a segment relates to the large answers.
pub(super) enum Disposition {
    /// Not at all: judge it as any other segment.
    Unrelated,
    /// The segment belongs to a large answer, which may now have data to send.
    Handled,
    /// The segment looks like one of a large answer but belongs to none.
    Unknown,
    /// It has the form of such a segment but belongs to a connection of this host's kernel.
    Kernel,
    /// It has the form of such a segment; the kernel of another replica may have its connection.
    Elsewhere,
}

impl Objects {
    /// Handles a segment that has the form of a large answer's acknowledgement. `kernel`: may have
    /// the connection, while plain TCP moves between the kernel and stateless TCP. `forwarded`: the
    /// other replicas were asked already.
    pub(super) fn handle_ack(
        &mut self,
        segment: &Segment<'_>,
        path: Option<u16>,
        back: Back,
        now: u64,
        kernel: Option<&Kernel>,
        forwarded: bool,
    ) -> Disposition {
        let Some(downloads) = self.downloads.as_mut().filter(|_| is_under_way(segment)) else {
            return Disposition::Unrelated;
        };
        let lacks_the_beginning =
            segment.header.options.stamps.is_some_and(|stamps| Stamp::parse(stamps.echo) != Stamp::Large);
        if lacks_the_beginning && !downloads.has_state_for(segment) {
            return Disposition::Unrelated;
        }
        let site = &self.replica.site;
        if let Some(kernel) = kernel
            && !downloads.has_state_for(segment)
            && is_placed(site, segment)
        {
            if kernel.has(segment) {
                return Disposition::Kernel;
            }
            if !forwarded {
                return Disposition::Elsewhere;
            }
        }
        let refused = downloads.hear(site, segment, path, back, now);
        if let Some(reason) = refused {
            tracing::trace!(client = %segment.header.src, ?reason, "a large answer");
        }
        match refused {
            Some(Reason::Cookie | Reason::Stamp) => Disposition::Unknown,
            _ => Disposition::Handled,
        }
    }

    /// Starts a large answer.
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

/// Maximum bytes of data in a piece that the kernel or device cuts into segments: the limit of an
/// IP packet, less its headers.
const MOST: u32 = 65_000;
/// Length of the Ethernet, IP and TCP headers in bytes.
const HEADERS: usize = 14 + 40 + 60;

/// Gives the interface several segments as one piece (segmentation offload). Returns the number of
/// pieces accepted.
fn send_whole(packet: &Packet<'_, Back>, size: u16, io: &mut dyn PacketIo) -> Result<usize, IoError> {
    let Back { ethernet, ether_type } = packet.way;
    if ethernet.vlan.is_some() {
        // Some kernels do not find the headers behind a VLAN tag.
        return Ok(0);
    }
    let mut head = [0; HEADERS];
    let lead = ethernet.length();
    let (true, Ok((length, body))) =
        (ethernet.fill(&mut head, ether_type), packet.write_head(&mut head[lead..]))
    else {
        // Not all parts could be assembled.
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

/// Selects the large answers that send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Large answers with a segment received just now.
    Acknowledged,
    /// Also those with an expired timer. Use it only when all received frames have been handled.
    Expired,
}

impl Server {
    /// Sends the segments of large answers, as long as the interface has room.
    pub(super) fn send_downloads(&mut self, due: Due) {
        let now = self.now();
        let mut most = if self.io.backend() == Backend::AfPacket { MOST } else { 0 };
        for n in 0..self.running.len() {
            while self.has_room() {
                let Some(Door::Objects(objects)) = &mut self.running[n].plain else { break };
                let Objects { replica, downloads: Some(downloads) } = objects.as_mut() else { break };
                let acknowledged = downloads.next_received(&replica.site, now, most);
                let expired = || (due == Due::Expired).then(|| downloads.next(&replica.site, now)).flatten();
                let Some(packet) = acknowledged.or_else(expired) else { break };
                let Back { ethernet, ether_type } = packet.way;
                if let Some(size) = packet.cut() {
                    match send_whole(&packet, size, self.io.as_mut()) {
                        Ok(1..) => {}
                        // It will wait for room one segment at a time.
                        Ok(0) => {
                            most = 0;
                            downloads.put_back(&packet);
                        }
                        Err(e) => {
                            self.handle_io_error(&e);
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

    /// Reports the state of the other replicas to the large answers.
    pub(super) fn report_peers(&mut self) {
        let ((since, died), now) = (self.place.seats().peers(), self.now());
        for running in &mut self.running {
            let Some(Door::Objects(objects)) = &mut running.plain else { continue };
            if let Some(downloads) = &mut objects.downloads {
                downloads.know_others(since, died, now);
            }
        }
    }

    /// When a large answer is due next, microseconds; 0 if it has something to send that found no
    /// room.
    pub(super) fn downloads_due(&self) -> Option<u64> {
        let doors = self.running.iter().filter_map(|running| match &running.plain {
            Some(Door::Objects(objects)) => objects.downloads.as_ref(),
            _ => None,
        });
        doors.filter_map(|downloads| if downloads.is_busy() { Some(0) } else { downloads.deadline() }).min()
    }
}
