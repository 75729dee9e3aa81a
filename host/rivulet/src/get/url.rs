//! Parses the parts of a URL that a download needs.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, bail};
use http::Uri;

/// An `http` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host as written, without brackets.
    pub host: String,
    /// Port, 80 if none is written.
    pub port: u16,
    /// Path and query, beginning with `/`.
    pub target: String,
    /// Value of the `Host` header.
    pub authority: String,
}

impl Url {
    /// Reads `http://HOST[:PORT][/PATH]`; the scheme may be left out.
    pub fn parse(text: &str) -> anyhow::Result<Url> {
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole
            .parse()
            .with_context(|| format!("{text}: not a URL (spaces and other signs stand as %XX)"))?;
        if uri.scheme_str() != Some("http") {
            bail!("{text}: the scheme {} is not supported, only http", uri.scheme_str().unwrap_or_default());
        }
        let authority = uri.authority().map_or("", |a| a.as_str());
        let host = uri.host().filter(|host| !host.is_empty() && !authority.contains('@'));
        let host = host.with_context(|| format!("{text}: no host"))?;
        let port = match authority.strip_prefix(host).and_then(|rest| rest.strip_prefix(':')) {
            Some(port) => port.parse().ok().filter(|p| *p != 0),
            None => Some(80),
        };
        let target = uri.path_and_query().map_or("/", |t| t.as_str());
        Ok(Url {
            port: port.with_context(|| format!("{text}: that is no port"))?,
            host: host.trim_matches(['[', ']']).to_owned(),
            target: if target.starts_with('/') { target.to_owned() } else { format!("/{target}") },
            authority: authority.to_owned(),
        })
    }

    /// The first address of the host.
    pub fn resolve(&self) -> anyhow::Result<SocketAddr> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let mut found =
            (self.host.as_str(), self.port).to_socket_addrs().with_context(|| self.host.clone())?;
        found.next().with_context(|| format!("{}: no address", self.host))
    }

    /// File name of a download: the last part of the path.
    #[must_use]
    pub fn file_name(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let name = percent_encoding::percent_decode_str(last).decode_utf8_lossy().into_owned();
        let usable = !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0']);
        if usable { name } else { "index.html".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_target_and_file_name_are_parsed() {
        let cases = [
            ("http://10.9.0.1/a/b%20c?x=1#y", "10.9.0.1", 80, "/a/b%20c?x=1", "b c"),
            ("http://[fd00::1]:8080", "fd00::1", 8080, "/", "index.html"),
            ("host:81/x/", "host", 81, "/x/", "index.html"),
            ("host?q", "host", 80, "/?q", "index.html"),
            ("host/%2e%2e", "host", 80, "/%2e%2e", "index.html"),
            ("host/a%2fb", "host", 80, "/a%2fb", "index.html"),
        ];
        for (text, host, port, target, name) in cases {
            let url = Url::parse(text).unwrap();
            assert_eq!((url.host.as_str(), url.port, url.target.as_str()), (host, port, target), "{text}");
            assert_eq!(url.file_name(), name, "{text}");
        }
        for bad in [
            "https://x/",
            "http://",
            "http://h:0/",
            "http://h:x/",
            "http://[::1/",
            "http://h/a b",
            "http://h/\r\nX: y",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
