//! docs/plain-vectors.json: cookies and timestamps for other implementations (the ToR, the
//! dissector). `RIVULET_WRITE_VECTORS=1 cargo test -p rivulet-plain --test it vectors` writes the
//! file.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use rivulet_plain::{
    Answering, Class, CookieKey, CookieKeys, Download, Flow, LargeStamp, MAX_ANSWER, MAX_OBJECT, MAX_START,
    NOBODYS, ObjectStamp, Opened, Place, Scale, Seal, Stamp, Whole, kernel_value, object_isn, window_number,
    window_of,
};

const KEYS: [[u8; 8]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], *b"\xff\xfe\xfd\xfc\x80\x40\x20\x10"];

fn hex(key: [u8; 8]) -> String {
    key.map(|b| format!("{b:02x}")).concat()
}

fn render() -> String {
    let clients: [(IpAddr, u16); 4] = [
        ("192.0.2.1".parse().unwrap(), 49152),
        ("10.0.0.255".parse().unwrap(), 1),
        ("2001:db8::1".parse().unwrap(), 65535),
        ("fe80::a:b:c:d".parse().unwrap(), 12345),
    ];
    let (mut cookies, mut openings, mut places, mut large) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut isns = Vec::new();
    for key in KEYS {
        let ring = CookieKeys { current: CookieKey::new(key), others: [None; 2] };
        for (n, (ip, port)) in clients.into_iter().enumerate() {
            let client = SocketAddr::new(ip, port);
            let service_port = [80, 443, 53, 8080][n];
            let flow = Flow::new(client, SocketAddr::new(ip, service_port));
            let lead = format!(
                "\"key\": \"{}\", \"client\": \"{ip}\", \"client_port\": {port}, \"service_port\": {service_port}",
                hex(key)
            );
            let isn = object_isn(ring.current, client, SocketAddr::new(ip, service_port));
            isns.push(format!("{{{lead}, \"isn\": {isn}}}"));
            for mss in [536, 1220, 1440, 1460] {
                let class = Class::of(mss).unwrap();
                let isn = flow.stamped(ring.current, class);
                cookies.push(format!("{{{lead}, \"stamped\": true, \"mss\": {mss}, \"isn\": {isn}}}"));
            }
            for first in [0u32, 1, 0x1ff, 0xdead_beef, u32::MAX] {
                let isn = flow.bare(ring.current, first);
                cookies.push(format!("{{{lead}, \"stamped\": false, \"first\": {first}, \"isn\": {isn}}}"));
            }
            for (minute, first, shift) in
                [(0u32, 0u32, 0u8), (29_000_001, 0x1234_5678, 7), (u32::MAX, u32::MAX, 14)]
            {
                let scale = Scale::of(shift);
                let value = Stamp::opening(&flow, &ring, minute, first, scale);
                assert_eq!(Stamp::parse(value).opens(&flow, &ring, minute, first), Opened::Yes(scale));
                openings.push(format!(
                    "{{{lead}, \"minute\": {minute}, \"first\": {first}, \"shift\": {shift}, \"value\": {value}}}"
                ));
            }
            for (object, shift, version, at, repair, cwnd, all) in [
                (0u16, 0u8, 1u32, 0u32, false, 14_480u32, false),
                (0x1ff, 14, u32::MAX, 1 << 30, true, 1 << 20, true),
                (0xa5, 7, 0x1234_5678, 0x00ab_cdef, false, 100_000, false),
            ] {
                let (cell, scale) = (at >> 16, Scale::of(shift));
                let (of, seal) = (Download { object, scale }, Seal::new(&flow, ring.current, version));
                let (slot, window) = (cell as u8, window_number(cwnd, cell));
                let stamp = LargeStamp { slot, repair, window, all, of };
                let (value, window) = (stamp.value(&flow, &seal), window_of(stamp.window));
                assert_eq!(LargeStamp::read(value, &flow, &seal), Some(stamp));
                large.push(format!(
                    "{{{lead}, \"object\": {object}, \"shift\": {shift}, \"version\": {version}, \"at\": {at}, \
                     \"repair\": {repair}, \"cwnd\": {cwnd}, \"all\": {all}, \"window\": {window}, \"value\": {value}}}"
                ));
            }
            for (stamped, more) in [
                (true, 1),
                (true, 1449),
                (true, 1450),
                (true, 300_001),
                (false, 1),
                (false, 1025),
                (false, 600),
            ] {
                let isn = if stamped {
                    flow.stamped(ring.current, Class::of(1460).unwrap())
                } else {
                    flow.bare(ring.current, 0)
                };
                let ack = isn.wrapping_add(more);
                let place = match flow.place(&ring, ack, stamped).unwrap() {
                    Place::Stamped { class, at, fin } => {
                        format!("\"class\": {}, \"at\": {at}, \"fin\": {fin}", class.number())
                    }
                    Place::Bare { at, sequence } => format!("\"at\": {at}, \"sequence\": {sequence}"),
                    Place::BareEnd { fin } => format!("\"end\": true, \"fin\": {fin}"),
                };
                places.push(format!("{{{lead}, \"stamped\": {stamped}, \"ack\": {ack}, {place}}}"));
            }
        }
    }
    let mut answers = Vec::new();
    for start in [0, 64, 1984, 2048, 1_000_000 / 64 * 64 % MAX_START, MAX_START] {
        for (next, version, shift) in [(0u16, 0u8, 0u8), (0xfff, 3, 14), (0x5a5, 1, 7)] {
            let answering = Answering { start, next, version, scale: Scale::of(shift) };
            let value = answering.value();
            assert_eq!(Stamp::parse(value), Stamp::Answer(answering));
            answers.push(format!(
                "{{\"start\": {start}, \"next\": {next}, \"version\": {version}, \"shift\": {shift}, \"value\": {value}}}"
            ));
        }
        answers.push(format!("{{\"start\": {start}, \"kernel\": true, \"value\": {}}}", kernel_value(start)));
    }
    let mut wholes = Vec::new();
    for length in [1, 63, 127, 128, 1448, MAX_ANSWER] {
        for (mss, check, shift) in [(536, 0u16, 0u8), (1460, 0x3ff, 14), (1220, 0x2a5, 7)] {
            let class = Class::of(mss).unwrap();
            let whole = Whole { length, class, check, scale: Scale::of(shift) };
            let value = whole.value();
            assert_eq!(Whole::parse(value), Some(whole));
            wholes.push(format!(
                "{{\"length\": {length}, \"mss\": {mss}, \"check\": {check}, \"shift\": {shift}, \"value\": {value}}}"
            ));
        }
    }
    let mut objects = Vec::new();
    for object in [0, 1, 0x2_a5a5, MAX_OBJECT, NOBODYS] {
        for (index, mss, odd, shift) in [(0u8, 536, false, 0u8), (31, 1460, true, 14), (13, 1220, true, 7)] {
            let (class, scale) = (Class::of(mss).unwrap(), Scale::of(shift));
            let stamp = ObjectStamp { index, class, odd, scale, object };
            let value = stamp.value();
            assert_eq!(ObjectStamp::parse(value), Some(stamp));
            objects.push(format!(
                "{{\"index\": {index}, \"mss\": {mss}, \"odd\": {odd}, \"shift\": {shift}, \"object\": {object}, \"value\": {value}}}"
            ));
        }
    }
    let mut text = String::from("{\n");
    let sections = [
        ("cookies", cookies),
        ("places", places),
        ("openings", openings),
        ("answers", answers),
        ("back_ends", wholes),
        ("large", large),
        ("object_isns", isns),
        ("objects", objects),
    ];
    for (n, (name, rows)) in sections.iter().enumerate() {
        let end = if n + 1 < sections.len() { "," } else { "" };
        let _ = writeln!(text, "\"{name}\": [\n{}\n]{end}", rows.join(",\n"));
    }
    text + "}\n"
}

#[test]
fn committed_vectors_match_the_code() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/plain-vectors.json");
    let fresh = render();
    let _: serde_json::Value = serde_json::from_str(&fresh).expect("JSON");
    if std::env::var_os("RIVULET_WRITE_VECTORS").is_some() {
        std::fs::write(&path, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&path).expect("docs/plain-vectors.json");
    let first = committed.lines().zip(fresh.lines()).position(|(a, b)| a != b);
    assert!(committed == fresh, "docs/plain-vectors.json is stale from line {:?}", first.map(|n| n + 1));
}
