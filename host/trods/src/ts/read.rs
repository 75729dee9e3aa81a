//! Derives the state of another replica's connection from a single segment of its client: the echoed timestamp gives the
//! object, the acknowledgement the bytes that the client has, and the sequence number its next byte.

use rivulet_bpf::trods::{FlowKey, Generation, Limits, Phase, Stamped};
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::repair::Connection;
use rivulet_plain::{CookieKey, NOBODYS, ObjectStamp, Segment, object_isn};

use super::hints::Hint;
use super::lost::probed_ack;
use super::table::Table;
use crate::flow::GATE;
use crate::head;
use crate::lease::clock;
use crate::record::{Body, Handshake, Record, Response, Tuple};
use crate::wake::{self, Place};

/// Window scale of the SYN-ACKs, as in the BPF programs (`src/bpf/ts.h`).
const OUR_SCALE: u8 = 7;
/// How far the index of the adopter's first timestamp is ahead of the echoed one: beyond timestamps in flight, within PAWS' range.
const AHEAD: u8 = 8;
/// Limit on the data that a client may have sent unacknowledged: a window.
const MAX_UNKNOWN: u32 = 1 << 16;

/// Whether a segment at `seq` may belong to a connection with the client's next number `next`.
pub(crate) fn is_near(seq: u32, next: u32) -> bool {
    seq.wrapping_sub(next) <= MAX_UNKNOWN || next.wrapping_sub(seq) <= MAX_UNKNOWN
}

/// The keys and limits for reading segments of a service's connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading<'a> {
    /// Keys of ISNs, each with its epoch's lowest bit.
    pub keys: &'a [(CookieKey, bool)],
    pub table: &'a Table,
}

/// A connection that can be resumed.
#[derive(Debug)]
pub(crate) struct Found {
    pub record: Record,
    pub connection: Connection,
    pub stamped: Stamped,
    /// The segment answers a probe, so no other data is on its way to the client.
    pub fresh: bool,
    /// End of all data that the client has sent, if known.
    pub sent: Option<u32>,
}

/// What a segment shows.
#[derive(Debug)]
pub(crate) enum Told {
    Found(Box<Found>),
    /// The connection can be resumed once the client retransmits its last segment.
    Waits,
    /// The client no longer has the connection: it sent a RST.
    Gone,
    /// The segment does not belong to a connection that can be resumed.
    Nothing,
}

