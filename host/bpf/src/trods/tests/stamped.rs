//! Handshakes and timestamps of the programs (`src/bpf/ts.h`). `host/trods/tests/it/stamps.rs` shows
//! between network namespaces that the kernel takes over the connections.

mod echo;
mod recorded;

use std::net::TcpListener;

use rivulet_plain::{CookieKey, ObjectStamp, object_isn};

use super::*;

/// Timestamp bits with class 3, key 1 and scale 7.
pub(super) const BASE: u32 = 3 << 25 | 1 << 24 | 3 << 22 | 4 << 19;
const OBJECT: u32 = 0x5_4321;
/// The object number of connections that cannot be resumed.
const NOBODYS: u32 = 0x7_ffff;
const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nDate: Wed, 25 Nov 2026 07:14:08 GMT\r\nETag: \"a\"\r\nContent-Length: 1000\r\n\r\n";
const DATE_AT: usize = 23;
const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
/// The kernel's TSval.
const KERNEL: u32 = 77_000;
const LISTED: Issuer =
    Issuer { key: [0x0302_0100, 0x0706_0504], odd: true, table: 9, hunting: 0, mss: [1460, 1440] };

fn stamps(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

/// A segment after a program: the verdict, TSval, TSecr, acknowledgement and flags.
#[derive(Debug, PartialEq)]
pub(super) struct Passed {
    verdict: i32,
    value: u32,
    echo: u32,
    pub(super) ack: u32,
    flags: u8,
}

/// Programs that answer handshakes; `None` if the kernel lacks a function that they call.
fn issuing() -> Option<Trods> {
    let missing = kernel::skipped(Feature::Tcx) || kernel::skipped(Feature::Handshakes);
    (!missing).then(|| Trods::load_issuing().unwrap_or_else(|e| panic!("{e}")))
}

/// A connection without a request.
fn begun() -> Stamped {
    Stamped {
        heard: 0,
        isn: SERVER_ISN,
        client_next: CLIENT,
        base: BASE,
        object: 0,
        total: 0,
        phase: Phase::Setup,
        client_fin: false,
        adopted: false,
        generation: Generation::default(),
        index: 0,
        echo: 0,
        limits: Limits::default(),
    }
}

/// Adds a connection in this phase.
pub(super) fn put(trods: &Trods, key: &FlowKey, phase: Phase) {
    trods.stamps().put(key, &Stamped { phase, ..begun() }).unwrap();
}

impl Rig {
    fn stamped() -> Option<Rig> {
        Rig::stamped_at("192.0.2.7:1025", "10.9.0.1:80")
    }

    pub(super) fn stamped_at(client: &str, service: &str) -> Option<Rig> {
        Some(Rig::of(issuing()?, client, service).issuing())
    }

    /// A rig with a service of stamped connections, and one object in its table.
    fn issuing(self) -> Rig {
        self.trods.issue(self.service, 3, 2, false).unwrap();
        self.trods.stamps().set_issuer(2, &LISTED).unwrap();
        let total = HEAD.len() as u32 + 1000;
        let sum = head_sum(HEAD, DATE_AT);
        let head = KnownHead { sum, length: HEAD.len() as u32, date: DATE_AT as u32, total, object: OBJECT };
        self.trods.stamps().add(9, b"h", b"/a", &[KnownHead::default(), head]).unwrap();
        self
    }

    /// Gives the service a store.
    fn records(&self) {
        self.trods.issue(self.service, 3, 2, true).unwrap();
    }

    /// Sets the limits as after a record is stored: how far acknowledgements and data may leave.
    fn store(&self, ack: u32, data: u32) {
        let now = self.trods.limits(&self.key()).unwrap().unwrap();
        let (ack, data) = (CLIENT.wrapping_add(ack), SERVER.wrapping_add(data));
        assert!(self.trods.set_limits(&self.key(), &Limits { ack, data, recorded: true, ..now }).unwrap());
    }

    pub(super) fn put(&self, change: impl FnOnce(&mut Stamped)) {
        let mut stamped = begun();
        change(&mut stamped);
        self.trods.free(&self.key()).unwrap();
        let end = stamped.total;
        stamped.limits = Limits {
            ack: stamped.client_next,
            data: SERVER.wrapping_add(end),
            fin_at: (end > 0).then(|| SERVER.wrapping_add(end)),
            closes: false,
            first: SERVER,
            acked: SERVER,
            ..Limits::default()
        };
        self.trods.stamps().put(&self.key(), &stamped).unwrap();
        if stamped.phase == Phase::Recorded {
            self.trods.insert(&self.key(), &stamped.limits).unwrap();
        }
    }

    fn now(&self) -> Stamped {
        self.trods.stamps().get(&self.key()).unwrap().unwrap()
    }

    fn through(&self, program: &'static str, segment: &Segment, cut: u32) -> Passed {
        let frame = segment.frame();
        let (verdict, out) = self.run_cut(program, &frame, cut);
        let tcp = &out[34..];
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let changed =
            Segment { ack: word(8), flags: tcp[13], options: tcp[20..32].to_vec(), ..segment.clone() };
        assert_eq!(out, changed.frame(), "only timestamp, acknowledgement and checksum change");
        let whole = Passed { verdict, value: word(24), echo: word(28), ack: word(8), flags: tcp[13] };
        Passed {
            ack: whole.ack.wrapping_sub(if program == "trods_egress" { CLIENT } else { SERVER }),
            ..whole
        }
    }

    /// Sends a segment of the client that echoes this timestamp.
    pub(super) fn client_sends(&self, flags: u8, seq: u32, ack: u32, echo: u32, data: &[u8]) -> Passed {
        let (seq, ack) = (CLIENT.wrapping_add(seq), SERVER.wrapping_add(ack));
        let (from, to, options, data) = (self.client, self.service, stamps(5, echo), data.to_vec());
        self.through("trods_ingress", &Segment { from, to, seq, ack, flags, options, data }, 0)
    }

    /// Sends a segment of the server with this TSval of the kernel.
    fn answers(&self, flags: u8, seq: u32, ack: u32, at: u32, data: &[u8]) -> Passed {
        self.answers_cut(flags, seq, ack, at, data, 0)
    }

    /// Like [`Rig::answers`], for a segment that is cut into `cut` segments as it leaves.
    fn answers_cut(&self, flags: u8, seq: u32, ack: u32, at: u32, data: &[u8], cut: u32) -> Passed {
        let (seq, ack) = (SERVER.wrapping_add(seq), CLIENT.wrapping_add(ack));
        let (from, to, options, data) = (self.service, self.client, stamps(at, 5), data.to_vec());
        self.through("trods_egress", &Segment { from, to, seq, ack, flags, options, data }, cut)
    }

    fn unnamed(&self) -> Unnamed {
        self.counters().unnamed
    }
}

fn object_of(value: u32) -> u32 {
    value & 0x7_ffff
}

fn response() -> Vec<u8> {
    [HEAD, &[b'x'; 1000]].concat()
}

#[test]
fn syn_gets_hash_of_addresses_as_isn() {
    for (client, host) in [("127.0.0.9:49152", "127.0.0.1"), ("[2001:db8::1]:65535", "[::1]")] {
        let Ok(listener) = TcpListener::bind(format!("{host}:0")) else { continue };
        let service = listener.local_addr().unwrap();
        let Some(trods) = issuing() else { return };
        let rig = Rig::of(trods, client, &service.to_string()).issuing();
        let syn = |options: Vec<u8>| Segment {
            from: rig.client,
            to: service,
            seq: CLIENT_ISN,
            ack: 0,
            flags: SYN,
            options,
            data: vec![],
        };
        let (verdict, out) = rig.run("trods_ingress", &syn(OPTIONS.to_vec()).frame());
        let tcp = if client.starts_with('[') { 54 } else { 34 };
        let word = |at: usize| u32::from_be_bytes(out[tcp + at..tcp + at + 4].try_into().unwrap());
        let mss = LISTED.mss[usize::from(tcp == 54)].to_be_bytes();
        let value = BASE.to_be_bytes();
        let options = [&[2, 4, mss[0], mss[1], 4, 2, 8, 10][..], &value, &[0, 0, 0, 7, 1, 3, 3, 7]].concat();
        let answer = Segment {
            from: service,
            to: rig.client,
            seq: word(4),
            ack: CLIENT,
            flags: SYN | ACK,
            options,
            data: vec![],
        };
        let mut want = answer.frame();
        // The window, and the checksum of the IPv4 header, which frames of this test lack.
        want[tcp + 14..tcp + 18].copy_from_slice(&out[tcp + 14..tcp + 18]);
        if tcp == 34 {
            assert_eq!(sum(&out[14..34]), 0xffff);
            want[24..26].copy_from_slice(&out[24..26]);
        }
        assert_eq!((verdict, &out), (REDIRECT, &want));
        let isn = object_isn(CookieKey::new([0, 1, 2, 3, 4, 5, 6, 7]), rig.client, service);
        assert_eq!(word(4), isn, "every replica computes the same ISN");
        for (mss, shift, class, scale) in
            [(536u16, 0u8, 0, 0), (1459, 5, 2, 4), (9000, 10, 3, 9), (1220, 14, 1, 11)]
        {
            let mut options = OPTIONS.to_vec();
            options[2..4].copy_from_slice(&mss.to_be_bytes());
            options[19] = shift;
            let out = rig.run("trods_ingress", &syn(options).frame()).1;
            let value = u32::from_be_bytes(out[tcp + 28..tcp + 32].try_into().unwrap());
            let stamp = ObjectStamp::parse(value).unwrap();
            assert_eq!((stamp.class.number(), stamp.scale.shift(), stamp.odd), (class, scale, true));
            assert_eq!((stamp.index, stamp.object), (0, 0));
        }
        let (from, to) = (service.ip(), rig.client.ip());
        assert_eq!(sum(&[&pseudo(from, to, 40)[..], &out[tcp..]].concat()), 0xffff);
        assert_eq!(&out[tcp + 14..tcp + 16], &64240u16.to_be_bytes());
        // The ISN is the same each time, and different between other ports.
        let again = rig.run("trods_ingress", &syn(OPTIONS.to_vec()).frame()).1;
        assert_eq!(again, out);
        // The kernel answers SYNs that lack options, and SYNs to ports without a listener.
        for lacks in [2, 6, 17] {
            let mut options = OPTIONS.to_vec();
            options[lacks] = 1;
            if lacks == 2 {
                options[0..4].fill(1);
            }
            if lacks == 6 {
                options[6..16].fill(1);
            }
            if lacks == 17 {
                options[16..20].fill(1);
            }
            assert_eq!(rig.run("trods_ingress", &syn(options).frame()).0, NEXT);
        }
        assert_eq!(rig.unnamed().options, 3);
        // Programs for a service without an issuer answer no SYN, either.
        let without = Rig::new(client, &service.to_string()).unwrap().issuing();
        let whole = syn(OPTIONS.to_vec()).frame();
        assert_eq!([&without, &rig].map(|rig| rig.run("trods_ingress", &whole).0), [NEXT, REDIRECT]);
        drop(listener);
        assert_eq!(rig.run("trods_ingress", &syn(OPTIONS.to_vec()).frame()).0, NEXT);
    }
}

#[test]
fn request_is_acknowledged_only_with_named_timestamp() {
    let Some(mut rig) = Rig::stamped() else { return };
    rig.put(|_| {});
    // Nothing is acknowledged before the response begins.
    assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, NEXT);
    let end = GET.len() as u32;
    assert_eq!(rig.events(), [], "a response of a single segment is not announced");
    assert_eq!((rig.now().phase, rig.now().client_next.wrapping_sub(CLIENT)), (Phase::Asked, end));
    assert_eq!(rig.answers(ACK, 0, end, KERNEL, &[]).verdict, SWALLOWED);
    let first = rig.answers(ACK, 0, end, KERNEL, &response());
    assert_eq!((first.verdict, object_of(first.value), first.ack), (NEXT, OBJECT, end));
    // Data after a hole would acknowledge the request without an echo.
    let later = rig.answers(ACK, 500, end, KERNEL, &[b'x'; 9]);
    assert_eq!((object_of(later.value), later.ack), (OBJECT, 0));
    let total = response().len() as u32;
    assert_eq!(rig.client_sends(ACK, end, 500, first.value, &[]).verdict, NEXT);
    assert_eq!(rig.now().phase, Phase::Echoed);
    assert_eq!(rig.answers(ACK, 500, end, KERNEL, &[b'x'; 9]).ack, end);
    // The FIN leaves only at the end of the response.
    let fin = rig.answers(FIN | ACK, 500, end, KERNEL, &[b'x'; 9]);
    assert_eq!((fin.verdict, fin.flags), (NEXT, ACK));
    assert_eq!(rig.events(), [Seen::Fin(509, false)]);
    assert_eq!(rig.answers(FIN | ACK, total, end, KERNEL, &[]).flags, FIN | ACK);
    assert_eq!((rig.counters().named, rig.unnamed()), (1, Unnamed::default()));
}

