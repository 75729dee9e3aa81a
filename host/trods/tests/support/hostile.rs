//! What the fuzz targets do with arbitrary bytes; the ordinary tests replay the targets' corpus
//! with it.

use rivulet_plain::Segment;
use rivulet_trods::head::{self, Framing, Method};
use rivulet_trods::record::{MAX_RECORD, Record, Tuple};
use rivulet_trods::{Action, Flow, Reason, Settings, Wake, wake};

/// Checks that further bytes after a head, or missing ones, do not change how it is parsed.
pub fn request(octets: &[u8]) {
    let read = head::request(octets);
    let Ok(Some(found)) = read else { return };
    assert!(found.length <= octets.len() && found.length <= head::MAX_HEAD);
    let (head, _) = octets.split_at(found.length);
    assert_eq!(head::request(head), read);
    for n in 0..head.len() {
        assert_eq!(head::request(&head[..n]), Ok(None), "{n}");
    }
    let with_inputs = head::repeated_request(head, b"HTTP/1.1 200 OK\r\nX-TRODS: 1\r\nx-trods: 2\r\n\r\n");
    assert!(with_inputs.ends_with(b"X-TRODS: 1\r\nx-trods: 2\r\n\r\n"));
    for more in [head::range_request(head, b"\"x\"", 5, 9), with_inputs] {
        let again = head::request(&more[..more.len().min(head::MAX_HEAD)]);
        // Added fields may exceed the limits.
        if more.len() <= head::MAX_HEAD && again != Err(Reason::TooLong) {
            let again = again.unwrap().unwrap();
            assert_eq!((again.method, again.length), (found.method, more.len()));
        }
    }
}

/// Parses a response; the first byte selects the method of the request.
pub fn response(octets: &[u8]) {
    let Some((first, octets)) = octets.split_first() else { return };
    let method = if first & 1 == 0 { Method::Get } else { Method::Head };
    let read = head::response(octets, method);
    let Ok(Some(found)) = read else { return };
    assert!(found.status >= 200 && found.length <= octets.len() && found.length <= head::MAX_HEAD);
    assert_eq!(head::response(&octets[..found.length], method), read);
    for n in 0..found.length {
        assert_eq!(head::response(&octets[..n], method), Ok(None), "{n}");
    }
    if let Some(object) = found.object {
        assert_eq!(found.framing, Framing::Length(object.length));
        assert!(object.first + object.length <= object.total);
        assert!(object.etag.starts_with(b"\"") && object.etag.ends_with(b"\"") && object.etag.len() > 1);
    }
}

/// Decodes a record with a valid checksum, and adopts its connection.
pub fn record(octets: &[u8]) {
    let octets = [octets, &crc32c::crc32c(octets).to_be_bytes()[..]].concat();
    let Ok(record) = Record::decode(&octets) else { return };
    assert!(record.size() <= MAX_RECORD);
    let again = record.encode();
    assert_eq!((again.len(), Record::decode(&again)), (record.size(), Ok(record.clone())));
    if let Ok(packet) = wake::probe(&record, 5) {
        let probe = Segment::parse(&packet).unwrap();
        assert!(probe.is_intact() && probe.payload.len() == 1);
        // A segment of the replica itself shows no client state, unless client and service are
        // equal.
        if record.tuple.client != record.tuple.service {
            assert_eq!(wake::read(&record, &probe, 5), wake::Told::Nothing);
        }
    }
    let mut less = record.clone();
    less.drop_acknowledged(record.passed());
    assert_eq!(less.passed(), record.passed());
    if !record.unprotected {
        let mut out = Vec::new();
        let flow = Flow::resume(record, &Settings::default(), 5, &mut out);
        let first = out.iter().find(|action| !matches!(action, Action::Blank(_)));
        assert!(matches!(first, Some(Action::Store { .. })) && flow.limits().fin_at.is_none());
    }
}

/// Runs the steps of a connection, each with a kind, size, place and bytes. At most one ticket is
/// outstanding, and limits only grow.
pub fn flow(mut octets: &[u8]) {
    let mut next = |count: usize| {
        let (first, rest) = octets.split_at(count.min(octets.len()));
        octets = rest;
        first.to_vec()
    };
    let tuple = Tuple { client: "10.0.0.1:5".parse().unwrap(), service: "10.0.0.2:80".parse().unwrap() };
    let first = next(1).first().copied().unwrap_or(0);
    let wake = if first & 4 != 0 { Wake::Client } else { Wake::Server };
    let mut flow = Flow::new(
        tuple,
        &Settings { closed: first & 1 != 0, deterministic: first & 2 != 0, wake, ..Settings::default() },
    );
    let header = |seq: u32| {
        let mut tcp = [0; 20];
        tcp[4..8].copy_from_slice(&seq.to_be_bytes());
        tcp[12] = 5 << 4;
        tcp
    };
    let (client, service) = (u32::MAX - 50, u32::MAX - 500);
    flow.syn(&header(client.wrapping_sub(1)));
    flow.syn_ack(&header(service.wrapping_sub(1)));
    let (mut now, mut tickets, mut out) = (0, Vec::new(), Vec::new());
    let mut limits = flow.limits();
    for _ in 0..200 {
        let [what, length, at, far] = next(4)[..] else { return };
        let at = u32::from(at) + u32::from(far & 15) * 256;
        let seq = |base: u32, now: u32| if far & 16 == 0 { now } else { base }.wrapping_add(at);
        let data = next(usize::from(length) * usize::from(1 + (far >> 5)));
        match what % 8 {
            0 | 1 => flow.request(
                seq(client, limits.ack).wrapping_sub(at * u32::from(far >> 7)),
                &data,
                what & 8 != 0,
                &mut out,
            ),
            2 | 3 => flow.response(seq(service, limits.data), &data, what & 8 != 0, &mut out),
            4 => {
                if let Some(ticket) = tickets.pop() {
                    flow.stored(ticket, what & 8 == 0, &mut out);
                }
            }
            5 => {
                now += u64::from(length);
                flow.tick(now, &mut out);
            }
            6 => flow.acknowledged(seq(service, limits.data)),
            _ if what & 8 == 0 => flow.renew(&mut out),
            _ => flow.closed(&mut out),
        }
        for action in out.drain(..) {
            match action {
                Action::Limits(more) => {
                    let grows = |a: u32, b: u32| b.wrapping_sub(a) < 1 << 31;
                    assert!(grows(limits.ack, more.ack) && grows(limits.data, more.data));
                    limits = more;
                }
                Action::Store { ticket, record } => {
                    assert!(tickets.is_empty());
                    assert_eq!(Record::decode(&record.encode()), Ok(*record));
                    tickets.push(ticket);
                }
                Action::Blank(fields) => assert!(fields.len() <= 16),
                Action::Answer(..) => panic!("no terminator asked"),
                Action::Forget | Action::Unprotected(_) => {}
            }
        }
    }
}
