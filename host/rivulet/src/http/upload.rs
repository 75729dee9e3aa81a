//! Uploads to storage that the replicas share, without anybody remembering them.
//!
//! The input continuation of a body says where it belongs; it is good for the whole body, so its packets may
//! come in parallel, in any order, more than once, and each at another replica. A packet is written at its
//! offset into a file named by the operation's id, and the octets that are there are noted beside it, under
//! a lock. Whoever completes them gives the file its name by an atomic rename; whoever comes again finds
//! that done and gives the same answer.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, ResolveFlags};

use super::MAX_NAME;
use super::codec::{Malformed, Reader, put_text};

/// Folder of uploads on their way, in the storage.
const FOLDER: &str = ".rivulet-uploads";
/// Separate ranges noted of one upload; a packet that would make more is not taken and comes again.
const MAX_RANGES: usize = 4096;
/// What a map begins with, by its state.
const OPEN: &[u8; 8] = b"rvupload";
const MOVING: &[u8; 8] = b"rvup-mov";
const DONE: &[u8; 8] = b"rvup-end";

/// Storage for uploads. Clones share it.
#[derive(Clone, Debug)]
pub struct Uploads {
    root: Arc<OwnedFd>,
    /// Longest body, octets.
    max: u64,
}

/// A body being received: what its input continuation carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Stable id of the operation.
    pub id: [u8; 16],
    /// Path of the request.
    pub path: String,
    /// Octets of the body.
    pub length: u64,
    /// Input offset of its first octet.
    pub start: u64,
    /// Seconds since 1970 when the head was read.
    pub date: u32,
    /// The connection ends with the answer.
    pub close: bool,
}

/// What became of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is there; others are missing.
    Partly,
    /// All is there, and the file has its name.
    Completely,
}

