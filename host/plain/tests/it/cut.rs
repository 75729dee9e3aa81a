//! Several segments in one packet, which the kernel or a device divides: the bytes on the wire
//! equal those of single segments.

use rivulet_packet::TcpFlags;
use rivulet_plain::{Downloads, Header, Packet, Segment, Site, Verdict, is_under_way};

use crate::support::client::{Client, Nature};
use crate::support::{bodies, content, get, site_of};

const MOST: u32 = 65_000;

/// Divides a packet as a kernel does: each piece gets the headers with its sequence number, and
/// only the last one keeps PSH and FIN.
fn cut(packet: &Packet<'_, ()>) -> Vec<Vec<u8>> {
    let mut octets = vec![0; packet.length()];
    packet.write(&mut octets).unwrap();
    let Some(size) = packet.cut() else { return vec![octets] };
    let mut head = [0; 100];
    let (length, data) = packet.write_head(&mut head).unwrap();
    // The partial checksum differs.
    let sum = if head[0] >> 4 == 4 { 36 } else { 56 };
    octets[sum..sum + 2].copy_from_slice(&head[sum..sum + 2]);
    assert_eq!((&head[..length], data), octets.split_at(length));
    let header = Segment::parse(&octets).unwrap().header;
    let pieces: Vec<_> = data.chunks(size.into()).collect();
    let piece = |(n, data): (usize, &&[u8])| {
        let not_here = if n + 1 < pieces.len() { TcpFlags::FIN | TcpFlags::PSH } else { 0 };
        let seq = header.seq.wrapping_add(n as u32 * u32::from(size));
        let header = Header { seq, flags: TcpFlags(header.flags.0 & !not_here), ..header };
        let mut piece = vec![0; header.length()];
        piece.extend_from_slice(data);
        header.finish(&mut piece, data.len()).unwrap();
        piece
    };
    pieces.iter().enumerate().map(piece).collect()
}

/// Two replicas that get the same segments: one sends single segments, the other packets of
/// several, of which every third cannot be sent at first.
struct Twins {
    site: Site,
    one: Downloads<()>,
    whole: Downloads<()>,
    /// Number of packets with several segments, and of the segments in them.
    pieces: usize,
    cut: usize,
}

impl Twins {
    fn hear(&mut self, packet: &[u8], now: u64) -> Option<Vec<u8>> {
        let segment = Segment::parse(packet).unwrap();
        if is_under_way(&segment) {
            for downloads in [&mut self.one, &mut self.whole] {
                let _ = downloads.hear(&self.site, &segment, None, (), now);
            }
            return None;
        }
        match self.site.judge(&segment, 29_000_000, None) {
            Verdict::Begin(asked) => {
                for downloads in [&mut self.one, &mut self.whole] {
                    downloads.begin(&self.site, &segment, &asked, None, (), now);
                }
                None
            }
            Verdict::Say(header) => {
                let mut reply = vec![0; header.length()];
                header.finish(&mut reply, 0).unwrap();
                Some(reply)
            }
            _ => None,
        }
    }

    /// The segments that both replicas send.
    fn say(&mut self, now: u64) -> Vec<Vec<u8>> {
        let one = std::iter::from_fn(|| self.one.next_received(&self.site, now, 0));
        let one: Vec<_> = one.flat_map(|packet| cut(&packet)).collect();
        let (mut whole, mut most) = (Vec::new(), MOST);
        while let Some(packet) = self.whole.next_received(&self.site, now, most) {
            let segments = cut(&packet);
            most = MOST;
            if packet.cut().is_some() {
                (self.pieces, self.cut) = (self.pieces + 1, self.cut + segments.len());
                if self.pieces.is_multiple_of(3) {
                    self.whole.put_back(&packet);
                    most = 0;
                    continue;
                }
            }
            whole.extend(segments);
        }
        let same = one.iter().zip(&whole).take_while(|(one, whole)| one == whole).count();
        assert!(same == one.len() && same == whole.len(), "{same} of {} and {}", one.len(), whole.len());
        one
    }
}

#[test]
fn divided_packets_equal_single_segments() {
    for (size, mss, v6) in [(3_000_000, 1460, false), (400_000, 536, false), (3_000_000, 1440, true)] {
        let downloads = || Downloads::new(4);
        let site = Site { large: true, ..site_of(&[size]) };
        let mut twins = Twins { site, one: downloads(), whole: downloads(), pieces: 0, cut: 0 };
        let nature = Nature { mss, v6, buffer: 400_000, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 77, &[get(size, "")]);
        let (mut now, mut count) = (0, 0);
        let mut said = client.open(now);
        while !said.is_empty() {
            now += 10_000;
            // All received packets are processed before any is sent.
            let mut back: Vec<_> = said.iter().filter_map(|packet| twins.hear(packet, now)).collect();
            back.extend(twins.say(now));
            said.clear();
            for segment in back {
                count += 1;
                // Two segments are lost, and retransmitted beside new data.
                if count != 60 && count != 200 {
                    said.extend(client.receive(now, &segment));
                }
            }
        }
        assert!(client.is_done(), "{size}: stuck with {} octets", client.stream.len());
        assert!(bodies(&client.stream) == [content(size)], "{size}: other octets");
        // The data of a window is sent in a few packets, not in one for each acknowledgement.
        assert!(
            twins.cut > 4 * twins.pieces && twins.cut * 2 > count,
            "{size}: {} in {}",
            twins.cut,
            twins.pieces
        );
    }
}

/// After a pause, a client's segments may wait in the socket, so the replica must process them
/// before it considers the client silent.
#[test]
fn no_probe_before_received_segments_are_handled() {
    let size = 300_000;
    let downloads = || Downloads::new(4);
    let site = Site { large: true, ..site_of(&[size]) };
    let mut twins = Twins { site, one: downloads(), whole: downloads(), pieces: 0, cut: 0 };
    let nature = Nature { buffer: 400_000, ..Nature::default() };
    let mut client = Client::new(nature, 4000, 77, &[get(size, "")]);
    let (mut now, mut sent) = (0, Vec::new());
    let mut said = client.open(now);
    for _ in 0..4 {
        let mut back: Vec<_> = said.iter().filter_map(|packet| twins.hear(packet, now)).collect();
        back.extend(twins.say(now));
        said = back.iter().flat_map(|segment| client.receive(now, segment)).collect();
        sent.extend(back);
        // Longer than any pause before a probe.
        now += 900_000;
        assert!(twins.one.deadline().is_none_or(|deadline| deadline <= now));
        assert!(
            twins.one.next_received(&twins.site, now, 0).is_none(),
            "somebody is asked whose word may be here"
        );
    }
    // Each packet has new data.
    for packet in &said {
        twins.hear(packet, now);
    }
    let new = twins.say(now);
    let first = |packet: &Vec<u8>| Segment::parse(packet).unwrap().header.seq;
    assert!(
        !new.is_empty() && new.iter().all(|packet| sent.iter().all(|before| first(before) != first(packet)))
    );
    assert!(twins.one.next(&twins.site, now).is_none(), "he has been heard");
}
