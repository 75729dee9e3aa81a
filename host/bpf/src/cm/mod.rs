//! The Congestion Manager's TCP (`src/bpf/cm.c`): a congestion control that sockets choose by its
//! name, and the macroflows that their connections share. Pins in a BPF file system keep both when
//! the process that loaded them ends.

mod calls;
mod folder;
mod state;

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ProgramType};

use crate::Error;
use crate::kernel::{Feature, require};
use crate::object::{get, load, map, missing, object, open, run};

pub use calls::{CGROUP, CallClient, CallOptions, Calls, RING, unified};
pub use folder::{own_folder, require_own};
pub use state::{Macroflow, Numbers};

const NAME: &str = "cm";
/// The maps that are pinned and read: `macroflows` by number, and `destinations` with the numbers.
const MAPS: [&str; 2] = ["macroflows", "destinations"];
/// The program that deletes macroflows without connections, and its pin.
const FORGET: &str = "cm_tcp_forget";
/// linux/magic.h
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
/// TCP_CA_NAME_MAX, with the zero at its end.
const NAME_MAX: usize = 16;

/// Where a BPF file system usually is.
pub const BPF_FS: &str = "/sys/fs/bpf";

/// How the congestion control is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Name of the congestion control: 1 to 15 letters, digits, `_` and `.`.
    pub name: &'a str,
    /// First window of a macroflow, packets.
    pub initial_window: u32,
    /// Most macroflows. Each takes 224 bytes of kernel memory from the start.
    pub macroflows: u32,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { name: "cm", initial_window: 10, macroflows: 65_536 }
    }
}

/// A loaded congestion control. Unless it is [pinned](Cm::pin), sockets can choose it only until
/// this is dropped. Connections that use it then keep it.
#[derive(Debug)]
pub struct Cm {
    link: Link,
    object: Object,
}

impl Cm {
    /// Loads the congestion control and registers its name for all network namespaces.
    ///
    /// # Errors
    /// The kernel lacks a feature or refuses a program; `EEXIST` if a congestion control of this
    /// name exists.
    pub fn load(options: &Options<'_>) -> Result<Cm, Error> {
        require(Feature::Btf)?;
        require(Feature::StructOpsLink)?;
        check_name(options.name)?;
        let mut open = open(NAME, object!("cm"))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "macroflows" || name == "destinations" {
                map.set_max_entries(options.macroflows.max(1)).map_err(Error::of("sizing the macroflows"))?;
            }
            let Some(value) = map.initial_value_mut() else { continue };
            if name == "cm" {
                // cm.c: the name is the first field.
                value[..NAME_MAX].fill(0);
                value[..options.name.len()].copy_from_slice(options.name.as_bytes());
            } else if name.ends_with(".rodata") {
                // `initial_window` is the first variable of cm.c that the loader may choose.
                value[..4].copy_from_slice(&options.initial_window.to_ne_bytes());
            }
        }
        let mut object = load(NAME, open)?;
        let mut maps = object.maps_mut();
        let mut operations = maps.find(|m| m.name() == "cm").ok_or_else(|| missing("cm"))?;
        let link = operations.attach_struct_ops().map_err(Error::of("registering the congestion control"))?;
        drop(maps);
        Ok(Cm { link, object })
    }

    /// Pins the congestion control and its macroflows until [`unpin`] is called with the same
    /// folder. The folder is created, and must be in a BPF file system.
    ///
    /// # Errors
    /// `folder` is in no BPF file system, or a congestion control is pinned in it.
    pub fn pin(&mut self, folder: &Path) -> Result<(), Error> {
        let parent = folder.parent().unwrap_or(folder);
        require_bpf_fs(parent)?;
        match fs::create_dir(folder) {
            // The folder may already hold the pins of the calls for users' programs.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !folder.join("link").exists() => {}
            made => {
                made.map_err(|source| Error::Os { operation: "making the folder of the pins", source })?;
            }
        }
        let pinned = self.pin_in(folder);
        if pinned.is_err() {
            let _ = unpin_files(folder);
            let _ = fs::remove_dir(folder);
        }
        pinned
    }

    fn pin_in(&mut self, folder: &Path) -> Result<(), Error> {
        for name in MAPS {
            let mut map = self.object.maps_mut().find(|m| m.name() == name).ok_or_else(|| missing(name))?;
            map.pin(folder.join(name)).map_err(Error::of("pinning the macroflows"))?;
        }
        let forget = self.object.progs_mut().find(|p| p.name() == FORGET);
        let mut forget = forget.ok_or_else(|| missing(FORGET))?;
        forget.pin(folder.join(FORGET)).map_err(Error::of("pinning what forgets"))?;
        self.link.pin(folder.join("link")).map_err(Error::of("pinning the congestion control"))
    }

    /// The macroflows with their present state.
    ///
    /// # Errors
    /// Errors of the system call.
    pub fn macroflows(&self) -> Result<Vec<Macroflow>, Error> {
        let [macroflows, destinations] = MAPS;
        numbered(&map(&self.object, macroflows)?, &map(&self.object, destinations)?)
    }
}