/// A dead process announces no response that begins now. A client that has none of it retransmits,
/// and another replica gets that.
#[test]
fn no_response_begins_under_dead_process() {
    for records in [false, true] {
        let Some(rig) = Rig::stamped() else { return };
        let end = GET.len() as u32;
        if records {
            rig.records();
        }
        rig.put(|_| {});
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, NEXT);
        rig.set_dead(true);
        assert_eq!(rig.answers(ACK, 0, end, KERNEL, &response()).verdict, SWALLOWED);
        // The data after it does not leave, either.
        assert_eq!(rig.answers(ACK, 500, end, KERNEL, &[b'x'; 9]).verdict, SWALLOWED);
        assert_eq!((rig.now().phase, rig.unnamed()), (Phase::Asked, Unnamed::default()));
        // A response that began before the death continues.
        rig.put(|st| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, 9000));
        assert_eq!(object_of(rig.answers(ACK, 500, 0, KERNEL, &[b'x'; 9]).value), OBJECT);
    }
}

/// A long response has left before the client echoes its name: no later segment acknowledges.
#[test]
fn final_ack_is_reflected_as_ack_of_request() {
    let Some(rig) = Rig::stamped() else { return };
    let (end, total) = (GET.len() as u32, response().len() as u32);
    let asks = |is_long| {
        rig.put(|_| {});
        rig.client_sends(ACK, 0, 0, BASE, GET);
        rig.answers(ACK, 0, end, KERNEL, &[]);
        // If the frame is cut into several segments, the client may accept another one first.
        let first = rig.answers_cut(ACK, 0, end, KERNEL, &response(), if is_long { 2 } else { 1 });
        assert_eq!(first.ack, if is_long { 0 } else { end });
        // The client does not accept a segment first that is not the next one in order.
        assert_eq!(rig.answers(ACK, 500, end, KERNEL, &[b'x'; 9]).ack, 0);
        first.value
    };
    let has = |octets, echo| {
        assert_eq!(rig.client_sends(ACK, end, octets, echo, &[]).verdict, NEXT);
        rig.counters().reflected
    };
    let value = asks(true);
    assert_eq!(has(total, BASE), 0, "no other replica can identify the response yet");
    asks(true);
    assert_eq!(has(500, value), 0, "the rest of the response may carry the acknowledgement");
    let value = asks(true);
    assert_eq!((has(total, value), has(total, value)), (1, 1), "once");
    let value = asks(false);
    assert_eq!(has(total, value), 1, "the response carried the acknowledgement");
    let value = asks(true);
    assert_eq!(rig.answers(ACK, 500, end, KERNEL, &[b'x'; 9]).ack, 0);
    assert_eq!(rig.client_sends(FIN | ACK, end, total, value, &[]).verdict, NEXT);
    assert_eq!(rig.counters().reflected, 1, "the kernel answers that");
}

