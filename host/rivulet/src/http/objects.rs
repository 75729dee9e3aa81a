//! The files of a directory as content with an identity that every replica agrees on.
//!
//! An object is identified by name, size and content hash, never by inode or time, so a
//! continuation names the same bytes on every replica. The hash is computed when a file is first
//! requested and kept while the file's stamp (inode, size, times) is the same; all of this is soft
//! state that may be dropped.
//!
//! Only the [`Desk`]'s threads open, read and examine files. Callers wait for them within a time
//! limit: the packet path only for moments, because a slow disk would otherwise make the replica
//! look dead.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::desk::{Desk, Key};
use super::guard::Mapping;
use super::lookup::{Lookup, refusal};
use super::marks::Marks;
use super::object::{Content, Identity, Object};
use super::read_error::ReadError;
use super::stamp::Stamp;

/// Files above this size are hashed before the first request.
const PREPARED: u64 = 1 << 20;
/// Longest path, bytes; longer ones are refused with 414 so that a continuation fits into a packet.
pub const MAX_NAME: usize = rivulet_http::MAX_PATH;
/// Files up to this size are held in memory; longer ones are mapped.
const SMALL: u64 = 64 << 10;
/// Limit on the objects; when there are more, all are dropped.
const MAX_OBJECTS: usize = 4000;
/// Limit on the objects in a thread's own table; when there are more, that table is emptied.
const MAX_NEAR: usize = 64;
/// Limit on the bytes of small files in memory.
const MAX_SMALL_TOTAL: usize = 128 << 20;
/// Age at which a file's stamp is checked again, microseconds: a changed file is noticed by then.
const RECHECK: u64 = 20_000;
/// While a file is being checked again, it counts as unchanged for this long, microseconds.
const STALE: u64 = 60_000;
/// Limit on the remembered names that are not files.
const MAX_REFUSED: usize = 1024;
/// How long such a name is remembered, microseconds.
const REFUSED: u64 = 1_000_000;
/// Limit on the contents that files have grown beyond; when there are more, all are dropped, and
/// looked up again.
const MAX_FORMER: usize = 256;
/// Limit on the folders that are scanned in advance.
const MAX_FOLDERS: usize = 4096;
/// How long the packet path waits for the disk: about as long as reading a file from the page cache
/// takes.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
/// How long other callers wait at most.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Shared {
    root: OwnedFd,
    started: Instant,
    objects: RwLock<Table>,
    small_total: AtomicUsize,
    /// Names that are not files, until they are requested again.
    refused: Mutex<Refused>,
    former: Mutex<Former>,
    stop: AtomicBool,
}

type Table = HashMap<Box<[u8]>, Arc<Object>>;
/// By path: the time of the lookup, and its result.
type Refused = HashMap<Box<[u8]>, (u64, Lookup)>;
/// Contents with unfinished answers that files have grown beyond: the time of the lookup, and the
/// content; `None` if the file begins otherwise.
type Former = HashMap<Identity, (u64, Option<Arc<Object>>)>;

/// The directory that is served. Clones share everything.
#[derive(Clone, Debug)]
pub struct Objects {
    shared: Arc<Shared>,
    /// Objects that this thread requested recently, so that it need not lock the common table.
    near: Option<Arc<Mutex<Table>>>,
    patience: Duration,
    desk: Arc<Closing>,
    /// Which pictures are marked.
    marks: Option<Marks>,
}

/// Stops the threads when the last handle is dropped, even within a long file.
#[derive(Debug)]
pub(super) struct Closing(pub(super) Desk, Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.1.stop.store(true, Ordering::Release);
    }
}

/// Whether a file still has an object's content.
enum Stands {
    Yes,
    No,
    Unknown,
}

