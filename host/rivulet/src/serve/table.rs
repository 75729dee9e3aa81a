//! Reads the files of a directory into the table of stateless TCP, once, so that the bytes of an
//! answer stay the same.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rivulet_plain::{Entry, MAX_ANSWER, MAX_LARGE, Name, Object, Table};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};

use crate::http::{Marks, content_type};

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Refuses a folder or file that became a symbolic link after it was listed.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Limit on the bytes of all objects, which are in memory, so that none changes while it is sent.
/// The kernel's TCP serves further files.
const MAX_TOTAL: u64 = 256 << 20;
/// The limit if large objects are included.
const MAX_TOTAL_LARGE: u64 = 2 << 30;
/// Limit on the bytes of a large object, without its head.
const MAX_OBJECT: u64 = (MAX_LARGE - 4096) as u64;
/// Limit on files and folders. More are an error, because a table that leaves out arbitrary ones
/// would differ between replicas.
const MAX_ENTRIES: usize = 1 << 20;
/// Limit on the unreadable entries that are named in the log; the others are counted.
const MAX_WARNINGS: usize = 20;

/// State of reading a directory.
struct Reading {
    root: OwnedFd,
    longest: u64,
    most: u64,
    total: u64,
    entries: Vec<(Box<[u8]>, Entry)>,
    unreadable: usize,
    marks: Option<Marks>,
}

/// Reads the regular files under `dir`. The kernel's TCP serves unreadable files, and those too
/// long for a small answer, unless `large` is set. `unknown`: it also serves names that do not
/// exist; otherwise those get an error without connection state. It serves pictures with `marks` too.
pub(super) fn read(dir: &Path, unknown: bool, large: bool, marks: Option<Marks>) -> io::Result<Table> {
    let (longest, most) =
        if large { (MAX_OBJECT, MAX_TOTAL_LARGE) } else { (u64::from(MAX_ANSWER), MAX_TOTAL) };
    let root = rustix::fs::open(dir, FOLDER, Mode::empty())?;
    let mut reading = Reading { root, longest, most, total: 0, entries: Vec::new(), unreadable: 0, marks };
    let mut folders = vec![Vec::new()];
    while let Some(prefix) = folders.pop() {
        match reading.list(&prefix) {
            Ok((folder, names)) => {
                for name in names {
                    reading.take_in(&folder, &prefix, &name, &mut folders)?;
                }
            }
            // If the root directory cannot be read, there is no table.
            Err(e) if prefix.is_empty() => return Err(e),
            Err(e) => {
                let name = &prefix[..prefix.len() - 1];
                reading.warn(name, &e);
                // Replaces the entries below a path that the kernel's TCP serves.
                reading.entries.retain(|(there, _)| &there[..] != name);
                reading.entries.push((name.into(), Entry::Kernel));
            }
        }
    }
    if reading.unreadable > MAX_WARNINGS {
        tracing::warn!(entries = reading.unreadable - MAX_WARNINGS, "more entries that cannot be read");
    }
    Table::with_names(reading.entries, unknown).map_err(io::Error::other)
}