#[test]
fn unlisted_target_continues_unnamed() {
    let request = |text: &str| text.as_bytes().to_vec();
    let other = |from: &str, to: &str| request(&std::str::from_utf8(GET).unwrap().replace(from, to));
    let count = |pick: fn(&Unnamed) -> u64| pick;
    for (asked, counted) in [
        (other("/a", "/b"), count(|u| u.unlisted)),
        (other("/a", "/a?x"), count(|u| u.unlisted)),
        (other("GET", "PUT"), count(|u| u.asking)),
        ([GET, GET].concat(), count(|u| u.asking)),
        (GET[..20].to_vec(), count(|u| u.asking)),
        (other("Host: h", "Host: h\r\nRANGE: bytes=1-"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\nIf-None-Match: x"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\ncookie: x"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\nAuthorization: x"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\nX-Trods: x"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\nx_trods: x"), count(|u| u.fields)),
        // Another site on the same server, or an ambiguous Host.
        (other("Host: h", "Host: i"), count(|u| u.unlisted)),
        (other("Host: h", "Host: h:80"), count(|u| u.unlisted)),
        (other("Host: h", "Host: hh"), count(|u| u.unlisted)),
        (other("Host: h", "Hostess: h"), count(|u| u.fields)),
        (other("Host: h", "A: h"), count(|u| u.fields)),
        (other("Host: h", "Host:"), count(|u| u.fields)),
        (other("Host: h", "Host: h i"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\nhost: h"), count(|u| u.fields)),
        (other("Host: h", "Host: h\r\n\ti"), count(|u| u.fields)),
    ] {
        let Some(rig) = Rig::stamped() else { return };
        rig.put(|_| {});
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, &asked).verdict, NEXT);
        let text = String::from_utf8_lossy(&asked);
        assert_eq!((rig.now().phase, counted(&rig.unnamed())), (Phase::Free, 1), "{text}");
        // The connection has no limits, but keeps our timestamps.
        let sent = rig.answers(FIN | ACK, 0, asked.len() as u32, KERNEL, &response());
        assert_eq!((sent.verdict, sent.ack, sent.flags), (NEXT, asked.len() as u32, FIN | ACK));
        assert_eq!(object_of(sent.value), NOBODYS);
    }
}

#[test]
fn host_is_looked_up_ignoring_case() {
    for (asked, is_named) in [
        ("Host: h", true),
        ("HOST:h", true),
        ("A: b\r\nhOsT: \tH", true),
        ("Host: h\r\nB: host", true),
        ("Host: g", false),
    ] {
        let Some(rig) = Rig::stamped() else { return };
        rig.put(|_| {});
        let asked = std::str::from_utf8(GET).unwrap().replace("Host: h", asked);
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, asked.as_bytes()).verdict, NEXT);
        assert_eq!(rig.now().phase == Phase::Asked, is_named, "{asked}");
    }
}

