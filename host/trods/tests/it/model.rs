//! Random connections through a flow, checked against a naive reader of the bytes that were let pass.
//!
//! The replica may die after each step. The bytes that the client has, the unacknowledged bytes that it still keeps, and
//! the record in the store must then give exactly the bytes that the server would have sent.

use std::collections::VecDeque;

use proptest::prelude::*;
use rivulet_trods::head::{self, Method};
use rivulet_trods::record::{Body, MAX_RECORD, Response, Seen, UNKNOWN};
use rivulet_trods::{Action, Flow, Limits, Reason, Record, Settings};

use crate::support::{Dice, established, server};

/// A segment of one direction: offset in the stream, bytes, whether a FIN follows, and how many
/// bytes of the other direction its sender had received.
type Piece = (usize, Vec<u8>, bool, usize);

/// The bytes of a stream that have arrived.
#[derive(Default)]
struct Had {
    octets: Vec<bool>,
    /// Number of bytes before the first hole.
    all: usize,
}

impl Had {
    fn put(&mut self, from: usize, to: usize) {
        self.octets.resize(self.octets.len().max(to), false);
        self.octets[from..to].fill(true);
        self.all += self.octets[self.all..].iter().take_while(|had| **had).count();
    }
}

/// What a record in the store can restore.
struct Kept {
    /// Offsets in the server's stream between which the record gives bytes, and the end of the
    /// client's bytes in it.
    before: usize,
    passed: usize,
    known: usize,
}

struct World {
    dice: Dice,
    flow: Flow,
    client_isn: u32,
    service_isn: u32,
    limits: Limits,
    unprotected: Option<Reason>,
    store: VecDeque<(u64, Record)>,
    kept: Option<Kept>,
    stores: usize,
    /// All bytes that the client will send, and the expected answers.
    requests: Vec<u8>,
    want: Vec<u8>,
    /// End offsets of the batches of requests that the client sends together, and of the answers to
    /// all earlier batches.
    batches: Vec<(usize, usize)>,
    /// End offsets of each request and of its answer.
    ends: Vec<(usize, usize)>,
    said: usize,
    acknowledged: usize,
    half_close: bool,
    /// Copies of the client's segments that were not read yet, and frames of the server.
    copies: VecDeque<Piece>,
    held: VecDeque<Piece>,
    arrived: Had,
    received: Had,
    now: u64,
    loss: usize,
}