impl Uploads {
    /// Stores under `dir`, bodies of up to `max` octets.
    pub fn open(dir: &Path, max: u64) -> io::Result<Uploads> {
        let root =
            rustix::fs::open(dir, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        match rustix::fs::mkdirat(&root, FOLDER, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(Uploads { root: Arc::new(root), max })
    }

    /// The status with which an upload is refused before its body, if it is.
    #[must_use]
    pub fn refuses(&self, path: &str, length: u64) -> Option<u16> {
        let name = path.strip_prefix('/').unwrap_or_default();
        let bad = |part: &str| matches!(part, "" | "." | "..") || part.starts_with(".rivulet");
        if name.split('/').any(bad) {
            Some(403)
        } else if name.len() > MAX_NAME - 60 {
            Some(414)
        } else if length > self.max {
            Some(413)
        } else {
            None
        }
    }

    /// Writes a piece of the body at its offset `at`.
    pub fn write(&self, upload: &Upload, at: u64, piece: &[u8]) -> io::Result<Written> {
        let id = u128::from_be_bytes(upload.id);
        let (data, map) = (format!("{FOLDER}/{id:032x}.data"), format!("{FOLDER}/{id:032x}.map"));
        // The lock goes with the descriptor, also when this process is killed.
        let mut notes = self.create(&map)?;
        rustix::fs::flock(&notes, FlockOperation::LockExclusive)?;
        let mut ranges = match read_map(&mut notes)? {
            State::Open(ranges) => ranges,
            State::Moving => return self.finish(&mut notes, &data, upload),
            State::Done => return Ok(Written::Completely),
        };
        let end = at.checked_add(piece.len() as u64).filter(|end| *end <= upload.length);
        let end = end.ok_or(io::ErrorKind::InvalidInput)?;
        let file = self.create(&data)?;
        file.write_all_at(piece, at)?;
        insert(&mut ranges, at, end)?;
        let whole = upload.length == 0 || ranges == [(0, upload.length)];
        if !whole {
            write_map(&mut notes, OPEN, &ranges)?;
            return Ok(Written::Partly);
        }
        file.sync_data()?;
        // From here on nobody writes into the file any more, also when this process dies before the rename.
        write_map(&mut notes, MOVING, &[])?;
        notes.sync_data()?;
        self.finish(&mut notes, &data, upload)
    }

    /// All octets are there: the file gets its name.
    fn finish(&self, notes: &mut File, data: &str, upload: &Upload) -> io::Result<Written> {
        self.commit(data, &upload.path)?;
        write_map(notes, DONE, &[])?;
        notes.sync_data()?;
        Ok(Written::Completely)
    }

    /// Gives the file its name; folders on the way are made.
    fn commit(&self, data: &str, path: &str) -> io::Result<()> {
        let name = path.trim_start_matches('/');
        let (folder, last) = name.rsplit_once('/').unwrap_or(("", name));
        let mut at = String::new();
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
            match rustix::fs::mkdirat(&*self.root, at.as_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        // No symbolic link on the way leads out of the storage.
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let folder = if folder.is_empty() { "." } else { folder };
        let folder = rustix::fs::openat2(&*self.root, folder, flags, Mode::empty(), resolve)?;
        match rustix::fs::renameat(&*self.root, data, &folder, last) {
            // It was renamed by a process that died before it noted that.
            Err(rustix::io::Errno::NOENT) if rustix::fs::statat(&folder, last, AtFlags::empty()).is_ok() => {
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::openat(&*self.root, name, flags, Mode::from_raw_mode(0o644))?.into())
    }
}

/// How far an upload is.
enum State {
    /// These ranges are there.
    Open(Vec<(u64, u64)>),
    /// All is there, and the file is getting its name.
    Moving,
    /// It has its name.
    Done,
}

fn read_map(notes: &mut File) -> io::Result<State> {
    let mut bytes = Vec::new();
    notes.rewind()?;
    notes.take(8 + 16 * MAX_RANGES as u64).read_to_end(&mut bytes)?;
    if bytes.starts_with(DONE) {
        return Ok(State::Done);
    }
    if bytes.starts_with(MOVING) {
        return Ok(State::Moving);
    }
    let number = |b: &[u8]| b.iter().fold(0, |n, b| n << 8 | u64::from(*b));
    let rest = bytes.strip_prefix(OPEN).unwrap_or_default();
    Ok(State::Open(rest.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect()))
}

fn write_map(notes: &mut File, state: &[u8; 8], ranges: &[(u64, u64)]) -> io::Result<()> {
    let mut bytes = state.to_vec();
    for (start, end) in ranges {
        bytes.extend_from_slice(&start.to_be_bytes());
        bytes.extend_from_slice(&end.to_be_bytes());
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
        out.push(u8::from(self.close));
        put_text(out, &self.path);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Upload, Malformed> {
        Ok(Upload {
            id: r.array()?,
            length: r.u64()?,
            start: r.u64()?,
            date: r.u32()?,
            close: r.u8()? != 0,
            path: r.text()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn upload(length: u64, path: &str) -> Upload {
        Upload { id: [7; 16], path: path.into(), length, start: 100, date: 1, close: false }
    }

    proptest! {
        /// Pieces in any order, some twice, written through two replicas: the file appears with the last
        /// piece and not before, whole, and every repeat gets the same answer.
        #[test]
        fn pieces_come_in_any_order(
            order in Just((0..40u64).collect::<Vec<_>>()).prop_shuffle(),
            again in prop::collection::vec(0usize..40, 0..10),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let replicas = [Uploads::open(dir.path(), 1 << 20).unwrap(), Uploads::open(dir.path(), 1 << 20).unwrap()];
            let content: Vec<u8> = (0..39 * 100 + 17).map(|i| (i * 7 % 251) as u8).collect();
            let upload = upload(content.len() as u64, "/a/b/file");
            let piece = |n: u64| &content[n as usize * 100..(n as usize * 100 + 100).min(content.len())];
            for (i, n) in order.iter().enumerate() {
                let written = replicas[i % 2].write(&upload, n * 100, piece(*n)).unwrap();
                let last = i + 1 == order.len();
                prop_assert_eq!(written == Written::Completely, last);
                prop_assert_eq!(dir.path().join("a/b/file").exists(), last);
                if let Some(j) = again.get(i).filter(|j| **j <= i) {
                    let n = order[*j];
                    let written = replicas[(i + 1) % 2].write(&upload, n * 100, piece(n)).unwrap();
                    prop_assert_eq!(written == Written::Completely, last);
                }
            }
            prop_assert_eq!(std::fs::read(dir.path().join("a/b/file")).unwrap(), content);
        }
    }

    #[test]
    fn a_process_that_died_while_finishing_is_made_good() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(dir.path(), 100).unwrap();
        let upload = upload(4, "/file");
        assert_eq!(uploads.write(&upload, 0, b"ab").unwrap(), Written::Partly);
        // As it stands when the process that had the last piece died: before the rename, and behind it.
        let at = |end: &str| dir.path().join(format!("{FOLDER}/{:032x}.{end}", u128::from_be_bytes([7; 16])));
        for renamed in [false, true] {
            std::fs::write(if renamed { dir.path().join("file") } else { at("data") }, "abcd").unwrap();
            std::fs::write(at("map"), MOVING).unwrap();
            // The last piece comes again, and then an early one.
            assert_eq!(uploads.write(&upload, 2, b"cd").unwrap(), Written::Completely);
            assert_eq!(uploads.write(&upload, 0, b"ab").unwrap(), Written::Completely);
            assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"abcd");
        }
    }

    #[test]
    fn what_must_not_be_written_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let uploads = Uploads::open(dir.path(), 100).unwrap();
        for (path, length, status) in [
            ("/../x", 1, Some(403)),
            ("/", 1, Some(403)),
            ("/a//b", 1, Some(403)),
            ("/.rivulet-uploads/x", 1, Some(403)),
            ("/x", 101, Some(413)),
            ("/x", 100, None),
        ] {
            assert_eq!(uploads.refuses(path, length), status, "{path}");
        }
        assert!(uploads.write(&upload(1, "/link/x"), 0, b"a").is_err());
        assert!(!outside.path().join("x").exists());
        let other = Upload { id: [8; 16], ..upload(3, "/y") };
        assert!(uploads.write(&other, 2, b"ab").is_err(), "beyond the end");
    }

    #[test]
    fn ranges_join() {
        let mut ranges = Vec::new();
        for (start, end) in [(10, 20), (30, 40), (20, 30), (5, 6), (0, 50), (60, 60)] {
            insert(&mut ranges, start, end).unwrap();
        }
        assert_eq!(ranges, [(0, 50)]);
        for i in 0..MAX_RANGES as u64 - 2 {
            insert(&mut ranges, 100 + 2 * i, 101 + 2 * i).unwrap();
        }
        assert!(insert(&mut ranges, 1 << 40, 2 << 40).is_err(), "bounded");
    }
}
