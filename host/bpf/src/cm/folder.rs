//! The folder of the pins. A BPF file system is often open to all users (mode 1777), and may hold a folder or link of a stranger's
//! under the name of ours: nothing in it is believed, and it does not keep ours from being made.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::require_bpf_fs;
use crate::Error;

/// S_ISVTX of inode(7): in a folder with it, users rename and remove their own entries alone.
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;
/// How often a stranger may put something into the place that was just freed.
const TRIES: u32 = 100;

/// Makes the folder of the pins in a BPF file system if it is not there. What a stranger has in its place is renamed.
///
/// # Errors
/// There is no such file system; others could rename this process's folder there; the system's.
pub fn own_folder(folder: &Path) -> Result<(), Error> {
    let fail = |source| Error::Os { operation: "making the folder of the pins", source };
    let parent = folder.parent().unwrap_or(folder);
    require_bpf_fs(parent)?;
    let meta = fs::metadata(parent).map_err(fail)?;
    if !is_own(&meta) && meta.mode() & STICKY == 0 {
        let why = format!("in {} others can rename it: chmod +t {0}", parent.display());
        return Err(fail(io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    for n in 0..TRIES {
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map_err(fail),
        }
        if fs::symlink_metadata(folder).is_ok_and(|meta| meta.is_dir() && is_own(&meta)) {
            return Ok(());
        }
        let aside = aside(folder, n);
        match fs::rename(folder, &aside) {
            Ok(()) => tracing::warn!("{} was a stranger's: it is {} now", folder.display(), aside.display()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            // Something is there already.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EEXIST | libc::ENOTEMPTY | libc::ENOTDIR | libc::EISDIR)
                ) => {}
            Err(e) => return Err(fail(e)),
        }
    }
    Err(fail(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is a stranger's", folder.display()))))
}

/// Nothing, or a folder of this user's.
///
/// # Errors
/// It is a stranger's.
pub fn require_own(folder: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(folder) {
        Ok(meta) if !(meta.is_dir() && is_own(&meta)) => {
            let why = format!("{} is a stranger's (user {})", folder.display(), meta.uid());
            let source = io::Error::new(io::ErrorKind::PermissionDenied, why);
            Err(Error::Os { operation: "opening the folder of the pins", source })
        }
        // What cannot be looked at cannot be opened either.
        _ => Ok(()),
    }
}

/// Whether only root and this user can change the folder's entries.
fn is_own(meta: &fs::Metadata) -> bool {
    let owner = meta.uid();
    (owner == 0 || owner == rustix::process::geteuid().as_raw()) && meta.mode() & OTHERS_WRITE == 0
}

/// A name beside it.
fn aside(folder: &Path, n: u32) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    // A name in a BPF file system has no dot.
    name.push(format!("-stranger-{}-{n}", std::process::id()));
    name.into()
}
