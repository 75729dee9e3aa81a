//! Packets that every parser accepts.

use super::{K, K_PRIME, Spec, continuation, header, json, ranges};
use rivulet_packet::response::{GROUP_MEMBER, Group};
use rivulet_packet::*;
use serde_json::Value;

pub fn request(name: &str, variant: usize, b: &RequestBuilder<'_>) -> Spec {
    let mut payload = vec![0; 8000];
    let n = b.write(&mut payload).expect(name);
    payload.truncate(n);
    let (eth, header) = header(variant, b.class.into(), b.number_low());
    Spec { name: name.into(), eth, header, payload }
}

pub fn response(name: &str, variant: usize, r: &Response<'_>) -> Spec {
    let mut payload = vec![0; 8000];
    let n = r.write(&mut payload).expect(name);
    payload.truncate(n);
    let (eth, header) = header(variant, r.body.class().into(), r.number as u16);
    Spec { name: name.into(), eth, header, payload }
}

/// A request of each class, with a proof where it has one.
pub fn requests() -> Vec<Spec> {
    let (base, number) = (0x0001_0000, 0x0001_0003);
    let c = continuation(number, base);
    let tag = c.fields.tag;
    let one = ranges(tag, base, 1, 4);
    let wants = [Want { offset: 1 << 33, length: 1200, ucont: Some(0), retransmit: false }];
    let mut out = vec![];
    for class in RequestClass::ALL.iter().copied() {
        let syn = class == RequestClass::Syn;
        let b = RequestBuilder {
            class,
            attempt: match class {
                RequestClass::Probe => 1,
                RequestClass::Timeout => 3,
                _ => 0,
            },
            continuation: (!syn).then_some(&c),
            proof: if syn || class == RequestClass::Restart { &[] } else { &one },
            hold: 12,
            wants: &wants,
            uconts: &[b"user continuation"],
            token: if syn { Some(b"address token") } else { None },
            input: if syn || class == RequestClass::Close {
                Some(Input { stream: 0, end: true, ucont: None, offset: 0, data: b"GET /\r\n" })
            } else {
                None
            },
            pad_to: if syn || class == RequestClass::Restart { 600 } else { 0 },
            ..RequestBuilder::default()
        };
        for variant in 0..4 {
            let family = ["ipv4", "ipv6", "ipv4 tagged", "ipv6 tagged"][variant];
            out.push(request(&format!("{class}, {family}"), variant, &b));
        }
    }
    let retires = RequestBuilder {
        class: RequestClass::Rekey,
        continuation: Some(&c),
        proof: &one,
        retire: true,
        ..RequestBuilder::default()
    };
    out.push(request("a REKEY that gives its window back", 0, &retires));
    out
}

/// Proofs of every length, marks, numbers that wrap around, and wrong sums.
pub fn proofs() -> Vec<Spec> {
    let mut out = vec![];
    for count in 0..=MAX_ENTRIES {
        let base = 0xffff_fff8u32;
        let proof = ranges(0x7a61_9c3e, base, count, 5);
        let last = proof.last().map_or(0, |e| e.last);
        let c = continuation(base.wrapping_add(u32::from(last)), base);
        let b = RequestBuilder { continuation: Some(&c), proof: &proof, ..RequestBuilder::default() };
        out.push(request(&format!("{count} ranges across the wrap of numbers"), count % 4, &b));
    }
    let base = 500;
    let c = continuation(base + 9, base);
    let tag = c.fields.tag;
    let mut proof = vec![
        ProofEntry::range(EntryKind::Original, 0, 2, K.tag(tag).range_sum(base, base + 2)),
        ProofEntry::range(EntryKind::Retransmitted, 3, 3, K_PRIME.tag(tag).range_sum(base + 3, base + 3)),
        ProofEntry::range(EntryKind::Original, 4, 9, K.tag(tag).range_sum(base + 4, base + 9)),
        ProofEntry::mark(2),
        ProofEntry::mark(7),
    ];
    let b = RequestBuilder { continuation: Some(&c), proof: &proof, covers: 2, ..RequestBuilder::default() };
    out.push(request("ranges and marks", 0, &b));
    proof[2].sum ^= 0x8000_0000;
    let b = RequestBuilder { continuation: Some(&c), proof: &proof, ..RequestBuilder::default() };
    out.push(request("a sum that is wrong by one bit", 0, &b));
    proof[2].sum ^= 0x8000_0000;
    proof[1] = ProofEntry { kind: EntryKind::Original, ..proof[1] };
    let b = RequestBuilder { continuation: Some(&c), proof: &proof, ..RequestBuilder::default() };
    out.push(request("the sum of a retransmission as that of an original", 1, &b));
    let whole =
        [ProofEntry::range(EntryKind::Original, 0, 0xffff, K.tag(tag).range_sum(base, base + 0xffff))];
    let c = continuation(base + 0xffff, base);
    let b = RequestBuilder { continuation: Some(&c), proof: &whole, ..RequestBuilder::default() };
    out.push(request("the longest range", 0, &b));
    out
}

