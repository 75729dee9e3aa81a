//! The files of a directory as the table of stateless TCP: read once, so that the octets of an answer stay the same.

use std::fs;
use std::io;
use std::path::Path;

use rivulet_plain::{Entry, MAX_ANSWER, MAX_LARGE, MAX_NAME, Object, Table};

use crate::http::content_type;

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
    let mut folders = vec![(dir.to_owned(), String::new())];
    let mut total = 0;
    while let Some((folder, prefix)) = folders.pop() {
        // In the order of their names: which objects are beyond the total is the same on all replicas.
        let mut names = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        names.sort_by_key(fs::DirEntry::file_name);
        for entry in names {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let name = format!("{prefix}{name}");
            // Links are followed by the kernel's server, which looks where they lead.
            let kind = entry.file_type()?;
            if name.len() > MAX_NAME {
                continue;
            }
            if entries.len() >= MAX_ENTRIES {
                return Err(io::Error::other("more than a million files"));
            }
            if kind.is_dir() {
                folders.push((entry.path(), format!("{name}/")));
                entries.push((name.into(), Entry::Folder));
                continue;
            }
            let length = entry.metadata()?.len();
            if !kind.is_file() || length > longest || total + length > most {
                entries.push((name.into(), Entry::Kernel));
                continue;
            }
            let body = fs::read(entry.path())?;
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
}
