//! Property tests that compare this crate's head parser with httparse.

use proptest::prelude::*;

use super::{MAX_FIELDS, Method, request, response};
use crate::flow::Reason;

/// Generates heads from valid and broken lines.
fn pieces(first: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    const REST: [&str; 28] = [
        "\r\n",
        "\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        ": ",
        ":",
        " ",
        "\t",
        "\0",
        "\u{7f}",
        "\u{1}",
        "\u{e9}",
        "Host: h\r\n",
        "a",
        "B-c",
        "1",
        "Content-Length: 0\r\n",
        "Content-Length: 5\r\n",
        "Connection: close\r\n",
        "ETag: \"x\"\r\n",
        "(",
        "@",
        "Transfer-Encoding: chunked\r\n",
        ": \r\n",
        "x: y\r\n",
        "X :z\r\n",
    ];
    let rest = prop::collection::vec(prop::sample::select(REST.as_slice()), 0..12);
    let end = prop::sample::select(["\r\n\r\n", "\n\n", "\r\n", ""].as_slice());
    (prop::sample::select(first), rest, end)
        .prop_map(|(first, rest, end)| format!("{first}{}{end}", rest.concat()).into_bytes())
}

const REQUEST_LINES: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "GET /a HTTP/1.0\r\n",
    "\r\nHEAD / HTTP/1.1\n",
    "GET  / HTTP/1.1\r\n",
    "GET / HTTP/1.2\r\n",
    "GET / HTTP/1.1 \r\n",
    "GET /\r\n",
    "GET / ",
    "\rGET / HTTP/1.1\r\n",
    "GET /\u{7f} HTTP/1.1\r\n",
    "GET /",
];
const STATUS_LINES: &[&str] = &[
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 404\r\n",
    "HTTP/1.1 206 \n",
    "HTTP/1.1 304 \u{e9}\r\n",
    "HTTP/1.1 2000 OK\r\n",
    "HTTP/1.2 200 OK\r\n",
    "HTTP/1.1  200 OK\r\n",
    "\r\nHTTP/1.1 200 OK\r\n",
    "HTTP/1.1 200 \u{1}\r\n",
    "HTTP/1.1 ",
    "HT",
    "200 OK\r\n",
];

proptest! {
    /// httparse finds the end of a head at the same byte, or finds none either.
    #[test]
    fn requests_end_where_httparse_ends_them(bytes in pieces(REQUEST_LINES)) {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let theirs = httparse::Request::new(&mut fields).parse(&bytes);
        match (request(&bytes), theirs) {
            (Ok(Some(head)), theirs) => prop_assert_eq!(theirs, Ok(httparse::Status::Complete(head.length))),
            (Err(Reason::Malformed), theirs) => prop_assert!(!matches!(theirs, Ok(httparse::Status::Complete(_)))),
            (Ok(None), theirs) => prop_assert!(!matches!(theirs, Ok(httparse::Status::Complete(_)))),
            (Err(_), _) => {}
        }
    }

    #[test]
    fn responses_end_where_httparse_ends_them(bytes in pieces(STATUS_LINES)) {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let theirs = httparse::Response::new(&mut fields).parse(&bytes);
        let complete = matches!(theirs, Ok(httparse::Status::Complete(_)));
        match response(&bytes, Method::Get) {
            Ok(Some(head)) => prop_assert_eq!(theirs, Ok(httparse::Status::Complete(head.length))),
            Ok(None) => prop_assert!(!complete),
            // httparse does not check lengths: contradictory ones do not change where a head ends.
            Err(_) => {}
        }
    }
}
