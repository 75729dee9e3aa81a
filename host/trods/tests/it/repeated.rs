//! Only GET and HEAD without a body may be executed a second time after their replica's death.
//!
//! Each replica's nginx logs every request that it executes. Needs root; skipped if namespaces
//! cannot be created.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use rivulet_pktio::testing::{Netns, Process, eventually};

use crate::moves::{connect, drain, follow, get, hand_on, records};
use crate::stamps::named;
use crate::support::nginx_with;
use crate::survive::{Plan, Rig};

const GET: &[u8] = b"GET /small HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n\r\n";

/// Starts an nginx that answers every request for /run/..., and logs each one.
fn writes_down(netns: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    let to = dir.join("executed").display().to_string();
    let change = |text: &str| {
        text.replace(
            "access_log off;",
            &format!("log_format run '$request_method $request_uri'; access_log {to} run;"),
        )
        .replace("; root ", "; location /run { return 200 \"done $request_uri\"; } root ")
    };
    nginx_with(netns, service, root, dir, &change)
}

/// How often a replica's nginx has executed requests for this target.
fn executed(rig: &Rig, of: usize, target: &str) -> usize {
    let all = fs::read_to_string(rig.hosts[of].dir().join("executed")).unwrap_or_default();
    all.lines().filter(|line| line.split(' ').nth(1) == Some(target)).count()
}

fn message(method: &str, target: &str, body: &str) -> Vec<u8> {
    let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
    format!("{method} {target} HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n{length}\r\n{body}").into_bytes()
}

/// Makes the router drop packets from the first replica before its own processes (`input`) or
/// before other links (`forward`).
fn drop_from_first(rig: &Rig, hook: &str) {
    rig.router.run(&format!("nft add table ip from_{hook}"));
    rig.router.run(&format!("nft add chain ip from_{hook} c {{ type filter hook {hook} priority 0 ; }}"));
    rig.router.run(&format!("nft add rule ip from_{hook} c iifname x1 drop"));
}

fn first_dies(rig: &Rig) {
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
}

/// Expects that the client is reset and gets no answer to the request for this target.
fn assert_reset(stream: &mut TcpStream, target: &str) {
    let mut got = Vec::new();
    loop {
        let mut more = [0; 4096];
        match stream.read(&mut more) {
            Ok(count @ 1..) => got.extend_from_slice(&more[..count]),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
            end => panic!("{target}: {end:?} after {}", String::from_utf8_lossy(&got)),
        }
        assert!(!is_done(&got, target), "{target} was executed again");
    }
}

/// Whether the client has the answer to the request for this target.
fn is_done(got: &[u8], target: &str) -> bool {
    got.ends_with(format!("done {target}").as_bytes())
}

/// The store has the record of an idle connection. Its client then sends a request, which the
/// replica executes; the replica dies before the store knows that the connection is unprotected.
#[test]
fn request_after_stored_record_is_executed_once() {
    let Some(rig) = Rig::new(&Plan { server: &writes_down, ..Plan::default() }) else { return };
    let small = rig.file("small", 700);
    let (post, with_body) = (message("POST", "/run/after", "ab"), message("GET", "/run/body", "ab"));
    // Each row: the target that may be executed once, and the request in its segments.
    let mut all: Vec<(String, Vec<Vec<u8>>)> = ["POST", "PUT", "DELETE", "PATCH", "BREW"]
        .map(|method| (format!("/run/{method}"), vec![message(method, &format!("/run/{method}"), "ab")]))
        .to_vec();
    all.push(("/run/bare".into(), vec![message("POST", "/run/bare", "")]));
    all.push(("/run/body".into(), vec![with_body]));
    all.push(("/run/joined".into(), vec![[GET, &message("POST", "/run/joined", "ab")].concat()]));
    all.push(("/run/after".into(), vec![GET.to_vec(), post]));
    let cut = message("PUT", "/run/cut", "ab");
    all.push(("/run/cut".into(), vec![cut[..9].to_vec(), cut[9..].to_vec()]));
    let split = message("POST", "/run/split", "ab");
    let mut streams: Vec<TcpStream> = all.iter().map(|_| connect(&rig)).collect();
    streams.iter_mut().for_each(|stream| get(stream, &small));
    let (mut split_stream, mut get_stream, mut idle_stream) = (connect(&rig), connect(&rig), connect(&rig));
    // A single letter may begin another protocol, and is stored as data.
    split_stream.write_all(&split[..1]).unwrap();
    let idle = all.len() + 3;
    eventually("all are stored", || {
        let records = records(&rig);
        records.len() == idle && records.iter().any(|record| record.requests == split[..1])
    });
    drop_from_first(&rig, "input");
    for (stream, (_, parts)) in streams.iter_mut().zip(&all) {
        stream.set_nodelay(true).unwrap();
        parts.iter().for_each(|part| stream.write_all(part).unwrap());
    }
    split_stream.write_all(&split[1..]).unwrap();
    get_stream.write_all(&message("GET", "/run/get", "")).unwrap();
    all.push(("/run/split".into(), vec![split]));
    streams.push(split_stream);
    let targets = || all.iter().map(|(target, _)| target.as_str());
    eventually("the first replica executes all", || {
        targets().chain(["/run/get"]).all(|target| executed(&rig, 0, target) == 1)
    });
    first_dies(&rig);
    rig.tell(1, 1);
    for (stream, target) in streams.iter_mut().zip(targets()) {
        assert_reset(stream, target);
    }
    let again = |target: &str| (target.to_owned(), executed(&rig, 1, target));
    let twice: Vec<_> = targets().map(again).filter(|(_, count)| *count > 0).collect();
    assert_eq!(twice, [], "executed a second time");
    // GET is executed again, and so is a request that the first replica cannot have received.
    let done = |stream: &mut TcpStream, target: &str| {
        let mut got = [0; 4096];
        let mut have = 0;
        while !is_done(&got[..have], target) {
            let count = stream.read(&mut got[have..]).unwrap();
            assert!(count > 0, "{target}: {}", String::from_utf8_lossy(&got[..have]));
            have += count;
        }
        // nginx logs a request after its answer was sent.
        eventually("it is written down", || executed(&rig, 1, target) == 1);
    };
    done(&mut get_stream, "/run/get");
    for (stream, target) in [(&mut get_stream, "/run/later"), (&mut idle_stream, "/run/new")] {
        stream.write_all(&message("POST", target, "ab")).unwrap();
        done(stream, target);
    }
    let second = &rig.hosts[1].replica;
    eventually("they are counted", || second.counts().refusals.get("repeated") == Some(&(all.len() as u64)));
    assert_eq!(second.counts().adopted, idle as u64);
}

