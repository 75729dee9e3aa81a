//! Responses that can only be generated again: flows tested step by step, and downloads that resume
//! at another replica. The downloads need root, and are skipped if namespaces cannot be created.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::process::{Command, Stdio};

use rivulet_pktio::testing::{Netns, eventually};
use rivulet_trods::flow::{REQUEST_PATIENCE, RESPONSE_PATIENCE};
use rivulet_trods::record::{Body, Chunked, Response, Rest, Seen, UNKNOWN};
use rivulet_trods::{Action, Flow, Limits, Reason, Record, Settings};

use crate::moves::connect;
use crate::support::{CLOSED, DETERMINISTIC, OPEN, established, generate, stores};
use crate::survive::{Plan, Rig, SERVICE};

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
/// Arbitrary sequence numbers of each direction's first byte.
const CLIENT: u32 = 1000;
const START: u32 = u32::MAX - 100;

fn requested(settings: &Settings) -> Flow {
    let mut flow = established(CLIENT - 1, START - 1, settings);
    flow.request(CLIENT, GET, false, &mut Vec::new());
    flow
}

/// Passes bytes at an offset to the flow, and confirms the record; returns it, and the limits that
/// apply then.
fn kept(flow: &mut Flow, at: usize, octets: &[u8], fin: bool) -> (Record, Limits) {
    let mut out = Vec::new();
    flow.response(START.wrapping_add(at as u32), octets, fin, &mut out);
    let [(ticket, record)] = stores(&out).try_into().unwrap_or_else(|_| panic!("{out:?}"));
    assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(&record));
    out.clear();
    flow.stored(ticket, true, &mut out);
    (record, flow.limits())
}

fn head(fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}\r\n").into_bytes()
}

fn body(octets: usize) -> Vec<u8> {
    (0..octets).map(|n| (n * 7 + n / 251) as u8).collect()
}

fn generated(response: &Response) -> Seen {
    let Body::Generated { request, seen, .. } = &response.body else { panic!("{response:?}") };
    assert_eq!(request, GET);
    *seen
}

#[test]
fn released_bytes_never_exceed_parsed_bytes() {
    let head = head("Content-Length: 30000\r\nETag: W/\"x\"\r\n");
    let whole = [&head[..], &body(30_000)].concat();
    let mut flow = requested(&DETERMINISTIC);
    let mut passed = 0;
    // The head alone, a frame larger than the stored part, and the rest with a FIN.
    for to in [head.len(), head.len() + 20_000, whole.len()] {
        let (record, limits) = kept(&mut flow, passed, &whole[passed..to], to == whole.len());
        let [response] = &record.responses[..] else { panic!("{record:?}") };
        assert_eq!((response.length, response.passed), (whole.len() as u64, to as u64));
        let sum = crc32c::crc32c(&whole[head.len()..to]);
        assert_eq!(generated(response), Seen { sum, rest: Rest::Octets((whole.len() - to) as u64) });
        let end = START.wrapping_add(to as u32);
        assert_eq!((limits.data, limits.fin_at), (end, Some(end).filter(|_| to == whole.len())));
        passed = to;
    }
    assert!(!flow.ends_early());
}