/// Reads a segment with a valid checksum; `hint` is the announcement of its connection, if any.
pub(crate) fn read(
    key: &FlowKey,
    segment: &Segment<'_>,
    hint: Option<&Hint>,
    with: Reading<'_>,
    now_ms: u64,
) -> Told {
    let (header, tuple) = (&segment.header, Tuple { client: key.client(), service: key.service() });
    let has = |flag| segment.has(flag);
    let is_theirs = (header.src, header.dst) == (tuple.client, tuple.service);
    if let Some(hint) = hint.filter(|_| is_theirs && has(TcpFlags::RST)) {
        // A valid RST has the announced next sequence number, or that of a probe's acknowledgement
        // (RFC 9293 section 3.10.7.1).
        let is_its = [hint.client_next, probed_ack(hint.client_next)].contains(&header.seq);
        return if is_its { Told::Gone } else { Told::Nothing };
    }
    let stamp = header.options.stamps.and_then(|stamps| ObjectStamp::parse(stamps.echo));
    let Some(stamp) = stamp.filter(|_| is_theirs && has(TcpFlags::ACK)) else { return Told::Nothing };
    if has(TcpFlags::SYN) || has(TcpFlags::RST) || stamp.object == NOBODYS {
        return Told::Nothing;
    }
    let known = with.table.get(stamp.object);
    let reach = known.map_or(0, |(_, known)| known.head.total);
    let place = with.keys.iter().filter(|(_, odd)| *odd == stamp.odd).find_map(|(key, _)| {
        let isn = object_isn(*key, tuple.client, tuple.service);
        let offset = header.ack.wrapping_sub(isn).wrapping_sub(1);
        (offset <= reach).then_some((isn, offset))
    });
    let Some((isn, offset)) = place else { return Told::Nothing };
    let payload = segment.payload;
    let response = match known {
        // The client has no byte of the response. Its repeated request shows where that begins.
        None if stamp.object == 0 && offset == 0 => None,
        // A client that has the whole head resumes after it: the head's date differs by server.
        Some((_, known)) if offset >= known.head.length => with.table.response(stamp.object),
        _ => return Told::Nothing,
    };
    let next = match (&response, hint) {
        (None, _) if payload.starts_with(b"GET ") => header.seq,
        (None, _) => return Told::Waits,
        (Some(_), Some(hint)) if is_near(header.seq, hint.client_next) => hint.client_next,
        // Without a hint the client's next number is unknown; but while its response is incomplete,
        // a client retransmits only its request.
        (Some(_), None) if offset < reach && payload.is_empty() => header.seq,
        (Some(response), None) if offset < reach => match again(payload, response) {
            Some(length) => header.seq.wrapping_add(length as u32),
            None => return Told::Nothing,
        },
        _ => return Told::Nothing,
    };
    // A client with all data and an acknowledged FIN sends nothing more. Others retransmit.
    let is_over = offset == reach && payload.is_empty() && !has(TcpFlags::FIN);
    if is_over && header.seq == next.wrapping_add(1) {
        return Told::Nothing;
    }
    let handshake = Handshake { stamps: None, ..agreed(&stamp, isn, next, now_ms) };
    let (object, asks_again) = (stamp.object, response.is_none());
    let record = Record {
        tuple,
        handshake,
        version: 0,
        unprotected: false,
        response_at: isn.wrapping_add(1),
        responses: response.into_iter().collect(),
        request_at: next,
        requests: Vec::new(),
        client_fin: false,
        tls: None,
    };
    let blocks = header.options.sack.blocks();
    // The client retransmits its request and holds bytes after a hole. They belong to the announced
    // object, and must not include the head, which is sent again with this server's date.
    let bound = hint.filter(|_| asks_again && !blocks.is_empty()).and_then(|hint| {
        let (_, known) = with.table.get(hint.object)?;
        let response = with.table.response(hint.object)?;
        (again(payload, &response)? == payload.len()).then_some((hint.object, known.head))
    });
    let (behind, left) = bound.map_or((0, reach - offset), |(_, head)| (head.length, head.total));
    // SACK blocks outside of these bytes contradict the announced response.
    let is_within = |(from, to): &(u32, u32)| {
        let (from, to) = (from.wrapping_sub(header.ack), to.wrapping_sub(header.ack));
        to <= left && from >= behind || from as i32 <= 0 && to as i32 <= 0
    };
    if !blocks.iter().all(is_within) {
        return Told::Nothing;
    }
    let place = Place {
        fresh: blocks.first() == Some(&(isn, isn.wrapping_add(1))),
        ack: header.ack,
        window: u32::from(header.window) << stamp.scale.shift(),
        sent: wake::sent(segment),
    };
    let stamped = Stamped {
        heard: clock(),
        isn,
        client_next: next,
        base: ObjectStamp { index: 0, object: 0, ..stamp }.value(),
        object: bound.map_or(object, |(object, _)| object),
        total: reach,
        phase: if object == 0 { Phase::Setup } else { Phase::Echoed },
        client_fin: false,
        adopted: true,
        generation: hint.map(|hint| hint.generation).unwrap_or_default().next(),
        index: (stamp.index + AHEAD) % 32,
        echo: stamp.index,
        limits: Limits::default(),
    };
    let connection = wake::connection(&record, &place, now_ms);
    Told::Found(Box::new(Found { record, connection, stamped, fresh: place.fresh, sent: place.sent }))
}

/// The record of a connection with a response that a timestamp names, given the client's
/// acknowledgement. `None` unless the client has the response's head, and the server keeps the
/// connection open after it.
pub(crate) fn named(
    key: &FlowKey,
    stamped: &Stamped,
    acked: u32,
    with: Reading<'_>,
    now_ms: u64,
) -> Option<Record> {
    let (_, known) = with.table.get(stamped.object)?;
    let (first, total) = (stamped.isn.wrapping_add(1), known.head.total);
    // Under another key of the ISN, before a change of content, the number was another object's.
    if !with.keys.iter().any(|(of, _)| object_isn(*of, key.client(), key.service()) == stamped.isn) {
        return None;
    }
    let offset = acked.wrapping_sub(first);
    let is_all = offset == total;
    if stamped.client_fin || total != stamped.total || !(known.head.length..=total).contains(&offset) {
        return None;
    }
    let response = with.table.response(stamped.object).filter(|_| !is_all);
    if is_all && known.close {
        return None;
    }
    let reach = u64::from(offset) + GATE;
    let response = response.map(|response| Response { passed: response.length.min(reach), ..response });
    Some(Record {
        tuple: Tuple { client: key.client(), service: key.service() },
        handshake: handshake(stamped.base, stamped.isn, stamped.client_next, now_ms)?,
        version: 0,
        unprotected: false,
        response_at: if is_all { acked } else { first },
        responses: response.into_iter().collect(),
        request_at: stamped.client_next,
        requests: Vec::new(),
        client_fin: false,
        tls: None,
    })
}

