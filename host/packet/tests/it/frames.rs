//! Whole frames: building and parsing round-trips, and each verification detects damage.

use rivulet_packet::response::Group;
use rivulet_packet::*;

fn continuation() -> SealedContinuation {
    let fields = TransportContinuation {
        tag: 0x0102_0304,
        number: 0xffff_fffe,
        base: 0xffff_fff0,
        time: 0x1234_5678_9abc,
        nonce_epoch: 7,
        seal_epoch: 9,
        generation: 1,
        tor_id: 0x0101,
        tcp_base: 0xffff_ff00,
        start_cwnd: 10,
        ssthresh: 64,
        gain: 3,
        wire_base: 0xdead_beef,
        mss: 1200,
        marked: true,
        first: true,
        rekey_wanted: true,
        srtt: 20_000,
        connection: 0x0102_0304_0506_0708,
    };
    SealedContinuation { fields, mac: *b"twelve bytes" }
}

fn header(v6: bool, class: Class, number_low: u16) -> SegmentHeader {
    let (src, dst) = if v6 {
        ("[2001:db8::1]:40000", "[2001:db8:1::80]:80")
    } else {
        ("192.0.2.1:40000", "198.51.100.80:80")
    };
    let flags = TcpFlags::of(class);
    let syn_options = flags.has(TcpFlags::SYN).then_some(SynOptions {
        mss: 1460,
        ts_value: 1,
        ts_echo: 0,
        window_scale: segment::WINDOW_SCALE,
    });
    SegmentHeader {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        ecn: Ecn::Ect0,
        seq: 0x1111_2222,
        ack: if class == RequestClass::Syn.into() { 0 } else { 0x3333_4444 },
        flags,
        option: RivuletOption { class, number_low },
        syn_options,
    }
}

fn frame(h: &SegmentHeader, eth: &EthHeader, payload: &[u8]) -> Vec<u8> {
    let mut f = vec![0; 2000];
    let at = eth.length() + h.payload_offset();
    f[at..at + payload.len()].copy_from_slice(payload);
    let n = h.finish_frame(eth, &mut f, payload.len()).unwrap();
    f.truncate(n);
    f
}

#[test]
fn requests_of_every_class_round_trip() {
    let c = continuation();
    let proof = [
        ProofEntry::range(EntryKind::Original, 0, 4, 0xaaaa_bbbb),
        ProofEntry::range(EntryKind::Retransmitted, 5, 5, 0xcccc_dddd),
        ProofEntry::mark(3),
    ];
    let wants = [
        Want { offset: 10, length: 1200, ucont: Some(1), retransmit: true },
        Want { offset: u64::MAX - 5, length: 5, ucont: None, retransmit: false },
    ];
    for class in RequestClass::ALL.iter().copied() {
        for (v6, vlan) in [(false, None), (true, Some(0x2064)), (false, Some(5))] {
            let syn = class == RequestClass::Syn;
            let b = RequestBuilder {
                class,
                attempt: if matches!(class, RequestClass::Syn | RequestClass::Normal) { 0 } else { 2 },
                continuation: (!syn).then_some(&c),
                proof: if syn { &[] } else { &proof },
                former: (class == RequestClass::Restart).then(|| "192.0.2.9:1234".parse().unwrap()),
                hold: 17,
                covers: 2,
                wants: &wants,
                token: Some(b"token"),
                uconts: &[b"first", b"second one"],
                input: Some(Input { stream: 1, end: true, ucont: Some(0), offset: 77, data: b"input" }),
                pad_to: 400,
                ..RequestBuilder::default()
            };
            let mut payload = [0; 1000];
            let n = b.write(&mut payload).unwrap();
            assert_eq!(n, 400);
            let eth = EthHeader { dst: [2; 6], src: [4; 6], vlan };
            let h = header(v6, class.into(), b.number_low());
            let f = frame(&h, &eth, &payload[..n]);
            let (e, s) = Segment::parse_frame(&f).unwrap();
            assert_eq!(e, eth);
            s.verify().unwrap();
            assert_eq!((s.src, s.dst, s.seq, s.ack, s.ecn), (h.src, h.dst, h.seq, h.ack, h.ecn));
            let r = s.request().unwrap();
            assert_eq!((r.class, r.attempt, r.hold, r.covers), (class, b.attempt, 17, 2));
            assert_eq!(r.continuation, (!syn).then_some(c));
            assert_eq!(r.proof.iter().collect::<Vec<_>>(), b.proof);
            assert_eq!(r.wants().collect::<Vec<_>>(), wants);
            assert_eq!(r.token, Some(&b"token"[..]));
            assert_eq!(r.former, b.former);
            assert_eq!(r.ucont(1), Some(&b"second one"[..]));
            assert_eq!(r.ucont(2), None);
            assert_eq!(r.input, b.input);
            assert!(s.response().is_err());
        }
    }
}

