//! Bytes and number of all unfinished uploads, in a separate file beside the uploads' maps.
//!
//! Replicas change the totals under the folder's lock, so admitting an upload opens one file,
//! however many others are unfinished. A process that dies between changing the totals and changing
//! an upload leaves them too high; each sweep of the folder counts all uploads again
//! ([`Store::recount`]).

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, OFlags};

use super::{DONE, HEADER, MAX_UNFINISHED, MOVING, Store};

/// Name of the file, in the folder of the uploads: bytes and number, each a big-endian 64-bit number.
pub(super) const TOTALS: &str = "totals";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    bytes: u64,
    count: u64,
}

impl Totals {
    /// Reads the file; `None` if it is new or damaged.
    fn read(file: &File) -> Option<Totals> {
        let (mut bytes, mut count) = ([0; 8], [0; 8]);
        file.read_exact_at(&mut bytes, 0).ok()?;
        file.read_exact_at(&mut count, 8).ok()?;
        Some(Totals { bytes: u64::from_be_bytes(bytes), count: u64::from_be_bytes(count) })
    }

    fn write(self, file: &File) -> io::Result<()> {
        file.write_all_at(&[self.bytes.to_be_bytes(), self.count.to_be_bytes()].concat(), 0)
    }
}

impl Store {
    /// Adds an upload of this length to the totals, and calls `note` to record it. Fails with
    /// `QuotaExceeded` if there is no room for it.
    pub(super) fn admit_one(&self, length: u64, note: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.locked(|file| {
            let mut totals = self.totals(file)?;
            totals.bytes = totals.bytes.saturating_add(length);
            if totals.bytes > self.limits.unfinished || totals.count >= MAX_UNFINISHED as u64 {
                return Err(ErrorKind::QuotaExceeded.into());
            }
            totals.count += 1;
            totals.write(file)?;
            note()
        })
    }

    /// Ends an upload of this length by `rename`, and subtracts it from the totals.
    pub(super) fn end_one(&self, length: u64, rename: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.locked(|file| {
            let Totals { bytes, count } = self.totals(file)?;
            rename()?;
            Totals { bytes: bytes.saturating_sub(length), count: count.saturating_sub(1) }.write(file)
        })
    }

    /// Counts all uploads again.
    pub(super) fn recount(&self) -> io::Result<()> {
        self.locked(|file| self.count()?.write(file))
    }

    /// The totals in the file, or a fresh count if it is new or damaged.
    fn totals(&self, file: &File) -> io::Result<Totals> {
        Totals::read(file).map_or_else(|| self.count(), Ok)
    }

    fn locked(&self, act: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let file = self.open(TOTALS, OFlags::CREATE)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        act(&file)
    }

    /// Opens the map of each unfinished upload. A map that cannot be read, or ends early, counts as an upload without bytes.
    fn count(&self) -> io::Result<Totals> {
        let mut totals = Totals::default();
        for name in self.names()?.iter().filter(|name| name.ends_with(".map")) {
            // A finished upload's map has another name.
            let Ok(mut notes) = self.open(name, OFlags::empty()) else { continue };
            // An empty map belongs to an upload that is not admitted yet.
            if notes.metadata()?.len() == 0 {
                continue;
            }
            totals.count += 1;
            let mut header = [0; HEADER];
            if notes.read_exact(&mut header).is_ok() && header[..8] != *MOVING && header[..8] != *DONE {
                let length = header[8..].iter().fold(0, |n, b| n << 8 | u64::from(*b));
                totals.bytes = totals.bytes.saturating_add(length);
            }
        }
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

    use super::super::{FOLDER, Limits, OPEN, Upload, Uploads, Written};
    use super::*;

    fn upload(id: u16, length: u64) -> Upload {
        let (mut long, path) = ([0; 16], format!("/{id}"));
        long[..2].copy_from_slice(&id.to_be_bytes());
        Upload { id: long, path, length, start: 0, date: 0, close: false, create: false }
    }

    #[test]
    fn new_upload_opens_no_file_of_other_uploads() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(dir.path(), Limits::default()).unwrap();
        let folder = dir.path().join(FOLDER);
        let opened = |id| {
            let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
            inotify::add_watch(&watch, &folder, WatchFlags::OPEN).unwrap();
            assert_eq!(uploads.write(&upload(id, 2), 0, b"a").unwrap(), Some(Written::Partly));
            let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 1 << 16];
            let (mut reader, mut count) = (Reader::new(&watch, &mut buffer), 0);
            while let Ok(event) = reader.next() {
                assert!(!event.events().contains(ReadFlags::QUEUE_OVERFLOW));
                count += u32::from(event.file_name().is_some());
            }
            count
        };
        let first = opened(1);
        assert!(first > 0, "opens are counted");
        for id in 0..1000 {
            let text = [&OPEN[..], &2u64.to_be_bytes()].concat();
            std::fs::write(folder.join(format!("{id}.map")), text).unwrap();
        }
        uploads.store.recount().unwrap();
        assert_eq!(opened(2), first);
    }

    #[test]
    fn totals_follow_uploads_and_are_counted_again_after_damage() {
        let dir = tempfile::tempdir().unwrap();
        let uploads = Uploads::open(dir.path(), Limits::default()).unwrap();
        let file = dir.path().join(FOLDER).join(TOTALS);
        let totals = || {
            let Totals { bytes, count } = Totals::read(&File::open(&file).unwrap()).unwrap();
            (bytes, count)
        };
        uploads.write(&upload(1, 10), 0, b"a").unwrap();
        uploads.write(&upload(2, 3), 0, b"a").unwrap();
        assert_eq!(totals(), (13, 2));
        assert_eq!(uploads.write(&upload(2, 3), 1, b"bc").unwrap().map(|w| w != Written::Partly), Some(true));
        uploads.write(&upload(2, 3), 1, b"bc").unwrap();
        assert_eq!(totals(), (10, 1), "a repeated last piece changes nothing");
        std::fs::write(&file, b"dam").unwrap();
        uploads.write(&upload(3, 5), 0, b"a").unwrap();
        assert_eq!(totals(), (15, 2));
        // The totals that a process leaves if it dies between the two changes.
        std::fs::write(&file, [u64::MAX.to_be_bytes(); 2].concat()).unwrap();
        assert_eq!(uploads.write(&upload(4, 1), 0, b"").unwrap_err().kind(), ErrorKind::QuotaExceeded);
        uploads.store.sweep(SystemTime::now()).unwrap();
        assert_eq!(totals(), (15, 2));
    }
}
