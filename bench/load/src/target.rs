//! What is fetched, and from where.

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

/// The request; `close`: the only one of its connection.
#[must_use]
pub fn head(host: &str, path: &str, close: bool) -> Vec<u8> {
    let close = if close { "Connection: close\r\n" } else { "" };
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{close}\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

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
