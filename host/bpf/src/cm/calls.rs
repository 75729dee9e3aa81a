//! The Congestion Manager's calls for users' programs (`src/bpf/calls.c`): the programs and rings
//! that `rivulet cm serve` passes to clients, and the state that it keeps.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys::{BPF_CGROUP_INET_EGRESS, bpf_map_create_opts, bpf_obj_pin};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, OpenObject};

use super::{Macroflow, read, require_bpf_fs};
use crate::Error;
use crate::kernel::{Feature, require};
use crate::object::{attach, get, load, missing, object, open, run};

const NAME: &str = "calls";
/// Folder of this version's pins. Another version uses another name and so begins with an empty
/// folder.
const FOLDER: &str = "calls-4";
const PROGRAMS: [&str; 6] = ["cm_open", "cm_call", "cm_calls", "cm_open_for", "cm_calls_for", "cm_evict"];
const MAPS: [&str; 5] = ["shares", "flows", "clients", "users", "rings"];
const LINK: &str = "egress";
/// Most accounts (`MAX_CLIENTS` of cm.h).
const MAX_CLIENTS: u32 = 4096;
/// Bytes of a client's ring, `RING_OCTETS` of cm.h.
pub const RING: u32 = 65_536;
/// Bytes of `struct cm_client`, and the client's offset in `struct cm_flow`.
const CLIENT: usize = 32;
const CLIENT_ACCOUNT: usize = 24;
const FLOW_CLIENT: usize = 124;
/// Attempts to close a flow that is being moved between macroflows.
const TRIES: u32 = 1000;

/// Where version 2 of the cgroups is usually mounted.
pub const CGROUP: &str = "/sys/fs/cgroup";

/// How the calls are loaded.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The cgroup (version 2) in which processes' datagrams are counted. The root cgroup has all
    /// processes.
    pub cgroup: PathBuf,
    /// Nanoseconds after which a grant that is neither used nor declined goes to another flow. A
    /// grant lives for a round trip if that is longer, and up to twice as long because ages are
    /// counted in ticks.
    pub grant_life: u64,
    /// Nanoseconds without feedback, beyond two timeouts, after which a flow's outstanding packets
    /// count as lost.
    pub silence: u64,
    /// First window of a macroflow, packets.
    pub initial_window: u32,
    /// Most packets by which one report enlarges the window in slow start.
    pub slow_start_limit: u32,
    /// Most flows of one account.
    pub flows: u32,
    /// Most clients of all accounts. Each takes 80 KiB of kernel memory, for its ring.
    pub clients: u32,
    /// Most macroflows of all accounts. Each takes 8 KiB of kernel memory.
    pub macroflows: u32,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            cgroup: unified().unwrap_or_else(|| PathBuf::from(CGROUP)),
            grant_life: 100_000_000,
            silence: 5_000_000_000,
            initial_window: 10,
            slow_start_limit: 2,
            flows: 1024,
            clients: 1024,
            macroflows: 16_384,
        }
    }
}

/// Where cgroups of version 2 are mounted, if they are.
#[must_use]
pub fn unified() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.find_map(|f| (f.get(2) == Some(&"cgroup2")).then(|| PathBuf::from(f[1])))
}

/// A registered program of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallClient {
    /// The client's number.
    pub id: u32,
    /// The user that runs the program.
    pub uid: u32,
    /// The user that has the quota for this client.
    pub account: u32,
    /// The client's process; the client is removed when the process ends.
    pub pid: u32,
    /// Start time of the process, as in /proc/PID/stat: a later process may have the same number.
    pub started: u64,
}

/// The loaded programs and maps. Those that are not [pinned](Calls::pin) are unloaded when this is
/// dropped.
#[derive(Debug)]
pub struct Calls {
    programs: [OwnedFd; 6],
    maps: [MapHandle; 5],
    link: OwnedFd,
}