/// Bodies with all optional parts, and with none.
pub fn bodies() -> Vec<Spec> {
    let c = continuation(0x0001_0003, 0x0001_0000);
    let wants: Vec<_> = (0..16u64)
        .map(|i| Want {
            offset: if i == 15 { u64::MAX - 9 } else { i * 1200 },
            length: if i == 15 { 9 } else { 1200 },
            ucont: if i < 8 { Some(i as u8 * 2) } else { None },
            retransmit: i < 3,
        })
        .collect();
    let blobs: Vec<Vec<u8>> = (1..=16).map(|i| vec![i as u8; i]).collect();
    let uconts: Vec<&[u8]> = blobs.iter().map(|b| &b[..]).collect();
    let tor = TorBlock {
        time: 0xffff_ffff_fffe,
        id: 0x0104,
        seal_epoch: 0x0a0c,
        nonce_epoch: NONCE,
        checked: true,
        time_valid: true,
        key_epoch: 9,
        tag: 0x0bad_cafe,
    };
    let full = RequestBuilder {
        tor,
        continuation: Some(&c),
        hold: u16::MAX,
        wants: &wants,
        token: Some(&[0x5a; 255]),
        uconts: &uconts,
        input: Some(Input { stream: 3, end: false, ucont: Some(15), offset: 1 << 40, data: b"some input" }),
        pad_to: 1400,
        ..RequestBuilder::default()
    };
    let least = RequestBuilder { continuation: Some(&c), ..RequestBuilder::default() };
    let syn = RequestBuilder { class: RequestClass::Syn, ..RequestBuilder::default() };
    let moved = |former: &str| RequestBuilder {
        class: RequestClass::Restart,
        continuation: Some(&c),
        former: Some(former.parse().expect("an address")),
        ..RequestBuilder::default()
    };
    let mut out = vec![
        request("RESTART from another address", 0, &moved("192.0.2.77:50000")),
        request("RESTART from another IPv6 address", 1, &moved("[2001:db8::77]:50000")),
        request("a request with all it can hold, stamped", 0, &full),
        request("the smallest request", 0, &least),
        request("the smallest SYN with data", 1, &syn),
    ];
    let (eth, h) = header(0, RequestClass::Syn.into(), 0);
    out.push(Spec { name: "a bare SYN".into(), eth, header: h, payload: vec![] });
    let (eth, mut h) = header(0, ResponseClass::Data.into(), 0);
    (h.flags, h.ecn) = (TcpFlags(TcpFlags::SYN | TcpFlags::ACK), Ecn::NotEct);
    h.syn_options = Some(SynOptions { mss: 1440, ts_value: 9, ts_echo: 0x0102_0304, window_scale: 14 });
    out.push(Spec { name: "the cookie for a bare SYN".into(), eth, header: h, payload: vec![] });
    out
}

const NONCE: u16 = super::NONCE_EPOCH + 1;

