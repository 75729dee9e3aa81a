//! The programs of TRODS (`src/bpf/trods.c`): they decide which segments of a server's TCP leave an
//! interface, and send events to a process.

mod counters;
mod entry;
mod layout;
mod lease;
mod presence;
mod stamped;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::libbpf_sys::{BPF_TCX_EGRESS, BPF_TCX_INGRESS};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, OpenObject, Program, RingBuffer, RingBufferBuilder};

pub use counters::{Counters, Unnamed};
pub use layout::{EVENT_OCTETS, Event, FlowKey, Limits, MAX_FIELDS, Pin, TCP_HEADER_MAX, What};
pub use lease::{Lease, Leases};
pub use stamped::{
    DATE, Generation, HEAD_MAX, HEADS, Issuer, KnownHead, MAX_ISSUERS, Phase, Stamped, Stamps, can_issue,
    head_sum, target_hash,
};

use self::entry::{delete, update};
use crate::Error;
use crate::dying::Dying;
use crate::linger::Linger;
use crate::object::{attach, load, map, missing, object, open};

const NAME: &str = "trods";
/// Most addresses of services: 16 for each of 1,024 services.
pub const MAX_SERVICES: usize = 16384;
/// Number of leases that the map holds. A service names one of them.
pub const MAX_LEASES: u32 = 16;
/// Mark (`SO_MARK`) of frames that were held or withheld and are sent now.
pub const RELEASED: u32 = 0x5452_4f44;
/// Mark of clients' segments with a connection here, after the program.
pub const KNOWN: u32 = 0x5452_4f4b;
/// Mark of clients' segments of connections that neither the program nor the kernel knows.
pub const UNKNOWN: u32 = 0x5452_4f55;
/// Bytes of `struct withheld`.
const WITHHELD: usize = 4 + 128;

/// Events that were read from the ring and not passed to the caller yet.
#[derive(Debug, Default)]
struct Batch {
    octets: Vec<u8>,
    ends: Vec<usize>,
}

/// The loaded programs, their maps, and the links to an interface.
#[derive(Debug)]
pub struct Trods {
    object: Object,
    tap: u32,
    links: Vec<OwnedFd>,
    linger: Option<Linger>,
    /// Shows the next process that these programs are attached ([`presence`]).
    present: Option<UnixListener>,
    folder: PathBuf,
    follows: bool,
    former: Vec<OwnedFd>,
    dying: Option<Dying>,
    services: MapHandle,
    leases: MapHandle,
    flows: MapHandle,
    orphans: MapHandle,
    pins: MapHandle,
    died: MapHandle,
    withheld: MapHandle,
    freed: MapHandle,
    blanks: MapHandle,
    happened: MapHandle,
    stamps: Stamps,
    issues: bool,
    ring: RingBuffer<'static>,
    /// The lock is held only during calls of libbpf.
    batch: Arc<Mutex<Batch>>,
}

impl Trods {
    /// Loads the programs. They hold nothing back before [`Trods::attach`], and answer no
    /// handshakes ([`Trods::load_issuing`] does).
    ///
    /// # Errors
    /// Errors of the system call, with the verifier's last lines.
    pub fn load() -> Result<Trods, Error> {
        let mut object = open(NAME, object!("trods"))?;
        // Without handshakes these maps stay empty.
        for mut map in object.maps_mut().filter(|map| map.name() == "issued" || map.name() == "requests") {
            map.set_max_entries(1).map_err(Error::of("a BPF map's size"))?;
        }
        Trods::of(object, false)
    }

    /// Like [`Trods::load`], but the programs also answer handshakes and write timestamps of
    /// services that are [issued](Trods::issue). These programs are larger.
    ///
    /// # Errors
    /// As [`can_issue`].
    pub fn load_issuing() -> Result<Trods, Error> {
        can_issue()?;
        Trods::of(open(NAME, object!("trods_ts"))?, true)
    }

