//! The XDP program attached to its interface.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rivulet_bpf::redirect::{LocalPorts, Mode, Redirect};

use super::peer;
use crate::Filter;
use crate::filter::Taken;

/// Result of a step, with the step's name on failure.
type Step<T> = Result<T, (&'static str, io::Error)>;

/// The attached program.
pub(super) struct Attached {
    /// Closing it detaches the program.
    _link: OwnedFd,
    redirect: Redirect,
    /// The local ports that the program uses.
    ports: Option<LocalPorts>,
}

impl Attached {
    /// Redirects frames of queue 0 that the filter takes to the socket, or all frames without a
    /// filter.
    pub(super) fn new(socket: BorrowedFd<'_>, index: u32, name: &str, filter: Option<&Filter>) -> Step<Self> {
        let taken = taken(filter)?;
        let mut redirect = Redirect::load(taken.ports.as_ref()).map_err(failed("loading the XDP program"))?;
        redirect.set_socket(socket).map_err(failed("giving the XDP program its socket"))?;
        redirect.apply(&taken.table).map_err(failed("filling the XDP program's maps"))?;
        let link = attach(&redirect, index, name).map_err(|e| ("attaching the XDP program", e))?;
        Ok(Attached { _link: link, redirect, ports: taken.ports })
    }

    /// Replaces the filter between two frames; frames that both filters take are taken throughout.
    pub(super) fn replace(&mut self, filter: Option<&Filter>) -> Step<()> {
        let taken = taken(filter)?;
        if taken.ports.is_some() && taken.ports != self.ports {
            let why = "it uses other local ports than the filter at opening";
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

/// Attaches in native mode if the driver supports it (veth does), otherwise in generic mode.
fn attach(redirect: &Redirect, index: u32, name: &str) -> io::Result<OwnedFd> {
    match redirect.attach(index, Mode::Native) {
        Err(e) if e.raw_os_error() != Some(libc::EBUSY) => {
            // In generic mode GRO runs first, and merged packets exceed a chunk.
            if peer::merges(name) {
                let why = format!("GRO joins packets before XDP sees them: ethtool -K {name} gro off");
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            redirect.attach(index, Mode::Generic)
        }
        attached => attached,
    }
}
