//! The files of a directory as content with an identity that every replica agrees on.
//!
//! An object is known by name, size and content hash, never by inode or time, so a continuation names
//! the same octets on every replica. The hash is computed when a file is first asked for and kept
//! while the file's stamp (inode, size, times) stands; all of this is soft state that may be dropped.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::guard::Mapping;
use super::object::{Content, Identity, Object};
use super::stamp::Stamp;

/// Longest name, octets; longer ones are refused with 414 so that a continuation fits into a packet.
pub const MAX_NAME: usize = 700;
/// Files up to this size are held in memory; longer ones are mapped.
const SMALL: u64 = 64 << 10;
/// Files up to this size are hashed while the request waits; longer ones by the hashing thread.
const HASH_AT_ONCE: u64 = 1 << 20;
/// Objects kept; when there are more, all are forgotten.
const MAX_OBJECTS: usize = 4000;
/// Objects kept near a thread; when there are more, all are forgotten there.
const MAX_NEAR: usize = 64;
/// Octets of small files kept in memory.
const MAX_SMALL_TOTAL: usize = 128 << 20;
/// A file's stamp is looked at again after this time, microseconds.
const RECHECK: u64 = 20_000;
/// Files waiting for the hashing thread.
const MAX_QUEUE: usize = 4096;

/// What stands under a name.
#[derive(Debug)]
pub enum Lookup {
    /// A file.
    Found(Arc<Object>),
    /// A directory; ask again with a slash at the end.
    Directory,
    /// Nothing that is served.
    Missing,
    /// A file that may not be read.
    Forbidden,
    /// Its hash is being computed; ask again shortly.
    Pending,
    /// No memory or descriptors for it now.
    Exhausted,
}

#[derive(Debug)]
struct Shared {
    root: OwnedFd,
    started: Instant,
    objects: RwLock<Table>,
    small_total: AtomicUsize,
    queue: Mutex<Vec<String>>,
    /// The hashing thread has a file in hand.
    hashing: AtomicBool,
    wake: parking_lot::Condvar,
    stop: AtomicBool,
}

type Table = HashMap<Box<str>, Arc<Object>>;

/// The directory that is served. Clones share everything.
#[derive(Clone, Debug)]
pub struct Objects {
    shared: Arc<Shared>,
    /// Objects that were lately asked for here: one thread's, so that it meets no other at the table of all.
    near: Option<Arc<Mutex<Table>>>,
    _hasher: Arc<Hasher>,
}

/// Ends the hashing thread with the last handle.
#[derive(Debug)]
struct Hasher(Arc<Shared>);

impl Drop for Hasher {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake.notify_all();
    }
}

impl Objects {
    /// Serves `dir`; starts the thread that hashes long files.
    pub fn open(dir: &Path) -> io::Result<Objects> {
        let root =
            rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let shared = Arc::new(Shared {
            root,
            started: Instant::now(),
            objects: RwLock::default(),
            small_total: AtomicUsize::new(0),
            queue: Mutex::default(),
            hashing: AtomicBool::new(false),
            wake: parking_lot::Condvar::new(),
            stop: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        std::thread::Builder::new().name("hash".into()).spawn(move || of_thread.hash_queue())?;
        Ok(Objects { _hasher: Arc::new(Hasher(shared.clone())), shared, near: None })
    }

    /// The same objects for a thread of its own, which takes no lock of others for those that it has seen.
    #[must_use]
    pub fn for_thread(&self) -> Objects {
        Objects { near: Some(Arc::default()), ..self.clone() }
    }

    /// Asks for the hashes of all files under `dir` (as given to [`open`](Self::open)) in advance, so
    /// that the first request for a long one need not wait.
    pub fn prepare(&self, dir: &Path) {
        let mut folders = vec![(dir.to_owned(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            for entry in entries.flatten() {
                let Ok(name) = entry.file_name().into_string() else { continue };
                let name = format!("{prefix}{name}");
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => folders.push((entry.path(), name + "/")),
                    Ok(meta) if meta.is_file() && meta.len() > HASH_AT_ONCE => self.shared.enqueue(&name),
                    _ => {}
                }
                if folders.len() > MAX_QUEUE {
                    return;
                }
            }
        }
    }

    /// True while files are being hashed: requests for them have to wait.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let queue = self.shared.queue.lock();
        !queue.is_empty() || self.shared.hashing.load(Ordering::Acquire)
    }

    /// What stands under the path of a request, which begins with `/`. A path that ends in `/` means
    /// the `index.html` there.
    #[must_use]
    pub fn lookup(&self, path: &str) -> Lookup {
        let mut name = String::with_capacity(path.len() + 10);
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." {
                return Lookup::Missing;
            }
            if !name.is_empty() {
                name.push('/');
            }
            name.push_str(part);
        }
        if path.ends_with('/') {
            name.push_str(if name.is_empty() { "index.html" } else { "/index.html" });
        }
        self.named(&name)
    }

