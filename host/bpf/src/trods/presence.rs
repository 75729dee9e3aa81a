//! Detects whether the programs of a process that died are still on an interface
//! ([`crate::linger`]). A socket name that lives as long as the programs shows it, and the socket
//! passes their state on. Without `CAP_SYS_ADMIN` the kernel does not list attached programs.
//!
//! The name is a path in a folder that only this user and root can write to, so no other user can
//! take it. It contains the interface and its network namespace.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, socket_with,
};
use rustix::process::geteuid;

/// Folder of the names, unless the process sets another.
pub(super) const FOLDER: &str = "/run/rivulet-programs";
/// Names for one interface: one for the attached programs, the others for processes that died
/// within the last seconds.
const NAMES: u32 = 8;
/// Longest wait for the state of a dead process, whose child passes it on at once unless the
/// machine is overloaded.
const PATIENCE: Duration = Duration::from_millis(500);

/// What the names show of an interface.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// The listener whose name shows that this process's programs are attached; `None` if all names
    /// are taken.
    pub own: Option<UnixListener>,
    /// Whether another process's name was found.
    pub follows: bool,
    /// Maps with the connections of processes that died.
    pub former: Vec<OwnedFd>,
}

/// Takes a name for the interface with this index, in the namespace of the calling thread. The
/// folder is created.
///
/// # Errors
/// An operating system error, or other users can write to the folder.
pub(super) fn claim(folder: &Path, index: u32) -> io::Result<Claim> {
    let (folder, netns) = (open(folder)?, std::fs::metadata("/proc/thread-self/ns/net")?.ino());
    let (mut claim, until) = (Claim::default(), Instant::now() + PATIENCE);
    for n in 0..NAMES {
        // Through the descriptor, because the folder's own path may be too long for a socket name,
        // or be replaced meanwhile.
        let path: PathBuf = format!("/proc/self/fd/{}/{netns}-{index}-{n}", folder.as_raw_fd()).into();
        match inherit(&path, until) {
            Ok(Former::Strangers) => {}
            Ok(Former::Own(map)) => {
                claim.follows = true;
                claim.former.extend(map);
            }
            // The process that had the name is gone, or there was none.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
                if claim.own.is_none() {
                    claim.own = Some(take(&path)?);
                }
            }
            Err(e) => {
                claim.follows = true;
                tracing::debug!(error = %e, "what a process had that died is not known");
            }
        }
    }
    Ok(claim)
}

/// Opens the folder if only root and this user can write there.
fn open(path: &Path) -> io::Result<File> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = folder.metadata()?;
    if found.uid() != geteuid().as_raw() && found.uid() != 0 || found.mode() & 0o022 != 0 {
        let (path, uid, mode) = (path.display(), found.uid(), found.mode() & 0o7777);
        let why = format!("{path} is of user {uid} with mode {mode:o}: others can write there; remove it");
        return Err(io::Error::new(ErrorKind::PermissionDenied, why));
    }
    Ok(folder)
}

/// Takes a name that no process has.
fn take(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let socket = UnixListener::bind(path)?;
    // So that accept() never blocks.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The owner of a name.
enum Former {
    Strangers,
    /// This user, with the descriptor that a dead process passed on.
    Own(Option<OwnedFd>),
}

/// Waits until `until` for the descriptor that a dead process of this user passes on. A listener of
/// another user, or one that accepts nothing, is not waited for.
fn inherit(path: &Path, until: Instant) -> io::Result<Former> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let from = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&from, &SocketAddrUnix::new(path)?)?;
    if socket_peercred(&from)?.uid != geteuid() {
        return Ok(Former::Strangers);
    }
    receive(&from, until).map(Former::Own)
}

