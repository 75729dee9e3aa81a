//! Tests of the field X-TRODS (`src/bpf/inputs.h`).

use super::*;

impl Rig {
    /// Sends data of the client. Returns the data that the server gets, after checking that the
    /// process gets the same.
    fn up_changed(&mut self, seq: u32, data: &[u8]) -> Vec<u8> {
        let (from, to) = (self.client, self.service);
        let (seq, ack) = (CLIENT.wrapping_add(seq), SERVER);
        let segment = Segment { from, to, seq, ack, flags: ACK, options: vec![], data: data.into() };
        let (verdict, out) = self.run("trods_ingress", &segment.frame());
        assert_eq!(verdict, NEXT);
        let data = out[out.len() - data.len()..].to_vec();
        assert_eq!(out, Segment { data: data.clone(), ..segment }.frame(), "the checksum is valid");
        let mut copied = Vec::new();
        for seen in self.events() {
            let Seen::Request(_, octets, _) = seen else { panic!("{seen:?}") };
            copied.extend(octets);
        }
        assert_eq!(copied, data);
        data
    }
}

const REQUEST: &str =
    "GET /a HTTP/1.1\r\nHost: h\r\nX-TRODS: 5\r\nx_trods: 6\r\nx.trods: 8\r\nNot-X-TRODS: X-TRODS: 7\r\n\r\n";
const RENAMED: &str =
    "GET /a HTTP/1.1\r\nHost: h\r\nX-TRODX: 5\r\nx_trodx: 6\r\nx.trodx: 8\r\nNot-X-TRODS: X-TRODS: 7\r\n\r\n";

#[test]
fn clients_field_is_renamed_at_any_segment_boundary() {
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        rig.open();
        let mut seq = 0;
        let mut send = |rig: &mut Rig, pieces: &[&[u8]]| {
            let mut got = Vec::new();
            for piece in pieces {
                got.extend(rig.up_changed(seq, piece));
                seq += piece.len() as u32;
            }
            String::from_utf8(got).unwrap()
        };
        // Two requests in one segment, cut at each position, and byte by byte.
        let twice = [REQUEST, REQUEST].concat();
        for at in 0..=twice.len() {
            let (a, b) = twice.as_bytes().split_at(at);
            let pieces: Vec<&[u8]> = [a, b].into_iter().filter(|piece| !piece.is_empty()).collect();
            assert_eq!(send(&mut rig, &pieces), [RENAMED, RENAMED].concat(), "{at}");
        }
        let single: Vec<&[u8]> = REQUEST.as_bytes().chunks(1).collect();
        assert_eq!(send(&mut rig, &single), RENAMED);
        assert_eq!(
            send(&mut rig, &[b"\r\nHEAD / HTTP/1.0\nX-Trods:\n\n"]),
            "\r\nHEAD / HTTP/1.0\nX-Trodx:\n\n"
        );
        assert_eq!(rig.counters().inputs, 3 * (2 * twice.len() as u64 + 3) + 1);
    }
}

#[test]
fn clients_field_beyond_first_event_is_renamed() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    let long = |name: &str, padding: usize| {
        format!("GET / HTTP/1.1\r\nCookie: {}\r\n{name}: 5\r\n\r\n", "c".repeat(padding))
    };
    for padding in EVENT_OCTETS - 40..EVENT_OCTETS {
        let got = rig.up_changed(0, long("X-TRODS", padding).as_bytes());
        assert_eq!(String::from_utf8(got).unwrap(), long("X-TRODX", padding));
    }
}

#[test]
fn retransmitted_request_is_renamed_again() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    let (first, rest) = REQUEST.split_at(30);
    for _ in 0..3 {
        assert_eq!(rig.up_changed(0, REQUEST.as_bytes()), RENAMED.as_bytes());
        assert_eq!(rig.up_changed(0, first.as_bytes()), first.as_bytes());
    }
    assert_eq!(rig.up_changed(30, rest.as_bytes()), &RENAMED.as_bytes()[30..]);
}

#[test]
fn uploads_are_not_changed() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    let body = b"\r\nX-TRODS: 5\r\n\r\nGET / HTTP/1.1\r\nX-TRODS: 5\r\n";
    let request = [&b"POST / HTTP/1.1\r\nX-TRODS: 5\r\nContent-Length: 500\r\n\r\n"[..], body].concat();
    let mut seq = 0;
    for data in [&request[..], body, b"x", body] {
        assert_eq!(rig.up_changed(seq, data), data);
        seq += data.len() as u32;
    }
    // A new connection between the same ports does not inherit the state of the scan.
    rig.trods.free(&rig.key()).unwrap();
    rig.open();
    assert_eq!(rig.up_changed(0, REQUEST.as_bytes()), RENAMED.as_bytes());
    assert_eq!(rig.counters().inputs, 3);
}

impl Rig {
    /// Sends data of the server. Returns the data that the client receives; `None` if the segment
    /// does not leave.
    fn down_changed(&self, seq: u32, data: &[u8]) -> Option<Vec<u8>> {
        let (from, to) = (self.service, self.client);
        let (seq, ack) = (SERVER.wrapping_add(seq), CLIENT);
        let segment = Segment { from, to, seq, ack, flags: ACK, options: vec![], data: data.into() };
        let (verdict, out) = self.run("trods_egress", &segment.frame());
        let data = out[out.len() - data.len()..].to_vec();
        assert_eq!(out, Segment { data: data.clone(), ..segment }.frame(), "the checksum is valid");
        (verdict == NEXT).then_some(data)
    }
}

const RESPONSE: &str = "HTTP/1.1 200 OK\r\nX-TRODS: 5\r\nA: b\r\nx-trods:\r\n\r\nX-TRODS: 5\r\n";
const BLANKED: &str = "HTTP/1.1 200 OK\r\nPadding:  \r\nA: b\r\nPadding:\r\n\r\nX-TRODS: 5\r\n";

#[test]
fn servers_field_is_overwritten_in_every_segment() {
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        rig.open();
        let at = |n: u32| SERVER.wrapping_add(n);
        rig.trods.blank(&rig.key(), &[(at(17), at(27)), (at(35), at(43))]).unwrap();
        let whole = RESPONSE.as_bytes();
        // A held segment is not changed, because the process reads it.
        let held = rig.run("trods_egress", &{
            let (from, to, ack, data) = (rig.service, rig.client, CLIENT, whole.to_vec());
            Segment { from, to, seq: SERVER, ack, flags: ACK, options: vec![], data }.frame()
        });
        assert!(held.1.ends_with(whole));
        rig.limit(0, whole.len() as u32, None);
        for from in 0..whole.len() {
            for to in from + 1..=whole.len() {
                let got = rig.down_changed(from as u32, &whole[from..to]).unwrap();
                assert_eq!(String::from_utf8(got).unwrap(), BLANKED[from..to], "{from} to {to}");
            }
        }
        // The fields are overwritten without limits, too.
        rig.trods.free(&rig.key()).unwrap();
        assert_eq!(rig.down_changed(0, whole).unwrap(), BLANKED.as_bytes());
        // The sequence numbers of the field may be in use again, so it is no longer overwritten.
        assert!(rig.down_changed(3 << 29, whole).is_some());
        assert_eq!(rig.down_changed(0, whole).unwrap(), whole);
        // A new connection between the same ports.
        rig.trods.blank(&rig.key(), &[(at(17), at(27))]).unwrap();
        rig.open();
        rig.limit(0, whole.len() as u32, None);
        assert_eq!(rig.down_changed(0, whole).unwrap(), whole);
    }
}
