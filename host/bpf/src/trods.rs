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
/// Most addresses of services: 16 of each of 1,024.
pub const MAX_SERVICES: usize = 16384;
/// Leases that services can stand under.
pub const MAX_LEASES: u32 = 16;
/// Mark (`SO_MARK`) of frames that were held or withheld and are sent now.
pub const RELEASED: u32 = 0x5452_4f44;
/// Mark of clients' segments with a connection here, after the program.
pub const KNOWN: u32 = 0x5452_4f4b;
/// Mark of clients' segments of connections that neither the program nor the kernel knows.
pub const UNKNOWN: u32 = 0x5452_4f55;
/// Bytes of `struct withheld`.
const WITHHELD: usize = 4 + 128;

/// Events on their way from the ring to the caller.
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
    /// That these programs are where they are ([`presence`]), in which folder.
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
    /// Never held while anything is called but libbpf.
    batch: Arc<Mutex<Batch>>,
}

impl Trods {
    /// Loads them; nothing is held to anything before [`Trods::attach`]. These make no handshakes ([`Trods::load_issuing`]).
    ///
    /// # Errors
    /// Errors of the system call, with the verifier's last lines.
    pub fn load() -> Result<Trods, Error> {
        let mut object = open(NAME, object!("trods"))?;
        // There is nothing to remember of handshakes.
        for mut map in object.maps_mut().filter(|map| map.name() == "issued" || map.name() == "requests") {
            map.set_max_entries(1).map_err(Error::of("a BPF map's size"))?;
        }
        Trods::of(object, false)
    }

    /// As [`Trods::load`], and they make handshakes and timestamps of services that are [issued](Trods::issue). They are larger.
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

    /// The folder in which a name shows the next process that these programs are on an interface; it is made, and others must not be able
    /// to write there. To be called before [`Trods::attach`].
    pub fn present_in(&mut self, folder: impl Into<PathBuf>) {
        self.folder = folder.into();
    }