    fn of(object: OpenObject, issues: bool) -> Result<Trods, Error> {
        crate::kernel::require(crate::kernel::Feature::Tcx)?;
        let object = load(NAME, object)?;
        let handle =
            |name| MapHandle::try_from(&map(&object, name)?).map_err(Error::of("BPF_OBJ_GET_INFO_BY_FD"));
        let batch = Arc::new(Mutex::new(Batch::default()));
        let mut builder = RingBufferBuilder::new();
        let rings = [map(&object, "events")?, map(&object, "named")?];
        for events in &rings {
            let to = Arc::clone(&batch);
            let read = move |octets: &[u8]| {
                let mut batch = to.lock().unwrap_or_else(PoisonError::into_inner);
                batch.octets.extend_from_slice(octets);
                let end = batch.octets.len();
                batch.ends.push(end);
                0
            };
            builder.add(events, read).map_err(Error::of("reading events"))?;
        }
        let ring = builder.build().map_err(Error::of("reading events"))?;
        let (services, leases, flows) = (handle("services")?, handle("leases")?, handle("flows")?);
        let (orphans, pins, withheld) = (handle("orphans")?, handle("pins")?, handle("withheld")?);
        let (died, happened, freed) = (handle("dying")?, handle("happened")?, handle("freed")?);
        let blanks = handle("blanks")?;
        let stamps = Stamps::of(&object)?;
        Ok(Trods {
            object,
            tap: 0,
            links: Vec::new(),
            linger: None,
            present: None,
            folder: presence::FOLDER.into(),
            follows: false,
            former: Vec::new(),
            dying: None,
            services,
            leases,
            flows,
            orphans,
            pins,
            died,
            withheld,
            freed,
            blanks,
            happened,
            stamps,
            issues,
            ring,
            batch,
        })
    }

    /// Sets the folder in which a socket name shows the next process that these programs are
    /// attached. The folder is created, and other users must not be able to write to it. Call this
    /// before [`Trods::attach`].
    pub fn present_in(&mut self, folder: impl Into<PathBuf>) {
        self.folder = folder.into();
    }

    /// Attaches both programs to the interface with this index in the namespace of the calling
    /// thread, and detaches them from their former interface. Frames that are written to [the
    /// TAP](Trods::set_tap) are received on that interface.
    ///
    /// # Errors
    /// `ENODEV` if there is no such interface.
    pub fn attach(&mut self, index: u32) -> Result<(), Error> {
        self.detach();
        let fail = |operation| move |source| Error::Os { operation, source };
        let claim = presence::claim(&self.folder, index).map_err(fail("a name of programs"))?;
        (self.present, self.follows, self.former) = (claim.own, claim.follows, claim.former);
        for (name, kind) in [("trods_egress", BPF_TCX_EGRESS), ("trods_ingress", BPF_TCX_INGRESS)] {
            let link = attach(&self.program(name)?, index, kind, 0);
            self.links.push(link.map_err(|source| Error::Os { operation: "BPF_LINK_CREATE (tcx)", source })?);
        }
        // The program that detects deaths stays with the links: the kernel closes the sockets after
        // this process has died.
        let links = self.links.iter().map(AsFd::as_fd).chain(self.dying.as_ref().map(Dying::link));
        let (dead, stamped) = (map(&self.object, ".data.dead")?, map(&self.object, "stamped")?);
        let legacy = self.present.as_ref().map(|present| [present.as_fd(), stamped.as_fd()]);
        let linger = Linger::new(&links.collect::<Vec<_>>(), dead.as_fd(), legacy).map_err(fail("fork"))?;
        self.linger = Some(linger);
        let watched = map(&self.object, ".data.watched")?;
        update(&watched, &0u32.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)?;
        if self.tap > 0 {
            let link = attach(&self.program("trods_again")?, self.tap, BPF_TCX_INGRESS, 0);
            self.links.push(link.map_err(|source| Error::Os { operation: "BPF_LINK_CREATE (tcx)", source })?);
        }
        Ok(())
    }

    /// Whether the programs of a process that died were still attached when these were.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// The connections with timestamps of a process that died, read while they may change. A second
    /// call returns none.
    #[must_use]
    pub fn formers(&mut self) -> HashMap<FlowKey, Stamped> {
        // Drops the former process's maps.
        std::mem::take(&mut self.former).iter().flat_map(|map| stamped::all_of(map.as_fd())).collect()
    }

    /// For tests: leaves the programs attached, as a process that is killed does.
    #[cfg(feature = "testing")]
    pub fn killed(&mut self) {
        self.linger.iter().for_each(Linger::killed);
        self.detach();
    }

    /// Detaches the programs.
    pub fn detach(&mut self) {
        (self.linger, self.present) = (None, None);
        self.links.clear();
    }

    /// Distinguishes connections that end because their process dies from those that the process
    /// closes ([`What::Fin`], [`What::Aborted`]), in the network namespace with this inode number.
    /// Needs `CAP_PERFMON`.
    ///
    /// # Errors
    /// The kernel lacks a feature or refuses the program. Then all connections count as closed by
    /// their process.
    pub fn see_deaths(&mut self, namespace: u32) -> Result<(), Error> {
        let stamped = self.stamps.map();
        let shared = [
            ("flows", &self.flows),
            ("stamped", stamped),
            ("dying", &self.died),
            ("happened", &self.happened),
        ];
        self.dying = Some(Dying::load(namespace, &shared)?);
        Ok(())
    }

