//! Packets part by part: whole ones as the parsers read them, and cut at every byte nothing that is not there.

use crate::support;
use rivulet_packet::parts::{Part, Reach, SegmentParts};
use rivulet_packet::*;

fn frames(section: &str) -> Vec<(String, Vec<u8>)> {
    let vectors = support::vectors();
    let octets = |hex: &str| -> Vec<u8> {
        (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    let rows = vectors[section].as_array().expect("a section");
    rows.iter().map(|v| (v["name"].to_string(), octets(v["frame"].as_str().expect("a frame")))).collect()
}

fn parts<'a>(p: &SegmentParts<'a>) -> (Vec<Part<'a>>, Result<Reach, WireError>) {
    let mut list = vec![];
    let reach = p.visit(&mut |part| list.push(part));
    (list, reach)
}

#[test]
fn whole_packets_are_read_as_by_the_parsers() {
    for (name, frame) in frames("packets") {
        let (_, p) = SegmentParts::parse_frame(&frame, frame.len()).unwrap();
        let segment = p.whole().expect("nothing is missing");
        let (list, reach) = parts(&p);
        assert_eq!(reach, Ok(Reach::Whole), "{name}");
        if segment.is_bare_syn() || segment.is_bare_syn_ack() {
            assert!(list.is_empty(), "{name}");
            continue;
        }
        match segment.option.class {
            Class::Request(_) => compare_request(&name, &segment.request().unwrap(), &list),
            Class::Response(_) => compare_response(&name, &segment.response().unwrap(), &list),
        }
    }
}

fn compare_request(name: &str, r: &Request<'_>, list: &[Part<'_>]) {
    let mut want = vec![Part::Tor(r.tor), Part::Counts { entries: r.proof.len() as u8, attempt: r.attempt }];
    if let Some(c) = r.continuation {
        let TransportContinuation { tag, number, base, time, nonce_epoch, .. } = c.fields;
        let head = TransportContinuation {
            tag,
            number,
            base,
            time,
            nonce_epoch,
            ..TransportContinuation::default()
        };
        want.push(Part::Head(head));
        want.extend(r.proof.iter().map(Part::Proof));
        want.push(Part::Continuation(c));
    }
    let (wants, uconts) = (r.want_count() as u8, r.ucont_count() as u8);
    want.push(Part::Fields { hold: r.hold, covers: r.covers, wants, uconts });
    want.extend(r.wants().map(Part::Want));
    want.extend(r.token.map(Part::Token));
    want.extend(r.former.map(Part::Former));
    want.extend(r.uconts().map(Part::Ucont));
    want.extend(r.input.map(|input| Part::Input { input, length: input.data.len() }));
    if r.padding > 0 {
        want.push(Part::Padding(r.padding));
    }
    assert_eq!(list, want, "{name}");
}

fn compare_response(name: &str, r: &Response<'_>, list: &[Part<'_>]) {
    let mut want =
        vec![Part::Response { number: r.number, nonce: r.nonce, prime: r.prime, answers: r.answers }];
    match r.continuation {
        NewContinuation::None => {}
        NewContinuation::Full(c) => want.push(Part::Continuation(c)),
        NewContinuation::Delta(d) => want.push(Part::Delta(d)),
    }
    want.extend(r.offset.map(|offset| Part::Offset { offset, end: r.end }));
    want.extend(r.uconts.iter().map(Part::Ucont));
    want.extend(r.consumed.map(Part::Consumed));
    want.extend(r.token.map(Part::Token));
    match r.body {
        Body::Group(g) => want.extend(g.iter().map(Part::Member)),
        body => want.push(Part::Body(body)),
    }
    use ResponseClass::{Challenge, Group, NotMine, Wait};
    if !matches!(r.body.class(), Group | Wait | NotMine | Challenge) {
        want.push(Part::Data { data: r.data, length: r.data.len() });
    }
    assert_eq!(list, want, "{name}");
}