/// A response of each class in each family.
pub fn responses() -> Vec<Spec> {
    let number = 0x0001_0004;
    let c = continuation(number, 0x0001_0000);
    let nonces = K.tag(c.fields.tag);
    let primes = K_PRIME.tag(c.fields.tag);
    let members = [1u32, 2].map(|i| {
        let mut lost = c;
        lost.fields.number = number - i;
        GroupMember { nonce: primes.nonce(number - i), continuation: lost }
    });
    let mut list = [0; 60];
    let list = Uconts::encode(&[b"output continuatn.", b"input continuation"], &mut list).expect("a list");
    let mut group = [0; 2 * GROUP_MEMBER];
    let group = Group::encode(&members, &mut group).expect("a group");
    let bodies = [
        Body::Data,
        Body::Retransmission,
        Body::Group(group),
        Body::Skip { offset: 4096, length: 1 << 40 },
        Body::Wait { milliseconds: 200 },
        Body::NotMine { code: 2 },
        Body::Challenge { token: b"prove your address" },
        Body::Input,
        Body::Error { code: 404 },
    ];
    let mut out = vec![];
    for body in bodies {
        let class = body.class();
        let none =
            matches!(class, ResponseClass::Retransmission | ResponseClass::Group | ResponseClass::Challenge);
        let data = !matches!(class, ResponseClass::Group | ResponseClass::Wait | ResponseClass::NotMine)
            && class != ResponseClass::Challenge;
        let prime = class == ResponseClass::Retransmission;
        for variant in 0..4 {
            let r = Response {
                number,
                nonce: if prime { primes.nonce(number) } else { nonces.nonce(number) },
                prime,
                end: class == ResponseClass::Error,
                answers: 0xfe,
                continuation: if none { NewContinuation::None } else { NewContinuation::Full(c) },
                offset: data.then_some(1 << 33),
                uconts: if class == ResponseClass::Input { list } else { Uconts::default() },
                consumed: (class == ResponseClass::Input).then_some(Consumed { stream: 3, offset: 1 << 33 }),
                token: None,
                body,
                data: if data { b"forty-two bytes of the stream, more or less" } else { b"" },
            };
            let family = ["ipv4", "ipv6", "ipv4 tagged", "ipv6 tagged"][variant];
            out.push(response(&format!("{class}, {family}"), variant, &r));
        }
    }
    let r = Response {
        number,
        nonce: primes.nonce(number),
        prime: true,
        end: true,
        answers: 3,
        continuation: NewContinuation::Full(SealedContinuation {
            fields: TransportContinuation { marked: true, first: true, gain: MAX_GAIN, ..c.fields },
            mac: c.mac,
        }),
        offset: Some(u64::MAX),
        uconts: list,
        consumed: Some(Consumed { stream: 3, offset: u64::MAX }),
        token: Some(b"address token"),
        body: Body::Data,
        data: b"",
    };
    out.push(response("a DATA with all it can hold", 0, &r));
    let cubic = TransportContinuation { start_cwnd: 70, ssthresh: 100, gain: 0xAB, ..c.fields };
    let continuation = NewContinuation::Full(SealedContinuation { fields: cubic, mac: c.mac });
    let r = Response { continuation, end: false, prime: false, token: None, consumed: None, data: b"x", ..r };
    out.push(response("a DATA with a window by Cubic", 0, &r));
    out
}

/// Every form of a delta, and the SYN-ACK with data.
pub fn deltas() -> Vec<Spec> {
    let before = continuation(0x0001_0004, 0x0001_0000);
    let mut steps = vec![before.fields; 7];
    steps[1].time += 5;
    steps[2].time += 1 << 40;
    steps[3].tor_id = 9;
    steps[4].seal_epoch += 1;
    steps[5].srtt -= 500;
    (steps[6].srtt, steps[6].marked) = (10_000_000, true);
    let mut out = vec![];
    for (i, to) in steps.iter().enumerate() {
        let delta = Delta::between(&before.fields, to, before.mac).expect("a delta");
        let name =
            ["nothing", "time", "all of time", "the ToR", "the epoch", "srtt", "all of srtt, and a mark"][i];
        let r = Response {
            number: to.number,
            nonce: K.tag(to.tag).nonce(to.number),
            prime: false,
            end: false,
            answers: 3,
            continuation: NewContinuation::Delta(delta),
            offset: Some(0),
            uconts: Uconts::default(),
            consumed: None,
            token: None,
            body: Body::Data,
            data: b"data",
        };
        out.push(response(&format!("a delta of {name}"), i % 4, &r));
        if i == 0 {
            let r = Response { continuation: NewContinuation::Full(before), ..r };
            let mut s = response("the answer to a SYN", 0, &r);
            s.header.flags = TcpFlags(TcpFlags::SYN | TcpFlags::ACK);
            s.header.ecn = Ecn::NotEct;
            s.header.syn_options =
                Some(SynOptions { mss: 1440, ts_value: 9, ts_echo: 0x0102_0304, window_scale: 14 });
            out.push(s);
        }
    }
    out
}