    /// Sets the TAP that gets held segments, by its index; with 0 they are dropped. Call this
    /// before [`Trods::attach`].
    ///
    /// # Errors
    /// An operating system error.
    pub fn set_tap(&mut self, index: u32) -> Result<(), Error> {
        self.tap = index;
        let tap = map(&self.object, ".data.tap")?;
        update(&tap, &0u32.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)
    }

    /// Protects the connections of this address from now on, under the lease with this number.
    ///
    /// # Errors
    /// There are already [`MAX_SERVICES`].
    pub fn protect(&self, service: SocketAddr, lease: u32) -> Result<(), Error> {
        self.issue(service, lease, 0, false)
    }

    /// Whether these programs answer handshakes and write timestamps.
    #[must_use]
    pub fn issues(&self) -> bool {
        self.issues
    }

    /// Ends the protection of this address: its segments pass from now on without limits.
    ///
    /// # Errors
    /// An operating system error.
    pub fn release(&self, service: SocketAddr) -> Result<(), Error> {
        delete(&self.services, &layout::service_key(service))
    }

    /// The leases, for the part of the process that extends them. A lease counts as ended until it
    /// is set.
    ///
    /// # Errors
    /// An operating system error.
    pub fn leases(&self) -> Result<Leases, Error> {
        MapHandle::try_from(&self.leases).map(Leases).map_err(Error::of("BPF_OBJ_GET_INFO_BY_FD"))
    }

    /// Sets the first limits of a connection.
    ///
    /// # Errors
    /// The connection has limits, or there is no room.
    pub fn insert(&self, key: &FlowKey, limits: &Limits) -> Result<(), Error> {
        if self.limits(key)?.is_none() {
            self.forget_former(key)?;
        }
        update(&self.flows, key.octets(), &limits.encode(), MapFlags::NO_EXIST)
    }

    /// Deletes what the maps hold of a former connection with this key on this host, such as its
    /// last withheld segment or the death of its process, so that it does not count for the next
    /// one. The program does the same when it sees a handshake.
    ///
    /// # Errors
    /// An operating system error.
    pub fn forget_former(&self, key: &FlowKey) -> Result<(), Error> {
        self.take_withheld(key)?;
        delete(&self.died, key.octets())
    }

    /// Has a connection that its timestamps name recorded from now on, under these limits. Returns
    /// false if the connection has changed since it was read.
    ///
    /// # Errors
    /// There is no room.
    pub fn record(&self, key: &FlowKey, stamped: &Stamped, limits: &Limits) -> Result<bool, Error> {
        if self.stamps.get(key)?.is_none_or(|now| now.phase != Phase::Echoed) {
            return Ok(false);
        }
        // The limits apply from the change of the phase on.
        update(&self.flows, key.octets(), &limits.encode(), MapFlags::ANY)?;
        let done = self.stamps.replace(key, stamped);
        if !matches!(done, Ok(true)) {
            self.free(key)?;
        }
        done
    }

