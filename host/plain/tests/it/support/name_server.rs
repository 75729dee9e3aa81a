//! A name server behind stateless TCP. The queried name gives the length of the answer.

use rivulet_plain::dns::{self, Reply};

/// A query with its length field, for an answer with a record of this many bytes.
pub fn query(id: u16, size: usize, edns: bool) -> Vec<u8> {
    let name = size.to_string();
    let mut out = id.to_be_bytes().to_vec();
    out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, edns.into()]);
    out.push(name.len() as u8);
    out.extend(name.as_bytes());
    out.extend([0, 0, 16, 0, 1]);
    if edns {
        out.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    }
    [&(out.len() as u16).to_be_bytes()[..], &out].concat()
}

/// The response to a message; the record's bytes begin with `seed`.
pub fn respond(message: &[u8], seed: u8) -> Vec<u8> {
    let length = usize::from(message[12]);
    let size: usize = std::str::from_utf8(&message[13..13 + length]).unwrap().parse().unwrap();
    let edns = message[11] == 1;
    let mut out = message[..12 + length + 6].to_vec();
    out[2] |= 0x84;
    out[6..12].copy_from_slice(&[0, 1, 0, 0, 0, edns.into()]);
    out.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60]);
    out.extend((size as u16).to_be_bytes());
    out.extend((0..size).map(|n| seed ^ (n * 7 + n / 251) as u8));
    if edns {
        out.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    }
    out
}

/// The bytes that a client must get for these queries: each answer with its length field, as the
/// server itself would send it by TCP.
pub fn stream(queries: &[Vec<u8>], seed: u8) -> Vec<u8> {
    let framed = |query: &Vec<u8>| {
        let answer = respond(&query[2..], seed);
        [&(answer.len() as u16).to_be_bytes()[..], &answer].concat()
    };
    queries.iter().flat_map(framed).collect()
}

/// The bytes that a replica makes: each query as a datagram, each answer converted.
pub fn translated(request: &[u8], seed: u8) -> Vec<u8> {
    let mut out = Vec::new();
    for (n, query) in dns::queries(request).expect("whole queries").iter().enumerate() {
        let id = 0x7000 + n as u16;
        let answer = respond(&query.datagram(id), seed);
        let Reply::Answer(opt) = query.judge(id, &answer) else { panic!("no answer") };
        assert!(query.append(&answer, opt, 1 << 16, &mut out));
    }
    out
}