    /// Attaches both programs to the interface of this index in the namespace of the calling
    /// thread, and detaches them from the interface before. Frames that are written to [the
    /// TAP](Trods::set_tap) are received on that interface.
    ///
    /// # Errors
    /// `ENODEV` if there is none.
    pub fn attach(&mut self, index: u32) -> Result<(), Error> {
        self.detach();
        let fail = |operation| move |source| Error::Os { operation, source };
        let claim = presence::claim(&self.folder, index).map_err(fail("a name of programs"))?;
        (self.present, self.follows, self.former) = (claim.own, claim.follows, claim.former);
        for (name, kind) in [("trods_egress", BPF_TCX_EGRESS), ("trods_ingress", BPF_TCX_INGRESS)] {
            let link = attach(&self.program(name)?, index, kind, 0);
            self.links.push(link.map_err(|source| Error::Os { operation: "BPF_LINK_CREATE (tcx)", source })?);
        }
        // With it what the kernel closes when this process dies is known for what it is.
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

    /// Whether those of a process that died were still there when these were attached.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// The connections with timestamps of a process that died, read while others may change. None
    /// at a second call.
    #[must_use]
    pub fn formers(&mut self) -> HashMap<FlowKey, Stamped> {
        // Their maps are gone with this.
        std::mem::take(&mut self.former).iter().flat_map(|map| stamped::all_of(map.as_fd())).collect()
    }

    /// Leaves them as a process does that is killed.
    #[cfg(feature = "testing")]
    pub fn killed(&mut self) {
        self.linger.iter().for_each(Linger::killed);
        self.detach();
    }

    /// Takes them off.
    pub fn detach(&mut self) {
        (self.linger, self.present) = (None, None);
        self.links.clear();
    }

    /// Distinguishes connections that end because their process dies from those that it closes
    /// ([`What::Fin`], [`What::Aborted`]), in the network namespace of this inode number. Needs
    /// `CAP_PERFMON`.
    ///
    /// # Errors
    /// What the kernel lacks or refuses; then all pass for ended by their process.
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

    /// Where held segments go: the index of a TAP; 0 and they are dropped. To be called before [`Trods::attach`].
    ///
    /// # Errors
    /// The system's.
    pub fn set_tap(&mut self, index: u32) -> Result<(), Error> {
        self.tap = index;
        let tap = map(&self.object, ".data.tap")?;
        update(&tap, &0u32.to_ne_bytes(), &index.to_ne_bytes(), MapFlags::ANY)
    }

    /// Protects the connections of this address from now on, under this lease.
    ///
    /// # Errors
    /// More than [`MAX_SERVICES`].
    pub fn protect(&self, service: SocketAddr, lease: u32) -> Result<(), Error> {
        self.issue(service, lease, 0, false)
    }

    /// Whether these programs make handshakes and timestamps.
    #[must_use]
    pub fn issues(&self) -> bool {
        self.issues
    }

    /// Segments to and from this address pass from now on, without limits.
    ///
    /// # Errors
    /// The system's.
    pub fn release(&self, service: SocketAddr) -> Result<(), Error> {
        delete(&self.services, &layout::service_key(service))
    }

    /// The leases, for the part of the process that extends them. They have ended until they are
    /// set.
    ///
    /// # Errors
    /// The system's.
    pub fn leases(&self) -> Result<Leases, Error> {
        MapHandle::try_from(&self.leases).map(Leases).map_err(Error::of("BPF_OBJ_GET_INFO_BY_FD"))
    }

    /// Limits of a connection that has none yet.
    ///
    /// # Errors
    /// It has some, or there is no room.
    pub fn insert(&self, key: &FlowKey, limits: &Limits) -> Result<(), Error> {
        if self.limits(key)?.is_none() {
            self.forget_former(key)?;
        }
        update(&self.flows, key.octets(), &limits.encode(), MapFlags::NO_EXIST)
    }

    /// Of a socket that this host had before: what it said last, its FIN maybe, is not said by the one to come, nor is it that one's
    /// process that died. The program does the same where a handshake begins one.
    ///
    /// # Errors
    /// The system's.
    pub fn forget_former(&self, key: &FlowKey) -> Result<(), Error> {
        self.take_withheld(key)?;
        delete(&self.died, key.octets())
    }

    /// Has a connection that its timestamps name recorded from now on, under these limits. False: it is not as it was any more.
    ///
    /// # Errors
    /// There is no room.
    pub fn record(&self, key: &FlowKey, stamped: &Stamped, limits: &Limits) -> Result<bool, Error> {
        if self.stamps.get(key)?.is_none_or(|now| now.phase != Phase::Echoed) {
            return Ok(false);
        }
        // They count from the phase on.
        update(&self.flows, key.octets(), &limits.encode(), MapFlags::ANY)?;
        let done = self.stamps.replace(key, stamped);
        if !matches!(done, Ok(true)) {
            self.free(key)?;
        }
        done
    }

    /// Other limits of a connection. False: it has none any more.
    ///
    /// # Errors
    /// The system's.
    pub fn set_limits(&self, key: &FlowKey, limits: &Limits) -> Result<bool, Error> {
        match self.flows.update(key.octets(), &limits.encode(), MapFlags::EXIST) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::of("BPF_MAP_UPDATE_ELEM")(e)),
        }
    }

    /// What limits a connection has that the process records, or is to record.
    ///
    /// # Errors
    /// The system's.
    pub fn limits(&self, key: &FlowKey) -> Result<Option<Limits>, Error> {
        let mut octets = [0; layout::LIMITS];
        let found = self.flows.lookup_into(key.octets(), &mut octets, MapFlags::ANY);
        Ok(found.map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?.then(|| Limits::decode(&octets)))
    }

    /// A connection is free from now on.
    ///
    /// # Errors
    /// The system's.
    pub fn free(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.flows, key.octets())
    }

    /// An adopted connection is free from now on: what its client may acknowledge that was not sent here is seen to all the same.
    ///
    /// # Errors
    /// The system's.
    pub fn free_adopted(&self, key: &FlowKey) -> Result<(), Error> {
        self.happens(layout::HAPPENED_FREED)?;
        update(&self.freed, key.octets(), &[1], MapFlags::ANY)?;
        self.free(key)
    }

    /// Fields of responses that the client receives without their contents: sequence numbers of their beginning and of the end of
    /// their line. They take the place of those before, and hold until the connection is another one, also without limits.
    ///
    /// # Errors
    /// The system's; if there is no room the oldest connection gives way.
    pub fn blank(&self, key: &FlowKey, fields: &[(u32, u32)]) -> Result<(), Error> {
        if fields.is_empty() {
            return delete(&self.blanks, key.octets());
        }
        self.happens(layout::HAPPENED_BLANKS)?;
        update(&self.blanks, key.octets(), &layout::blanks(fields), MapFlags::ANY)
    }

    /// Takes the last segment without data that was not let through: a frame of which the TCP checksum may be missing.
    ///
    /// # Errors
    /// The system's.
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

    /// Segments of a connection that is searched for become events and are not reset.
    ///
    /// # Errors
    /// The system's; if there is no room the oldest gives way.
    pub fn park(&self, key: &FlowKey) -> Result<(), Error> {
        update(&self.orphans, key.octets(), &[1], MapFlags::ANY)
    }

    /// It is not any more.
    ///
    /// # Errors
    /// The system's.
    pub fn unpark(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.orphans, key.octets())
    }

    /// Another member of the pool holds a connection: the ToR hands the client's segments on to it,
    /// unless this host has limits for the connection. Segments of the kernel here do not leave.
    ///
    /// # Errors
    /// The system's; if there is no room the oldest gives way.
    pub fn pin(&self, key: &FlowKey, pin: Pin) -> Result<(), Error> {
        self.happens(layout::HAPPENED_PIN)?;
        update(&self.pins, key.octets(), &pin.encode(), MapFlags::ANY)
    }

    /// The programs look from now on for what they have not had to look for.
    fn happens(&self, what: u32) -> Result<(), Error> {
        update(&self.happened, &what.to_ne_bytes(), &1u32.to_ne_bytes(), MapFlags::ANY)
    }

    /// The pin of a connection.
    ///
    /// # Errors
    /// The system's.
    pub fn pinned(&self, key: &FlowKey) -> Result<Option<Pin>, Error> {
        let octets =
            self.pins.lookup(key.octets(), MapFlags::ANY).map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?;
        Ok(octets.and_then(|octets| octets.first_chunk().map(Pin::decode)))
    }

    /// Removes the pin of a connection.
    ///
    /// # Errors
    /// The system's.
    pub fn unpin(&self, key: &FlowKey) -> Result<(), Error> {
        delete(&self.pins, key.octets())
    }

    /// Readable when there are events, but for those that a connection is [named](What::Stamped).
    #[must_use]
    pub fn readable(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the ring, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }

    /// Passes on up to `most` events in their order, with those of [named](What::Stamped) responses
    /// last, and returns their number.
    ///
    /// # Errors
    /// The system's.
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
