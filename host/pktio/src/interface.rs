//! The name of an interface, optionally in another network namespace.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::OpenError;

/// An interface by name: `eth0`, or `ns1:eth0` for one in the network namespace `ns1` of
/// `ip netns`, or `/proc/42/ns/net:eth0` with the namespace's path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface {
    netns: Option<String>,
    name: String,
}

impl Interface {
    /// The interface `name` in `netns` (a name of `ip netns` or a path), or in the namespace of the
    /// calling thread.
    pub fn new(netns: Option<&str>, name: &str) -> Result<Self, OpenError> {
        let bad = |why| Err(OpenError::Name(name.into(), why));
        if name.is_empty() || name == "." || name == ".." {
            return bad("empty or a dot");
        }
        if name.len() >= libc::IFNAMSIZ {
            return bad("longer than 15 bytes");
        }
        if name.bytes().any(|b| b == b'/' || b == b':' || b == 0 || b.is_ascii_whitespace()) {
            return bad("holds '/', ':', white space or zero");
        }
        if netns.is_some_and(|ns| ns.is_empty() || ns.contains('\0')) {
            return Err(OpenError::Name(netns.unwrap_or_default().into(), "not a namespace"));
        }
        Ok(Interface { netns: netns.map(Into::into), name: name.into() })
    }

    /// The interface's name inside its namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace, if one was given.
    #[must_use]
    pub fn netns(&self) -> Option<&str> {
        self.netns.as_deref()
    }
}

impl FromStr for Interface {
    type Err = OpenError;

    fn from_str(s: &str) -> Result<Self, OpenError> {
        match s.rsplit_once(':') {
            Some((netns, name)) => Interface::new(Some(netns), name),
            None => Interface::new(None, s),
        }
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(netns) = &self.netns {
            write!(f, "{netns}:")?;
        }
        f.write_str(&self.name)
    }
}

/// Runs `f` inside a network namespace (a name of `ip netns` or a path) on a thread of its own, so
/// that the calling thread never changes namespace. Sockets opened there stay there. Without a
/// namespace `f` runs on the calling thread.
pub fn in_netns<R: Send>(netns: Option<&str>, f: impl FnOnce() -> R + Send) -> Result<R, OpenError> {
    let Some(name) = netns else { return Ok(f()) };
    let failed = |source| OpenError::Netns { name: name.into(), source };
    let path = if name.contains('/') { PathBuf::from(name) } else { PathBuf::from("/run/netns").join(name) };
    let file = File::open(path).map_err(failed)?;
    std::thread::scope(|scope| {
        let entered = scope.spawn(|| {
            // Only this short-lived thread changes.
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(f())
        });
        match entered.join() {
            Ok(result) => result.map_err(|e: Errno| failed(e.into())),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for text in ["eth0", "ns1:eth0", "/proc/42/ns/net:veth-a"] {
            assert_eq!(text.parse::<Interface>().unwrap().to_string(), text);
        }
        let i: Interface = "ns1:eth0".parse().unwrap();
        assert_eq!((i.netns(), i.name()), (Some("ns1"), "eth0"));
    }

    #[test]
    fn bad_names_are_errors() {
        for text in ["", ":", "ns:", ":eth0", "a b", "0123456789abcdef", "a/b", ".."] {
            assert!(text.parse::<Interface>().is_err(), "{text:?}");
        }
    }
}
