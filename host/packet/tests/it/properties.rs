//! Round trips of arbitrary packets, and damaged packets, which must never make a parser panic.

use std::net::SocketAddr;

use crate::support;
use proptest::collection::vec;
use proptest::prelude::*;
use rivulet_packet::response::Group;
use rivulet_packet::*;

prop_compose! {
    fn sealed()(
        w in any::<[u32; 7]>(), h in any::<[u16; 7]>(), time in 0u64..1 << 48,
        connection: u64, marked: bool, first: bool, rekey_wanted: bool, gain in 0..=MAX_GAIN, mac: Mac,
    ) -> SealedContinuation {
        let fields = TransportContinuation {
            tag: w[0], number: w[1], base: w[2], tcp_base: w[3], wire_base: w[4], srtt: w[5], time,
            nonce_epoch: h[0], seal_epoch: h[1], generation: h[2], tor_id: h[3],
            start_cwnd: h[4], ssthresh: h[5], mss: h[6],
            marked, first, rekey_wanted, gain, connection,
        };
        SealedContinuation { fields, mac }
    }
}

/// Valid entries: ascending disjoint ranges, then marks.
fn proof() -> impl Strategy<Value = Vec<ProofEntry>> {
    (vec((1u16..100, 0u16..100, any::<bool>(), any::<u32>()), 0..=8), vec(any::<u16>(), 0..=8)).prop_map(
        |(ranges, marks)| {
            let mut at = 0u16;
            let mut out = vec![];
            for (gap, length, original, sum) in ranges {
                let kind = if original { EntryKind::Original } else { EntryKind::Retransmitted };
                let first = at + gap - u16::from(out.is_empty());
                out.push(ProofEntry::range(kind, first, first + length, sum));
                at = first + length;
            }
            out.extend(marks.into_iter().map(ProofEntry::mark));
            out
        },
    )
}

fn wants(uconts: usize) -> impl Strategy<Value = Vec<Want>> {
    vec((any::<u64>(), 1u32.., any::<bool>(), any::<u8>()), 0..=16).prop_map(move |list| {
        let want = |(offset, length, retransmit, u): (u64, u32, bool, u8)| Want {
            offset: offset.min(u64::MAX - u64::from(length)),
            length,
            ucont: (usize::from(u) < uconts).then_some(u),
            retransmit,
        };
        list.into_iter().map(want).collect()
    })
}

fn uconts() -> impl Strategy<Value = Vec<Vec<u8>>> {
    vec(vec(any::<u8>(), 1..50), 0..=16)
}

type Bits = (u8, Vec<u8>, Option<(u16, bool, u64)>, Vec<u8>);

