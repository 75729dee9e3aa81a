//! Which user's quotas count a process: a user can have 65,536 subordinate user ids and run processes under each of them, in user
//! namespaces and by set-user-ID files that it made there. All of them are one account.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// linux/nsfs.h
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
/// Nested user namespaces: user_namespaces(7).
const MAX_LEVELS: usize = 33;
/// Longest subuid(5) and passwd(5) that are read, bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// The account of a process of this user: the owner of its user namespace if it is in another one than this process, and of
/// a subordinate user id its owner by subuid(5); else the user itself.
///
/// # Errors
/// The process has ended.
pub(super) fn account(uid: u32, pid: u32) -> io::Result<u32> {
    // One of root's, such as a container manager's for its users, says nothing: the ids in it do.
    let owner = namespace_owner(pid)?.filter(|owner| *owner != 0);
    let ranges = read("/etc/subuid").map(|text| parse(&text, &read("/etc/passwd").unwrap_or_default()));
    Ok(owner_of(owner.unwrap_or(uid), &ranges.unwrap_or_default()))
}

/// Who made the outermost user namespace of a process below this process's own; none if they are in the same one.
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
        // SAFETY: it takes no argument and returns a descriptor.
        let parent = unsafe { libc::ioctl(at.as_raw_fd(), NS_GET_PARENT) };
        if parent < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it for this process.
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

/// The lines of subuid(5), with the names of passwd(5). A name that is not there owns its ranges by their first id.
fn parse(subuid: &str, passwd: &str) -> Vec<Range> {
    let known = |name: &str| -> Option<u32> {
        let mut fields = passwd.lines().map(|line| line.split(':'));
        fields.find_map(|mut f| (f.next() == Some(name)).then(|| f.nth(1)?.parse().ok()).flatten())
    };
    let line = |line: &str| {
        let mut fields = line.trim().split(':');
        let (name, first) = (fields.next()?, fields.next()?.parse().ok()?);
        let count = fields.next()?.parse().ok()?;
        let owner = name.parse().ok().or_else(|| known(name)).unwrap_or(first);
        Some(Range { owner, first, count })
    };
    subuid.lines().filter_map(line).collect()
}

fn read(path: &str) -> io::Result<String> {
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
    fn processes_of_this_namespace_have_no_owner() {
        assert_eq!(namespace_owner(std::process::id()).unwrap(), None);
        assert!(namespace_owner(0).is_err());
    }
}
