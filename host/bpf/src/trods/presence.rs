//! Whether the programs of a process that died are still on an interface ([`crate::linger`]): a name that only lives as long as
//! they do says so, in the namespace of the interface, and what they know is had there. What they are the kernel tells nobody without
//! `CAP_SYS_ADMIN`.

use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, socket_with,
};
use rustix::process::geteuid;

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
    let (mut claim, until) = (Claim::default(), Instant::now() + PATIENCE);
    for n in 0..NAMES {
        let name = name(index, n);
        match UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
            Ok(socket) if claim.own.is_none() => {
                // Whoever keeps it waits for nobody in it.
                socket.set_nonblocking(true)?;
                claim.own = Some(socket);
            }
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::AddrInUse => match inherit(&name, until) {
                // A name says nothing of programs that another user has.
                Ok(Former::Strangers) => {}
                Ok(Former::Own(map)) => {
                    claim.follows = true;
                    claim.former.extend(map);
                }
                Err(e) => {
                    claim.follows = true;
                    tracing::debug!(error = %e, "what a process had that died is not known");
                }
            },
            Err(e) => return Err(e),
        }
    }
    Ok(claim)
}

fn name(index: u32, n: u32) -> String {
    format!("rivulet-trods-{index}-{n}")
}

/// Whose a name is.
enum Former {
    Strangers,
    /// This user's, and what whoever died gives.
    Own(Option<OwnedFd>),
}

/// What whoever died gives, until then, if it was of this user. Nobody is waited for who accepts nobody.
fn inherit(name: &str, until: Instant) -> io::Result<Former> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let from = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&from, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    if socket_peercred(&from)?.uid != geteuid() {
        return Ok(Former::Strangers);
    }
    let left =
        Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
    poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&left))?;
    let (mut octet, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut with = RecvAncillaryBuffer::new(&mut space);
    recvmsg(&from, &mut [IoSliceMut::new(&mut octet)], &mut with, RecvFlags::CMSG_CLOEXEC)?;
    let map = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(Former::Own(map))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;

    use rivulet_pktio::testing;
    use rustix::net::{bind, listen};

    use super::*;
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
        assert_eq!(found_by(65_534, index), (false, 0), "a stranger's");
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

    #[test]
    fn nobody_is_waited_for_who_takes_nobody() {
        let index = u32::MAX - 2;
        let address = SocketAddrUnix::new_abstract_name(name(index, 5).as_bytes()).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = || socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let other = socket();
        bind(&other, &address).unwrap();
        listen(&other, 0).unwrap();
        let asking: Vec<_> =
            std::iter::from_fn(|| Some(socket()).filter(|s| connect(s, &address).is_ok())).collect();
        let (send, claimed) = channel();
        std::thread::spawn(move || send.send(claim(index).unwrap().follows));
        assert!(claimed.recv_timeout(testing::PATIENCE).unwrap(), "behind {}", asking.len());
    }
}