impl Reading {
    /// Opens a folder and lists its names, sorted, so that all replicas leave out the same objects
    /// beyond the total.
    fn list(&self, prefix: &[u8]) -> io::Result<(OwnedFd, Vec<Vec<u8>>)> {
        let path = if prefix.is_empty() { b"." } else { prefix };
        let folder = openat2(&self.root, path, FOLDER, Mode::empty(), BENEATH)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&folder)? {
            names.push(entry?.file_name().to_bytes().to_vec());
        }
        names.retain(|name| !matches!(&name[..], b"." | b".."));
        names.sort_unstable();
        Ok((folder, names))
    }

    fn take_in(
        &mut self,
        folder: &OwnedFd,
        prefix: &[u8],
        name: &[u8],
        folders: &mut Vec<Vec<u8>>,
    ) -> io::Result<()> {
        let whole = [prefix, name].concat();
        // No request can have a longer path.
        if whole.len() > Name::new_const().capacity() {
            return Ok(());
        }
        if self.entries.len() >= MAX_ENTRIES {
            return Err(io::Error::other("more than a million files"));
        }
        let entry = match self.entry(folder, name, &whole) {
            Ok(entry) => entry,
            // The entry was removed after it was listed.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => {
                self.warn(&whole, &e);
                Entry::Kernel
            }
        };
        if matches!(entry, Entry::Folder) {
            folders.push([&whole[..], b"/"].concat());
        }
        self.entries.push((whole.into(), entry));
        Ok(())
    }

    fn entry(&mut self, folder: &OwnedFd, name: &[u8], whole: &[u8]) -> io::Result<Entry> {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_dir() {
            return Ok(Entry::Folder);
        }
        let length = stat.st_size as u64;
        // The kernel's server follows links, and checks where they lead.
        if !kind.is_file() || length > self.longest || self.total + length > self.most {
            return Ok(Entry::Kernel);
        }
        let file = File::from(openat2(folder, name, FILE, Mode::empty(), BENEATH)?);
        let mut body = Vec::with_capacity(length as usize);
        // A file that grows meanwhile is read up to its former length.
        file.take(length).read_to_end(&mut body)?;
        // It differs between clients.
        if self.marks.as_ref().is_some_and(|marks| marks.covers(whole, &body)) {
            return Ok(Entry::Kernel);
        }
        self.total += body.len() as u64;
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(&body).as_bytes()[..16]);
        Ok(Entry::Object(Object { kind: content_type(whole).into(), hash, body: body.into() }))
    }

    fn warn(&mut self, name: &[u8], error: &io::Error) {
        self.unreadable += 1;
        if self.unreadable <= MAX_WARNINGS {
            let name = Path::new(OsStr::from_bytes(name)).display();
            tracing::warn!(%name, %error, "cannot be read: left to the listener of the kernel's TCP");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use rivulet_plain::Found;

    #[test]
    fn a_directory_becomes_a_table() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/page.html"), "hello").unwrap();
        fs::write(dir.path().join("big"), vec![0; 20_000]).unwrap();
        std::os::unix::fs::symlink("big", dir.path().join("link")).unwrap();
        let table = read(dir.path(), false, false, None).unwrap();
        let Found::Object(n) = table.find(b"a/b/page.html") else { panic!("not there") };
        let object = table.object(n).unwrap();
        assert_eq!((&*object.body, &*object.kind), (&b"hello"[..], "text/html; charset=utf-8"));
        assert_eq!(object.hash, blake3::hash(b"hello").as_bytes()[..16]);
        assert!(matches!((table.find(b"a"), table.find(b"a/b")), (Found::Folder(_), Found::Folder(_))));
        assert_eq!(
            (table.find(b"big"), table.find(b"link"), table.find(b"x")),
            (Found::Kernel, Found::Kernel, Found::Missing)
        );
        assert_eq!(read(dir.path(), false, false, None).unwrap().version(), table.version());
        let large = read(dir.path(), false, true, None).unwrap();
        assert!(
            matches!(large.find(b"big"), Found::Object(n) if large.object(n).unwrap().body.len() == 20_000)
        );
        assert_ne!(read(dir.path(), true, false, None).unwrap().version(), table.version());
        fs::write(dir.path().join("a/b/page.html"), "hullo").unwrap();
        assert_ne!(read(dir.path(), false, false, None).unwrap().version(), table.version());
    }
    #[test]
    fn links_created_during_the_read_are_not_followed() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};

        let outer = tempfile::tempdir().unwrap();
        let (outside, dir) = (outer.path().join("outside"), outer.path().join("www"));
        for folder in [&outside, &dir.join("folder")] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(outside.join("secret"), "secret").unwrap();
        fs::write(dir.join("file"), "public").unwrap();
        fs::write(dir.join("folder/file"), "public").unwrap();
        std::os::unix::fs::symlink("../outside/secret", dir.join("file-link")).unwrap();
        std::os::unix::fs::symlink("../outside", dir.join("folder-link")).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for name in ["file", "folder"] {
                        let link = dir.join(format!("{name}-link"));
                        renameat_with(CWD, dir.join(name), CWD, link, RenameFlags::EXCHANGE).unwrap();
                    }
                }
            });
            let read = || {
                for _ in 0..3000 {
                    // A change during the read may cause an error.
                    let Ok(table) = read(&dir, false, false, None) else { continue };
                    for name in [&b"file"[..], b"file-link", b"folder/secret", b"folder-link/secret"] {
                        let Found::Object(n) = table.find(name) else { continue };
                        let body = &table.object(n).unwrap().body;
                        if **body != *b"public" {
                            return Some(String::from_utf8_lossy(name).into_owned());
                        }
                    }
                }
                None
            };
            let found = read();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(found, None, "the secret came out");
        });
    }

    #[test]
    fn paths_outside_the_table_go_to_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
        fs::create_dir_all(path(b"real/sub")).unwrap();
        fs::write(path(b"real/sub/file"), "x").unwrap();
        fs::write(path(b"caf\xe9"), "latin").unwrap();
        std::os::unix::fs::symlink("real", path(b"linked")).unwrap();
        // A socket stands for an entry that even root cannot read: a loop of symbolic links would
        // count as a link.
        let _socket = std::os::unix::net::UnixListener::bind(path(b"socket")).unwrap();
        let long = [vec![b'a'; 250], vec![b'/'], vec![b'b'; 250], vec![b'/']].concat();
        fs::create_dir_all(path(&long)).unwrap();
        let (last, beyond) = ([&long[..], &[b'c'; 190]].concat(), [&long[..], &[b'd'; 250]].concat());
        fs::write(path(&last), "long").unwrap();
        fs::write(path(&beyond), "longer").unwrap();
        let table = read(dir.path(), false, false, None).unwrap();
        for (name, want) in [
            (&b"linked"[..], Found::Kernel),
            (b"linked/sub/file", Found::Kernel),
            (b"linked/index.html", Found::Kernel),
            (b"socket", Found::Kernel),
            (b"real/none", Found::Missing),
            (&beyond, Found::Missing),
        ] {
            assert_eq!(table.find(name), want, "{}", String::from_utf8_lossy(name));
        }
        for name in [&b"caf\xe9"[..], b"real/sub/file", &last] {
            assert!(matches!(table.find(name), Found::Object(_)), "{}", String::from_utf8_lossy(name));
        }
    }
}