/// Receives a descriptor, until the given time.
fn receive(from: &OwnedFd, until: Instant) -> io::Result<Option<OwnedFd>> {
    let left =
        Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
    poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&left))?;
    let (mut octet, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut with = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut octet)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    Ok(with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::mpsc::channel;

    use rivulet_pktio::testing;
    use rustix::net::{bind, listen};

    use super::*;
    use crate::kernel::{Feature, skipped};
    use crate::linger::Linger;
    use crate::object::{load, map, object, open};

    /// A user without any privileges.
    const STRANGER: libc::uid_t = 65_534;

    /// Runs this as another user on a separate thread.
    fn as_user<T: Send>(user: libc::uid_t, run: impl FnOnce() -> T + Send) -> T {
        let run = move || {
            // SAFETY: of this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
            run()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// Claims the interface as this user; returns whether another process's name was found, and the
    /// number of inherited maps.
    fn found_by(user: libc::uid_t, folder: &Path, index: u32) -> (bool, usize) {
        as_user(user, || claim(folder, index).map(|claim| (claim.follows, claim.former.len())).unwrap())
    }

    fn name(folder: &Path, index: u32, n: u32) -> PathBuf {
        let netns = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        folder.join(format!("{netns}-{index}-{n}"))
    }

    #[test]
    fn state_of_dead_process_goes_to_same_user_only() {
        if skipped(Feature::Tcx) {
            return;
        }
        let object = load("trods", open("trods", object!("trods")).unwrap()).unwrap();
        let (dead, stamped) = (map(&object, ".data.dead").unwrap(), map(&object, "stamped").unwrap());
        let (folder, index) = (tempfile::tempdir().unwrap(), 1);
        let own = claim(folder.path(), index).unwrap().own.unwrap();
        let linger = Linger::new(&[], dead.as_fd(), Some([own.as_fd(), stamped.as_fd()])).unwrap();
        drop(own);
        assert_eq!(found_by(0, folder.path(), index), (true, 0), "it lives");
        linger.killed();
        assert_eq!(found_by(0, folder.path(), index), (true, 1));
        // The folder's permissions would let another user look there.
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::set_permissions(name(folder.path(), index, 0), PermissionsExt::from_mode(0o777)).unwrap();
        let address = SocketAddrUnix::new(name(folder.path(), index, 0)).unwrap();
        let given = as_user(STRANGER, || {
            let from =
                socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
            connect(&from, &address).unwrap();
            receive(&from, Instant::now() + testing::PATIENCE)
        });
        assert!(given.unwrap().is_none(), "another user received the state");
        assert_eq!(found_by(0, folder.path(), index), (true, 1));
    }

    #[test]
    fn owner_of_name_is_found_while_it_lives() {
        let folder = tempfile::tempdir().unwrap();
        let of = || claim(folder.path(), 1).unwrap();
        let first = of();
        assert!(first.own.is_some() && !first.follows);
        let second = of();
        assert!(second.own.is_some() && second.follows && second.former.is_empty(), "it lives");
        drop(first);
        // The third process now takes the first name, and still finds the owner of the second.
        let third = of();
        assert!(third.own.is_some() && third.follows);
        drop(second);
        assert!(of().follows);
        drop(third);
        assert!(!of().follows);
    }

    #[test]
    fn listener_that_accepts_nothing_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddrUnix::new(name(folder.path(), 1, 5)).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let other = socket();
        bind(&other, &address).unwrap();
        listen(&other, 0).unwrap();
        let asking: Vec<_> =
            std::iter::from_fn(|| Some(socket()).filter(|s| connect(s, &address).is_ok())).collect();
        let (send, claimed) = channel();
        let claim = move || send.send(claim(folder.path(), 1).unwrap().follows);
        std::thread::spawn(claim);
        assert!(claimed.recv_timeout(testing::PATIENCE).unwrap(), "behind {}", asking.len());
    }

    /// Whichever names another user takes, and whether or not it accepts connections.
    #[test]
    fn names_of_other_users_are_ignored() {
        let (folder, index) = (tempfile::tempdir().unwrap(), 1);
        let taken: Vec<_> = as_user(STRANGER, || {
            let abstracts = (0..NAMES).map(|n| format!("rivulet-trods-{index}-{n}"));
            let abstracts = abstracts.map(|name| SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap());
            abstracts
                .map(|address| {
                    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                    let socket =
                        || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
                    let own = socket();
                    bind(&own, &address).unwrap();
                    listen(&own, 0).unwrap();
                    let full = std::iter::from_fn(|| Some(socket()).filter(|s| connect(s, &address).is_ok()));
                    (own, full.collect::<Vec<_>>())
                })
                .collect()
        });
        // Another user cannot take a name in the folder.
        let refused = as_user(STRANGER, || UnixListener::bind(name(folder.path(), index, 0)).map(drop));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        let claim = claim(folder.path(), index).unwrap();
        assert!(!claim.follows && claim.own.is_some(), "beside {} names", taken.len());
    }

    #[test]
    fn folder_writable_by_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("programs");
        assert!(claim(&path, 1).unwrap().own.is_some(), "it is made");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        for (uid, mode, refused) in
            [(0, 0o770, true), (0, 0o1777, true), (STRANGER, 0o700, true), (0, 0o755, false)]
        {
            std::os::unix::fs::chown(&path, Some(uid), None).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = claim(&path, 1).err().map(|e| e.to_string());
            assert_eq!(error.is_some(), refused, "{uid} {mode:o} {error:?}");
            assert!(error.is_none_or(|e| e.contains("programs is of user") && e.contains("remove it")));
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(claim(&link, 1).is_err());
    }
}
