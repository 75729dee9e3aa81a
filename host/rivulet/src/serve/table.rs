//! The files of a directory as the table of stateless TCP: read once, so that the octets of an answer stay the same.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rivulet_plain::{Entry, MAX_ANSWER, MAX_LARGE, MAX_NAME, Object, Table};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, openat2, statat};

use crate::http::content_type;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);
/// A folder or file that became a symbolic link since it was listed is not followed.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Octets of all objects; what is beyond is the kernel's. They are in memory, so that none changes while it is sent.
const MAX_TOTAL: u64 = 256 << 20;
/// The same where large ones are among them.
const MAX_TOTAL_LARGE: u64 = 2 << 30;
/// Octets of a large object, its head left out.
const MAX_OBJECT: u64 = (MAX_LARGE - 4096) as u64;
/// Files and folders; more are an error, since a table that leaves some out at will differs between replicas.
const MAX_ENTRIES: usize = 1 << 20;

/// Reads the regular files under `dir`. Those that are too long for a small answer are the kernel's, unless `large` ones are wanted. With `unknown` a name that is
/// not there is the kernel's too, without nothing has it.
pub(super) fn read(dir: &Path, unknown: bool, large: bool) -> io::Result<Table> {
    let (longest, most) =
        if large { (MAX_OBJECT, MAX_TOTAL_LARGE) } else { (u64::from(MAX_ANSWER), MAX_TOTAL) };
    let mut entries: Vec<(Box<str>, Entry)> = Vec::new();
    let mut folders = vec![String::new()];
    let mut total = 0;
    let root = rustix::fs::open(dir, FOLDER, Mode::empty())?;
    while let Some(prefix) = folders.pop() {
        let path = if prefix.is_empty() { "." } else { prefix.as_str() };
        let folder = openat2(&root, path, FOLDER, Mode::empty(), BENEATH)?;
        // In the order of their names: which objects are beyond the total is the same on all replicas.
        let mut names = Vec::new();
        for entry in Dir::read_from(&folder)? {
            names.extend(entry?.file_name().to_str().map(str::to_owned));
        }
        names.sort_unstable();
        for name in names.iter().filter(|name| !matches!(name.as_str(), "." | "..")) {
            // Links are followed by the kernel's server, which looks where they lead.
            let stat = statat(&folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let name = format!("{prefix}{name}");
            if name.len() > MAX_NAME {
                continue;
            }
            if entries.len() >= MAX_ENTRIES {
                return Err(io::Error::other("more than a million files"));
            }
            if kind.is_dir() {
                folders.push(format!("{name}/"));
                entries.push((name.into(), Entry::Folder));
                continue;
            }
            let length = stat.st_size as u64;
            if !kind.is_file() || length > longest || total + length > most {
                entries.push((name.into(), Entry::Kernel));
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = File::from(openat2(&root, name.as_str(), flags, Mode::empty(), BENEATH)?);
            let mut body = Vec::with_capacity(length as usize);
            // One that grows meanwhile is read as far as it was.
            file.take(length).read_to_end(&mut body)?;
            total += body.len() as u64;
            let mut hash = [0; 16];
            hash.copy_from_slice(&blake3::hash(&body).as_bytes()[..16]);
            let object = Object { kind: content_type(&name).into(), hash, body: body.into() };
            entries.push((name.into(), Entry::Object(object)));
        }
    }
    Table::new(entries, unknown).map_err(io::Error::other)
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
        let table = read(dir.path(), false, false).unwrap();
        let Found::Object(n) = table.find(b"a/b/page.html") else { panic!("not there") };
        let object = table.object(n).unwrap();
        assert_eq!((&*object.body, &*object.kind), (&b"hello"[..], "text/html; charset=utf-8"));
        assert_eq!(object.hash, blake3::hash(b"hello").as_bytes()[..16]);
        assert!(matches!((table.find(b"a"), table.find(b"a/b")), (Found::Folder(_), Found::Folder(_))));
        assert_eq!(
            (table.find(b"big"), table.find(b"link"), table.find(b"x")),
            (Found::Kernel, Found::Kernel, Found::Missing)
        );
        assert_eq!(read(dir.path(), false, false).unwrap().version(), table.version());
        let large = read(dir.path(), false, true).unwrap();
        assert!(
            matches!(large.find(b"big"), Found::Object(n) if large.object(n).unwrap().body.len() == 20_000)
        );
        assert_ne!(read(dir.path(), true, false).unwrap().version(), table.version());
        fs::write(dir.path().join("a/b/page.html"), "hullo").unwrap();
        assert_ne!(read(dir.path(), false, false).unwrap().version(), table.version());
    }

    #[test]
    fn links_that_appear_while_a_directory_is_read_lead_nowhere() {
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
                    // What changes while it is read may be an error.
                    let Ok(table) = read(&dir, false, false) else { continue };
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
}
