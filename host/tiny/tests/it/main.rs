//! The server and the transport's client in virtual time: whole answers under loss and restarts, without an allocation.
//! `program` has the tests of `rivulet-tiny` on real packets.

mod allocations;
mod program;
mod world;

use proptest::prelude::*;
use world::{PICTURE, TCP, World, get, server};

#[test]
fn pages_arrive_whole_without_any_allocation() {
    let mut world = World::new();
    let before = allocations::count();
    let (head, body) = world.fetch(get("/picture", ""));
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nContent-Type: image/png\r\n"),
        "{head}"
    );
    assert!(body == PICTURE, "{} bytes", body.len());
    assert!(world.server.counters().responses > 100);
    assert_eq!(allocations::count() - before, 0);
    // The count is of the server alone, and it works.
    allocations::counted(|| drop(vec![1u8; 10]));
    assert_eq!(allocations::count() - before, 1);
}

#[test]
fn downloads_survive_loss_and_restarts() {
    let mut world = World::new();
    world.lose_every = 11;
    world.restart_every = 7;
    let (_, body) = world.fetch(get("/picture", ""));
    assert!(body == PICTURE, "{} bytes", body.len());
    assert!(world.restarts > 10, "{}", world.restarts);
}

#[test]
fn requests_are_answered_by_their_method_and_target() {
    let cases = [
        (get("/", ""), "200 OK", "<p>"),
        (get("/%2e/picture/../", ""), "200 OK", "<p>"),
        // The body is not read, so the stream ends.
        ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".into(), "200 OK", "<p>"),
        (get("/none", ""), "404 Not Found", "404 Not Found\n"),
        ("HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".into(), "200 OK", ""),
        ("DELETE / HTTP/1.1\r\nHost: h\r\n\r\n".into(), "501 Not Implemented", "501 Not Implemented\n"),
        (
            "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".into(),
            "405 Method Not Allowed",
            "405 Method Not Allowed\n",
        ),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n".into(), "400 Bad Request", "400 Bad Request\n"),
        ("\r\nGET / HTTP/1.0\r\n\r\n".into(), "200 OK", "<p>"),
        (
            get("/", &format!("X: {}\r\n", "y".repeat(1_000))),
            "431 Request",
            "431 Request Header Fields Too Large\n",
        ),
        (get("/", &format!("X: {}\r\n", "y".repeat(900))), "200 OK", "<p>"),
    ];
    for (request, status, wanted) in cases {
        let (head, body) = World::new().fetch(request.as_bytes());
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {head}");
        assert_eq!(body, wanted.as_bytes(), "{request}");
    }
}

#[test]
fn pipelined_requests_in_pieces_are_answered_in_order() {
    let requests = ["GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(3), get("/picture", "")].concat();
    let mut world = World::new();
    for piece in requests.as_bytes().chunks(17) {
        world.write(piece);
        world.run_for(30_000);
    }
    let answer = world.read_to_end();
    let (mut rest, mut answers) = (&answer[..], 0);
    while let Some(at) = world::find(rest, b"<p>") {
        answers += 1;
        rest = &rest[at + 3..];
    }
    assert_eq!(answers, 3);
    assert!(rest.ends_with(PICTURE));
}

/// The figures were measured at the request, and every server continues the text with the same ones.
#[test]
fn report_is_continued_by_a_restarted_server() {
    let mut world = World::new();
    world.lose_every = 3;
    world.restart_every = 2;
    world.write(get("/report", "").as_bytes());
    let text = String::from_utf8(world.read_to_end()).unwrap();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(body.len() == 200 && body.bytes().all(|b| b == body.as_bytes()[0]), "{text}");
}

/// A download never gets bytes of two versions of a page: it fails.
#[test]
fn server_with_another_page_does_not_continue_the_answer() {
    let mut world = World::new();
    world.write(get("/picture", "").as_bytes());
    world.run_for(60_000);
    world.server = server(&world::OTHER_SITE);
    world.run_for(60_000_000);
    let received = world.received();
    let (_, body) = world::divide(&received);
    assert!(
        !body.is_empty() && body.len() < PICTURE.len() && PICTURE.starts_with(body),
        "{} bytes",
        body.len()
    );
    assert!(world.has_failed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Segments of a client with some bytes changed and the checksum mended never end the server.
    #[test]
    fn changed_segments_are_dropped_or_answered(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        which in any::<prop::sample::Index>(),
    ) {
        let mut world = World::new();
        let frames = World::recorded();
        let mut frame = frames[which.index(frames.len())].clone();
        for (at, value) in &changes {
            let at = TCP + at.index(frame.len() - TCP);
            frame[at] = *value;
        }
        world::mend(&mut frame);
        world.inject(&frame);
        world.inject(&frame[..cut.index(frame.len())]);
        let (_, body) = world.fetch(get("/", ""));
        prop_assert_eq!(body, b"<p>");
    }
}