impl World {
    fn new(
        (seed, settings): (u64, &Settings),
        requests: &[String],
        pipelined: usize,
        half_close: bool,
        loss: usize,
    ) -> World {
        let mut dice = Dice(seed);
        // Half of the runs start with sequence numbers that soon wrap.
        let client_isn = 0u32.wrapping_sub(dice.below(2000) as u32);
        let service_isn = 0u32.wrapping_sub(dice.below(60_000) as u32);
        let flow = established(client_isn, service_isn, settings);
        let limits = flow.limits();
        assert_eq!(limits.ack, client_isn.wrapping_add(1));
        assert_eq!(
            (limits.data, limits.fin_at),
            (service_isn.wrapping_add(1), Some(service_isn.wrapping_add(1)))
        );
        let (mut octets, mut want, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        let mut batches = Vec::new();
        let mut answers_before = 0;
        for (n, request) in requests.iter().enumerate() {
            octets.extend_from_slice(request.as_bytes());
            want.extend_from_slice(&server::answers(request.as_bytes()).0);
            ends.push((octets.len(), want.len()));
            if n % (pipelined + 1) == pipelined || n + 1 == requests.len() {
                batches.push((octets.len(), answers_before));
                answers_before = want.len();
            }
        }
        World {
            dice,
            flow,
            client_isn,
            service_isn,
            limits,
            unprotected: None,
            store: VecDeque::new(),
            kept: None,
            stores: 0,
            requests: octets,
            want,
            batches,
            ends,
            said: 0,
            acknowledged: 0,
            half_close,
            copies: VecDeque::new(),
            held: VecDeque::new(),
            arrived: Had::default(),
            received: Had::default(),
            now: 0,
            loss,
        }
    }

    fn lost(&mut self) -> bool {
        self.dice.below(100) < self.loss
    }

    /// The client's sequence number at an offset of its stream, counted from after its SYN.
    fn client_seq(&self, at: usize) -> u32 {
        self.client_isn.wrapping_add(1 + at as u32)
    }

    fn service_seq(&self, at: usize) -> u32 {
        self.service_isn.wrapping_add(1 + at as u32)
    }

    fn act(&mut self, out: &mut Vec<Action>) {
        for action in out.drain(..) {
            match action {
                Action::Limits(limits) => self.limits = limits,
                Action::Store { ticket, record } => {
                    assert!(self.store.is_empty(), "one ticket at a time");
                    self.store.push_back((ticket, *record));
                    self.stores += 1;
                }
                Action::Forget => self.kept = None,
                Action::Blank(_) => {}
                Action::Answer(..) => panic!("no terminator asked"),
                Action::Unprotected(reason) => self.unprotected = Some(reason),
            }
        }
    }

    fn step(&mut self) {
        let mut out = Vec::new();
        match self.dice.below(6) {
            0 => self.client_sends(),
            1 => self.server_sends(),
            2 => {
                if let Some((at, octets, fin, had)) = self.copies.pop_front() {
                    self.flow.acknowledged(self.service_seq(had));
                    self.flow.request(self.client_seq(at), &octets, fin, &mut out);
                }
            }
            3 => {
                if let Some((at, octets, fin, had)) = self.held.pop_front() {
                    self.flow.acknowledged(self.service_seq(had));
                    self.flow.response(self.service_seq(at), &octets, fin, &mut out);
                }
            }
            4 => {
                if let Some((ticket, record)) = self.store.pop_front() {
                    self.kept = Some(self.recover(&record));
                    self.flow.stored(ticket, true, &mut out);
                }
            }
            _ => {
                self.now += self.dice.below(3) as u64;
                if self.flow.wants_acknowledgement() {
                    self.flow.acknowledged(self.service_seq(self.received.all));
                }
                self.flow.tick(self.now, &mut out);
            }
        }
        self.act(&mut out);
    }

    /// The client sends a part of its unacknowledged data, possibly again.
    fn client_sends(&mut self) {
        // The flow reads the copies soon, so that only a few wait.
        if self.copies.len() > 3 {
            return;
        }
        let has = self.received.all;
        let may = self.batches.iter().filter(|(_, answers)| *answers <= has).map(|(end, _)| *end);
        self.said = may.max().unwrap_or(0);
        let from = self.acknowledged + self.dice.below(self.said - self.acknowledged + 1);
        let to = (from + 1 + self.dice.below(700)).min(self.said);
        let fin = self.half_close && to == self.requests.len();
        if from >= to && !fin || self.lost() {
            return;
        }
        let piece = (from, self.requests[from..to].to_vec(), fin, has);
        self.arrived.put(from, to);
        if self.dice.below(4) == 0 {
            self.copies.push_back(piece.clone());
        }
        self.copies.push_back(piece);
    }

    /// The server's kernel sends unacknowledged data, possibly again, and acknowledges what it has
    /// received.
    fn server_sends(&mut self) {
        let has = self.received.all;
        let answered = self.ends.iter().filter(|(end, _)| *end <= self.arrived.all).map(|(_, to)| *to).max();
        let answered = answered.unwrap_or(0);
        // Half of the segments begin with the first unacknowledged byte.
        let from = has + self.dice.below(answered - has + 1) * self.dice.below(2);
        let to = (from + 1 + self.dice.below(9000)).min(answered);
        if from < to {
            // The flow reads the held data, and the permitted part is sent.
            let may = self.limits.data.wrapping_sub(self.service_seq(0)) as usize;
            if to > may {
                self.held.truncate(7);
                self.held.push_back((from, self.want[from..to].to_vec(), false, has));
            }
            if from < may && !self.lost() {
                self.received.put(from, to.min(may));
            }
        }
        let allowed = self.limits.ack.wrapping_sub(self.client_seq(0)) as usize;
        if !self.lost() {
            self.acknowledged = self.acknowledged.max(self.arrived.all.min(allowed));
        }
    }

    /// Checks that the bytes an adopter derives from the record are those that this server would
    /// have sent.
    fn recover(&self, record: &Record) -> Kept {
        let octets = record.encode();
        assert!(octets.len() == record.size() && octets.len() <= MAX_RECORD);
        let read = Record::decode(&octets).unwrap();
        assert_eq!(&read, record);
        assert_eq!(
            (record.handshake.client_isn, record.handshake.service_isn),
            (self.client_isn, self.service_isn)
        );
        let before = record.response_at.wrapping_sub(self.service_seq(0)) as usize;
        let (mut says, mut unseen) = (Vec::new(), 0);
        for response in &record.responses {
            match &response.body {
                Body::Whole(octets) => says.extend_from_slice(octets),
                Body::Object { request, head, check, .. } => {
                    let (again, _) = server::answers(request);
                    let body = &again[head.len()..];
                    assert_eq!((head.len() + body.len()) as u64, response.length);
                    assert_eq!(crc32c(&body[..check.0 as usize]), check.1);
                    says.extend_from_slice(head);
                    says.extend_from_slice(body);
                }
                Body::Generated { request, head, seen } => {
                    let whole = generated_again(response, request, head, seen);
                    unseen += whole.len() - response.passed as usize;
                    says.extend_from_slice(&whole);
                }
            }
        }
        let passed = record.passed().wrapping_sub(self.service_seq(0)) as usize;
        assert_eq!(passed, before + says.len() - unseen);
        let known = record.request_at.wrapping_sub(self.client_seq(0)) as usize + record.requests.len();
        let left = [&record.requests, &self.requests[known..]].concat();
        says.extend_from_slice(&server::answers(&left).0);
        assert_eq!(says.len(), self.want.len() - before);
        assert!(says == self.want[before..]);
        Kept { before, passed, known }
    }

    /// Checks that the replica could die now without a loss.
    fn check(&self) {
        assert_eq!(self.unprotected, None);
        // Data that may be on its way to the client counts as received.
        let had = self.limits.data.wrapping_sub(self.service_seq(0)) as usize;
        let told = self.limits.ack.wrapping_sub(self.client_seq(0)) as usize;
        let told = told.min(self.requests.len());
        match &self.kept {
            None => assert_eq!((had, told), (0, 0), "nothing is stored"),
            Some(kept) => {
                assert!(had <= kept.passed, "{had} may pass, {} are known", kept.passed);
                assert!(told <= kept.known, "{told} may be acknowledged, {} are known", kept.known);
                assert!(kept.before <= self.received.all, "the client lacks what the record has not");
            }
        }
    }

    fn is_done(&self) -> bool {
        self.received.all == self.want.len() && self.acknowledged == self.requests.len()
    }
}

/// The server's second response to the request: bytes after the seen part have other random values.
fn generated_again(response: &Response, request: &[u8], head: &[u8], seen: &Seen) -> Vec<u8> {
    let (again, _) = server::answers_from(&head::repeated_request(request, head), "8");
    let (shown, rest) = again.split_at(response.passed as usize);
    let framing = head::response(head, Method::Get).unwrap().unwrap().framing;
    let mut reader = Seen::nothing(framing).unwrap();
    assert_eq!(reader.read(&shown[head.len()..]), Ok(shown.len() - head.len()));
    assert_eq!((reader, reader.sum), (*seen, crc32c(&shown[head.len()..])));
    assert_eq!((reader.read(rest), reader.is_over()), (Ok(rest.len()), true));
    assert!([UNKNOWN, again.len() as u64].contains(&response.length));
    [head, &again[head.len()..]].concat()
}

/// CRC-32C by its definition, bit by bit (RFC 3720 appendix B.4).
fn crc32c(octets: &[u8]) -> u32 {
    let bit = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !octets.iter().fold(!0, |crc, octet| (0..8).fold(crc ^ u32::from(*octet), |crc, _| bit(crc)))
}

fn request() -> impl Strategy<Value = String> {
    let fields = prop::sample::select(vec!["", "User-Agent: x\r\n", "Cookie: 0123456789abcdef\r\n"]);
    let kind = prop::sample::select(vec![
        "GET",
        "GET",
        "GET",
        "HEAD",
        "missing",
        "same",
        "chunked",
        "range",
        "dynamic",
        "dynamic-inputs",
        "chunked-inputs",
    ]);
    (kind, 0usize..20_000, 0usize..3000, fields).prop_map(|(kind, size, small, fields)| match kind {
        "HEAD" => format!("HEAD /{size} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"),
        "missing" | "same" => format!("GET /{kind} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"),
        "dynamic" | "dynamic-inputs" | "chunked-inputs" => {
            format!("GET /{size}?{kind} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
        }
        "chunked" => format!("GET /{small}?chunked HTTP/1.1\r\nHost: h\r\n{fields}\r\n"),
        "range" if size > 0 => {
            let first = small.min(size - 1);
            format!("GET /{size} HTTP/1.1\r\nHost: h\r\nRange: bytes={first}-{}\r\n{fields}\r\n", size - 1)
        }
        _ => format!("GET /{size} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_death_at_any_step_loses_nothing(
        seed: u64,
        mut requests in prop::collection::vec(request(), 1..12),
        pipelined in 0usize..12,
        (closes, half_close, deterministic) in any::<(bool, bool, bool)>(),
        loss in prop::sample::select(vec![0usize, 5, 30]),
    ) {
        if let Some(last) = requests.last_mut().filter(|_| closes) {
            *last = last.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        }
        // Without the setting `deterministic` the server has to list its inputs.
        for request in requests.iter_mut().filter(|_| !deterministic) {
            *request = request.replace("?dynamic ", "?dynamic-inputs ");
        }
        let settings = Settings { deterministic, ..Settings::default() };
        let mut world = World::new((seed, &settings), &requests, pipelined, half_close, loss);
        let mut steps = 0;
        while !world.is_done() {
            world.step();
            world.check();
            steps += 1;
            prop_assert!(steps < 100_000, "goes on for ever: {:?}", world.flow);
        }
        // At most one record with each response, one with each request that waits, and one with the
        // FIN.
        let is_seen_whole = deterministic || requests.iter().any(|request| request.contains("inputs"));
        prop_assert!(is_seen_whole || world.stores <= 2 * requests.len() + 2, "{} stores", world.stores);
        let mut out = Vec::new();
        world.flow.closed(&mut out);
        prop_assert_eq!(out, vec![Action::Forget]);
    }
}