#[test]
fn end_of_chunks_is_found_and_later_bytes_wait() {
    let head = head("Transfer-Encoding: chunked\r\nX-TRODS: 5\r\n");
    let chunks =
        [b"1388\r\n".to_vec(), body(5000), b"\r\n1388\r\n".to_vec(), body(5000), b"\r\n0\r\n\r\n".to_vec()];
    let whole = [&head[..], &chunks.concat()].concat();
    for cut in (head.len() + 4097..whole.len()).step_by(13) {
        // The response lists its inputs, so the setting `deterministic` is not needed.
        let mut flow = requested(&OPEN);
        let (record, limits) = kept(&mut flow, 0, &whole[..cut], false);
        assert_eq!((record.responses[0].length, record.responses[0].passed), (UNKNOWN, cut as u64));
        assert_eq!((limits.data, limits.fin_at), (START.wrapping_add(cut as u32), None));
        // Another replica resumes from there. After the response's end it holds data that answers
        // no request.
        let mut out = Vec::new();
        let mut flow = Flow::resume(record, &OPEN, 7, &mut out);
        let [(ticket, _)] = stores(&out).try_into().unwrap();
        flow.stored(ticket, true, &mut Vec::new());
        let (record, limits) = kept(&mut flow, cut, &[&whole[cut..], b"HTTP/1.1 200 OK\r\n"].concat(), false);
        let [response] = &record.responses[..] else { panic!("{record:?}") };
        assert_eq!((response.length, response.passed), (whole.len() as u64, whole.len() as u64));
        let sum = crc32c::crc32c(&whole[head.len()..]);
        assert_eq!(generated(response), Seen { sum, rest: Rest::Chunks(Chunked::Over) });
        let end = START.wrapping_add(whole.len() as u32);
        assert_eq!((limits.data, limits.fin_at), (end, Some(end)));
    }
}

/// Inputs are hidden in unprotected responses as well, and again after another replica has resumed
/// the connection.
#[test]
fn inputs_are_blanked_before_the_head_may_leave() {
    let blanked = |out: &[Action]| -> Vec<(u32, u32)> {
        match out {
            [Action::Blank(fields), Action::Store { .. } | Action::Unprotected(_), ..] => {
                fields.iter().map(|(from, to)| (from.wrapping_sub(START), to.wrapping_sub(START))).collect()
            }
            _ => panic!("{out:?}"),
        }
    };
    let wanted = vec![(17, 27)];
    let small = [&head("X-TRODS: 5\r\nContent-Length: 100\r\n")[..], &body(100)].concat();
    let object = [&head("X-TRODS: 5\r\nETag: \"x\"\r\nContent-Length: 5000\r\n")[..], &body(5000)].concat();
    let long = [&head("X-TRODS: 5\r\nContent-Length: 5000\r\n")[..], &body(5000)].concat();
    let endless = [&head("X-TRODS: 5\r\n")[..], &body(5000)].concat();
    for (response, is_stored) in [(small, true), (object, true), (long, true), (endless, false)] {
        let (mut flow, mut out) = (requested(&OPEN), Vec::new());
        flow.response(START, &response, false, &mut out);
        assert_eq!(blanked(&out), wanted);
        let stored = stores(&out);
        assert_eq!(stored.len(), usize::from(is_stored));
        let Some((ticket, record)) = stored.into_iter().next() else { continue };
        let mut out = Vec::new();
        let _ = Flow::resume(record, &OPEN, 7, &mut out);
        assert_eq!(blanked(&out), wanted);
        // The response is acknowledged in part, then completely.
        let mut out = Vec::new();
        flow.acknowledged(START.wrapping_add(26));
        flow.stored(ticket, true, &mut out);
        assert!(!out.iter().any(|action| matches!(action, Action::Blank(_))), "{out:?}");
        flow.acknowledged(START.wrapping_add(28));
        flow.tick(8, &mut out);
        assert!(out.contains(&Action::Blank(Vec::new())), "{out:?}");
    }
}

/// The BPF map has room for 16 fields of a connection, so a further response waits until the client
/// has acknowledged earlier ones.
#[test]
fn response_waits_for_room_for_its_inputs() {
    let response = |fields: usize| head(&("X-TRODS: 5\r\n".repeat(fields) + "Content-Length: 0\r\n"));
    let mut flow = requested(&OPEN);
    flow.request(CLIENT + GET.len() as u32, GET, false, &mut Vec::new());
    let (first, second) = (response(10), response(7));
    let both = [&first[..], &second].concat();
    let (record, _) = kept(&mut flow, 0, &both, false);
    assert_eq!((record.responses.len(), flow.wants_acknowledgement()), (1, true));
    flow.acknowledged(START.wrapping_add(first.len() as u32));
    let (record, _) = kept(&mut flow, 0, &both, false);
    assert_eq!((record.responses.len(), flow.wants_acknowledgement()), (1, false));
    let mut out = Vec::new();
    requested(&OPEN).response(START, &response(17), false, &mut out);
    assert_eq!(out, [Action::Unprotected(Reason::TooLong)]);
}