impl Objects {
    /// Opens `dir` and starts the threads that read it. Callers wait for the disk.
    pub fn open(dir: &Path) -> io::Result<Objects> {
        let root =
            rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let shared = Arc::new(Shared {
            root,
            started: Instant::now(),
            objects: RwLock::default(),
            small_total: AtomicUsize::new(0),
            refused: Mutex::default(),
            former: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let desk = Arc::new(Closing(Desk::open()?, shared.clone()));
        Ok(Objects { shared, near: None, patience: PATIENCE, desk, marks: None })
    }

    /// The same objects, of which pictures are marked.
    #[must_use]
    pub fn with_marks(self, marks: Marks) -> Objects {
        Objects { marks: Some(marks), ..self }
    }

    pub(super) fn marks(&self) -> Option<&Marks> {
        self.marks.as_ref()
    }

    /// Has the index of a picture computed, and waits as for a file.
    pub(super) fn index_soon(&self, hash: [u8; 16], job: impl FnOnce() + Send + 'static) {
        self.desk.0.ask(Key::Index(hash), self.patience, job);
    }

    /// A handle for a thread of the packet path, with its own table: it takes no common lock for
    /// objects that it has seen, and an object that is not available within moments is
    /// [`Lookup::Pending`].
    #[must_use]
    pub fn for_thread(&self) -> Objects {
        Objects { near: Some(Arc::default()), patience: MOMENT, ..self.clone() }
    }

    /// A handle for a caller with other work: an object that is not available within `patience` is
    /// [`Lookup::Pending`].
    #[must_use]
    pub fn patient_for(&self, patience: Duration) -> Objects {
        Objects { patience, ..self.clone() }
    }

    /// The threads that may wait for the disk.
    pub(super) fn desk(&self) -> Arc<Closing> {
        self.desk.clone()
    }

    /// Loads all files under `dir` (as given to [`open`](Self::open)) in advance, so that the first
    /// request for a long one need not wait.
    pub fn prepare(&self, dir: &Path) {
        let mut folders = vec![(dir.to_owned(), Vec::new())];
        while let Some((folder, prefix)) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            for entry in entries.flatten() {
                let name = [&prefix[..], entry.file_name().as_bytes()].concat();
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => folders.push((entry.path(), [&name[..], b"/"].concat())),
                    Ok(meta) if meta.is_file() && meta.len() > PREPARED => {
                        let shared = self.shared.clone();
                        let key = Key::Load(name.as_slice().into());
                        self.desk.0.ask_later(key, move || shared.load(&name));
                    }
                    _ => {}
                }
                if folders.len() > MAX_FOLDERS {
                    return;
                }
            }
        }
    }