pub fn specs() -> Vec<Spec> {
    [requests(), proofs(), bodies(), responses(), deltas()].concat()
}

pub fn packets() -> Vec<Value> {
    specs().iter().map(|s| json::frame(&s.name, &s.frame())).collect()
}

pub fn heartbeat_list() -> Vec<Heartbeat> {
    vec![
        Heartbeat {
            ready: true,
            pool: 1,
            replica: 0,
            key_epoch: 5,
            incarnation: 7,
            load: 3,
            sequence: 1,
            tag: 0,
        }
        .tagged(BEAT_KEY),
        Heartbeat {
            ready: false,
            pool: 0xffff,
            replica: 63,
            key_epoch: 0xff,
            incarnation: u32::MAX,
            load: 0xffff,
            sequence: u32::MAX,
            tag: 0,
        }
        .tagged(BEAT_KEY),
        Heartbeat::default().tagged(BEAT_KEY),
    ]
}

pub fn heartbeats() -> Vec<Value> {
    heartbeat_list()
        .iter()
        .map(|h| {
            let mut b = [0; heartbeat::LENGTH];
            h.write(&mut b).expect("a heartbeat");
            serde_json::json!({
                "bytes": json::hex(&b), "ready": h.ready, "pool": h.pool, "replica": h.replica,
                "key_epoch": h.key_epoch, "incarnation": h.incarnation, "load": h.load, "sequence": h.sequence,
                "tag": h.tag,
            })
        })
        .collect()
}

/// The key of the heartbeats and answers of the vectors.
pub const BEAT_KEY: TorKey = TorKey::new([0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27]);
/// The key of the ToR blocks.
pub const BLOCK_KEY: TorKey = TorKey::new([0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37]);

pub fn answer_list() -> Vec<Answer> {
    let answer = Answer {
        settled: true,
        pool: 1,
        replica: 3,
        key_epoch: 5,
        tor_id: 0x0102,
        incarnation: 7,
        sequence: 9,
        alive: 0x8000_0000_0000_000d,
        plain: 9,
        tag: 0,
    };
    vec![answer.tagged(BEAT_KEY), Answer { settled: false, alive: u64::MAX, ..answer }.tagged(BEAT_KEY)]
}

pub fn answers() -> Vec<Value> {
    answer_list()
        .iter()
        .map(|a| {
            let mut b = [0; heartbeat::ANSWER_LENGTH];
            a.write(&mut b).expect("an answer");
            serde_json::json!({
                "bytes": json::hex(&b), "settled": a.settled, "pool": a.pool, "replica": a.replica,
                "key_epoch": a.key_epoch, "tor_id": a.tor_id, "incarnation": a.incarnation,
                "sequence": a.sequence, "alive": format!("{:016x}", a.alive),
                "plain": format!("{:016x}", a.plain), "tag": a.tag,
            })
        })
        .collect()
}

/// Requests with the tag that their ToR blocks have in a tunnel: `[name of the packet, tag]`.
pub fn block_tags() -> Vec<Value> {
    let tag = |s: &Spec| {
        let frame = s.frame();
        let (_, segment) = Segment::parse_frame(&frame).expect("a frame");
        let request = matches!(segment.option.class, Class::Request(_)) && !segment.payload.is_empty();
        let tag = request.then(|| tor::tag(BLOCK_KEY, segment.option, segment.seq, segment.payload))??;
        Some(serde_json::json!([s.name, tag]))
    };
    specs().iter().filter_map(tag).collect()
}