impl Calls {
    /// Loads the programs, and counts the datagrams that the processes of a cgroup send.
    ///
    /// # Errors
    /// The kernel lacks a feature or refuses a program.
    pub fn load(options: &CallOptions) -> Result<Calls, Error> {
        require(Feature::Btf)?;
        require(Feature::UserCalls)?;
        let cgroup = fs::File::open(&options.cgroup)
            .map_err(|source| Error::Os { operation: "opening the cgroup", source })?;
        let mut opened = open(NAME, object!("calls"))?;
        choose(&mut opened, options)?;
        let object = load(NAME, opened)?;
        let mut programs = vec![];
        for name in PROGRAMS {
            programs.push(program(&object, name)?);
        }
        let egress = object.progs().find(|p| p.name() == "cm_egress").ok_or_else(|| missing("cm_egress"))?;
        let link = attach(&egress, cgroup.as_raw_fd() as u32, BPF_CGROUP_INET_EGRESS, 0)
            .map_err(|source| Error::Os { operation: "attaching to the cgroup (of version 2)", source })?;
        let mut maps = vec![];
        for name in MAPS {
            let map = crate::object::map(&object, name)?;
            maps.push(MapHandle::try_from(&map).map_err(Error::of("keeping a map"))?);
        }
        Ok(Calls { programs: array(programs), maps: array(maps), link })
    }

    /// Pins all programs and maps in a new folder below `folder`. The new folder appears only when
    /// all pins are in it.
    ///
    /// # Errors
    /// `folder` is not in a BPF file system, or the pins exist already.
    pub fn pin(&self, folder: &Path) -> Result<(), Error> {
        let fail = |source| Error::Os { operation: "pinning the calls", source };
        require_bpf_fs(folder)?;
        // The name of a folder in a BPF file system must not have a dot.
        let begun = folder.join(format!("{FOLDER}-{}", std::process::id()));
        fs::create_dir(&begun).map_err(fail)?;
        let all = PROGRAMS.into_iter().zip(self.programs.iter().map(AsFd::as_fd));
        let all = all.chain(MAPS.into_iter().zip(self.maps.iter().map(AsFd::as_fd)));
        let mut all = all.chain([(LINK, self.link.as_fd())]);
        let pinned = all.try_for_each(|(name, fd)| pin(fd, &begun.join(name)));
        let done = pinned.and_then(|()| fs::rename(&begun, folder.join(FOLDER)));
        done.map_err(|e| {
            let _ = clear(&begun);
            fail(e)
        })
    }

    /// Opens the programs and maps that were pinned in this folder. `None`: there are none.
    ///
    /// # Errors
    /// The folder holds something other than these pins.
    pub fn pinned(folder: &Path) -> Result<Option<Calls>, Error> {
        let fail = |source| Error::Os { operation: "opening the pinned calls", source };
        let folder = folder.join(FOLDER);
        if !folder.exists() {
            return Ok(None);
        }
        let (mut programs, mut maps) = (vec![], vec![]);
        for name in PROGRAMS {
            programs.push(get(&folder.join(name)).map_err(fail)?);
        }
        for name in MAPS {
            let map = MapHandle::from_pinned_path(folder.join(name));
            maps.push(map.map_err(Error::of("opening a pinned map"))?);
        }
        let link = get(&folder.join(LINK)).map_err(fail)?;
        Ok(Some(Calls { programs: array(programs), maps: array(maps), link }))
    }

    /// Removes the pins of a folder, also those of a start that did not finish. Clients keep their
    /// descriptors, but their packets are no longer counted, so their windows do not grow.
    ///
    /// # Errors
    /// An operating system error.
    pub fn unpin(folder: &Path) -> Result<(), Error> {
        let fail = |source| Error::Os { operation: "taking the pins of the calls away", source };
        for entry in fs::read_dir(folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if entry.file_name().as_bytes().starts_with(NAME.as_bytes()) {
                clear(&entry.path()).map_err(fail)?;
            }
        }
        Ok(())
    }

    /// The programs `cm_open`, `cm_call` and `cm_calls`, whose descriptors a client receives.
    #[must_use]
    pub fn programs(&self) -> [BorrowedFd<'_>; 3] {
        [0, 1, 2].map(|n| self.programs[n].as_fd())
    }