/// The programs read only the beginning of a longer name, which could belong to another site.
#[test]
fn overlong_host_matches_no_other_site() {
    // Bytes that the programs read: the "t", the colon, a space, the name, and the line's end.
    const HOST_MAX: usize = 272;
    let longest = "h".repeat(HOST_MAX - 4);
    let sum = head_sum(HEAD, DATE_AT);
    let total = HEAD.len() as u32 + 1000;
    let head = KnownHead { sum, length: HEAD.len() as u32, date: DATE_AT as u32, total, object: OBJECT };
    for (host, is_named) in
        [(longest.clone(), true), (format!("{longest}h"), false), (format!("{longest}hx"), false)]
    {
        let Some(rig) = Rig::stamped() else { return };
        for listed in [&longest, &format!("{longest}h")] {
            let heads = [KnownHead::default(), head];
            rig.trods.stamps().add(LISTED.table, listed.as_bytes(), b"/a", &heads).unwrap();
        }
        rig.put(|_| {});
        let asked = std::str::from_utf8(GET).unwrap().replace("Host: h", &format!("Host: {host}"));
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, asked.as_bytes()).verdict, NEXT);
        assert_eq!(rig.now().phase == Phase::Asked, is_named, "{} bytes", host.len());
        assert_eq!(rig.unnamed().fields, u64::from(!is_named));
    }
}

