//! The object to fetch, and its server.

use std::net::SocketAddr;

use anyhow::Context;

/// Server, Host field and path of a URL that names an address, not a name.
pub fn parse(url: &str) -> anyhow::Result<(SocketAddr, String, String)> {
    let rest = url.strip_prefix("http://").context("only http:// URLs")?;
    let (host, path) = rest.split_once('/').map_or((rest, "/".to_owned()), |(h, p)| (h, format!("/{p}")));
    let with_port = if host.rsplit(']').next().is_some_and(|tail| tail.contains(':')) && !host.ends_with(']')
    {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let server = with_port.parse().with_context(|| format!("{with_port} is not ADDRESS:PORT"))?;
    Ok((server, host.to_owned(), path))
}

/// Protocol of the request, which decides how its answer is parsed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ask {
    /// An object by HTTP.
    #[default]
    Path,
    /// An address of a name by DNS over TCP.
    Name {
        /// The query's id.
        id: u16,
    },
}

/// Server and query of dns://ADDRESS:PORT/NAME, for an IPv4 address (RFC 1035 section 4.1); the query's
/// number is `id`.
///
/// # Errors
/// Another URL, or an invalid name.
pub fn query(url: &str, id: u16) -> anyhow::Result<(SocketAddr, Vec<u8>)> {
    let rest = url.strip_prefix("dns://").context("only dns:// URLs")?;
    let (server, name) = rest.split_once('/').context("no name in the URL")?;
    let server = server.parse().with_context(|| format!("{server} is not ADDRESS:PORT"))?;
    let mut message = vec![0, 0];
    message.extend(id.to_be_bytes());
    message.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.trim_end_matches('.').split('.') {
        if !(1..64).contains(&label.len()) || message.len() > 255 {
            anyhow::bail!("{name} is no name of DNS");
        }
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    let length = message.len() as u16 - 2;
    message[..2].copy_from_slice(&length.to_be_bytes());
    Ok((server, message))
}

/// The request; `close`: it is the only one of its connection.
#[must_use]
pub fn head(host: &str, path: &str, close: bool) -> Vec<u8> {
    let close = if close { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_one_of_rfc_1035() {
        let (server, message) = query("dns://10.9.0.1:53/www.example.", 0x1234).unwrap();
        assert_eq!(server.to_string(), "10.9.0.1:53");
        let wanted = b"\0\x1d\x12\x34\0\0\0\x01\0\0\0\0\0\0\x03www\x07example\0\0\x01\0\x01";
        assert_eq!(message, wanted);
        let long = format!("dns://10.9.0.1:53/{}", "a".repeat(64));
        for url in
            ["dns://10.9.0.1:53/", "dns://10.9.0.1:53", "dns://10.9.0.1/a", "dns://10.9.0.1:53/a..b", &long]
        {
            assert!(query(url, 1).is_err(), "{url}");
        }
    }

    #[test]
    fn urls_of_both_families_with_and_without_port() {
        for (url, server, path) in [
            ("http://10.9.0.1/a/b", "10.9.0.1:80", "/a/b"),
            ("http://10.9.0.1:8080", "10.9.0.1:8080", "/"),
            ("http://[fd00::1]/x", "[fd00::1]:80", "/x"),
            ("http://[fd00::1]:81/x", "[fd00::1]:81", "/x"),
        ] {
            let (got, _, got_path) = parse(url).unwrap();
            assert_eq!((got.to_string().as_str(), got_path.as_str()), (server, path));
        }
        assert!(parse("https://10.9.0.1/").is_err());
        assert!(parse("http://example/").is_err());
    }
}
