//! Whether the programs of a process that died are still on an interface ([`crate::linger`]): a name that only lives as long as
//! they do says so, in the namespace of the interface, and what they know is had there. What they are the kernel tells nobody without
//! `CAP_SYS_ADMIN`.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Names that an interface's programs may have: one for those that are there, others for as many processes as die within seconds.
const NAMES: u32 = 8;
/// Whoever died gives at once what it had, if the machine lets it.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is on an interface.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// A name for programs, as long as what has it is open; none if all are taken.
    pub own: Option<UnixListener>,
    /// Others have one.
    pub follows: bool,
    /// The connections of those that died, as a map of theirs.
    pub former: Vec<OwnedFd>,
}

/// Of the interface of this index, in the namespace of the calling thread.
///
/// # Errors
/// The system's.
pub(super) fn claim(index: u32) -> io::Result<Claim> {
    let mut claim = Claim::default();
    for n in 0..NAMES {
        let name = SocketAddr::from_abstract_name(format!("rivulet-trods-{index}-{n}"))?;
        match UnixListener::bind_addr(&name) {
            Ok(socket) if claim.own.is_none() => claim.own = Some(socket),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::AddrInUse => {
                claim.follows = true;
                match inherit(&name) {
                    Ok(map) => claim.former.extend(map),
                    Err(e) => tracing::debug!(error = %e, "what a process had that died is not known"),
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(claim)
}

/// What whoever died gives.
fn inherit(name: &SocketAddr) -> io::Result<Option<OwnedFd>> {
    let from = UnixStream::connect_addr(name)?;
    from.set_read_timeout(Some(PATIENCE))?;
    let (mut octet, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut with = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&from, &mut [IoSliceMut::new(&mut octet)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    Ok(with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::claim;
    use crate::kernel::{Feature, skipped};
    use crate::linger::Linger;
    use crate::object::{load, map, object, open};

    /// What whoever comes as this user finds.
    fn found_by(user: libc::uid_t, index: u32) -> (bool, usize) {
        let look = move || {
            // SAFETY: of this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
            let claim = claim(index).unwrap();
            (claim.follows, claim.former.len())
        };
        std::thread::spawn(look).join().unwrap()
    }

    #[test]
    fn what_a_process_had_that_died_its_own_user_is_given() {
        if skipped(Feature::Tcx) {
            return;
        }
        let object = load("trods", open("trods", object!("trods")).unwrap()).unwrap();
        let (dead, stamped) = (map(&object, ".data.dead").unwrap(), map(&object, "stamped").unwrap());
        let index = u32::MAX - 1;
        let own = claim(index).unwrap().own.unwrap();
        let linger = Linger::new(&[], dead.as_fd(), Some([own.as_fd(), stamped.as_fd()])).unwrap();
        drop(own);
        assert_eq!(found_by(0, index), (true, 0), "it lives");
        linger.killed();
        assert_eq!(found_by(0, index), (true, 1));
        assert_eq!(found_by(65_534, index), (true, 0));
        assert_eq!(found_by(0, index), (true, 1));
    }

    #[test]
    fn whoever_is_there_is_seen_for_as_long_as_it_is() {
        // Of no interface.
        let of = || claim(u32::MAX).unwrap();
        let first = of();
        assert!(first.own.is_some() && !first.follows);
        let second = of();
        assert!(second.own.is_some() && second.follows && second.former.is_empty(), "it lives");
        drop(first);
        // It has the first name now, and sees who has the second.
        let third = of();
        assert!(third.own.is_some() && third.follows);
        drop(second);
        assert!(of().follows);
        drop(third);
        assert!(!of().follows);
    }
}
