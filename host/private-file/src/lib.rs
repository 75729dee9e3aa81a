//! Files with keys or tokens: written for their owner only, and refused when other users can read
//! or change them, as ssh does with private keys. All our programs read and write their secrets
//! through this crate. Sockets for their owner alone are made here too ([`listen_at`]).

mod socket;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

pub use socket::{SocketType, listen_at};

/// Permission bits of the group and of others.
const GROUP_AND_OTHERS: u32 = 0o077;
/// The same bits without the group's read permission.
const ALL_BUT_GROUP_READ: u32 = 0o037;

/// Reads a file of at most `max` bytes.
///
/// # Errors
/// The system's error; `FileTooLarge`; `PermissionDenied` for a regular file that the group or
/// others may read or change. The group may read a file owned by root if this process is not root:
/// a service's user has no other access to its keys. If
/// this process is root, a file of another user is refused too, except of the user who ran it by
/// sudo: a stranger may have put it there and knows its content.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let euid = rustix::process::geteuid().as_raw();
    // Pipes and devices have no content that other users could read.
    if meta.is_file() && meta.mode() & forbidden(meta.uid(), euid) != 0 {
        let (path, mode) = (path.display(), meta.mode() & 0o7777);
        let why = format!("it holds secrets and other users can read it (mode {mode:04o}): chmod 600 {path}");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    let caller = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    if meta.is_file() && is_strangers(meta.uid(), euid, caller) {
        let (path, owner) = (path.display(), meta.uid());
        let why =
            format!("it holds secrets and is a file of user {owner}, who can change it: chown root {path}");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max { Err(ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// Writes a new file of mode 0600.
///
/// # Errors
/// The system's; `AlreadyExists`: nothing is replaced, and no symbolic link is followed.
pub fn create(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Whether writing to this descriptor writes to a file that other users can read.
///
/// # Errors
/// The system's.
pub fn is_open_to_others(descriptor: &impl std::os::fd::AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(descriptor)?;
    let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    Ok(regular && stat.st_mode & GROUP_AND_OTHERS != 0)
}

fn forbidden(owner: u32, euid: u32) -> u32 {
    if owner == 0 && euid != 0 { ALL_BUT_GROUP_READ } else { GROUP_AND_OTHERS }
}

/// Whether a file of this owner was perhaps put there for root to read. `caller`: who ran this process by sudo.
fn is_strangers(owner: u32, euid: u32, caller: Option<u32>) -> bool {
    euid == 0 && owner != 0 && Some(owner) != caller
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn secrets_that_others_can_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, b"abc").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(create(&path, b"x").unwrap_err().kind(), ErrorKind::AlreadyExists);
        for good in [0o600, 0o400, 0o700] {
            std::fs::set_permissions(&path, Permissions::from_mode(good)).unwrap();
            assert_eq!(read(&path, 3).unwrap(), b"abc", "{good:o}");
        }
        for bad in [0o604, 0o640, 0o644, 0o620, 0o602, 0o610] {
            std::fs::set_permissions(&path, Permissions::from_mode(bad)).unwrap();
            let error = read(&path, 3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{bad:o}");
            assert!(error.to_string().contains(&format!("chmod 600 {}", path.display())), "{error}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read(&path, 2).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(read(&dir.path().join("none"), 2).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn group_may_read_a_service_key_of_roots() {
        assert_eq!(forbidden(0, 1000), ALL_BUT_GROUP_READ);
        assert_eq!((forbidden(0, 0), forbidden(1000, 1000)), (GROUP_AND_OTHERS, GROUP_AND_OTHERS));
    }

    #[test]
    fn root_reads_no_secrets_of_other_users() {
        assert!(is_strangers(1000, 0, None) && is_strangers(1000, 0, Some(1001)));
        assert!(
            !is_strangers(1000, 0, Some(1000))
                && !is_strangers(0, 0, None)
                && !is_strangers(1000, 1000, None)
        );
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: files of other users are made by root alone");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        create(&path, b"abc").unwrap();
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        let error = read(&path, 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().contains(&format!("chown root {}", path.display())), "{error}");
    }

    #[test]
    fn secrets_are_not_created_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("elsewhere", dir.path().join("link")).unwrap();
        assert!(create(&dir.path().join("link"), b"x").is_err());
        assert!(!dir.path().join("elsewhere").exists());
    }
}