fn bits() -> impl Strategy<Value = Bits> {
    let input = proptest::option::of((any::<u16>(), any::<bool>(), any::<u64>()));
    (any::<u8>(), vec(any::<u8>(), 0..256), input, vec(any::<u8>(), 0..300))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn requests_round_trip(
        class in proptest::sample::select(RequestClass::ALL),
        c in sealed(), proof in proof(),
        (list, wants) in uconts().prop_flat_map(|l| { let n = l.len(); (Just(l), wants(n)) }),
        (attempt, token, input, data) in bits(),
        hold: u16, covers in 1u8..=2, pad_to in 0usize..2000, former: Option<u16>,
        time in 0u64..1 << 48, checked: bool, retire: bool,
    ) {
        let syn = class == RequestClass::Syn;
        let views: Vec<&[u8]> = list.iter().map(|u| &u[..]).collect();
        let b = RequestBuilder {
            class,
            tor: TorBlock { time, id: hold, checked, ..TorBlock::default() },
            attempt: if matches!(class, RequestClass::Syn | RequestClass::Normal) { 0 } else { attempt & 3 },
            continuation: (!syn).then_some(&c),
            proof: if syn { &[] } else { &proof },
            hold,
            covers,
            wants: &wants,
            token: (!token.is_empty()).then_some(&token),
            former: former
                .filter(|_| class == RequestClass::Restart)
                .map(|p| SocketAddr::from(([192, 0, 2, 1], p))),
            retire: retire && class == RequestClass::Rekey,
            uconts: &views,
            input: input.map(|(stream, end, offset)| Input {
                stream,
                end,
                ucont: (!views.is_empty()).then_some(0),
                offset: offset.min(u64::MAX - 300),
                data: &data,
            }),
            pad_to,
        };
        let mut buf = [0; 8000];
        let n = b.write(&mut buf).unwrap();
        prop_assert_eq!(n, b.length());
        let r = Request::parse(class, b.number_low(), &buf[..n]).unwrap();
        prop_assert_eq!(r.tor, b.tor);
        prop_assert_eq!((r.attempt, r.hold, r.covers, r.token, r.former), (b.attempt, hold, covers, b.token, b.former));
        prop_assert_eq!(r.continuation, (!syn).then_some(c));
        prop_assert_eq!(r.proof.iter().collect::<Vec<_>>(), b.proof);
        prop_assert_eq!(&r.wants().collect::<Vec<_>>()[..], b.wants);
        prop_assert_eq!(&r.uconts().collect::<Vec<_>>()[..], b.uconts);
        prop_assert_eq!(r.input, b.input);
        // One byte less must be an error, never a shorter message.
        if pad_to < n {
            prop_assert!(Request::parse(class, b.number_low(), &buf[..n - 1]).is_err());
        }
        // A buffer of any smaller size is refused, and the error contains the size needed.
        let mut small = vec![0; n - 1];
        prop_assert_eq!(b.write(&mut small), Err(BuildError::BufferTooSmall { need: n, have: n - 1 }));
    }

    #[test]
    fn responses_round_trip(
        which in 0usize..9, before in sealed(), after in sealed(), members in vec(sealed(), 1..=MAX_GROUP),
        (answers, token, consumed, data) in bits(), list in uconts(),
        full in 0u8..3, flags: [bool; 3], number: u32, nonce: u32,
    ) {
        let mut group = [0; MAX_GROUP * response::GROUP_MEMBER];
        let members: Vec<_> = members.into_iter().map(|c| GroupMember { nonce, continuation: c }).collect();
        let token = if token.is_empty() { &b"token"[..] } else { &token[..] };
        let offset = consumed.map(|c| c.2 >> 1);
        let body = match which {
            0 => Body::Data,
            1 => Body::Retransmission,
            2 => Body::Group(Group::encode(&members, &mut group).unwrap()),
            3 => Body::Skip { offset: offset.unwrap_or(0), length: 1 + u64::from(number) },
            4 => Body::Wait { milliseconds: answers.into() },
            5 => Body::NotMine { code: 3 },
            6 => Body::Challenge { token },
            7 => Body::Input,
            _ => Body::Error { code: 500 },
        };
        // Fields that a delta can carry: time, ToR, epoch, srtt, mark.
        let fields = TransportContinuation {
            time: after.fields.time,
            tor_id: after.fields.tor_id,
            srtt: after.fields.srtt,
            seal_epoch: after.fields.seal_epoch,
            marked: after.fields.marked,
            rekey_wanted: after.fields.rekey_wanted,
            ..before.fields
        };
        let delta = Delta::between(&before.fields, &fields, after.mac).unwrap();
        prop_assert_eq!(delta.apply(&before.fields), Some(fields));
        let carries = !matches!(which, 1 | 2 | 6);
        let data_class = matches!(which, 0 | 1 | 3 | 7 | 8);
        let views: Vec<&[u8]> = list.iter().map(|u| &u[..]).collect();
        let mut encoded = [0; 1000];
        let uconts = Uconts::encode(&views, &mut encoded).unwrap();
        let r = Response {
            number,
            nonce,
            prime: flags[0] || which == 1,
            end: flags[1] && data_class,
            answers,
            continuation: match full {
                0 if carries => NewContinuation::Full(after),
                1 if carries => NewContinuation::Delta(delta),
                _ => NewContinuation::None,
            },
            offset: offset.filter(|_| data_class),
            uconts: if carries || which == 1 { uconts } else { Uconts::default() },
            consumed: consumed.filter(|_| carries).map(|(stream, _, offset)| Consumed { stream, offset }),
            token: (carries && flags[2]).then_some(token),
            body,
            data: if data_class { &data } else { &[] },
        };
        let mut buf = [0; 8000];
        let n = r.write(&mut buf).unwrap();
        prop_assert_eq!(n, r.head_length() + r.data.len());
        let parsed = Response::parse(body.class(), number as u16, &buf[..n]).unwrap();
        prop_assert_eq!(parsed, r);
        prop_assert_eq!(parsed.uconts.iter().collect::<Vec<_>>().len(), parsed.uconts.len());
    }

    #[test]
    fn heartbeats_round_trip(ready: bool, h: [u16; 2], replica in 0u8..64, key_epoch: u8, n: [u32; 3], key: [u8; 8], padding in 0usize..40) {
        let h = Heartbeat { ready, pool: h[0], replica, key_epoch, load: h[1], incarnation: n[0], sequence: n[1], tag: n[2] };
        prop_assert!(h.tagged(TorKey::new(key)).verify(TorKey::new(key)));
        let other = Heartbeat { sequence: n[1] ^ 1, ..h.tagged(TorKey::new(key)) };
        prop_assert!(!other.verify(TorKey::new(key)));
        let mut buf = [0; 64];
        prop_assert_eq!(h.write(&mut buf), Ok(20));
        prop_assert_eq!(Heartbeat::parse(&buf[..20 + padding]), Ok(h));
    }

    #[test]
    fn answers_round_trip(settled: bool, h: [u16; 2], replica in 0u8..64, key_epoch: u8, n: [u32; 3], sets: [u64; 2], key: [u8; 8], padding in 0usize..24) {
        let [pool, tor_id] = h;
        let [incarnation, sequence, tag] = n;
        let [alive, plain] = sets;
        let a = Answer { settled, pool, replica, key_epoch, tor_id, incarnation, sequence, alive, plain, tag };
        prop_assert!(a.tagged(TorKey::new(key)).verify(TorKey::new(key)));
        let other = Answer { alive: alive ^ 1, ..a.tagged(TorKey::new(key)) };
        prop_assert!(!other.verify(TorKey::new(key)));
        let mut buf = [0; 64];
        prop_assert_eq!(a.write(&mut buf), Ok(36));
        prop_assert_eq!(Answer::parse(&buf[..36 + padding]), Ok(a));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400), class: u8, low: u16) {
        support::exercise(&bytes);
        if let Some(c) = RequestClass::from_wire(class & 7) {
            support::exercise_request(c, low, &bytes);
        }
        if let Some(c) = ResponseClass::from_wire(class | 0x80) {
            support::exercise_response(c, low, &bytes);
        }
    }
}

/// Changes every byte of every valid vector to a few other values, and cuts the vector at every
/// length: the result is a packet or an error with a position inside the input.
#[test]
fn damaged_vectors_give_errors_that_point_into_the_packet() {
    for spec in support::specs() {
        let frame = spec.frame();
        for length in 0..frame.len() {
            support::exercise(&frame[..length]);
        }
        // The padding of the largest requests adds no new cases.
        for at in 0..frame.len().min(420) {
            for change in [0x01, 0x80, 0xff, 0x10] {
                let mut damaged = frame.clone();
                damaged[at] ^= change;
                support::exercise(&damaged);
            }
        }
    }
}
