//! The folder of the pins. All users may be able to write to a BPF file system (mode 1777), so a
//! folder or link of another user may have our name. Its contents are never used, and it does not
//! keep our folder from being created.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::require_bpf_fs;
use crate::Error;

/// S_ISVTX of inode(7): in a folder with this bit, users rename and remove only their own entries.
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;
/// Attempts to create the folder. Another user may take its name again just after it was freed.
const TRIES: u32 = 100;

/// Creates the folder of the pins in a BPF file system unless it exists. An entry of another user
/// with its name is renamed.
///
/// # Errors
/// `folder` is in no BPF file system; other users could rename this process's folder there; or an operating system error.
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
            // An entry with this name exists.
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

/// Checks that the folder does not exist or belongs to this user.
///
/// # Errors
/// The folder belongs to another user.
pub fn require_own(folder: &Path) -> Result<(), Error> {
    match fs::symlink_metadata(folder) {
        Ok(meta) if !(meta.is_dir() && is_own(&meta)) => {
            let why = format!("{} is a stranger's (user {})", folder.display(), meta.uid());
            let source = io::Error::new(io::ErrorKind::PermissionDenied, why);
            Err(Error::Os { operation: "opening the folder of the pins", source })
        }
        // If the folder cannot be inspected, opening it fails, too.
        _ => Ok(()),
    }
}

/// Whether only root and this user can change the folder's entries.
fn is_own(meta: &fs::Metadata) -> bool {
    let owner = meta.uid();
    (owner == 0 || owner == rustix::process::geteuid().as_raw()) && meta.mode() & OTHERS_WRITE == 0
}

/// A name beside the folder, to which another user's entry is renamed.
fn aside(folder: &Path, n: u32) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    // A name in a BPF file system has no dot.
    name.push(format!("-stranger-{}-{n}", std::process::id()));
    name.into()
}