#[test]
fn small_answer_is_stored_whole_unless_slow() {
    let small = [&head("Content-Length: 100\r\n")[..], &body(100)].concat();
    let (record, _) = kept(&mut requested(&DETERMINISTIC), 0, &small, false);
    assert_eq!(record.responses[0].body, Body::Whole(small.clone()));
    for (settings, patience, want) in
        [(DETERMINISTIC, REQUEST_PATIENCE, None), (OPEN, RESPONSE_PATIENCE, Some(Reason::Dynamic))]
    {
        let mut flow = requested(&settings);
        let mut out = Vec::new();
        flow.response(START, &small[..small.len() - 10], false, &mut out);
        assert_eq!(stores(&out), []);
        flow.tick(patience, &mut out);
        let reason = out.iter().find_map(|action| match action {
            Action::Unprotected(reason) => Some(*reason),
            _ => None,
        });
        assert_eq!(reason, want);
        if want.is_none() {
            let [(_, record)] = stores(&out).try_into().unwrap();
            assert_eq!(record.responses[0].passed, small.len() as u64 - 10);
            assert_eq!(generated(&record.responses[0]).rest, Rest::Octets(10));
        }
    }
}

#[test]
fn response_without_inputs_is_unprotected() {
    let large = body(5000);
    // Three kinds: without a known end it could be truncated; not deterministic; malformed chunks.
    for (settings, fields, reason) in [
        (DETERMINISTIC, "A: 5\r\n", Reason::Dynamic),
        (OPEN, "Content-Length: 5000\r\nX-TRODS-Not: 5\r\n", Reason::Dynamic),
        (OPEN, "Transfer-Encoding: chunked\r\n", Reason::Dynamic),
        (DETERMINISTIC, "Transfer-Encoding: chunked\r\n", Reason::Malformed),
    ] {
        let mut out = Vec::new();
        let framed = if reason == Reason::Dynamic { b"1388\r\n" } else { b"138g\r\n" };
        let octets = [&head(fields)[..], framed, &large].concat();
        requested(&settings).response(START, &octets, false, &mut out);
        assert_eq!(out, [Action::Unprotected(reason)], "{fields}");
    }
}

fn rig(settings: Settings) -> Option<Rig> {
    if Command::new("python3").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: no python3");
        return None;
    }
    Rig::new(&Plan { settings, server: &|ns, service, _, _| generate(ns, service), ..Plan::default() })
}

/// Starts a download, cuts off the first replica in the middle, and returns curl's exit status and
/// the file.
fn download(rig: &Rig, path: &str) -> (Option<i32>, Vec<u8>) {
    let head = rig.files.path().join("head");
    let mut curl = rig.curl(&format!("-D {} http://{SERVICE}/8000000/{path}", head.display()));
    eventually("a third of it", || rig.got() > 2_500_000);
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    let status = curl.0.wait().unwrap();
    (status.code(), fs::read(rig.files.path().join("got")).unwrap())
}

/// The first server's response to a request with this header field. The request comes from the
/// server's own host, so no BPF program changes it.
fn response(from: &Netns, path: &str, field: &str) -> String {
    String::from_utf8_lossy(&fetch(from, path, &["-i", "-H", field])).into_owned()
}