/// The handshake of a connection on which the client's next sequence number is `next`.
fn agreed(stamp: &ObjectStamp, isn: u32, next: u32, now_ms: u64) -> Handshake {
    Handshake {
        client_isn: next.wrapping_sub(1),
        service_isn: isn,
        mss: stamp.class.mss(),
        scales: Some((stamp.scale.shift(), OUR_SCALE)),
        sack: true,
        // Only the kernel uses this value: BPF programs make the timestamps that the client sees.
        timestamp: Some(now_ms as u32),
        first_timestamp: None,
        stamps: Some(ObjectStamp { index: 0, object: 0, ..*stamp }.value()),
        at_ms: now_ms,
    }
}

/// Like [`agreed`], for a connection with these common bits in all timestamps.
pub(crate) fn handshake(base: u32, isn: u32, next: u32, now_ms: u64) -> Option<Handshake> {
    Some(agreed(&ObjectStamp::parse(base)?, isn, next, now_ms))
}

/// The BPF programs' state of a connection that its record resumes, given a client's segment.
pub(crate) fn recorded(record: &Record, segment: &Segment<'_>) -> Option<Stamped> {
    let stamp = wake::stamp(record, segment.header.options.stamps?.echo)?;
    Some(Stamped {
        heard: clock(),
        isn: record.handshake.service_isn,
        client_next: record.acknowledged(),
        base: record.handshake.stamps?,
        object: NOBODYS,
        total: 0,
        phase: Phase::Recorded,
        client_fin: record.client_fin,
        adopted: true,
        generation: Generation::default(),
        index: (stamp.index + AHEAD) % 32,
        echo: stamp.index,
        limits: Limits::default(),
    })
}

