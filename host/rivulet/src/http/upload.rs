//! Uploads to storage that the replicas share, without anybody remembering them.
//!
//! The input continuation of a body has its place; it is valid for the whole body, so its packets
//! may come in parallel, in any order, repeatedly, and at different replicas. A packet is written
//! at its offset into a file named by the operation's id, and the written ranges are noted beside
//! it, under a lock. The replica that completes them gives the file its name by an atomic rename; a
//! later repetition finds that done and gets the same answer.
//!
//! Unfinished uploads are bounded: in bytes altogether, and each in time after its last piece.

mod totals;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags};

use super::MAX_NAME;
use super::codec::{Malformed, Reader, put_bytes};
use super::desk::Key;
use super::objects::{Closing, MOMENT};

/// Folder of unfinished uploads, in the storage.
const FOLDER: &str = ".rivulet-uploads";
/// Limit on the separate ranges of one upload; a packet that would exceed it ends the upload.
const MAX_RANGES: usize = 4096;
/// Limit on the unfinished uploads of all replicas together: each has two files, and a sweep opens
/// all of them.
const MAX_UNFINISHED: usize = 4096;
/// First bytes of an upload's map, one value for each state.
const OPEN: &[u8; 8] = b"rvupload";
const MOVING: &[u8; 8] = b"rvup-mov";
const DONE: &[u8; 8] = b"rvup-end";
/// Length of the map's header: the state, and the upload's length or, at the end, whether it
/// replaced a file.
const HEADER: usize = 16;
/// How long the map of a finished upload is kept, so that a repeated request gets the same answer:
/// longer than clients retry.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Interval at which expired uploads are removed.
const SWEEP: Duration = Duration::from_secs(60);
/// Limit on the results that wait to be fetched; beyond it, work is repeated.
const MAX_RESULTS: usize = 1024;

/// Limits on uploads.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest body, bytes.
    pub body: u64,
    /// Limit on the announced lengths of all unfinished uploads of all replicas together, bytes.
    pub unfinished: u64,
    /// Time without a new piece after which an upload's bytes are removed.
    pub expiry: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { body: 1 << 30, unfinished: 8 << 30, expiry: Duration::from_secs(3600) }
    }
}

/// Storage for uploads. Clones share it.
#[derive(Clone, Debug)]
pub struct Uploads {
    store: Arc<Store>,
    /// The threads that wait for the disk; `None`: the calling thread does.
    desk: Option<Arc<Closing>>,
    _sweeper: Arc<Sweeper>,
}

type Results = HashMap<([u8; 16], u64, usize), io::Result<Written>>;

#[derive(Debug)]
struct Store {
    root: OwnedFd,
    folder: OwnedFd,
    limits: Limits,
    results: Mutex<Results>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

/// Ends the sweeping thread when the last handle is dropped.
#[derive(Debug)]
struct Sweeper(Arc<Store>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        *self.0.stop.lock() = true;
        self.0.stopped.notify_all();
    }
}

/// A body that is being received; its input continuation carries this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Identity of the operation, which stays the same when the client repeats it.
    pub id: [u8; 16],
    /// Path of the request.
    pub path: String,
    /// Length of the body, bytes.
    pub length: u64,
    /// Input offset of its first byte.
    pub start: u64,
    /// Seconds since 1970 when the head was read.
    pub date: u32,
    /// The connection ends after the answer.
    pub close: bool,
    /// The file must not exist yet (`If-None-Match: *`).
    pub create: bool,
}

/// Result of writing a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The piece is stored; others are missing.
    Partly,
    /// All pieces are stored, and the file has its final name.
    Completely {
        /// The upload replaced a file of this name.
        replaced: bool,
    },
}

