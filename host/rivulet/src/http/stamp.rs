//! A file's stamp: inode, size and times, which change when its content does.

use std::fs::File;
use std::io;

/// Identifies the content of a file on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl Stamp {
    /// The stamp of an open file.
    pub(super) fn of(file: &File) -> io::Result<Stamp> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Stamp {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData)?,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        })
    }
    /// The stamp that the file would have if only its first `size` bytes existed.
    pub(super) fn cut_to(self, size: u64) -> Stamp {
        Stamp { size, ..self }
    }

    /// Whether this is the same file as `before`, with bytes appended.
    pub(super) fn has_grown(&self, before: &Stamp) -> bool {
        (self.device, self.inode) == (before.device, before.inode) && self.size > before.size
    }
}