    /// As [`lookup`](Self::lookup); allocates nothing for a plain path whose object is at hand.
    #[must_use]
    pub fn lookup_known(&self, path: &str) -> Lookup {
        let plain = path.strip_prefix('/').filter(|name| {
            !name.ends_with('/') && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        });
        match plain {
            Some(name) => self.named(name),
            None => self.lookup(path),
        }
    }

    fn named(&self, name: &str) -> Lookup {
        let Some(near) = &self.near else { return self.shared.named(name) };
        let mut near = near.lock();
        if let Some(object) = near.get(name) {
            if self.shared.stands(name, object) {
                return Lookup::Found(object.clone());
            }
            near.remove(name);
        }
        let found = self.shared.named(name);
        if let Lookup::Found(object) = &found {
            // What the table of all has forgotten is not kept here for long either.
            if near.len() >= MAX_NEAR {
                near.clear();
            }
            near.insert(name.into(), object.clone());
        }
        found
    }
}

impl Shared {
    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn named(&self, name: &str) -> Lookup {
        match self.get(name) {
            Some(object) => Lookup::Found(object),
            None => self.load(name, false),
        }
    }

    /// The object at hand, if it is still what the file holds.
    fn get(&self, name: &str) -> Option<Arc<Object>> {
        let object = self.objects.read().get(name)?.clone();
        self.stands(name, &object).then_some(object)
    }

    /// Whether the file is still the object's; its stamp is looked at again now and then, and one that changed is
    /// forgotten.
    fn stands(&self, name: &str, object: &Arc<Object>) -> bool {
        let now = self.now();
        if now.saturating_sub(object.checked.load(Ordering::Relaxed)) <= RECHECK {
            return true;
        }
        let stamp = self.open_file(name).ok().and_then(|file| Stamp::of(&file).ok());
        if stamp != Some(object.stamp) {
            let mut objects = self.objects.write();
            // Another thread may have put the new one there.
            if objects.get(name).is_some_and(|there| Arc::ptr_eq(there, object)) {
                objects.remove(name);
            }
            return false;
        }
        object.checked.store(now, Ordering::Relaxed);
        true
    }

    /// Opens a file under the root; no name and no symbolic link leads out of it.
    fn open_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.root, name, flags, Mode::empty(), resolve)?.into())
    }

    fn load(&self, name: &str, by_hasher: bool) -> Lookup {
        let file = match self.open_file(name) {
            Ok(file) => file,
            Err(e) => return refusal(&e),
        };
        let (meta, stamp) = match file.metadata().and_then(|m| Ok((m, Stamp::of(&file)?))) {
            Ok(found) => found,
            Err(e) => return refusal(&e),
        };
        if meta.is_dir() {
            return Lookup::Directory;
        }
        if !meta.is_file() {
            return Lookup::Missing;
        }
        if stamp.size > HASH_AT_ONCE && !by_hasher {
            self.enqueue(name);
            return Lookup::Pending;
        }
        match self.read_in(&file, stamp) {
            Ok(Some(object)) => {
                let object = Arc::new(object);
                self.insert(name, &object);
                Lookup::Found(object)
            }
            // It changed while it was read.
            Ok(None) => Lookup::Pending,
            Err(e) => refusal(&e),
        }
    }

    fn read_in(&self, file: &File, stamp: Stamp) -> io::Result<Option<Object>> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = Vec::new();
        let small = stamp.size <= SMALL;
        let mut block = vec![0; 256 << 10];
        let mut total = 0u64;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            let n = (&*file).read(&mut block)?;
            if n == 0 {
                break;
            }
            total += n as u64;
            if total > stamp.size {
                return Ok(None);
            }
            hasher.update(&block[..n]);
            if small {
                bytes.extend_from_slice(&block[..n]);
            }
        }
        if total != stamp.size || Stamp::of(file)? != stamp {
            return Ok(None);
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let content = if small {
            Content::Memory(bytes.into_boxed_slice())
        } else {
            let len = usize::try_from(stamp.size).map_err(|_| io::ErrorKind::FileTooLarge)?;
            Content::Mapped(Mapping::new(file, len)?)
        };
        let identity = Identity { size: stamp.size, hash };
        Ok(Some(Object { identity, stamp, content, checked: AtomicU64::new(self.now()) }))
    }

    fn insert(&self, name: &str, object: &Arc<Object>) {
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

    fn enqueue(&self, name: &str) {
        let mut queue = self.queue.lock();
        if queue.len() < MAX_QUEUE && !queue.iter().any(|waiting| waiting == name) {
            // Requests come before what was prepared in advance: the thread takes the last.
            queue.push(name.to_owned());
            self.wake.notify_one();
        }
    }

    fn hash_queue(&self) {
        loop {
            let name = {
                let mut queue = self.queue.lock();
                loop {
                    if self.stop.load(Ordering::Acquire) {
                        return;
                    }
                    match queue.pop() {
                        Some(name) => {
                            self.hashing.store(true, Ordering::Release);
                            break name;
                        }
                        None => {
                            self.hashing.store(false, Ordering::Release);
                            self.wake.wait(&mut queue);
                        }
                    }
                }
            };
            if self.get(&name).is_none()
                && let Lookup::Pending = self.load(&name, true)
            {
                tracing::warn!(file = name, "changed while it was hashed");
            }
        }
    }
}