impl Uploads {
    /// Opens the storage under `dir`; removes expired uploads now and at intervals.
    pub fn open(dir: &Path, limits: Limits) -> io::Result<Uploads> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = rustix::fs::open(dir, flags, Mode::empty())?;
        match rustix::fs::mkdirat(&root, FOLDER, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let folder = rustix::fs::openat(&root, FOLDER, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let (results, stop, stopped) = (Mutex::default(), Mutex::new(false), Condvar::new());
        let store = Arc::new(Store { root, folder, limits, results, stop, stopped });
        store.sweep(SystemTime::now())?;
        let of_thread = store.clone();
        std::thread::Builder::new().name("uploads".into()).spawn(move || of_thread.sweep_for_ever())?;
        Ok(Uploads { _sweeper: Arc::new(Sweeper(store.clone())), store, desk: None })
    }

    /// A handle for the packet path: these threads wait for the disk.
    pub(super) fn behind(&self, desk: Arc<Closing>) -> Uploads {
        Uploads { desk: Some(desk), ..self.clone() }
    }

    /// The status with which an upload is refused before its body, if any.
    #[must_use]
    pub fn refuses(&self, path: &str, length: u64) -> Option<u16> {
        let name = path.strip_prefix('/').unwrap_or_default();
        let bad = |part: &str| matches!(part, "" | "." | "..") || part.starts_with(".rivulet");
        if name.split('/').any(bad) {
            Some(403)
        } else if name.len() > MAX_NAME - 60 {
            Some(414)
        } else if length > self.store.limits.body {
            Some(413)
        } else {
            None
        }
    }

    /// Whether a path exists already.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        let name = path.trim_start_matches('/');
        let (flags, resolve) = (OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, ResolveFlags::BENEATH);
        rustix::fs::openat2(&self.store.root, name, flags, Mode::empty(), resolve).is_ok()
    }

    /// Writes a piece of the body at its offset `at`. `None`: the disk is slow, and the piece must
    /// be passed again.
    pub fn write(&self, upload: &Upload, at: u64, piece: &[u8]) -> io::Result<Option<Written>> {
        let Some(desk) = &self.desk else { return self.store.write(upload, at, piece).map(Some) };
        let key = (upload.id, at, piece.len());
        let result = || self.store.results.lock().remove(&key).transpose();
        if let Some(written) = result()? {
            return Ok(Some(written));
        }
        let (store, upload, octets) = (self.store.clone(), upload.clone(), piece.to_vec());
        let job = move || {
            let written = store.write(&upload, at, &octets);
            let mut results = store.results.lock();
            if results.len() >= MAX_RESULTS {
                results.clear();
            }
            results.insert(key, written);
        };
        desk.0.ask(Key::Write(key.0, at, key.2), MOMENT, job);
        result()
    }
}

/// Names of an upload's files.
struct Names {
    data: String,
    map: String,
    done: String,
}