    /// The programs `cm_open_for` and `cm_calls_for`, which take the user as an argument: for the
    /// daemon only.
    #[must_use]
    pub fn programs_for_others(&self) -> [BorrowedFd<'_>; 2] {
        [3, 4].map(|n| self.programs[n].as_fd())
    }

    fn map(&self, name: &str) -> &MapHandle {
        &self.maps[MAPS.iter().position(|n| *n == name).unwrap_or_default()]
    }

    /// Most clients of all accounts together.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn capacity(&self) -> Result<u32, Error> {
        self.map("clients").info().map(|i| i.info.max_entries).map_err(Error::of("asking for a map's size"))
    }

    /// Registers a process under the quota of `account`; returns its number and its ring.
    ///
    /// # Errors
    /// There are too many clients.
    pub fn admit(&self, uid: u32, account: u32, pid: u32, started: u64) -> Result<(u32, OwnedFd), Error> {
        let fail = Error::of("letting a client in");
        let (users, clients) = (self.map("users"), self.map("clients"));
        let known = self.clients()?;
        let free = (1..=self.capacity()?).find(|id| known.binary_search_by_key(id, |c| c.id).is_err());
        let full = || io::Error::other("too many clients");
        let id = free.ok_or_else(|| Error::Os { operation: "letting a client in", source: full() })?;
        let count = || match users.update(&account.to_ne_bytes(), &[0; 8], MapFlags::NO_EXIST) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        };
        if count().is_err() {
            // Deletes accounts without clients and without kept histories, to make room.
            for key in users.keys() {
                self.forget_user(key.first_chunk().map_or(0, |account| u32::from_ne_bytes(*account)))?;
            }
            count().map_err(&fail)?;
        }
        let options =
            bpf_map_create_opts { sz: size_of::<bpf_map_create_opts>() as u64, ..Default::default() };
        let ring =
            MapHandle::create(MapType::RingBuf, Some("cm_ring"), 0, 0, RING, &options).map_err(&fail)?;
        let mut value = [uid.to_ne_bytes(), pid.to_ne_bytes()].concat();
        value.extend(started.to_ne_bytes());
        value.resize(CLIENT_ACCOUNT, 0);
        value.extend(account.to_ne_bytes());
        value.resize(CLIENT, 0);
        let key = id.to_ne_bytes();
        clients.update(&key, &value, MapFlags::NO_EXIST).map_err(&fail)?;
        let descriptor = ring.as_fd().as_raw_fd() as u32;
        self.map("rings").update(&key, &descriptor.to_ne_bytes(), MapFlags::ANY).map_err(&fail)?;
        let ring = ring.as_fd().try_clone_to_owned();
        Ok((id, ring.map_err(|source| Error::Os { operation: "keeping a ring", source })?))
    }

    /// The registered clients, in the order of their numbers.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn clients(&self) -> Result<Vec<CallClient>, Error> {
        let map = self.map("clients");
        let mut found = vec![];
        for key in map.keys() {
            let value = map.lookup(&key, MapFlags::ANY).map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?;
            found.extend(value.and_then(|value| client(&key, &value)));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Closes the flows of a client that has exited and deletes it; returns the number of flows.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn evict(&self, id: u32) -> Result<usize, Error> {
        let fail = Error::of("forgetting a client");
        // Deletes the client's number first, so that the client can open no further flow.
        let key = id.to_ne_bytes();
        let known = self.clients()?.into_iter().find(|c| c.id == id);
        for name in ["clients", "rings"] {
            match self.map(name).delete(&key) {
                Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => return Err(fail(e)),
                _ => {}
            }
        }
        let mut closed = 0;
        for flow in self.map("flows").keys() {
            let value = self.map("flows").lookup(&flow, MapFlags::ANY).map_err(&fail)?;
            let of = value.as_ref().and_then(|v| v.get(FLOW_CLIENT..)?.first_chunk().copied());
            if of.map(u32::from_ne_bytes) == Some(id) && self.evict_flow(&flow, id)? {
                closed += 1;
            }
        }
        if let Some(CallClient { account, .. }) = known {
            self.forget_user(account)?;
        }
        Ok(closed)
    }

    /// Closes one flow. Returns false if the flow was closed meanwhile.
    fn evict_flow(&self, flow: &[u8], client: u32) -> Result<bool, Error> {
        let again = -libc::EAGAIN;
        for _ in 0..TRIES {
            let mut arguments = [0u8; 16];
            arguments[..8].copy_from_slice(flow);
            arguments[8..12].copy_from_slice(&client.to_ne_bytes());
            run(self.programs[5].as_fd(), &mut arguments)
                .map_err(|source| Error::Os { operation: "closing a flow", source })?;
            if arguments[12..] != again.to_ne_bytes() {
                return Ok(arguments[12..] == [0; 4]);
            }
        }
        Err(Error::Os { operation: "closing a flow", source: io::Error::from_raw_os_error(libc::EAGAIN) })
    }

    /// Deletes an account's counts when it has neither flows nor macroflows.
    fn forget_user(&self, account: u32) -> Result<(), Error> {
        let users = self.map("users");
        let counts = users.lookup(&account.to_ne_bytes(), MapFlags::ANY);
        let counts = counts.map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))?;
        let idle = counts.is_some_and(|c| c.iter().all(|octet| *octet == 0));
        if idle && self.clients()?.iter().all(|c| c.account != account) {
            let _ = users.delete(&account.to_ne_bytes());
        }
        Ok(())
    }

    /// The macroflows of all users.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn macroflows(&self) -> Result<Vec<Macroflow>, Error> {
        read(self.map("shares"), |value| Ok(Some(value)))
    }
}

