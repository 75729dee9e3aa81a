//! The program of AF_XDP (`src/bpf/redirect.c`), and its maps, which select the frames that a
//! socket gets and can change while the program runs.

mod local_ports;
mod table;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use libbpf_rs::libbpf_sys::BPF_XDP;
use libbpf_rs::{MapCore, MapFlags, Object, Program};

pub use local_ports::{LocalPorts, State};
pub use table::{MAX_ENDPOINTS, MAX_ETHERTYPES, MAX_TUNNELS, Table, TableError, Taking};

use crate::Error;
use crate::object::{attach, load, map, missing, object, open};

const NAME: &str = "redirect";
/// `enum redirect_settings`
const CHANGES_SHIFT: u32 = 8;

/// Where in the receive path the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver.
    Native,
    /// After the driver, which works with every interface.
    Generic,
}

/// A loaded program and its maps. The kernel gets all frames that are not selected.
#[derive(Debug)]
pub struct Redirect {
    object: Object,
    /// Contents of the maps.
    table: Table,
    /// How many changes of the maps have begun. A program that finds no entry looks again if this
    /// number has changed.
    changes: u32,
}

impl Redirect {
    /// Loads the program, which selects no frames yet. If local ports are given, it follows their
    /// changes.
    ///
    /// # Errors
    /// Errors of the system call, with the verifier's last lines.
    pub fn load(local_ports: Option<&LocalPorts>) -> Result<Redirect, Error> {
        let mut open = open(NAME, object!("redirect"))?;
        if let Some(ports) = local_ports {
            let mut maps = open.maps_mut().filter(|m| m.name() == "local_ports");
            let mut map = maps.next().ok_or_else(|| missing("local_ports"))?;
            map.reuse_fd(ports.map()).map_err(Error::of("sharing the local ports"))?;
        }
        Ok(Redirect { object: load(NAME, open)?, table: Table::default(), changes: 0 })
    }

    /// The program.
    ///
    /// # Panics
    /// Never: the object has it.
    #[must_use]
    pub fn program(&self) -> Program<'_> {
        self.object.progs().next().expect("redirect.c has a program")
    }

    /// Redirects the selected frames of queue 0 to this AF_XDP socket.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a socket without a receive ring.
    pub fn set_socket(&self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let fd = (socket.as_raw_fd() as u32).to_ne_bytes();
        self.update("sockets", &0u32.to_ne_bytes(), &fd)
    }

    /// Sets the frames to select. A frame that both the old and the new set select is selected
    /// throughout.
    ///
    /// # Errors
    /// No memory. Then all frames of the old and the new set are selected, and the next call
    /// repairs the maps.
    pub fn apply(&mut self, wanted: &Table) -> Result<(), Error> {
        let both = self.table.settings() | wanted.settings();
        self.settings(both)?;
        for (map, key, value) in wanted.missing_in(&self.table) {
            self.update(map.name(), &key, &value)?;
            self.table.note(map, key, value);
        }
        self.settings(both)?;
        for (map, key) in self.table.not_in(wanted) {
            let done = self.map(map.name())?.delete(&key);
            done.map_err(Error::of("BPF_MAP_DELETE_ELEM"))?;
            self.table.forget(map, &key);
        }
        self.settings(wanted.settings())?;
        self.table = wanted.clone();
        Ok(())
    }

    /// Attaches the program to the interface with this index, in the namespace of the calling
    /// thread. Closing the returned link detaches it.
    ///
    /// # Errors
    /// `EBUSY` if another program is attached, `EINVAL` or `EOPNOTSUPP` if the interface has no such mode.
    pub fn attach(&self, index: u32, mode: Mode) -> io::Result<OwnedFd> {
        // linux/if_link.h
        let flags = match mode {
            Mode::Generic => 1 << 1,
            Mode::Native => 1 << 2,
        };
        attach(&self.program(), index, BPF_XDP, flags)
    }

    fn settings(&mut self, settings: u32) -> Result<(), Error> {
        self.changes = self.changes.wrapping_add(1);
        let settings = settings | self.changes << CHANGES_SHIFT;
        self.update(".data.settings", &0u32.to_ne_bytes(), &settings.to_ne_bytes())
    }

    fn update(&self, map: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.map(map)?.update(key, value, MapFlags::ANY).map_err(Error::of("BPF_MAP_UPDATE_ELEM"))
    }

    fn map(&self, name: &'static str) -> Result<libbpf_rs::Map<'_>, Error> {
        map(&self.object, name)
    }
}