#[test]
fn unknown_response_head_is_not_named() {
    let whole = response();
    let other =
        |from: &str, to: &str| String::from_utf8(whole.clone()).unwrap().replacen(from, to, 1).into_bytes();
    for (answer, is_named) in [
        (whole.clone(), true),
        (other("07:14:08", "23:59:59"), true),
        (other("\"a\"", "\"b\""), false),
        (other("200", "206"), false),
        (other("Length: 1000", "Length: 1001"), false),
        (whole[..HEAD.len() - 1].to_vec(), false),
        ([&whole[..], b"HTTP/1.1"].concat(), false),
    ] {
        let Some(rig) = Rig::stamped() else { return };
        rig.put(|_| {});
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, NEXT);
        let sent = rig.answers(ACK, 0, GET.len() as u32, KERNEL, &answer);
        let text = String::from_utf8_lossy(&answer[..HEAD.len() - 1]);
        assert_eq!((sent.verdict, object_of(sent.value) == OBJECT), (NEXT, is_named), "{text}");
    }
}

/// The client holds bytes of an object behind a hole; another response would be mixed with them.
#[test]
fn client_with_hole_gets_only_its_object() {
    let end = GET.len() as u32;
    for (object, is_sent) in [(OBJECT, true), (OBJECT + 1, false)] {
        let Some(mut rig) = Rig::stamped() else { return };
        rig.put(|st| st.object = object);
        let first = rig.answers(ACK, 0, 0, KERNEL, &[]);
        assert_eq!((first.verdict, object_of(first.value)), (NEXT, 0), "not named yet");
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, b"GET /b HTTP/1.1\r\n\r\n").verdict, DROP);
        assert_eq!(
            rig.answers(ACK, 0, 0, KERNEL, b"HTTP/1.1 500 No\r\n\r\n").verdict,
            SWALLOWED,
            "not asked for"
        );
        assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, NEXT);
        assert_eq!(rig.answers(ACK, 9, end, KERNEL, &[b'x'; 9]).verdict, SWALLOWED);
        assert_eq!(rig.answers(ACK, 0, end, KERNEL, b"HTTP/1.1 500 No\r\n\r\n").verdict, SWALLOWED);
        let sent = rig.answers(ACK, 0, end, KERNEL, &response());
        assert_eq!(sent.verdict == NEXT, is_sent);
        assert_eq!(rig.now().phase, if is_sent { Phase::Named } else { Phase::Asked });
        assert_eq!((rig.events(), rig.unnamed()), (vec![], Unnamed::default()));
    }
}