#[test]
fn responses_of_every_class_round_trip() {
    let c = continuation();
    let mut changed = c.fields;
    changed.time += 1000;
    changed.srtt -= 20;
    let delta = Delta::between(&c.fields, &changed, c.mac).unwrap();
    let mut group = [0; 2 * response::GROUP_MEMBER];
    let member = response::GroupMember { nonce: 5, continuation: c };
    let group = Group::encode(&[member, member], &mut group).unwrap();
    let mut list = [0; 40];
    let uconts = Uconts::encode(&[b"output", b"input"], &mut list).unwrap();
    let bodies = [
        Body::Data,
        Body::Retransmission,
        Body::Group(group),
        Body::Skip { offset: 5, length: 1 << 40 },
        Body::Wait { milliseconds: 200 },
        Body::NotMine { code: 2 },
        Body::Challenge { token: b"challenge" },
        Body::Input,
        Body::Error { code: 4 },
    ];
    for body in bodies {
        let class = body.class();
        let plain = matches!(class, ResponseClass::Data | ResponseClass::Skip | ResponseClass::Input);
        let r = Response {
            number: 0x0001_0002,
            nonce: 0x5555_6666,
            prime: class == ResponseClass::Retransmission,
            end: plain,
            answers: 0xfe,
            continuation: if plain { NewContinuation::Delta(delta) } else { NewContinuation::None },
            offset: plain.then_some(1 << 33),
            uconts: if plain { uconts } else { Uconts::default() },
            consumed: plain.then_some(Consumed { stream: 3, offset: 99 }),
            token: plain.then_some(b"address"),
            body,
            data: if plain { b"data" } else { b"" },
        };
        let mut payload = [0; 400];
        let n = r.write(&mut payload).unwrap();
        assert_eq!(n, r.head_length() + r.data.len());
        let h = header(true, class.into(), 2);
        let f = frame(&h, &EthHeader::default(), &payload[..n]);
        let (_, s) = Segment::parse_frame(&f).unwrap();
        s.verify().unwrap();
        assert_eq!(s.response().unwrap(), r, "{class}");
        assert!(s.request().is_err());
    }
    assert_eq!(delta.apply(&c.fields), Some(changed));
    assert_eq!(delta.apply(&changed), None, "the check finds a wrong prediction");
}

#[test]
fn steady_response_has_the_documented_size() {
    let c = continuation();
    let mut changed = c.fields;
    changed.time += 1000;
    let r = Response {
        number: 1,
        nonce: 0,
        prime: false,
        end: false,
        answers: 0,
        continuation: NewContinuation::Delta(Delta::between(&c.fields, &changed, c.mac).unwrap()),
        offset: Some(0),
        uconts: Uconts::default(),
        consumed: None,
        token: None,
        body: Body::Data,
        data: &[],
    };
    assert_eq!(option::LENGTH + r.head_length(), 45);
}

#[test]
fn stamping_keeps_the_updated_checksum_right() {
    let c = continuation();
    let b = RequestBuilder { continuation: Some(&c), ..RequestBuilder::default() };
    let mut payload = [0; 200];
    let n = b.write(&mut payload).unwrap();
    let h = header(false, RequestClass::Normal.into(), b.number_low());
    let mut f = frame(&h, &EthHeader::default(), &payload[..n]);
    let at = 14 + h.payload_offset();
    let old: [u8; 18] = f[at..at + 18].try_into().unwrap();
    let tor = TorBlock { time: 1 << 40, id: 5, checked: true, ..TorBlock::default() };
    tor.stamp(&mut f[at..]).unwrap();
    let sum_at = 14 + 20 + 16;
    let sum = u16::from_be_bytes([f[sum_at], f[sum_at + 1]]);
    let new = checksum::replace(sum, &old, &f[at..at + 18]);
    f[sum_at..sum_at + 2].copy_from_slice(&new.to_be_bytes());
    let (_, s) = Segment::parse_frame(&f).unwrap();
    s.verify().unwrap();
    assert_eq!(s.request().unwrap().tor, tor);
}

#[test]
fn checksum_detects_every_flipped_bit_after_the_ip_header() {
    let c = continuation();
    let b = RequestBuilder { continuation: Some(&c), ..RequestBuilder::default() };
    let mut payload = [0; 200];
    let n = b.write(&mut payload).unwrap();
    let h = header(false, RequestClass::Normal.into(), b.number_low());
    let good = frame(&h, &EthHeader::default(), &payload[..n]);
    for bit in (14 + 20) * 8..good.len() * 8 {
        let mut f = good.clone();
        f[bit / 8] ^= 0x80 >> (bit % 8);
        let found = Segment::parse_frame(&f).and_then(|(_, s)| s.verify());
        assert!(found.is_err(), "bit {bit} by the checksum");
    }
}
