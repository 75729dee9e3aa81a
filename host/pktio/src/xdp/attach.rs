//! The XDP program on its interface.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::peer;
use super::translate::{XDP_PASS, translate};
use crate::Filter;
use crate::bpf::{self, GENERIC, NATIVE};

/// A failed step by name.
type Step<T> = Result<T, (&'static str, io::Error)>;

/// The program on its interface. Closing the link takes it off.
pub(super) struct Attached {
    link: OwnedFd,
    map: OwnedFd,
}

impl Attached {
    /// Redirects what the filter takes of queue 0 of the interface to the socket: everything without one.
    pub(super) fn new(socket: BorrowedFd<'_>, index: u32, name: &str, filter: Option<&Filter>) -> Step<Self> {
        let map = bpf::socket_map().map_err(|e| ("BPF_MAP_CREATE", e))?;
        bpf::map_set(&map, socket.as_raw_fd()).map_err(|e| ("BPF_MAP_UPDATE_ELEM", e))?;
        let program = load(&map, filter)?;
        let attaching = |e| ("attaching the XDP program", e);
        // In the driver if it can (veth can), else behind it.
        let link = match bpf::attach(&program, index, NATIVE) {
            Ok(link) => link,
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Err(attaching(e)),
            Err(_) => {
                // There GRO comes first: what it joins is longer than a chunk.
                if peer::merges(name) {
                    let why = format!("GRO joins packets before XDP sees them: ethtool -K {name} gro off");
                    return Err(attaching(io::Error::new(io::ErrorKind::Unsupported, why)));
                }
                bpf::attach(&program, index, GENERIC).map_err(attaching)?
            }
        };
        Ok(Attached { link, map })
    }

    /// Another filter, from one frame to the next.
    pub(super) fn replace(&self, filter: Option<&Filter>) -> Step<()> {
        let program = load(&self.map, filter)?;
        bpf::replace(&self.link, &program).map_err(|e| ("BPF_LINK_UPDATE", e))
    }
}

fn load(map: &OwnedFd, filter: Option<&Filter>) -> Step<OwnedFd> {
    let taken = filter.map(Filter::taken);
    let code = translate(taken.as_ref(), map.as_raw_fd(), XDP_PASS);
    let code = code.map_err(|why| ("translating the receive filter", io::Error::other(why)))?;
    bpf::load(&code).map_err(|e| ("BPF_PROG_LOAD", e))
}