/// Without a record, a client's retransmission makes another replica adopt the connection.
#[test]
fn request_beside_get_is_executed_once_without_records() {
    for stores in [0, 1] {
        let plan = Plan { server: &writes_down, stores, ..Plan::default() };
        let Some(rig) = named(&plan, &[("small", 3000)]) else { return };
        let other = message("GET", "/run/other", "");
        let post = |target: &str| message("POST", target, "ab");
        let all = [
            ("/run/joined", vec![[GET, &post("/run/joined")].concat()]),
            ("/run/after", vec![GET.to_vec(), post("/run/after")]),
            ("/run/unlisted", vec![[&other[..], &post("/run/unlisted")].concat()]),
            ("/run/second", vec![other, post("/run/second")]),
            ("/run/body", vec![message("GET", "/run/body", "ab")]),
        ];
        let mut streams: Vec<TcpStream> = all.iter().map(|_| connect(&rig)).collect();
        drop_from_first(&rig, "forward");
        for (stream, (_, parts)) in streams.iter_mut().zip(&all) {
            stream.set_nodelay(true).unwrap();
            parts.iter().for_each(|part| stream.write_all(part).unwrap());
        }
        eventually("the first replica executes all", || {
            all.iter().all(|(target, _)| executed(&rig, 0, target) == 1)
        });
        first_dies(&rig);
        if stores > 0 {
            rig.tell(1, 1);
        }
        rig.tell_named(1, 1);
        for (stream, (target, _)) in streams.iter_mut().zip(&all) {
            assert_reset(stream, target);
        }
        let again = |target| (target, executed(&rig, 1, target));
        let twice: Vec<_> = all.iter().map(|(target, _)| again(*target)).filter(|(_, n)| *n > 0).collect();
        assert_eq!(twice, [], "{stores}: executed a second time");
    }
}

/// The other replica knows the connection's state from before the second request.
#[test]
fn request_after_announced_response_is_executed_once() {
    let plan = Plan { server: &writes_down, stores: 0, ..Plan::default() };
    let Some(rig) = named(&plan, &[("small", 3000)]) else { return };
    let small = crate::stamps::content(&rig, "small");
    let (mut stream, mut idle) = (connect(&rig), connect(&rig));
    [&mut stream, &mut idle].into_iter().for_each(|stream| get(stream, &small));
    // All connections are announced each second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop_from_first(&rig, "forward");
    stream.write_all(&message("POST", "/run/second", "ab")).unwrap();
    eventually("the first replica executes it", || executed(&rig, 0, "/run/second") == 1);
    first_dies(&rig);
    rig.tell_named(1, 1);
    assert_reset(&mut stream, "/run/second");
    assert_eq!(executed(&rig, 1, "/run/second"), 0);
    // A request that the client sends after it answered the probe never reached the first replica.
    eventually("they are adopted", || rig.hosts[1].replica.counts().adopted == 2);
    idle.write_all(&message("POST", "/run/new", "ab")).unwrap();
    eventually("it is executed", || executed(&rig, 1, "/run/new") == 1);
}

/// The client sends a request after its replica has left the connection and before it answers the
/// adopter's probe, so the adopter cannot know whether the request was executed.
#[test]
fn request_during_a_move_is_executed_once_at_most() {
    let Some(rig) = Rig::new(&Plan { server: &writes_down, ..Plan::default() }) else { return };
    let small = rig.file("small", 700);
    let (mut stream, mut idle) = (connect(&rig), connect(&rig));
    [&mut stream, &mut idle].into_iter().for_each(|stream| get(stream, &small));
    hand_on(&rig);
    let two = &rig.hosts[1].replica;
    stream.write_all(&message("POST", "/run/during", "ab")).unwrap();
    follow(&rig);
    drain(&rig);
    assert_reset(&mut stream, "/run/during");
    assert_eq!([0, 1].map(|of| executed(&rig, of, "/run/during")), [0, 0]);
    eventually("both move", || two.counts().adopted == 2);
    idle.write_all(&message("POST", "/run/behind", "ab")).unwrap();
    eventually("it is executed", || executed(&rig, 1, "/run/behind") == 1);
}