/// The event of a long response names it, for a client that holds everything but its beginning.
#[test]
fn long_named_response_is_announced() {
    let Some(mut rig) = Rig::stamped() else { return };
    let long = String::from_utf8(HEAD.to_vec()).unwrap().replace("1000", "9000").into_bytes();
    let total = long.len() as u32 + 9000;
    let length = long.len() as u32;
    let head = KnownHead { sum: head_sum(&long, DATE_AT), length, date: DATE_AT as u32, total, object: 7 };
    rig.trods.stamps().add(9, b"h", b"/a", &[head, KnownHead::default()]).unwrap();
    rig.put(|_| {});
    assert_eq!(rig.client_sends(ACK, 0, 0, BASE, GET).verdict, NEXT);
    assert_eq!(rig.events(), []);
    let end = GET.len() as u32;
    let sent = rig.answers(ACK, 0, end, KERNEL, &[&long[..], &[b'x'; 1000]].concat());
    assert_eq!((sent.verdict, object_of(sent.value), rig.now().object), (NEXT, 7, 7));
    assert_eq!(rig.events(), [Seen::Stamped(end)]);
}

#[test]
fn timestamps_increase_within_reach_of_echo() {
    let Some(rig) = Rig::stamped() else { return };
    let (mut echo, mut last) = (0u8, BASE);
    let later = |a: u32, b: u32| a.wrapping_sub(b) as i32 >= 0;
    for n in 0..300u32 {
        // Time passes without segments; then the client sends for some time, and then not.
        let before = rig.trods.stamps().get(&rig.key()).unwrap();
        rig.put(|st| {
            (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, 1_000_000);
            (st.index, st.echo) = before.map_or((0, 0), |before| (before.index, before.echo));
        });
        let sent = rig.answers(ACK, n * 100, 0, KERNEL + n, &[b'x'; 9]);
        assert!(later(sent.value, last), "{n}: {:x} after {last:x}", sent.value);
        last = sent.value;
        let ahead = (rig.now().index.wrapping_sub(echo)) & 31;
        assert!(ahead <= 15, "{n}: {ahead}");
        if n % 100 < 40 {
            rig.client_sends(ACK, 0, 0, sent.value, &[]);
            echo = rig.now().echo;
            assert_eq!(u32::from(echo), sent.value >> 27);
        }
    }
    // The index is as far ahead as it may be; from then on the object is no longer named.
    assert_eq!(rig.client_sends(ACK, 0, 0, last, GET).verdict, NEXT);
    let sent = rig.answers(ACK, 0, 0, KERNEL, &[b'x'; 9]);
    assert!(object_of(sent.value) == NOBODYS && later(sent.value, last));
    assert!(rig.now().index.wrapping_sub(rig.now().echo) & 31 <= 15);
}