fn fetch(from: &Netns, path: &str, options: &[&str]) -> Vec<u8> {
    let url = format!("http://{SERVICE}/{path}");
    let out = from.command("curl").args(["-s", "-S", "-m", "60", &url]).args(options).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

/// The inputs of a response, which the test server also sends in another field, because the client
/// receives no X-TRODS.
fn inputs_of(head: &str) -> String {
    assert!(!head.to_lowercase().contains("x-trods"), "{head}");
    let blank = head.lines().find(|line| line.starts_with("Padding:")).unwrap();
    assert_eq!(blank.trim_end(), "Padding:");
    head.lines().find_map(|line| line.strip_prefix("Shown: ")).unwrap().to_owned()
}

/// The content that a server generates from these inputs.
fn whole(rig: &Rig, path: &str, inputs: &str) -> Vec<u8> {
    fetch(&rig.hosts[1].netns, &format!("8000000/{path}"), &["-H", &format!("X-TRODS: {inputs}")])
}

#[test]
fn response_with_inputs_resumes_with_them() {
    for path in ["inputs", "inputs?chunked"] {
        let Some(rig) = rig(CLOSED) else { return };
        let (status, got) = download(&rig, path);
        assert_eq!((status, got.len()), (Some(0), 8_000_000), "{path}");
        let inputs = inputs_of(&fs::read_to_string(rig.files.path().join("head")).unwrap());
        assert!(got == whole(&rig, path, &inputs), "{path}");
        let (first, second) = (rig.hosts[0].replica.counts(), rig.hosts[1].replica.counts());
        assert_eq!((first.protected, second.adopted, second.refused), (1, 1, 0));
        assert_eq!((first.unprotected, second.unprotected), Default::default());
    }
}

#[test]
fn deterministic_response_resumes_and_other_is_refused() {
    for path in ["same", "same?chunked"] {
        let Some(rig) = rig(Settings { closed: true, ..DETERMINISTIC }) else { return };
        let (status, got) = download(&rig, path);
        assert_eq!(status, Some(0), "{path}");
        assert!(got == whole(&rig, path, "0"), "{path}");
        assert_eq!((rig.hosts[1].replica.counts().adopted, rig.hosts[1].replica.counts().refused), (1, 0));
    }
    for path in ["lies", "lies?chunked"] {
        let Some(rig) = rig(Settings { closed: true, ..DETERMINISTIC }) else { return };
        let (status, got) = download(&rig, path);
        // curl's status for "Failure with receiving network data": the client was reset.
        assert_eq!(status, Some(56), "{path}");
        assert!(got.len() < 8_000_000);
        eventually("it is counted", || rig.hosts[1].replica.counts().refused == 1);
    }
}

#[test]
fn download_without_listed_inputs_is_unprotected() {
    let Some(rig) = rig(CLOSED) else { return };
    let mut curl = rig.curl(&format!("http://{SERVICE}/8000000/same"));
    assert!(curl.0.wait().unwrap().success());
    assert_eq!(rig.got(), 8_000_000);
    let counts = || rig.hosts[0].replica.counts();
    eventually("it is counted", || counts().unprotected.get("dynamic") == Some(&1));
    assert_eq!(counts().unprotected.len(), 1);
}

#[test]
fn restarted_server_resumes_generated_response() {
    for path in ["inputs", "inputs?chunked"] {
        let Some(mut rig) = rig(CLOSED) else { return };
        let head = rig.files.path().join("head");
        let mut curl = rig.curl(&format!("-D {} http://{SERVICE}/8000000/{path}", head.display()));
        eventually("a third of it", || rig.got() > 2_500_000);
        let host = &mut rig.hosts[0];
        host.server.0.kill().unwrap();
        host.server.0.wait().unwrap();
        host.server = generate(&host.netns, SERVICE);
        assert!(curl.0.wait().unwrap().success(), "{path}: {} octets", rig.got());
        let inputs = inputs_of(&fs::read_to_string(head).unwrap());
        assert!(fs::read(rig.files.path().join("got")).unwrap() == whole(&rig, path, &inputs), "{path}");
        let counts = rig.hosts[0].replica.counts();
        assert!(counts.adopted > 0, "{counts:?}");
        assert_eq!((counts.refused, counts.unprotected), (0, Default::default()));
    }
}

#[test]
fn server_never_gets_inputs_of_a_client() {
    let Some(rig) = rig(CLOSED) else { return };
    for field in ["X-TRODS: client", "x-trods: client", "X_Trods: client"] {
        let got = response(&rig.client, "100/fields", field);
        assert!(
            got.contains(": client") && !got.to_lowercase().replace('_', "-").contains("x-trods"),
            "{got}"
        );
    }
    let own = response(&rig.hosts[0].netns, "100/fields", "X-TRODS: agent");
    assert!(own.contains("X-TRODS: agent"), "{own}");
    eventually("it is counted", || rig.hosts[0].replica.counts().unprotected == Default::default());
}

/// The first part of the request is lost, so the BPF programs see the field's name in two parts,
/// the second one first.
#[test]
fn client_is_reset_that_sends_inputs_out_of_order() {
    let Some(rig) = rig(CLOSED) else { return };
    let mut stream = connect(&rig);
    stream.set_nodelay(true).unwrap();
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    // "GET" after a TCP header with timestamps.
    rig.router.run("nft add rule ip t f tcp dport 8080 @th,256,24 0x474554 drop");
    stream.write_all(b"GET /100/fields HTTP/1.1\r\nHost: a\r\nX-TRO").unwrap();
    stream.write_all(b"DS: client\r\n\r\n").unwrap();
    eventually("the second part arrived", || rig.client.run("ss -Htin").contains("sacked:1"));
    rig.router.run("nft delete table ip t");
    let mut got = Vec::new();
    let error = stream.read_to_end(&mut got).unwrap_err();
    assert_eq!((error.kind(), got), (ErrorKind::ConnectionReset, Vec::new()));
    eventually("it is counted", || rig.hosts[0].replica.counts().unprotected.get("inputs") == Some(&1));
}

/// Drops the segments with the beginning of a response's head; the returned function counts them.
fn lose_heads(rig: &Rig) -> impl Fn() -> u32 {
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    // "HTTP" after a TCP header with timestamps.
    rig.router.run("nft add rule ip t f tcp sport 8080 @th,256,32 0x48545450 counter drop");
    || {
        let said = rig.router.run("nft list chain ip t f");
        let (_, count) = said.split_once("counter packets ").unwrap();
        count.split(' ').next().unwrap().parse::<u32>().unwrap()
    }
}

/// The kernel retransmits released data by itself, and such a frame does not pass through the
/// agent.
#[test]
fn retransmitted_head_has_no_inputs() {
    for path in ["100/inputs", "100000/inputs", "100/inputs?chunked"] {
        let Some(rig) = rig(CLOSED) else { return };
        let lost = lose_heads(&rig);
        let head = rig.files.path().join("head");
        let mut curl = rig.curl(&format!("-D {} http://{SERVICE}/{path}", head.display()));
        eventually("it is lost, and its retransmission", || lost() >= 3);
        rig.router.run("nft delete table ip t");
        assert!(curl.0.wait().unwrap().success(), "{path}");
        inputs_of(&fs::read_to_string(head).unwrap());
        assert_eq!(rig.hosts[0].replica.counts().unprotected, Default::default());
    }
}

/// The client has no byte of the response, so the adopter sends the stored head.
#[test]
fn stored_head_has_no_inputs_at_another_replica() {
    for path in ["100/inputs", "8000000/inputs"] {
        let Some(rig) = rig(CLOSED) else { return };
        let lost = lose_heads(&rig);
        let head = rig.files.path().join("head");
        let mut curl = rig.curl(&format!("-D {} http://{SERVICE}/{path}", head.display()));
        eventually("it is lost", || lost() >= 1);
        rig.router.ip("link set x1 down");
        rig.router.run("nft delete table ip t");
        rig.steer("replace", 2);
        rig.tell(1, 1);
        assert!(curl.0.wait().unwrap().success(), "{path}");
        let inputs = inputs_of(&fs::read_to_string(head).unwrap());
        if path.starts_with('8') {
            assert!(fs::read(rig.files.path().join("got")).unwrap() == whole(&rig, "inputs", &inputs));
        }
        eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
    }
}