    /// Whether files are being read, so that requests for them have to wait.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.desk.0.is_busy()
    }

    /// The object at a request's path, which begins with `/` and has neither empty parts nor dots.
    /// A path that ends in `/` means its `index.html`. Allocates nothing for an available object.
    #[must_use]
    pub fn lookup(&self, path: &[u8]) -> Lookup {
        let name = path.strip_prefix(b"/").unwrap_or(path);
        match name.is_empty() || name.ends_with(b"/") {
            true => self.named(&name_of(path)),
            false => self.named(name),
        }
    }

    /// The content with which an answer began: the file's present content, or the former one if the
    /// file has grown since. So a log that grows is sent with the length that it had at the
    /// request.
    #[must_use]
    pub fn lookup_content(&self, path: &[u8], identity: Identity) -> Lookup {
        if let Some(Some(object)) = self.former(identity) {
            return Lookup::Found(object);
        }
        match self.lookup(path) {
            Lookup::Found(object) if object.identity() == identity => Lookup::Found(object),
            Lookup::Found(_) => match self.former(identity) {
                Some(there) => there.map_or(Lookup::Missing, Lookup::Found),
                None => {
                    let (of_job, name) = (self.shared.clone(), name_of(path));
                    let key = Key::Former(identity.hash);
                    self.desk.0.ask(key, self.patience, move || of_job.look_for(&name, identity));
                    match self.former(identity) {
                        Some(there) => there.map_or(Lookup::Missing, Lookup::Found),
                        None => Lookup::Pending,
                    }
                }
            },
            other => other,
        }
    }

    /// The former content of a file that may have grown since.
    fn former(&self, identity: Identity) -> Option<Option<Arc<Object>>> {
        let former = self.shared.former.lock();
        let (at, there) = former.get(&identity)?;
        // A file that begins otherwise may be replaced by the former one again.
        let good = there.is_some() || self.shared.now().saturating_sub(*at) < REFUSED;
        good.then(|| there.clone())
    }

    /// Fills `out` with an object's bytes from `offset` on.
    pub fn read(&self, object: &Arc<Object>, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        if self.near.is_some()
            && let Content::Mapped(mapping) = &object.content
            && let Some(block) =
                mapping.missing(usize::try_from(offset).unwrap_or(usize::MAX), out.len(), self.milliseconds())
        {
            let (of_job, now) = (object.clone(), self.milliseconds());
            let fetch = move || {
                if let Content::Mapped(mapping) = &of_job.content {
                    mapping.fetch(block, now);
                }
            };
            if !self.desk.0.ask(Key::Page(Arc::as_ptr(object) as usize, block), self.patience, fetch) {
                return Err(ReadError::NotYet);
            }
        }
        if object.read(offset, out) { Ok(()) } else { Err(ReadError::NotMine) }
    }

    fn milliseconds(&self) -> u32 {
        (self.shared.now() / 1000) as u32
    }

    fn named(&self, name: &[u8]) -> Lookup {
        let Some(near) = &self.near else { return self.found(name) };
        let mut near = near.lock();
        if let Some(object) = near.get(name) {
            match self.stands(name, object) {
                Stands::Yes => return Lookup::Found(object.clone()),
                Stands::Unknown => return Lookup::Pending,
                Stands::No => near.remove(name),
            };
        }
        let found = self.found(name);
        if let Lookup::Found(object) = &found {
            // Also bounds how long this table keeps objects that the common table has dropped.
            if near.len() >= MAX_NEAR {
                near.clear();
            }
            near.insert(name.into(), object.clone());
        }
        found
    }

    /// Like [`named`](Self::named), from the common table.
    fn found(&self, name: &[u8]) -> Lookup {
        let there = self.shared.objects.read().get(name).cloned();
        match there.map(|object| (self.stands(name, &object), object)) {
            Some((Stands::Yes, object)) => return Lookup::Found(object),
            Some((Stands::Unknown, _)) => return Lookup::Pending,
            Some((Stands::No, _)) | None => {}
        }
        let (shared, of_job) = (&self.shared, self.shared.clone());
        let refused = || {
            let (at, refused) = shared.refused.lock().remove(name)?;
            (shared.now().saturating_sub(at) < REFUSED).then_some(refused)
        };
        if let Some(refused) = refused() {
            return refused;
        }
        let owned: Box<[u8]> = name.into();
        if !self.desk.0.ask(Key::Load(name.into()), self.patience, move || of_job.load(&owned)) {
            return Lookup::Pending;
        }
        let there = shared.objects.read().get(name).cloned();
        there.map(Lookup::Found).or_else(refused).unwrap_or(Lookup::Pending)
    }

    /// Whether the file still has the object's content. Its stamp is checked at intervals, in
    /// advance if it is requested often.
    fn stands(&self, name: &[u8], object: &Arc<Object>) -> Stands {
        let age = || self.shared.now().saturating_sub(object.checked.load(Ordering::Relaxed));
        let before = age();
        if before > RECHECK / 2 && !object.is_replaced() {
            let (shared, owned, of_job): (_, Box<[u8]>, _) =
                (self.shared.clone(), name.into(), object.clone());
            let patience = if before > RECHECK { self.patience } else { Duration::ZERO };
            self.desk.0.ask(Key::Check(name.into()), patience, move || shared.check(&owned, &of_job));
        }
        match age() {
            _ if object.is_replaced() => Stands::No,
            age if age <= STALE => Stands::Yes,
            _ => Stands::Unknown,
        }
    }
}

/// The file name for a path.
fn name_of(path: &[u8]) -> Vec<u8> {
    let name = path.strip_prefix(b"/").unwrap_or(path);
    let index: &[u8] = if name.is_empty() || name.ends_with(b"/") { b"index.html" } else { b"" };
    [name, index].concat()
}

impl Shared {
    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Checks a file's stamp; drops the object if the stamp changed.
    fn check(&self, name: &[u8], object: &Arc<Object>) {
        let stamp = self.open_file(name).ok().and_then(|file| Stamp::of(&file).ok());
        if stamp == Some(object.stamp) {
            object.checked.store(self.now(), Ordering::Relaxed);
            return;
        }
        object.gone.store(true, Ordering::Release);
        // A file that grew still begins with this content, which unfinished answers need.
        if stamp.is_some_and(|now| now.has_grown(&object.stamp)) {
            self.put_former(object.identity, Some(object.clone()));
        }
        let mut objects = self.objects.write();
        // Another thread may have stored the new content already.
        if objects.get(name).is_some_and(|there| Arc::ptr_eq(there, object)) {
            objects.remove(name);
        }
    }

    fn put_former(&self, identity: Identity, there: Option<Arc<Object>>) {
        let mut former = self.former.lock();
        if former.len() >= MAX_FORMER {
            former.clear();
        }
        former.insert(identity, (self.now(), there));
    }