fn refusal(error: &io::Error) -> Lookup {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Lookup::Forbidden,
        io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory | io::ErrorKind::FileTooLarge => {
            Lookup::Exhausted
        }
        _ => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Lookup::Exhausted,
            _ => Lookup::Missing,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn found(objects: &Objects, path: &str) -> Arc<Object> {
        for _ in 0..3000 {
            match objects.lookup(path) {
                Lookup::Found(object) => return object,
                Lookup::Pending => std::thread::sleep(Duration::from_millis(10)),
                other => panic!("{path}: {other:?}"),
            }
        }
        panic!("{path} was never hashed");
    }

    #[test]
    fn identity_is_content_not_inode() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for dir in [&a, &b] {
            std::fs::write(dir.path().join("x"), vec![3; 3 << 20]).unwrap();
        }
        let (a, b) = (Objects::open(a.path()).unwrap(), Objects::open(b.path()).unwrap());
        let object = found(&a, "/x");
        assert_eq!(object.identity(), found(&b, "//./x").identity());
        let mut out = [0; 10];
        assert!(object.read((3 << 20) - 10, &mut out) && out == [3; 10]);
        assert!(!object.read((3 << 20) - 9, &mut out));
        assert!(!object.read(u64::MAX, &mut out));
    }

    #[test]
    fn a_changed_file_is_another_object_and_a_cut_one_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![1; 200_000]).unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        let first = found(&objects, "/x");
        File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
        let mut out = [0; 10];
        assert!(!first.read(199_000, &mut out), "the file no longer has this");
        std::thread::sleep(Duration::from_micros(RECHECK + 1000));
        assert_eq!(found(&objects, "/x").identity().size, 10);
    }

    /// A thread's own table sees a change as soon as that of all, whichever of them notices it.
    #[test]
    fn what_is_near_is_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "old").unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        let (one, two) = (objects.for_thread(), objects.for_thread());
        let old = found(&one, "/x");
        assert!(Arc::ptr_eq(&old, &found(&two, "/x")) && Arc::ptr_eq(&old, &found(&one, "/x")));
        std::fs::write(&path, "newer").unwrap();
        std::thread::sleep(Duration::from_micros(RECHECK + 1000));
        let new = found(&two, "/x");
        assert_eq!(new.identity().size, 5);
        assert!(Arc::ptr_eq(&new, &found(&one, "/x")), "it was found to have changed here too");
        assert!(Arc::ptr_eq(&new, &found(&objects, "/x")), "and the new one was not forgotten for it");
        for n in 0..3 * MAX_NEAR {
            std::fs::write(dir.path().join(n.to_string()), "x").unwrap();
            found(&one, &format!("/{n}"));
        }
        assert!(one.near.as_ref().unwrap().lock().len() <= MAX_NEAR);
    }

    #[test]
    fn nothing_outside_is_reachable() {
        let outer = tempfile::tempdir().unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        let dir = outer.path().join("www");
        std::fs::create_dir(&dir).unwrap();
        std::fs::create_dir(dir.join("sub")).unwrap();
        std::os::unix::fs::symlink("../secret", dir.join("link")).unwrap();
        std::os::unix::fs::symlink("sub", dir.join("inner")).unwrap();
        let objects = Objects::open(&dir).unwrap();
        for path in ["/../secret", "/sub/../../secret", "/link", "/nothing"] {
            assert!(matches!(objects.lookup(path), Lookup::Missing), "{path}");
        }
        assert!(matches!(objects.lookup("/sub"), Lookup::Directory));
        assert!(matches!(objects.lookup("/inner"), Lookup::Directory));
        assert!(matches!(objects.lookup("/sub/"), Lookup::Missing), "no index.html");
    }
}