/// Processor time that one of the programs has used so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The program's name, which the kernel cuts to 15 characters.
    pub name: String,
    /// Number of runs; 0 while `kernel.bpf_stats_enabled` is 0.
    pub runs: u64,
    /// Nanoseconds of all runs.
    pub time: u64,
}

/// Processor time of the programs that are pinned in this folder, counted while
/// `kernel.bpf_stats_enabled` was set.
///
/// # Errors
/// No congestion control is pinned in the folder.
pub fn costs(folder: &Path) -> Result<Vec<Cost>, Error> {
    let fail = Error::of("opening the pinned macroflows");
    let map = MapHandle::from_pinned_path(folder.join("macroflows")).map_err(&fail)?;
    let id = map.info().map_err(fail)?.info.id;
    let mut found: Vec<Cost> =
        ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
            .filter(|info| info.ty == ProgramType::StructOps && info.map_ids.contains(&id))
            .map(|info| Cost {
                name: info.name.to_string_lossy().into_owned(),
                runs: info.run_cnt,
                time: info.run_time_ns,
            })
            .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The macroflows of the congestion control that is pinned in this folder.
///
/// # Errors
/// No congestion control is pinned in the folder.
pub fn pinned(folder: &Path) -> Result<Vec<Macroflow>, Error> {
    let [macroflows, destinations] = MAPS.map(|name| MapHandle::from_pinned_path(folder.join(name)));
    let fail = Error::of("opening the pinned macroflows");
    numbered(&macroflows.map_err(&fail)?, &destinations.map_err(&fail)?)
}

/// Deletes all macroflows without connections, by the program that is pinned in this folder.
/// Returns how many it deleted.
///
/// # Errors
/// No program is pinned there, or the system call fails.
pub fn forget(folder: &Path) -> Result<usize, Error> {
    let fail = |operation| move |source| Error::Os { operation, source };
    let program = get(&folder.join(FORGET)).map_err(fail("opening the pinned program that forgets"))?;
    let count = run(program.as_fd(), &mut []).map_err(fail("BPF_PROG_RUN"))?;
    Ok(count as usize)
}

/// Removes the pins of a folder, including those of the calls for users' programs. New sockets can
/// no longer choose the congestion control; connections that use it keep it.
///
/// # Errors
/// The folder does not exist, or it holds something else.
pub fn unpin(folder: &Path) -> Result<(), Error> {
    let fail = |source| Error::Os { operation: "taking the pins away", source };
    require_bpf_fs(folder)?;
    Calls::unpin(folder)?;
    unpin_files(folder).map_err(fail)?;
    fs::remove_dir(folder).map_err(fail)
}

fn unpin_files(folder: &Path) -> io::Result<()> {
    for name in ["link", FORGET].iter().chain(&MAPS) {
        match fs::remove_file(folder.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// The folders below this one that hold pins. Each is named after its congestion control.
///
/// # Errors
/// The folder cannot be read. A folder that does not exist has no pins and is no error.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let fail = |source| Error::Os { operation: "reading the folder of the pins", source };
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(fail)?,
    };
    let mut found = vec![];
    for entry in entries {
        let path = entry.map_err(fail)?.path();
        if path.join("link").exists() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Reads the macroflows of a map; `find` parses one value.
fn read(
    map: &impl MapCore,
    find: impl Fn(Vec<u8>) -> Result<Option<Vec<u8>>, Error>,
) -> Result<Vec<Macroflow>, Error> {
    let mut found = vec![];
    for key in map.keys() {
        // The macroflow was deleted meanwhile.
        let Some(value) = look(map, &key)? else { continue };
        found.extend(find(value)?.and_then(|value| Macroflow::parse(&key, &value)));
    }
    Ok(found)
}

/// TCP's macroflows. The map `destinations` has the keys of `macroflows`.
fn numbered(macroflows: &impl MapCore, destinations: &impl MapCore) -> Result<Vec<Macroflow>, Error> {
    read(destinations, |number| look(macroflows, &number))
}

fn look(map: &impl MapCore, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    map.lookup(key, MapFlags::ANY).map_err(Error::of("BPF_MAP_LOOKUP_ELEM"))
}

fn check_name(name: &str) -> Result<(), Error> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    // The name is also that of the folder of the pins.
    let folder = name.chars().any(|c| c != '.');
    if (1..NAME_MAX).contains(&name.len()) && name.chars().all(good) && folder {
        return Ok(());
    }
    let why = "the name of a congestion control is 1 to 15 letters, digits, _ and .";
    Err(Error::Os { operation: "naming it", source: io::Error::new(io::ErrorKind::InvalidInput, why) })
}

/// Checks that a folder is in a BPF file system.
///
/// # Errors
/// It is in another file system, or it does not exist.
pub fn require_bpf_fs(folder: &Path) -> Result<(), Error> {
    let fail = |source| Error::Os { operation: "looking for a BPF file system", source };
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).map_err(|e| fail(e.into()))?;
    // SAFETY: a statfs of zeros is valid, and the call fills it.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: path and structure live through the call.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut stat) } < 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    if stat.f_type as i64 == BPF_FS_MAGIC {
        return Ok(());
    }
    let why = format!("{} is in none: mount -t bpf bpf {BPF_FS}", folder.display());
    Err(fail(io::Error::other(why)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlong_or_misleading_names_are_refused() {
        for bad in ["", "a name of sixteen", "0123456789abcdef", "a b", "a/b", "a-b", "..", ".", "ä"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for good in ["c", "cm", "cm.test_1", "0123456789abcde"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn loading_registers_the_name() {
        if crate::kernel::skipped(Feature::StructOpsLink) {
            return;
        }
        let cm = Cm::load(&Options { name: "rvcm_load", initial_window: 3, macroflows: 7 })
            .unwrap_or_else(|e| panic!("{e}"));
        let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
        assert!(available.contains("rvcm_load"), "{available}");
        let again = Cm::load(&Options { name: "rvcm_load", ..Options::default() }).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists, "{again}");
        assert_eq!(cm.macroflows().unwrap(), []);
        drop(cm);
    }

    #[test]
    fn other_file_system_is_refused_with_advice() {
        let text = require_bpf_fs(Path::new("/proc")).unwrap_err().to_string();
        assert!(text.contains("mount -t bpf"), "{text}");
        assert!(require_bpf_fs(Path::new("/nowhere/at/all")).is_err());
        assert_eq!(list(Path::new("/nowhere/at/all")).unwrap(), Vec::<PathBuf>::new());
        assert!(unpin(Path::new("/proc")).is_err());
    }
}