#[test]
fn malformed_packets_break_the_same_rule() {
    let mut seen = 0;
    for (name, frame) in frames("invalid") {
        let strict = Segment::parse_frame(&frame);
        let (segment, p) = match (strict, SegmentParts::parse_frame(&frame, frame.len())) {
            (Ok((_, segment)), Ok((_, p))) => (segment, p),
            (strict, p) => {
                assert_eq!(strict.err(), p.err(), "{name}");
                continue;
            }
        };
        let strict = match segment.option.class {
            Class::Request(_) => segment.request().err(),
            Class::Response(_) => segment.response().err(),
        };
        seen += usize::from(strict.is_some());
        assert_eq!(parts(&p).1.err(), strict, "{name}");
    }
    assert!(seen > 20, "{seen}");
}

/// The beginning of every packet, of every length, shows a beginning of the packet's parts.
#[test]
fn a_cut_shows_the_parts_before_it_and_no_other() {
    let mut cut_parts = 0;
    for (name, frame) in frames("packets") {
        let (_, whole) = SegmentParts::parse_frame(&frame, frame.len()).unwrap();
        let (all, _) = parts(&whole);
        let headers = frame.len() - whole.whole().unwrap().payload.len();
        let headers = headers - if whole.whole().unwrap().option.crc { 4 } else { 0 };
        for n in 0..frame.len() {
            let p = match SegmentParts::parse_frame(&frame[..n], frame.len()) {
                Ok((_, p)) => p,
                Err(e) => {
                    assert!(n < headers && e.is_truncation(), "{name} cut at {n}: {e}");
                    continue;
                }
            };
            assert!(n >= headers, "{name} cut at {n}");
            assert_eq!(p.missing(), frame.len() - n);
            assert_eq!(p.whole(), None, "{name} cut at {n} is not a whole segment");
            assert_eq!(p.to_string(), whole.to_string(), "what the headers say does not change");
            assert!(Segment::parse_frame(&frame[..n]).is_err(), "the strict parser takes no beginnings");
            let (list, reach) = parts(&p);
            assert!(list.len() <= all.len());
            for (i, part) in list.iter().enumerate() {
                match (*part, all[i]) {
                    (Part::Data { data, length }, Part::Data { data: sent, length: whole })
                        if i + 1 == list.len() =>
                    {
                        assert!(sent.starts_with(data) && length == whole, "{name} cut at {n}");
                        assert!(data.len() <= n - headers);
                    }
                    (Part::Input { input, length }, Part::Input { input: sent, length: whole }) => {
                        assert!(sent.data.starts_with(input.data) && length == whole, "{name} cut at {n}");
                        assert_eq!(Input { data: sent.data, ..input }, sent);
                    }
                    (part, sent) => assert_eq!(part, sent, "{name} cut at {n}"),
                }
            }
            let shown_all = all[list.len()..].iter().all(|p| matches!(p, Part::Padding(_)));
            assert_eq!(reach, Ok(if shown_all { Reach::Whole } else { Reach::Cut }), "{name} cut at {n}");
            cut_parts += usize::from(!shown_all);
        }
    }
    assert!(cut_parts > 1000, "{cut_parts}");
}

/// A length that lies about how much was sent is a fault like any other.
#[test]
fn more_than_was_sent_is_not_believed() {
    let (_, frame) = frames("packets").swap_remove(0);
    for missing in [1, 7, 60_000] {
        let e = SegmentParts::parse_frame(&frame[..frame.len() - 4], frame.len() - 4 + missing.min(3)).err();
        assert!(matches!(e, Some(WireError::Ipv4Length(_) | WireError::Ipv6Length(_))), "{e:?}");
        // A frame's padding may have been cut away: then nothing is missing.
        let (_, p) = SegmentParts::parse_frame(&frame, frame.len() + missing).unwrap();
        assert!(p.whole().is_some());
    }
}
