//! Finds the account of a process, whose quotas count it. A user can own 65,536 subordinate user
//! ids and run processes under each of them, in user namespaces and by set-user-ID files made
//! there; all of them belong to one account.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use parking_lot::Mutex;

/// linux/nsfs.h
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// Maximum depth of nested user namespaces (user_namespaces(7)).
const MAX_LEVELS: usize = 33;
/// Limit on the size of subuid(5) and passwd(5), bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// The account of a process of user `uid`: the owner of its user namespace, if that is not this
/// process's own; the owner of a subordinate user id, by subuid(5); otherwise the user itself.
///
/// # Errors
/// The process has ended.
pub(super) fn account(uid: u32, pid: u32) -> io::Result<u32> {
    // A namespace made by root, such as a container manager's for its users, identifies no user;
    // the mapped ids do.
    let owner = namespace_owner(pid)?.filter(|owner| *owner != 0);
    let mut known = KNOWN.lock();
    Ok(owner_of(owner.unwrap_or(uid), known.ranges(Path::new("/etc/subuid"), Path::new("/etc/passwd"))))
}

/// The daemon's copy of the two files; only one of its threads reads them.
static KNOWN: Mutex<Subordinates> = Mutex::new(Subordinates { files: None, ranges: Vec::new(), reads: 0 });

/// The contents of the two files, until one of them changes: a new connection does not read them
/// again.
#[derive(Debug)]
struct Subordinates {
    files: Option<[Option<Stamp>; 2]>,
    ranges: Vec<Range>,
    /// Number of times that the files were read.
    reads: u64,
}

/// Device, inode, size and time of the last change of a file.
type Stamp = (u64, u64, u64, (i64, i64));

impl Subordinates {
    fn ranges(&mut self, subuid: &Path, passwd: &Path) -> &[Range] {
        let files = [subuid, passwd].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.dev(), meta.ino(), meta.size(), (meta.ctime(), meta.ctime_nsec())))
        });
        if self.files != Some(files) {
            let text = |path| read(path).unwrap_or_default();
            self.ranges = parse(&text(subuid), &text(passwd));
            self.files = Some(files);
            self.reads += 1;
        }
        &self.ranges
    }
}

/// The owner of a process's outermost user namespace below this process's own; `None` if both are
/// in the same namespace.
fn namespace_owner(pid: u32) -> io::Result<Option<u32>> {
    let identity = |fd: BorrowedFd<'_>| {
        rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).map_err(io::Error::from)
    };
    let own = std::fs::metadata("/proc/self/ns/user").map(|meta| (meta.dev(), meta.ino()))?;
    let mut at: OwnedFd = File::open(format!("/proc/{pid}/ns/user"))?.into();
    if identity(at.as_fd())? == own {
        return Ok(None);
    }
    for _ in 0..MAX_LEVELS {
        // SAFETY: the call takes no argument and returns a descriptor.
        let parent = unsafe { libc::ioctl(at.as_raw_fd(), NS_GET_PARENT) };
        if parent < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created this descriptor for this process.
        let parent = unsafe { OwnedFd::from_raw_fd(parent) };
        if identity(parent.as_fd())? == own {
            let mut owner: libc::uid_t = 0;
            // SAFETY: the kernel writes a uid_t.
            let rc = unsafe { libc::ioctl(at.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) };
            return if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(Some(owner)) };
        }
        at = parent;
    }
    Err(io::Error::other("its user namespace is not below ours"))
}

/// A range of subordinate user ids.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    owner: u32,
    first: u32,
    count: u32,
}

fn owner_of(uid: u32, ranges: &[Range]) -> u32 {
    let range = ranges.iter().find(|range| uid.checked_sub(range.first).is_some_and(|n| n < range.count));
    range.map_or(uid, |range| range.owner)
}

/// Parses subuid(5), with the names from passwd(5). If a name is not in passwd(5), its ranges
/// belong to their first id.
fn parse(subuid: &str, passwd: &str) -> Vec<Range> {
    let users = passwd.lines().rev().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse::<u32>().ok()?))
    });
    // Of several lines with one name, the first one counts.
    let known: HashMap<&str, u32> = users.collect();
    let line = |line: &str| {
        let mut fields = line.trim().split(':');
        let (name, first) = (fields.next()?, fields.next()?.parse().ok()?);
        let count = fields.next()?.parse().ok()?;
        let owner = name.parse().ok().or_else(|| known.get(name).copied()).unwrap_or(first);
        Some(Range { owner, first, count })
    };
    subuid.lines().filter_map(line).collect()
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_are_their_owners() {
        let subuid =
            "# comment\nalice:100000:65536\n1001:200000:10\ngone:300000:5\nbad:x:1\n\nalice:400000:1\n";
        let ranges = parse(subuid, "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n");
        for (uid, owner) in [
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 165_536),
            (200_009, 1001),
            (300_004, 300_000),
            (400_000, 1000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(owner_of(uid, &ranges), owner, "{uid}");
        }
        assert_eq!(parse("", ""), []);
    }

    #[test]
    fn files_are_read_once_until_one_changes() {
        let dir = tempfile::tempdir().unwrap();
        let [subuid, passwd] = ["subuid", "passwd"].map(|name| dir.path().join(name));
        let mut known = Subordinates { files: None, ranges: Vec::new(), reads: 0 };
        assert_eq!(known.ranges(&subuid, &passwd), [], "without the files");
        std::fs::write(&subuid, "alice:100000:10\n").unwrap();
        std::fs::write(&passwd, "alice:x:1000:1000::/:/bin/sh\nalice:x:1:1::/:/bin/sh\n").unwrap();
        for _ in 0..100 {
            assert_eq!(owner_of(100_005, known.ranges(&subuid, &passwd)), 1000);
        }
        assert_eq!(known.reads, 2);
        std::fs::write(&passwd, "alice:x:1001:1001::/:/bin/sh\n").unwrap();
        assert_eq!(owner_of(100_005, known.ranges(&subuid, &passwd)), 1001);
        assert_eq!(known.reads, 3);
    }

    #[test]
    fn processes_of_this_namespace_have_no_owner() {
        assert_eq!(namespace_owner(std::process::id()).unwrap(), None);
        assert!(namespace_owner(0).is_err());
    }
}
