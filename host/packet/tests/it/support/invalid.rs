//! Packets with one fault each, and the error that every parser must report.
//!
//! Each starts from a valid packet. A fault in the payload is made before the headers are written,
//! so that the checksums are right and only the fault remains. A fault in the headers is made in
//! the frame and the checksums are repaired, unless they are the fault.

use super::valid;
use super::{Spec, header, json};
use rivulet_packet::checksum::Sum;
use rivulet_packet::*;
use serde_json::{Value, json as object};

/// The error of a packet in a host's order of checks: headers, then checksum, then payload.
pub fn judge(frame: &[u8]) -> Result<(), (WireError, &'static str)> {
    let (_, s) = Segment::parse_frame(frame).map_err(|e| (e, "frame"))?;
    s.verify().map_err(|e| (e, "frame"))?;
    if s.is_bare_syn() || s.is_bare_syn_ack() {
        return Ok(());
    }
    match s.option.class {
        Class::Request(_) => s.request().map(|_| ()),
        Class::Response(_) => s.response().map(|_| ()),
    }
    .map_err(|e| (e, "payload"))
}

/// Repairs the checksums of an untagged frame with a 20-byte IPv4 or a 40-byte IPv6 header.
fn repair(f: &mut [u8]) {
    let v4 = f[14] >> 4 == 4;
    let tcp = if v4 { 34 } else { 54 };
    if v4 {
        f[24..26].fill(0);
        let sum = Sum::new().bytes(&f[14..34]).finish();
        f[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    if f.len() < tcp + 18 {
        return;
    }
    f[tcp + 16..tcp + 18].fill(0);
    let pseudo = Sum::new().word(6).word((f.len() - tcp) as u16).bytes(&f[if v4 { 26..34 } else { 22..54 }]);
    let sum = pseudo.bytes(&f[tcp..]).finish();
    f[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
}

fn find(name: &str) -> Spec {
    valid::specs().into_iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no packet {name}"))
}

/// Offset of the fields after the MAC in a request without entries.
const HOST: usize = 44 + continuation::TAIL + MAC;
/// Bytes of a MAC, and of a whole continuation.
const MAC: usize = continuation::MAC;
const FULL: usize = SealedContinuation::LENGTH;

type Edit = fn(&mut Vec<u8>);

/// (fault, original packet, expected error, edit of the frame).
const HEADERS: &[(&str, &str, &str, Edit)] = &[
    ("a frame of 13 bytes", "the smallest request", "eth_truncated", |f| f.truncate(13)),
    ("a tag and nothing behind it", "NORMAL, ipv4 tagged", "eth_truncated", |f| f.truncate(17)),
    ("an ARP frame", "the smallest request", "eth_type", |f| f[13] = 6),
    ("two tags", "NORMAL, ipv4 tagged", "eth_tag_twice", |f| drop(f.splice(16..16, [0x81, 0, 0, 9]))),
    ("an IPv4 header of 19 bytes", "the smallest request", "ipv4_truncated", |f| f.truncate(33)),
    ("IPv6 in a frame of IPv4", "the smallest request", "ipv4_version", |f| f[14] = 0x65),
    ("IPv4 options", "the smallest request", "ipv4_options", |f| f[14] = 0x46),
    ("a total length beyond the frame", "the smallest request", "ipv4_length", |f| f[17] += 1),
    ("a total length within the header", "the smallest request", "ipv4_length", |f| (f[16], f[17]) = (0, 19)),
    ("a first fragment", "the smallest request", "ipv4_fragment", |f| f[20] |= 0x20),
    ("a later fragment", "the smallest request", "ipv4_fragment", |f| f[21] = 9),
    ("UDP over IPv4", "the smallest request", "ipv4_protocol", |f| f[23] = 17),
    ("an IPv6 header of 39 bytes", "NORMAL, ipv6", "ipv6_truncated", |f| f.truncate(53)),
    ("IPv4 in a frame of IPv6", "NORMAL, ipv6", "ipv6_version", |f| f[14] = 0x40),
    ("an IPv6 length beyond the frame", "NORMAL, ipv6", "ipv6_length", |f| f[19] += 1),
    ("a fragment header", "NORMAL, ipv6", "ipv6_next_header", |f| f[20] = 44),
    ("a TCP header of 19 bytes", "the smallest request", "tcp_truncated", |f| cut_ip(f, 34 + 19)),
    ("a data offset beyond the segment", "the smallest request", "tcp_truncated", |f| cut_ip(f, 34 + 27)),
    ("a data offset of 4", "the smallest request", "tcp_data_offset", |f| f[46] = 0x40),
    ("reserved bits beside the data offset", "the smallest request", "tcp_data_offset", |f| f[46] = 0x71),
    ("our option and another behind it", "the smallest request", "tcp_data_offset", |f| {
        f[46] = 0x80;
        f.splice(62..62, [1, 1, 1, 1]);
        (f[16], f[17]) = ((f.len() as u16 - 14).to_be_bytes()[0], (f.len() as u16 - 14).to_be_bytes()[1]);
    }),
    ("a NORMAL with SYN", "the smallest request", "option_missing", |f| f[47] |= 2),
    ("a NORMAL with RST", "the smallest request", "tcp_flags", |f| f[47] |= 4),
    ("a NORMAL without ACK", "the smallest request", "tcp_flags", |f| f[47] &= !0x10),
    ("a SYN with ACK", "the smallest SYN with data", "tcp_flags", |f| f[67] |= 0x10),
    ("a CLOSE without FIN", "CLOSE, ipv4", "tcp_flags", |f| f[47] &= !1),
    ("a response with URG", "DATA, ipv4", "tcp_flags", |f| f[47] |= 0x20),
    ("another experiment's option", "the smallest request", "option_missing", |f| f[57] ^= 1),
    ("a segment without options", "the smallest request", "option_missing", |f| f[46] = 0x50),
    ("our option second", "the smallest request", "option_not_first", |f| {
        f[46] = 0x80;
        f.splice(54..54, [1, 1, 1, 1]);
        (f[16], f[17]) = ((f.len() as u16 - 14).to_be_bytes()[0], (f.len() as u16 - 14).to_be_bytes()[1]);
    }),
    ("a SYN with a third data offset", "the smallest SYN with data", "option_missing", |f| f[66] = 0xb0),
    ("an option of 4 bytes", "the smallest request", "option_length", |f| f[55] = 4),
    ("version 1", "the smallest request", "option_version", |f| f[59] = 0x10),
    ("an unknown option flag", "the smallest request", "option_flags", |f| f[59] |= 2),
    ("request class 7", "the smallest request", "class_unknown", |f| f[58] = 7),
    ("response class 0x89", "the smallest request", "class_unknown", |f| f[58] = 0x89),
    ("the options of a SYN in another order", "the smallest SYN with data", "syn_options", |f| {
        f.swap(82, 86)
    }),
    ("a response with a request's payload", "the smallest request", "number_low", |f| f[58] = 0x80),
];

/// Cuts an IPv4 frame and adjusts the total length.
fn cut_ip(f: &mut Vec<u8>, length: usize) {
    f.truncate(length);
    let total = (length as u16 - 14).to_be_bytes();
    (f[16], f[17]) = (total[0], total[1]);
}

/// (fault, original packet, expected error, edit of the payload). Offsets are those of the wire
/// format; in the packets used, the tail starts at 44 + 8 * entries.
const PAYLOADS: &[(&str, &str, &str, Edit)] = &[
    ("a ToR block cut", "the smallest request", "tor_truncated", |p| p.truncate(17)),
    ("counts cut", "the smallest request", "tor_truncated", |p| p.truncate(23)),
    ("an unknown ToR flag", "the smallest request", "tor_flags", |p| p[12] = 4),
    ("17 entries", "the smallest request", "range_count", |p| p[18] = 17),
    ("255 entries", "the smallest request", "range_count", |p| p[18] = 255),
    ("a SYN with an entry", "the smallest SYN with data", "range_count", |p| p[18] = 1),
    ("an attempt of a NORMAL", "the smallest request", "attempt", |p| p[19] = 1),
    ("a fifth attempt", "PROBE, ipv4", "attempt", |p| p[19] = 4),
    ("a kind of no entry", "the smallest request", "range_kinds_unused", |p| p[20] = 0x40),
    ("a kind behind the last entry", "1 ranges across the wrap of numbers", "range_kinds_unused", |p| {
        p[23] = 1
    }),
    ("a sealed head cut", "the smallest request", "head_truncated", |p| p.truncate(43)),
    ("another number than the option's", "the smallest request", "number_low", |p| p[31] ^= 1),
    ("entries cut", "4 ranges across the wrap of numbers", "entry_truncated", |p| p.truncate(44 + 31)),
    ("an empty range", "1 ranges across the wrap of numbers", "entry_empty", |p| (p[45], p[47]) = (5, 4)),
    ("a range that goes back", "2 ranges across the wrap of numbers", "entry_order", |p| p[53] = 4),
    ("a range twice", "2 ranges across the wrap of numbers", "entry_order", |p| p.copy_within(44..52, 52)),
    ("a range behind a mark", "ranges and marks", "entry_range_late", |p| p[21] &= 0x3f),
    ("a mark of two numbers", "ranges and marks", "entry_mark", |p| p[44 + 24 + 3] += 1),
    ("a mark with a sum", "ranges and marks", "entry_mark", |p| p[44 + 24 + 7] = 1),
    ("the fourth kind", "ranges and marks", "range_kinds_unknown", |p| p[21] |= 0x40),
    ("a sealed tail cut", "the smallest request", "tail_truncated", |p| p.truncate(HOST - MAC - 1)),
    ("a MAC cut", "the smallest request", "tail_truncated", |p| p.truncate(HOST - 1)),
    ("host fields cut", "the smallest request", "tail_truncated", |p| p.truncate(HOST + 5)),
    ("host fields of a SYN cut", "the smallest SYN with data", "tail_truncated", |p| p.truncate(29)),
    ("an unknown flag in the tail", "the smallest request", "continuation_flags", |p| p[44 + 20] = 8),
    ("a gain above the largest", "the smallest request", "continuation_gain", |p| p[44 + 21] = 9),
    ("a request that covers nothing", "the smallest request", "covers", |p| p[HOST + 2] = 0),
    ("a request that covers three", "the smallest request", "covers", |p| p[HOST + 2] = 3),
    ("17 wants", "the smallest request", "want_count", |p| p[HOST + 3] = 17),
    ("17 user continuations", "the smallest request", "ucont_count", |p| p[HOST + 4] = 17),
    ("an unknown body flag", "the smallest request", "body_flags", |p| p[HOST + 5] = 0x20),
    ("a NORMAL that gives a window back", "the smallest request", "body_flags", |p| p[HOST + 5] = 0x10),
    ("wants cut", "the smallest request", "want_truncated", |p| p[HOST + 3] = 1),
    ("a want of no bytes", "PROBE, ipv4", "want_empty", |p| p[HOST + 14 + 8..][..4].fill(0)),
    ("a want beyond 2^64", "PROBE, ipv4", "want_beyond", |p| p[HOST + 14..][..8].fill(0xff)),
    ("a want of a user continuation that is not there", "PROBE, ipv4", "want_ucont", |p| {
        p[HOST + 14 + 12] = 1
    }),
    ("an unknown want flag", "PROBE, ipv4", "want_flags", |p| p[HOST + 14 + 13] = 2),
    ("a reserved field of a want", "PROBE, ipv4", "want_reserved", |p| p[HOST + 14 + 15] = 1),
    ("a token cut", "the smallest request", "token_truncated", |p| {
        p[HOST + 5] = 2;
        p.extend([5, 1, 2]);
    }),
    ("a token of no bytes", "the smallest request", "token_empty", |p| {
        p[HOST + 5] = 2;
        p.push(0);
    }),
    ("a former address cut", "RESTART from another address", "former_truncated", |p| {
        p.truncate(HOST + 6 + 17)
    }),
    ("a former address in a NORMAL", "the smallest request", "body_flags", |p| {
        p[HOST + 5] = 8;
        p.extend([0; 18]);
    }),
    ("a user continuation cut", "the smallest request", "ucont_truncated", |p| {
        p[HOST + 4] = 1;
        p.extend([0, 5, 1, 2]);
    }),
    ("a user continuation of no bytes", "the smallest request", "ucont_empty", |p| {
        p[HOST + 4] = 1;
        p.extend([0, 0]);
    }),
    ("an input header cut", "the smallest request", "input_truncated", |p| {
        p[HOST + 5] = 1;
        p.extend([0, 0, 0, 255, 0, 0, 0, 0]);
    }),
    ("input data cut", "the smallest request", "input_truncated", |p| {
        p[HOST + 5] = 1;
        p.extend([0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 1]);
    }),
    ("an unknown input flag", "the smallest request", "input_flags", |p| {
        p[HOST + 5] = 1;
        p.extend([0, 0, 2, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }),
    ("an input continuation that is not there", "the smallest request", "input_ucont", |p| {
        p[HOST + 5] = 1;
        p.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }),
    ("input beyond 2^64", "the smallest request", "input_beyond", |p| {
        p[HOST + 5] = 1;
        p.extend([0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 1, 1]);
    }),
    ("bytes behind a request", "the smallest request", "trailing_bytes", |p| p.push(0)),
    ("a response cut", "DATA, ipv4", "response_truncated", |p| p.truncate(9)),
    ("another number than the option's, in a response", "DATA, ipv4", "number_low", |p| p[3] ^= 1),
    ("content that the class does not carry", "GROUP, ipv4", "content_flags", |p| p[8] |= 0x40),
    ("a continuation whole and as a delta", "DATA, ipv4", "content_flags", |p| p[8] |= 3),
    ("a retransmission with a continuation", "RETRANSMISSION, ipv4", "content_flags", |p| p[8] |= 1),
    ("a retransmission under K", "RETRANSMISSION, ipv4", "content_flags", |p| p[8] &= !0x10),
    ("a group with an offset", "GROUP, ipv4", "content_flags", |p| p[8] |= 8),
    ("a whole continuation cut", "DATA, ipv4", "tail_truncated", |p| p.truncate(10 + FULL - 1)),
    ("an unknown flag in a response's continuation", "DATA, ipv4", "continuation_flags", |p| {
        p[10 + 20 + 20] = 8
    }),
    ("a gain above the largest in a response's continuation", "DATA, ipv4", "continuation_gain", |p| {
        p[10 + 20 + 21] = 9
    }),
    ("a delta cut", "a delta of nothing", "delta_truncated", |p| p.truncate(10 + 14)),
    ("an unknown delta bit", "a delta of nothing", "delta_bitmap", |p| p[10] = 0x80),
    ("time in two forms", "a delta of time", "delta_bitmap", |p| p[10] = 3),
    ("srtt in two forms", "a delta of srtt", "delta_bitmap", |p| p[10] = 0x30),
    ("an unknown flag in a delta", "a delta of all of srtt, and a mark", "continuation_flags", |p| p[15] = 2),
    ("an offset cut", "a delta of nothing", "response_truncated", |p| p.truncate(10 + 15 + 7)),
    ("a response's user continuation cut", "INPUT, ipv4", "ucont_truncated", |p| {
        p.truncate(10 + FULL + 8 + 1 + 2 + 17)
    }),
    ("a response's user continuation of no bytes", "INPUT, ipv4", "ucont_empty", |p| {
        p[10 + FULL + 8 + 2] = 0
    }),
    ("no user continuation where the content says so", "INPUT, ipv4", "ucont_count", |p| {
        p[10 + FULL + 8] = 0
    }),
    ("17 user continuations in a response", "INPUT, ipv4", "ucont_count", |p| p[10 + FULL + 8] = 17),
    ("a consumed offset cut", "INPUT, ipv4", "response_truncated", |p| {
        p.truncate(10 + FULL + 8 + 1 + 2 * 20 + 9)
    }),
    ("a response's token of no bytes", "a DATA with all it can hold", "token_empty", |p| {
        p[10 + FULL + 8 + 1 + 2 * 20 + 10] = 0
    }),
    ("a response's token cut", "a DATA with all it can hold", "token_truncated", |p| {
        p.truncate(10 + FULL + 8 + 1 + 2 * 20 + 10 + 5)
    }),
    ("a group of none", "GROUP, ipv4", "group_count", |p| p[10] = 0),
    ("a group of 17", "GROUP, ipv4", "group_count", |p| p[10] = 17),
    ("a group cut", "GROUP, ipv4", "group_truncated", |p| p.truncate(11 + 2 * (4 + FULL) - 1)),
    ("bytes behind a group", "GROUP, ipv4", "trailing_bytes", |p| p.push(0)),
    ("a region of no bytes", "SKIP, ipv4", "skip_beyond", |p| p[10 + FULL + 8 + 8..][..8].fill(0)),
    ("a region beyond 2^64", "SKIP, ipv4", "skip_beyond", |p| p[10 + FULL + 8..][..16].fill(0xff)),
    ("bytes behind a WAIT", "WAIT, ipv4", "trailing_bytes", |p| p.push(0)),
    ("a challenge of no bytes", "CHALLENGE, ipv4", "token_empty", |p| p[10] = 0),
    ("a challenge cut", "CHALLENGE, ipv4", "token_truncated", |p| p.truncate(20)),
    ("an error code cut", "ERROR, ipv4", "response_truncated", |p| p.truncate(10 + FULL + 8 + 1)),
];

pub fn frames() -> Vec<(String, &'static str, Vec<u8>)> {
    let mut out = vec![];
    for (name, from, error, edit) in HEADERS {
        let mut f = find(from).frame();
        edit(&mut f);
        if f.len() >= 34 && f[12..14] != [0x81, 0] {
            repair(&mut f);
        }
        out.push((name.to_string(), *error, f));
    }
    for (name, from, error, edit) in PAYLOADS {
        let mut s = find(from);
        edit(&mut s.payload);
        out.push((name.to_string(), *error, s.frame()));
    }
    let mut f = find("the smallest request").frame();
    f[24] ^= 1;
    out.push(("an IPv4 checksum".into(), "ipv4_checksum", f));
    let mut f = find("the smallest request").frame();
    f[50] ^= 1;
    out.push(("a TCP checksum".into(), "tcp_checksum", f));
    out
}

pub fn packets() -> Vec<Value> {
    frames()
        .iter()
        .map(|(name, error, f)| {
            let (e, layer) = judge(f).err().unwrap_or_else(|| panic!("taken: {name}"));
            assert_eq!(e.name(), *error, "{name}");
            object!({ "name": name, "frame": json::hex(f), "error": e.name(), "position": e.position(), "layer": layer })
        })
        .collect()
}

pub fn heartbeat_bytes() -> Vec<(&'static str, Vec<u8>)> {
    let mut b = vec![0; heartbeat::LENGTH];
    valid::heartbeat_list()[0].write(&mut b).expect("a heartbeat");
    let edits: [(&str, Edit); 6] = [
        ("a heartbeat of 19 bytes", |b| b.truncate(19)),
        ("version 1", |b| b[0] = 1),
        ("an unknown flag", |b| b[1] = 2),
        ("replica 64", |b| b[4] = 64),
        ("an answer", |b| b[1] = 0x80),
        ("nothing", |b| b.clear()),
    ];
    edits
        .into_iter()
        .map(|(name, edit)| {
            let mut b = b.clone();
            edit(&mut b);
            (name, b)
        })
        .collect()
}

pub fn heartbeats() -> Vec<Value> {
    heartbeat_bytes()
        .into_iter()
        .map(|(name, b)| {
            let e = Heartbeat::parse(&b).expect_err(name);
            object!({ "name": name, "bytes": json::hex(&b), "error": e.name(), "position": e.position() })
        })
        .collect()
}
