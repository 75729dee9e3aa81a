//! What the fuzz targets do with arbitrary bytes as packets, and the test that replays their
//! corpus.

use rivulet_plain::dns::{self, MAX_DATAGRAM, Reply};
use rivulet_plain::{
    CookieKey, CookieKeys, Downloads, Entry, Flow, Handoff, Judged, Method, Object, Options, Protocol, Relay,
    Replica, Ring, Segment, Site, Table, Verdict, is_under_way, name, parse,
};

fn site() -> Site {
    let object = |size: usize| {
        let body: Box<[u8]> = (0..size).map(|n| n as u8).collect();
        Entry::Object(Object { kind: "text/plain".into(), hash: [size as u8; 16], body })
    };
    let entries = [10, 3000, 12_000, 40_000].map(|n| (n.to_string().into(), object(n)));
    let keys = CookieKeys { current: CookieKey::new([1; 8]), others: [Some(CookieKey::new([2; 8])), None] };
    Site { keys, table: Table::new(entries.into(), true).unwrap().into(), mtu: 1500, large: true }
}

/// Parses a head and its target: must not panic, or consume more than the input.
pub fn head(bytes: &[u8]) {
    use rivulet_plain::Parsed::{Line, Whole};
    if let Whole(request) | Line(request) = parse(bytes) {
        assert!(request.length <= bytes.len());
        if let Ok((name, _)) = name(request.target, request.method) {
            assert!(!name.starts_with(b"/"));
            assert!(!name.split(|b| *b == b'/').any(|part| part == b".."));
        }
    }
    let _ = (name(bytes, Method::Get), Options::parse(bytes));
}

/// Sends packets, each preceded by a two-byte length, to one replica. The first byte of each
/// selects the fields that are made valid, so that it passes the first checks. The output must be
/// bounded and well formed for any input.
pub fn step(bytes: &[u8]) {
    let mut replica = Replica { site: site(), ring: Some(Ring::new(4)) };
    let mut downloads = Downloads::new(4);
    for (n, (packet, right, _)) in packets(bytes).enumerate() {
        let Ok(segment) = Segment::parse(&packet) else { continue };
        let (minute, now) = (u32::from(right >> 6), n as u64 * 30_000);
        large(&mut replica, &mut downloads, &segment, minute, now);
        look(replica.receive(&segment, minute, (right & 32 != 0).then_some(600)), &segment, packet.len());
    }
}

/// Checks that what a segment causes in a large answer is bounded and well formed.
fn large(replica: &mut Replica, downloads: &mut Downloads<()>, segment: &Segment<'_>, minute: u32, now: u64) {
    if is_under_way(segment) {
        let _ = downloads.hear(&replica.site, segment, None, (), now);
    } else if let Verdict::Begin(asked) = replica.receive(segment, minute, None) {
        downloads.begin(&replica.site, segment, &asked, None, (), now);
    }
    let (mut out, mut sent) = ([0; 2048], 0);
    while let Some(packet) = downloads.next(&replica.site, now) {
        let n = packet.write(&mut out).expect("a packet of the interface's size");
        assert!(n <= 1500 && Segment::parse(&out[..n]).is_ok_and(|reply| reply.is_intact()));
        sent += n;
        assert!(sent < 100_000, "more than the object twice");
    }
}

/// The packets of an input, each with its first byte and the rest of the input.
fn packets(bytes: &[u8]) -> impl Iterator<Item = (Vec<u8>, u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (&[high, low, right], more) = rest.split_first_chunk::<3>()?;
        let length = usize::from(u16::from_be_bytes([high & 7, low])).min(more.len());
        let (packet, more) = more.split_at(length);
        rest = more;
        let mut packet = packet.to_vec();
        repair(&mut packet, right);
        Some((packet, right, more))
    })
}

/// Checks that the answer to a segment of this length is bounded, well formed, and sent to its
/// sender.
fn look(verdict: Verdict<'_>, segment: &Segment<'_>, length: usize) {
    let mut out = [0; 2048];
    let mut sent = 0;
    let mut said = |bytes: &[u8]| {
        let reply = Segment::parse(bytes).expect("what is said is well formed");
        assert!(reply.is_intact());
        assert_eq!((reply.header.src, reply.header.dst), (segment.header.dst, segment.header.src));
        sent += bytes.len();
    };
    match verdict {
        Verdict::Drop(_) | Verdict::Kernel(_) | Verdict::Begin(_) | Verdict::Adopt(..) => {}
        Verdict::Say(header) => {
            let n = header.finish(&mut out, 0).expect("two addresses of one family");
            assert!(n <= length, "{n} octets for {length}");
            said(&out[..n]);
        }
        Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
            for piece in flight.pieces() {
                let n = flight.write(piece, &mut out).expect("a packet of the interface's size");
                assert!(n <= 1500);
                said(&out[..n]);
            }
        }
    }
    assert!(sent <= 16_000, "{sent} octets");
}