#[test]
fn second_request_is_not_named() {
    let Some(rig) = Rig::stamped() else { return };
    let total = response().len() as u32;
    rig.put(|st| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, total));
    assert_eq!(rig.client_sends(ACK, 0, total, BASE | OBJECT, GET).verdict, NEXT);
    let sent = rig.answers(ACK, total, GET.len() as u32, KERNEL, &response());
    assert_eq!((sent.verdict, sent.ack, object_of(sent.value)), (NEXT, GET.len() as u32, NOBODYS));
    assert_eq!((rig.unnamed().second, rig.now().phase), (1, Phase::Free));
    // A connection with more data than the named response is not named, either.
    rig.put(|st| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, total));
    let sent = rig.answers(ACK, total, 0, KERNEL, b"more");
    assert_eq!((sent.verdict, object_of(sent.value), rig.unnamed().second), (NEXT, NOBODYS, 2));
}

#[test]
fn segments_outside_window_change_no_stamped_connection() {
    let Some(mut rig) = Rig::stamped() else { return };
    for phase in [Phase::Setup, Phase::Asked, Phase::Named, Phase::Echoed] {
        rig.put(|st| (st.phase, st.total, st.object, st.index) = (phase, 1000, OBJECT, 3));
        let now = |rig: &Rig| Stamped { heard: 0, ..rig.now() };
        let (before, counted) = (now(&rig), rig.counters().outside);
        let named = BASE | 3 << 27 | OBJECT;
        for (seq, ack) in [(1 << 16, 10), (1 << 31, 1000), (0, 1002), (0, 0u32.wrapping_sub(1 << 27))] {
            for (flags, data) in [(ACK, &b"x"[..]), (ACK, b""), (ACK | FIN, b"")] {
                assert_eq!(rig.client_sends(flags, seq, ack, named, data).verdict, NEXT);
            }
        }
        rig.client_sends(RST, 1 << 16, 0, named, b"");
        assert_eq!((now(&rig), rig.counters().outside - counted), (before, 13), "{phase:?}");
        assert_eq!((rig.events(), rig.unnamed()), (vec![], Unnamed::default()));
    }
}

#[test]
fn entry_is_deleted_when_both_ends_closed() {
    let Some(rig) = Rig::stamped() else { return };
    let (total, there) = (response().len() as u32, |rig: &Rig| rig.trods.stamps().get(&rig.key()).unwrap());
    let whole = |st: &mut Stamped| (st.phase, st.object, st.total) = (Phase::Echoed, OBJECT, total);
    // The client closes first.
    rig.put(whole);
    rig.client_sends(FIN | ACK, 0, total, BASE | OBJECT, &[]);
    assert_eq!(rig.now().phase, Phase::Free);
    assert_eq!(rig.answers(FIN | ACK, total, 1, KERNEL, &[]).ack, 1);
    assert!(there(&rig).is_some());
    rig.client_sends(ACK, 1, total + 1, BASE | OBJECT, &[]);
    assert!(there(&rig).is_none());
    // The server closes first. Its last segment still has our timestamp.
    rig.put(whole);
    rig.answers(FIN | ACK, total, 0, KERNEL, &[]);
    rig.client_sends(FIN | ACK, 0, total + 1, BASE | OBJECT, &[]);
    assert!(there(&rig).is_some());
    assert_eq!(rig.answers(ACK, total + 1, 1, KERNEL, &[]).value & BASE, BASE);
    assert!(there(&rig).is_none());
}

#[test]
fn unknown_client_makes_event_while_hunting() {
    let Some(mut rig) = Rig::stamped() else { return };
    assert_eq!((rig.client_sends(ACK, 0, 9, BASE, b"GET").verdict, rig.events()), (NEXT, vec![]));
    rig.trods.stamps().set_issuer(2, &Issuer { hunting: u64::MAX, ..LISTED }).unwrap();
    assert_eq!(rig.client_sends(ACK, 0, 9, BASE, b"GET").verdict, DROP);
    assert!(matches!(&rig.events()[..], [Seen::Parked(packet)] if packet.ends_with(b"GET")));
}