impl Store {
    fn write(&self, upload: &Upload, at: u64, piece: &[u8]) -> io::Result<Written> {
        let id = u128::from_be_bytes(upload.id);
        let name = |what| format!("{id:032x}.{what}");
        let names = Names { data: name("data"), map: name("map"), done: name("done") };
        if let Ok(mut done) = self.open(&names.done, OFlags::empty())
            && let State::Done { replaced } = read_map(&mut done)?.0
        {
            return Ok(Written::Completely { replaced });
        }
        let mut notes = self.notes(&names)?;
        let (state, announced) = read_map(&mut notes)?;
        let mut ranges = match state {
            State::Open(ranges) => ranges,
            State::Moving { replaced } => return self.finish(&mut notes, &names, upload, replaced),
            State::Done { replaced } => return Ok(Written::Completely { replaced }),
        };
        if announced.is_none() {
            self.admit(&mut notes, &names, upload.length)?;
        }
        let end = at.checked_add(piece.len() as u64).filter(|end| *end <= upload.length);
        let end = end.ok_or(ErrorKind::InvalidInput)?;
        let file = self.open(&names.data, OFlags::CREATE)?;
        file.write_all_at(piece, at)?;
        insert(&mut ranges, at, end)?;
        let whole = upload.length == 0 || ranges == [(0, upload.length)];
        if !whole {
            write_map(&mut notes, OPEN, upload.length, &ranges)?;
            return Ok(Written::Partly);
        }
        file.sync_data()?;
        // From here on no process writes into the file, even if this one dies before the rename.
        let (folder, last) = self.target(&upload.path)?;
        let replaced = rustix::fs::statat(&folder, last, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        write_map(&mut notes, MOVING, replaced.into(), &[])?;
        notes.sync_data()?;
        self.finish(&mut notes, &names, upload, replaced)
    }

    /// Renames the complete file to its final name.
    fn finish(
        &self,
        notes: &mut File,
        names: &Names,
        upload: &Upload,
        replaced: bool,
    ) -> io::Result<Written> {
        self.commit(&names.data, &upload.path, upload.create)?;
        write_map(notes, DONE, replaced.into(), &[])?;
        notes.sync_data()?;
        self.end_one(upload.length, || {
            Ok(rustix::fs::renameat(&self.folder, names.map.as_str(), &self.folder, names.done.as_str())?)
        })?;
        Ok(Written::Completely { replaced })
    }

    /// Opens an upload's map and locks it. The lock ends with the descriptor, even if this process
    /// is killed.
    fn notes(&self, names: &Names) -> io::Result<File> {
        loop {
            let notes = self.open(&names.map, OFlags::CREATE)?;
            rustix::fs::flock(&notes, FlockOperation::LockExclusive)?;
            // Another process may have removed the map as expired before this one got the lock.
            if rustix::fs::fstat(&notes)?.st_nlink > 0 {
                return Ok(notes);
            }
        }
    }

    /// Records a new upload, if there is room for it.
    fn admit(&self, notes: &mut File, names: &Names, length: u64) -> io::Result<()> {
        let result = self.admit_one(length, || write_map(notes, OPEN, length, &[]));
        if result.is_err() {
            let _ = rustix::fs::unlinkat(&self.folder, names.map.as_str(), AtFlags::empty());
        }
        result
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder)? {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        Ok(names)
    }

    fn sweep_for_ever(&self) {
        let mut stop = self.stop.lock();
        while !*stop {
            self.stopped.wait_for(&mut stop, SWEEP.min(self.limits.expiry));
            if !*stop {
                drop(stop);
                if let Err(e) = self.sweep(SystemTime::now()) {
                    tracing::warn!(error = %e, "uploads that are too old are not removed");
                }
                stop = self.stop.lock();
            }
        }
    }

    /// Removes the maps of finished uploads after a while, and abandoned uploads.
    fn sweep(&self, now: SystemTime) -> io::Result<()> {
        let names = self.names()?;
        for name in &names {
            let Some((id, kind)) = name.split_once('.') else { continue };
            let age = || -> io::Result<Duration> {
                let modified = self.open(name, OFlags::empty())?.metadata()?.modified()?;
                Ok(now.duration_since(modified).unwrap_or_default())
            };
            let remove = |name: &str| {
                // An error may mean that another replica removed it.
                let _ = rustix::fs::unlinkat(&self.folder, name, AtFlags::empty());
            };
            match kind {
                "done" if age().is_ok_and(|age| age > REMEMBERED) => remove(name),
                "map" if age().is_ok_and(|age| age > self.limits.expiry) => {
                    let Ok(notes) = self.open(name, OFlags::empty()) else { continue };
                    // If another process holds the lock, the upload is in use.
                    if rustix::fs::flock(&notes, FlockOperation::NonBlockingLockExclusive).is_ok()
                        && age().is_ok_and(|age| age > self.limits.expiry)
                    {
                        tracing::info!(upload = id, "given up: nothing came for too long");
                        remove(&format!("{id}.data"));
                        remove(name);
                    }
                }
                // The upload's map was removed first.
                "data"
                    if !names.contains(&format!("{id}.map"))
                        && age().is_ok_and(|age| age > self.limits.expiry) =>
                {
                    remove(name);
                }
                _ => {}
            }
        }
        self.recount()
    }

    /// Renames the file to its final name; creates the folders of its path.
    fn commit(&self, data: &str, path: &str, create: bool) -> io::Result<()> {
        let (folder, last) = self.target(path)?;
        // If two clients create the same file at once, only the first rename succeeds.
        let flags = if create { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        match rustix::fs::renameat_with(&self.folder, data, &folder, last, flags) {
            // A process renamed it and died before it recorded that.
            Err(rustix::io::Errno::NOENT)
                if rustix::fs::statat(&folder, last, AtFlags::SYMLINK_NOFOLLOW).is_ok() =>
            {
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// Opens the folder of a path, creating missing folders; returns it with the file's name. No
    /// symbolic link on the way can lead out of the storage: each folder is opened beneath the root
    /// before the next one is created in it.
    fn target<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let name = path.trim_start_matches('/');
        let (folders, last) = name.rsplit_once('/').unwrap_or(("", name));
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let open = |folder: &str| {
            rustix::fs::openat2(&self.root, folder, flags, Mode::empty(), resolve).map_err(|e| match e {
                // openat2(2) with RESOLVE_BENEATH returns this.
                rustix::io::Errno::XDEV => {
                    io::Error::new(ErrorKind::PermissionDenied, format!("{folder} leads out of the storage"))
                }
                e => e.into(),
            })
        };
        let (mut folder, mut end) = (open(".")?, 0);
        for part in folders.split('/') {
            end += part.len();
            if !part.is_empty() {
                match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(e) => return Err(e.into()),
                }
                folder = open(&folders[..end])?;
            }
            end += 1;
        }
        Ok((folder, last))
    }

    fn open(&self, name: &str, create: OFlags) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | create;
        Ok(rustix::fs::openat(&self.folder, name, flags, Mode::from_raw_mode(0o644))?.into())
    }
}

/// Progress of an upload.
enum State {
    /// These ranges are stored.
    Open(Vec<(u64, u64)>),
    /// All ranges are stored, and the file is being renamed.
    Moving { replaced: bool },
    /// The file has its final name.
    Done { replaced: bool },
}

/// Reads an upload's state, and its announced length; `None` for a new upload.
fn read_map(notes: &mut File) -> io::Result<(State, Option<u64>)> {
    let mut bytes = Vec::new();
    notes.rewind()?;
    notes.take((HEADER + 16 * MAX_RANGES) as u64).read_to_end(&mut bytes)?;
    let number = |b: &[u8]| b.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok((State::Open(Vec::new()), None));
    };
    let (state, value) = (&header[..8], number(&header[8..]));
    Ok(match state {
        _ if state == DONE => (State::Done { replaced: value != 0 }, None),
        _ if state == MOVING => (State::Moving { replaced: value != 0 }, None),
        _ => {
            let range = |pair: &[u8]| (number(&pair[..8]), number(&pair[8..]));
            (State::Open(rest.chunks_exact(16).map(range).collect()), Some(value))
        }
    })
}

fn write_map(notes: &mut File, state: &[u8; 8], value: u64, ranges: &[(u64, u64)]) -> io::Result<()> {
    let mut bytes = state.to_vec();
    for number in std::iter::once(value).chain(ranges.iter().flat_map(|(start, end)| [*start, *end])) {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    notes.rewind()?;
    notes.write_all(&bytes)?;
    notes.set_len(bytes.len() as u64)
}

/// Adds a range to sorted, disjoint ranges.
fn insert(ranges: &mut Vec<(u64, u64)>, start: u64, end: u64) -> io::Result<()> {
    if start == end {
        return Ok(());
    }
    let from = ranges.partition_point(|r| r.1 < start);
    let to = ranges.partition_point(|r| r.0 <= end);
    let mut joined = (start, end);
    for r in ranges.drain(from..to) {
        joined = (joined.0.min(r.0), joined.1.max(r.1));
    }
    if ranges.len() >= MAX_RANGES - 1 {
        return Err(io::ErrorKind::QuotaExceeded.into());
    }
    ranges.insert(from, joined);
    Ok(())
}

impl Upload {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.length.to_be_bytes());
        out.extend_from_slice(&self.start.to_be_bytes());
        out.extend_from_slice(&self.date.to_be_bytes());
        out.push(u8::from(self.close) | u8::from(self.create) << 1);
        put_bytes(out, self.path.as_bytes());
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Upload, Malformed> {
        let (id, length, start, date) = (r.array()?, r.u64()?, r.u64()?, r.u32()?);
        let bits = r.u8()?;
        let path = std::str::from_utf8(r.text()?).map_err(|_| Malformed)?.to_owned();
        Ok(Upload { id, path, length, start, date, close: bits & 1 != 0, create: bits & 2 != 0 })
    }
}

#[cfg(test)]
mod tests;