/// Parses the data of a segment as queries, and answers each with a datagram; the first two bytes
/// are the first one's length. The first byte selects whether id and question of the datagram are
/// made valid.
pub fn dns(bytes: &[u8]) {
    let Some((&[right, high, low], rest)) = bytes.split_first_chunk::<3>() else { return };
    let (data, datagram) = rest.split_at(usize::from(u16::from_be_bytes([high & 7, low])).min(rest.len()));
    let mut datagram = datagram.to_vec();
    let Ok(queries) = dns::queries(data) else { return };
    assert_eq!(queries.iter().map(|query| query.message().len() + 2).sum::<usize>(), data.len());
    for query in &queries {
        let sent = query.datagram(0x1234);
        assert!(sent.len() <= MAX_DATAGRAM && sent[..2] == [0x12, 0x34]);
        // The datagram to the back end is a query like the client's.
        let framed = [&(sent.len() as u16).to_be_bytes()[..], &sent].concat();
        assert!(sent.len() > dns::MAX_QUERY || dns::queries(&framed).is_ok());
        if right & 1 != 0 && datagram.len() >= sent.len() {
            datagram[..2].copy_from_slice(&sent[..2]);
            datagram[2] = 0x80 | datagram[2] & 2;
            datagram[4..6].copy_from_slice(&[0, 1]);
            let question = 12..query.message().len().min(datagram.len());
            datagram[question.clone()].copy_from_slice(&query.message()[question]);
        }
        let _ = (dns::number(&datagram), dns::is_answer(query.message(), &datagram));
        if let Reply::Answer(opt) = query.judge(0x1234, &datagram) {
            let mut out = Vec::new();
            if query.append(&datagram, opt, 15 << 10, &mut out) {
                assert!(out.len() <= datagram.len() + 2 && out[2..4] == query.message()[..2]);
            } else {
                assert!(out.is_empty());
            }
        }
    }
}

/// Sends packets as in [`step`] to a service with a back end that answers with the rest of the
/// input.
pub fn relay(bytes: &[u8]) {
    for (packet, right, more) in packets(bytes) {
        let Ok(segment) = Segment::parse(&packet) else { continue };
        let protocol = if right & 8 != 0 { Protocol::Dns } else { Protocol::Http };
        let relay = Relay { keys: site().keys, protocol, deterministic: right & 16 != 0, mtu: 1500 };
        let verdict = match relay.judge(&segment, u32::from(right >> 6)) {
            Judged::Drop(_) | Judged::Kernel(_) | Judged::Adopt(..) => continue,
            Judged::Say(header) => Verdict::Say(header),
            Judged::Ask(ask) => {
                assert!(ask.length > 0 && ask.length <= segment.payload.len());
                relay.answer(&segment, &ask, Some(more), (right & 32 != 0).then_some(600))
            }
        };
        look(verdict, &segment, packet.len());
    }
}

/// Makes lengths and checksums of IP valid, and the acknowledgement one of the server's.
fn repair(packet: &mut [u8], right: u8) {
    if packet.len() < 40 {
        return;
    }
    let length = packet.len() as u16;
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[6..8].fill(0);
    packet[9] = 6;
    packet[10..12].fill(0);
    let sum: u32 = packet[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let Ok(segment) = Segment::parse(packet) else { return };
    let flow = Flow::new(segment.header.src, segment.header.dst);
    let keys = site().keys;
    let class = rivulet_plain::Class::of(1460).expect("a class");
    let isn = match right & 3 {
        0 => return,
        1 => flow.bare(keys.current, segment.header.seq),
        2 => flow.stamped(keys.current, class),
        _ => flow.stamped(keys.current, class).wrapping_add(u32::from(packet[8]) * 8),
    };
    let ack =
        isn.wrapping_add(1).wrapping_add(segment.header.ack & 0x3fff & if right & 4 != 0 { 0 } else { !0 });
    packet[28..32].copy_from_slice(&ack.to_be_bytes());
}