/// Sets the sizes of the maps, and the variables of calls.c that the loader may change, in their
/// order.
fn choose(opened: &mut OpenObject, options: &CallOptions) -> Result<(), Error> {
    for mut map in opened.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let most = match name.as_str() {
            "clients" | "rings" => Some(options.clients.clamp(1, MAX_CLIENTS)),
            "shares" | "numbered" => Some(options.macroflows.max(1)),
            _ => None,
        };
        if let Some(most) = most {
            map.set_max_entries(most).map_err(Error::of("sizing a map"))?;
        }
        let Some(value) = map.initial_value_mut().filter(|_| name.ends_with(".rodata")) else { continue };
        value[..8].copy_from_slice(&options.grant_life.to_ne_bytes());
        value[8..16].copy_from_slice(&options.silence.to_ne_bytes());
        value[16..20].copy_from_slice(&options.initial_window.to_ne_bytes());
        value[20..24].copy_from_slice(&options.slow_start_limit.to_ne_bytes());
        value[24..28].copy_from_slice(&options.flows.to_ne_bytes());
    }
    Ok(())
}

fn client(key: &[u8], value: &[u8]) -> Option<CallClient> {
    let word = |octets: &[u8]| octets.first_chunk().map(|o| u32::from_ne_bytes(*o));
    Some(CallClient {
        id: word(key)?,
        uid: word(value)?,
        account: word(value.get(CLIENT_ACCOUNT..)?)?,
        pid: word(value.get(4..)?)?,
        started: u64::from_ne_bytes(*value.get(8..)?.first_chunk()?),
    })
}

fn program(object: &Object, name: &'static str) -> Result<OwnedFd, Error> {
    let program = object.progs().find(|p| p.name() == name).ok_or_else(|| missing(name))?;
    let fd = program.as_fd().try_clone_to_owned();
    fd.map_err(|source| Error::Os { operation: "keeping a program", source })
}

fn array<T: std::fmt::Debug, const N: usize>(all: Vec<T>) -> [T; N] {
    all.try_into().expect("one of each name")
}

fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path lives through the call.
    let rc = unsafe { bpf_obj_pin(fd.as_raw_fd(), path.as_ptr()) };
    if rc < 0 { Err(io::Error::from_raw_os_error(-rc)) } else { Ok(()) }
}

/// Removes a folder of pins, which contains no folders.
fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::remove_file(entry?.path())?;
    }
    fs::remove_dir(folder)
}