    /// Changes the limits of a connection. Returns false if it no longer has any.
    ///
    /// # Errors
    /// An operating system error.
    pub fn set_limits(&self, key: &FlowKey, limits: &Limits) -> Result<bool, Error> {
        match self.flows.update(key.octets(), &limits.encode(), MapFlags::EXIST) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::of("BPF_MAP_UPDATE_ELEM")(e)),
        }
    }

    /// The limits of a connection that the process records or is about to record.
    ///
    /// # Errors
    /// An operating system error.
    pub fn limits(&self, key: &FlowKey) -> Result<Option<Limits>, Error> {
        let mut octets = [0; layout::LIMITS];
        let found = self.flows.lookup_into(key.octets(), &mut octets, MapFlags::ANY);
        Ok(found.map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?.then(|| Limits::decode(&octets)))
    }

    /// Removes the limits of a connection.
    ///
    /// # Errors
    /// An operating system error.
    pub fn free(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.flows, key.octets())
    }

    /// Removes the limits of an adopted connection. The program still handles acknowledgements of
    /// data that this host has not sent (`beyond.h`).
    ///
    /// # Errors
    /// An operating system error.
    pub fn free_adopted(&self, key: &FlowKey) -> Result<(), Error> {
        self.happens(layout::HAPPENED_FREED)?;
        update(&self.freed, key.octets(), &[1], MapFlags::ANY)?;
        self.free(key)
    }

    /// Sets the fields of responses whose contents the client does not receive: sequence numbers of
    /// each field's beginning and of the end of its line. They replace the former fields, also
    /// apply without limits, and end with the connection.
    ///
    /// # Errors
    /// An operating system error. If there is no room, the oldest connection's fields are evicted.
    pub fn blank(&self, key: &FlowKey, fields: &[(u32, u32)]) -> Result<(), Error> {
        if fields.is_empty() {
            return delete(&self.blanks, key.octets());
        }
        self.happens(layout::HAPPENED_BLANKS)?;
        update(&self.blanks, key.octets(), &layout::blanks(fields), MapFlags::ANY)
    }

    /// Removes and returns the last withheld segment without data, as a frame. Its TCP checksum may
    /// be missing.
    ///
    /// # Errors
    /// An operating system error.
    pub fn take_withheld(&self, key: &FlowKey) -> Result<Option<Vec<u8>>, Error> {
        let mut value = [0; WITHHELD];
        // LRU maps cannot look up and delete in one before Linux 5.14, and tcx is newer.
        let found = self.withheld.lookup_into_and_delete(key.octets(), &mut value);
        if !found.map_err(Error::of("BPF_MAP_LOOKUP_AND_DELETE_ELEM"))? {
            return Ok(None);
        }
        let (length, frame) = value.split_at(4);
        let length = u32::from_ne_bytes([length[0], length[1], length[2], length[3]]);
        Ok(frame.get(..length as usize).map(<[u8]>::to_vec))
    }

    /// Turns segments of a connection that is searched for into events. The kernel sends no RST for
    /// them.
    ///
    /// # Errors
    /// An operating system error. If there is no room, the oldest entry is evicted.
    pub fn park(&self, key: &FlowKey) -> Result<(), Error> {
        update(&self.orphans, key.octets(), &[1], MapFlags::ANY)
    }

    /// Ends the effect of [`Trods::park`].
    ///
    /// # Errors
    /// An operating system error.
    pub fn unpark(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.orphans, key.octets())
    }

    /// Stores that another member of the pool holds a connection. The client's segments are sent to
    /// the ToR, which hands them on to that member, unless this host has limits for the connection.
    /// Segments of this host's kernel do not leave.
    ///
    /// # Errors
    /// An operating system error. If there is no room, the oldest entry is evicted.
    pub fn pin(&self, key: &FlowKey, pin: Pin) -> Result<(), Error> {
        self.happens(layout::HAPPENED_PIN)?;
        update(&self.pins, key.octets(), &pin.encode(), MapFlags::ANY)
    }

    /// From now on the programs look up the maps of this kind (`enum happened`), which were empty
    /// so far.
    fn happens(&self, what: u32) -> Result<(), Error> {
        update(&self.happened, &what.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
    }

    /// The pin of a connection.
    ///
    /// # Errors
    /// An operating system error.
    pub fn pinned(&self, key: &FlowKey) -> Result<Option<Pin>, Error> {
        let octets =
            self.pins.lookup(key.octets(), MapFlags::ANY).map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?;
        Ok(octets.and_then(|octets| octets.first_chunk().map(Pin::decode)))
    }

    /// Removes the pin of a connection.
    ///
    /// # Errors
    /// An operating system error.
    pub fn unpin(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.pins, key.octets())
    }

    /// Readable when there are events. Events of [named](What::Stamped) responses do not make it
    /// readable.
    #[must_use]
    pub fn readable(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the ring, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    /// Passes on up to `most` events in their order, with those of [named](What::Stamped) responses
    /// last, and returns their number.
    ///
    /// # Errors
    /// An operating system error.
    pub fn events(&mut self, most: usize, mut take: impl FnMut(Event<'_>)) -> Result<usize, Error> {
        let done = self.ring.consume_raw_n(most);
        let mut batch = std::mem::take(&mut *self.batch.lock().unwrap_or_else(PoisonError::into_inner));
        let mut start = 0;
        for &end in &batch.ends {
            if let Some(event) = Event::parse(&batch.octets[start..end]) {
                take(event);
            }
            start = end;
        }
        let count = batch.ends.len();
        batch.octets.clear();
        batch.ends.clear();
        *self.batch.lock().unwrap_or_else(PoisonError::into_inner) = batch;
        match done {
            0.. => Ok(count),
            error => {
                let source = io::Error::from_raw_os_error(-error);
                Err(Error::Os { operation: "reading events", source })
            }
        }
    }

    fn program(&self, name: &'static str) -> Result<Program<'_>, Error> {
        self.object.progs().find(|p| p.name() == name).ok_or_else(|| missing(name))
    }
}

#[cfg(test)]
mod tests;
