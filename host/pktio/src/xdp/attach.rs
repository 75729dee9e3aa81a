//! The XDP program on its interface.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rivulet_bpf::redirect::{LocalPorts, Mode, Redirect};

use super::peer;
use crate::Filter;
use crate::filter::Taken;

/// A failed step by name.
type Step<T> = Result<T, (&'static str, io::Error)>;

/// The program on its interface.
pub(super) struct Attached {
    /// Closing it takes the program off.
    _link: OwnedFd,
    redirect: Redirect,
    /// What the program follows.
    ports: Option<LocalPorts>,
}

impl Attached {
    /// Redirects what the filter takes of queue 0 of the interface to the socket: everything without one.
    pub(super) fn new(socket: BorrowedFd<'_>, index: u32, name: &str, filter: Option<&Filter>) -> Step<Self> {
        let taken = taken(filter)?;
        let mut redirect = Redirect::load(taken.ports.as_ref()).map_err(failed("loading the XDP program"))?;
        redirect.set_socket(socket).map_err(failed("giving the XDP program its socket"))?;
        redirect.apply(&taken.table).map_err(failed("filling the XDP program's maps"))?;
        let link = attach(&redirect, index, name).map_err(|e| ("attaching the XDP program", e))?;
        Ok(Attached { _link: link, redirect, ports: taken.ports })
    }

    /// Another filter, from one frame to the next; what both take is taken all the while.
    pub(super) fn replace(&mut self, filter: Option<&Filter>) -> Step<()> {
        let taken = taken(filter)?;
        if taken.ports.is_some() && taken.ports != self.ports {
            let why = "it follows other local ports than those that the interface was opened with";
            return Err(("receive filter", io::Error::new(io::ErrorKind::Unsupported, why)));
        }
        self.redirect.apply(&taken.table).map_err(failed("filling the XDP program's maps"))
    }
}

fn taken(filter: Option<&Filter>) -> Step<Taken> {
    let taken = filter.map_or_else(|| Ok(Taken::everything()), Filter::taken);
    taken.map_err(|e| ("receive filter", io::Error::other(e)))
}

fn failed(operation: &'static str) -> impl Fn(rivulet_bpf::Error) -> (&'static str, io::Error) {
    move |e| (operation, io::Error::new(e.kind(), e))
}

/// In the driver if it can (veth can), else behind it.
fn attach(redirect: &Redirect, index: u32, name: &str) -> io::Result<OwnedFd> {
    match redirect.attach(index, Mode::Native) {
        Err(e) if e.raw_os_error() != Some(libc::EBUSY) => {
            // There GRO comes first: what it joins is longer than a chunk.
            if peer::merges(name) {
                let why = format!("GRO joins packets before XDP sees them: ethtool -K {name} gro off");
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            redirect.attach(index, Mode::Generic)
        }
        attached => attached,
    }
}