/// Length of the request for the response's object, if `octets` begin with one.
fn again(octets: &[u8], response: &Response) -> Option<usize> {
    let Body::Object { request, .. } = &response.body else { return None };
    head::same_request(octets, request)
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{Class, Header, Options, Sack, Scale, Stamps};

    use super::*;
    use crate::ts::table::Row;

    const HEAD: &str = "HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 100000\r\n\r\n";
    const ASKED: u32 = 5000;
    const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

    struct Client {
        table: Table,
        keys: [(CookieKey, bool); 2],
        key: FlowKey,
        header: Header,
        hint: Option<Hint>,
        payload: Vec<u8>,
    }

    /// A client that has half of the named object.
    fn client() -> Client {
        let row = Row::new("h", b"/a", [Some(HEAD.as_bytes()), None]).unwrap();
        let (src, dst) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let keys = [(CookieKey::new([1; 8]), true), (CookieKey::new([2; 8]), false)];
        let stamp = ObjectStamp {
            index: 30,
            class: Class::of(1460).unwrap(),
            odd: true,
            scale: Scale::of(7),
            object: 1,
        };
        let ack = object_isn(keys[0].0, src, dst).wrapping_add(1 + 50_000);
        let options =
            Options { stamps: Some(Stamps { value: 9, echo: stamp.value() }), ..Options::default() };
        let header = Header { src, dst, seq: ASKED, ack, flags: TcpFlags(TcpFlags::ACK), window: 9, options };
        let hint = Some(Hint {
            client_next: ASKED,
            base: 0,
            object: 1,
            is_named: true,
            generation: Generation::default(),
            left_to: None,
            quiet: 0,
        });
        Client {
            table: Table::new(vec![row]),
            keys,
            key: FlowKey::new(src, dst),
            header,
            hint,
            payload: vec![],
        }
    }

    impl Client {
        fn result(&self) -> Told {
            let mut packet = vec![0; self.header.length() + self.payload.len()];
            let at = self.header.length();
            packet[at..].copy_from_slice(&self.payload);
            self.header.finish(&mut packet, self.payload.len()).unwrap();
            let with = Reading { keys: &self.keys, table: &self.table };
            read(&self.key, &Segment::parse(&packet).unwrap(), self.hint.as_ref(), with, 1 << 40)
        }

        fn stamp(&mut self, change: impl FnOnce(&mut ObjectStamp)) {
            let stamps = self.header.options.stamps.as_mut().unwrap();
            let mut stamp = ObjectStamp::parse(stamps.echo).unwrap();
            change(&mut stamp);
            stamps.echo = stamp.value();
        }
    }

    fn found(client: &Client) -> Box<Found> {
        match client.result() {
            Told::Found(found) => found,
            told => panic!("{told:?}"),
        }
    }

    #[test]
    fn acknowledgement_gives_object_and_offset() {
        let client = client();
        let found = found(&client);
        let total = HEAD.len() as u32 + 100_000;
        let (first, record) = (found.stamped.isn.wrapping_add(1), &found.record);
        assert_eq!((record.response_at, record.passed()), (first, first.wrapping_add(total)));
        assert_eq!(record.responses[0].object().unwrap().total, 100_000);
        assert_eq!(found.connection.send_next, client.header.ack);
        assert_eq!((found.connection.receive_next, found.connection.mss), (ASKED, 1152 / 2));
        let stamped = found.stamped;
        assert_eq!((stamped.object, stamped.total, stamped.phase), (1, total, Phase::Echoed));
        assert_eq!((stamped.index, stamped.echo, stamped.client_next), (6, 30, ASKED));
    }

    #[test]
    fn segment_of_other_connection_gives_nothing() {
        type Change<'f> = &'f dyn Fn(&mut Client);
        let other = |change: Change<'_>| {
            let mut client = client();
            change(&mut client);
            client.result()
        };
        let wrong: [(&str, Change<'_>); 11] = [
            ("another port", &|c| c.header.src.set_port(1026)),
            ("no timestamps", &|c| c.header.options.stamps = None),
            ("another kind", &|c| c.header.options.stamps.as_mut().unwrap().echo &= !(1 << 22)),
            ("another key", &|c| c.stamp(|stamp| stamp.odd = false)),
            ("no such object", &|c| c.stamp(|stamp| stamp.object = 2)),
            ("nobody's", &|c| c.stamp(|stamp| stamp.object = NOBODYS)),
            ("the timestamp names no object", &|c| c.stamp(|stamp| stamp.object = 0)),
            ("beyond the end", &|c| c.header.ack = c.header.ack.wrapping_add(50_000 + HEAD.len() as u32 + 1)),
            ("within the head", &|c| c.header.ack = c.header.ack.wrapping_sub(50_000 - 7)),
            ("far from what was told", &|c| c.hint.as_mut().unwrap().client_next = ASKED + (1 << 20)),
            ("a reset", &|c| {
                (c.header.flags, c.header.seq) = (TcpFlags(TcpFlags::ACK | TcpFlags::RST), ASKED + 7);
            }),
        ];
        for (what, change) in wrong {
            assert!(matches!(other(change), Told::Nothing), "{what}");
        }
    }

    /// The bytes after the object belong to a response with a head that this replica lacks.
    #[test]
    fn client_with_bytes_after_the_object_is_not_resumed() {
        let mut client = client();
        let end = client.header.ack.wrapping_add(50_000 + HEAD.len() as u32);
        let probe = object_isn(client.keys[0].0, client.key.client(), client.key.service());
        for (from, to, is_found) in [
            (probe, probe.wrapping_add(1), true),
            (end.wrapping_sub(9), end, true),
            (end.wrapping_sub(9), end.wrapping_add(1), false),
            (end, end.wrapping_add(1), false),
        ] {
            client.header.options.sack = Sack::default();
            client.header.options.sack.push((from, to));
            assert_eq!(matches!(client.result(), Told::Found(_)), is_found, "{from} {to}");
        }
    }

    #[test]
    fn finished_client_is_not_resumed() {
        let mut client = client();
        let end = client.header.ack.wrapping_add(50_000 + HEAD.len() as u32);
        client.header.seq = ASKED + 1;
        assert!(matches!(client.result(), Told::Found(_)), "it lacks something");
        client.header.ack = end;
        assert!(matches!(client.result(), Told::Nothing), "and nothing more will be said");
        client.payload = b"G".to_vec();
        assert!(matches!(client.result(), Told::Found(_)), "it asks for something");
        client.payload.clear();
        client.header.seq = ASKED;
        client.header.flags = TcpFlags(TcpFlags::ACK | TcpFlags::FIN);
        assert!(matches!(client.result(), Told::Found(_)), "its end is to be acknowledged");
        client.header.flags = TcpFlags(TcpFlags::RST);
        client.header.options.stamps = None;
        for (seq, is_gone) in
            [(ASKED, true), (ASKED.wrapping_sub(4096), true), (ASKED + 1, false), (77, false)]
        {
            client.header.seq = seq;
            assert_eq!(matches!(client.result(), Told::Gone), is_gone, "{seq}");
        }
        client.hint = None;
        client.header.seq = ASKED;
        assert!(matches!(client.result(), Told::Nothing));
    }

    #[test]
    fn unannounced_client_shows_end_of_its_request() {
        let mut client = client();
        client.hint = None;
        assert_eq!(found(&client).connection.receive_next, ASKED, "it has no more to say");
        client.payload = REQUEST.to_vec();
        assert_eq!(found(&client).connection.receive_next, ASKED + REQUEST.len() as u32, "the same again");
        client.payload = [REQUEST, b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"].concat();
        let joined = found(&client);
        assert_eq!(joined.connection.receive_next, ASKED + REQUEST.len() as u32, "and no further one");
        assert_eq!(joined.sent, None);
        client.payload = b"GET /b HTTP/1.1\r\n\r\n".to_vec();
        assert!(matches!(client.result(), Told::Nothing), "another one");
        // If the client has the whole response, the request may be a new one or a repetition.
        client.payload = REQUEST.to_vec();
        client.header.ack = client.header.ack.wrapping_add(50_000 + HEAD.len() as u32);
        assert!(matches!(client.result(), Told::Nothing));
    }

    #[test]
    fn named_response_is_recorded_with_missing_bytes() {
        let client = client();
        let (end, head) = (HEAD.len() as u32 + 100_000, HEAD.len() as u32);
        let isn = object_isn(client.keys[0].0, client.key.client(), client.key.service());
        let found = found(&client).stamped;
        let stamped = Stamped { client_fin: false, ..found };
        let with = Reading { keys: &client.keys, table: &client.table };
        let record = |stamped: &Stamped, offset: u32| {
            let acked = isn.wrapping_add(1).wrapping_add(offset);
            super::named(&client.key, stamped, acked, with, 7)
        };
        for (offset, responses) in
            [(head - 1, None), (head, Some(1)), (end - 1, Some(1)), (end, Some(0)), (end + 1, None)]
        {
            let record = record(&stamped, offset);
            assert_eq!(record.as_ref().map(|record| record.responses.len()), responses, "{offset}");
            let Some(record) = record else { continue };
            assert_eq!((record.passed(), record.acknowledged()), (isn.wrapping_add(1 + end), ASKED));
            assert_eq!(record.handshake.stamps, Some(stamped.base));
        }
        for other in [
            Stamped { client_fin: true, ..stamped },
            Stamped { total: end + 1, ..stamped },
            Stamped { object: 2, ..stamped },
            Stamped { isn: isn.wrapping_add(1), ..stamped },
        ] {
            assert_eq!(record(&other, end), None, "{other:?}");
        }
    }

    #[test]
    fn client_without_response_bytes_repeats_its_request() {
        let mut client = client();
        client.stamp(|stamp| stamp.object = 0);
        client.header.ack = client.header.ack.wrapping_sub(50_000);
        assert!(matches!(client.result(), Told::Waits));
        client.payload = REQUEST.to_vec();
        client.header.seq = ASKED - REQUEST.len() as u32;
        let found = found(&client);
        assert_eq!((found.connection.receive_next, found.record.responses.len()), (client.header.seq, 0));
        assert_eq!((found.stamped.phase, found.stamped.client_next), (Phase::Setup, client.header.seq));
        // The bytes after the hole are the announced object's, and only that may be sent.
        assert_eq!(found.stamped.object, 0);
        let (ack, head) = (client.header.ack, HEAD.len() as u32);
        let mut bound = |from: u32, to: u32, object: u32| {
            client.header.options.sack = Sack::default();
            client.header.options.sack.push((ack.wrapping_add(from), ack.wrapping_add(to)));
            client.hint.as_mut().unwrap().object = object;
            match client.result() {
                Told::Found(found) => Some((found.stamped.object, found.stamped.phase)),
                _ => None,
            }
        };
        let end = head + 100_000;
        assert_eq!(bound(1448, 2896, 1), Some((1, Phase::Setup)));
        assert_eq!(bound(head, end, 1), Some((1, Phase::Setup)));
        assert_eq!(bound(head - 1, end, 1), None, "of the head");
        assert_eq!(bound(head, end + 1, 1), None, "behind the end");
        assert_eq!([0, 2].map(|object| bound(1448, 2896, object)), [None, None], "nobody told of it");
        client.header.options.sack = Sack::default();
        client.payload = b"POST / HTTP/1.1\r\n".to_vec();
        assert!(matches!(client.result(), Told::Waits), "what is not asked again is not gone on with");
    }
}