    /// Checks whether a file begins with a content, and keeps that content if it does.
    fn look_for(&self, name: &[u8], identity: Identity) {
        let found = || -> io::Result<Option<Object>> {
            let file = self.open_file(name)?;
            let stamp = Stamp::of(&file)?;
            if !file.metadata()?.is_file() || stamp.size < identity.size {
                return Ok(None);
            }
            let object = self.read_in(&file, stamp.cut_to(identity.size))?;
            Ok(object.filter(|object| object.identity == identity))
        };
        match found() {
            Ok(there) if !self.stop.load(Ordering::Acquire) => {
                self.put_former(identity, there.map(Arc::new));
            }
            Ok(_) => {}
            Err(_) => self.put_former(identity, None),
        }
    }

    /// Opens a file under the root; no name and no symbolic link can lead out of the root.
    fn open_file(&self, name: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.root, name, flags, Mode::empty(), resolve)?.into())
    }

    /// Loads a file, or remembers why it cannot be served.
    fn load(&self, name: &[u8]) {
        let refused = match self.take_in(name) {
            Ok(None) => return,
            Ok(Some(refused)) => refused,
            Err(e) => refusal(&e),
        };
        let mut all = self.refused.lock();
        if all.len() >= MAX_REFUSED {
            all.clear();
        }
        all.insert(name.into(), (self.now(), refused));
    }

    fn take_in(&self, name: &[u8]) -> io::Result<Option<Lookup>> {
        let file = self.open_file(name)?;
        let (meta, stamp) = (file.metadata()?, Stamp::of(&file)?);
        if meta.is_dir() {
            return Ok(Some(Lookup::Directory));
        }
        if !meta.is_file() {
            return Ok(Some(Lookup::Missing));
        }
        // A file that changed while it was read is read again.
        if let Some(object) = self.read_in(&file, stamp)? {
            self.insert(name, &Arc::new(object));
        }
        Ok(None)
    }

    fn read_in(&self, file: &File, stamp: Stamp) -> io::Result<Option<Object>> {
        let small = stamp.size <= SMALL;
        let mut bytes = Vec::new();
        let Some(hash) = self.hash(file, stamp.size, small.then_some(&mut bytes))? else { return Ok(None) };
        let now = Stamp::of(file)?;
        if now != stamp {
            // A file that grows is served with its former length, if the bytes that were read are
            // still the same.
            let grown = now.has_grown(&stamp);
            if !grown || !small && self.hash(file, stamp.size, None)? != Some(hash) {
                return Ok(None);
            }
        }
        let content = if small {
            Content::Memory(bytes.into_boxed_slice())
        } else {
            let len = usize::try_from(stamp.size).map_err(|_| io::ErrorKind::FileTooLarge)?;
            Content::Mapped(Mapping::new(file, len)?)
        };
        let identity = Identity { size: stamp.size, hash };
        let checked = AtomicU64::new(self.now());
        Ok(Some(Object { identity, stamp, content, checked, gone: AtomicBool::new(false) }))
    }

    /// The hash of a file's first `size` bytes, which are also written to `copy`; `None` if the
    /// file is shorter or the process is stopping.
    fn hash(
        &self,
        mut file: &File,
        size: u64,
        mut copy: Option<&mut Vec<u8>>,
    ) -> io::Result<Option<[u8; 16]>> {
        let mut hasher = blake3::Hasher::new();
        let mut block = vec![0; 256 << 10];
        file.rewind()?;
        let mut file = file.take(size);
        let mut total = 0;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            let n = file.read(&mut block)?;
            if n == 0 {
                break;
            }
            total += n as u64;
            hasher.update(&block[..n]);
            if let Some(copy) = &mut copy {
                copy.extend_from_slice(&block[..n]);
            }
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Ok((total == size).then_some(hash))
    }

    fn insert(&self, name: &[u8], object: &Arc<Object>) {
        let mut objects = self.objects.write();
        let memory = match &object.content {
            Content::Memory(bytes) => bytes.len(),
            Content::Mapped(_) => 0,
        };
        let total = self.small_total.fetch_add(memory, Ordering::Relaxed) + memory;
        if objects.len() >= MAX_OBJECTS || total > MAX_SMALL_TOTAL {
            objects.clear();
            self.small_total.store(memory, Ordering::Relaxed);
        }
        objects.insert(name.into(), object.clone());
    }
}

#[cfg(test)]
mod tests;
