//! As much of a URL as a download needs.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, bail};

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
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => bail!("{text}: the scheme {scheme} is not supported, only http"),
            None => text,
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = match rest.find(['/', '?']) {
            Some(i) => rest.split_at(i),
            None => (rest, "/"),
        };
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let (host, port) = match authority.strip_prefix('[') {
            Some(six) => {
                let (host, rest) =
                    six.split_once(']').with_context(|| format!("{text}: no ] behind the address"))?;
                (host, rest.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => port
                .parse()
                .ok()
                .filter(|p| *p != 0)
                .with_context(|| format!("{text}: {port:?} is no port"))?,
            None => 80,
        };
        let plain = |s: &str| s.bytes().all(|b| b.is_ascii_graphic());
        if host.is_empty() || !plain(authority) || !plain(&target) || host.contains('@') {
            bail!("{text}: not a URL (spaces and other signs stand as %XX)");
        }
        Ok(Url { host: host.to_owned(), port, target, authority: authority.to_owned() })
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

    /// What a download is called: the last part of the path.
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
    fn parts_of_urls() {
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
