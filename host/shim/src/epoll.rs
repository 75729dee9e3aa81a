//! Keeps epoll membership when `connect` replaces a socket.
//!
//! epoll(7) registers the open file, not the descriptor number, so the replacing descriptor would
//! drop out of the sets. This module remembers the sets of sockets that may still connect, and
//! verifies with the kernel that a set still holds the socket.

use libc::{c_int, epoll_event};

use crate::bounded_lock::BoundedLock;
use crate::fd::is_unconnected_tcp;
use crate::real::{errno, real, set_errno};

/// Largest number of remembered entries; the oldest are dropped.
const MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Entry {
    set: c_int,
    fd: c_int,
    events: u32,
    data: u64,
}

static ENTRIES: BoundedLock<Vec<Entry>> = BoundedLock::new(Vec::new());

/// Replaces epoll_ctl(2).
///
/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(set: c_int, order: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's arguments, passed on.
    let done = unsafe { (real().epoll_ctl)(set, order, fd, event) };
    if done != 0 {
        return done;
    }
    let before = errno();
    if order == libc::EPOLL_CTL_ADD && is_unconnected_tcp(fd) {
        // SAFETY: the kernel has just read the event.
        let event = unsafe { event.read_unaligned() };
        let entry = Entry { set, fd, events: event.events, data: event.u64 };
        ENTRIES.with(|all| put(all, entry));
    } else if order == libc::EPOLL_CTL_MOD || order == libc::EPOLL_CTL_DEL {
        ENTRIES.with(|all| {
            let Some(at) = all.iter().position(|e| (e.set, e.fd) == (set, fd)) else { return };
            if order == libc::EPOLL_CTL_DEL {
                all.swap_remove(at);
            } else {
                // SAFETY: the kernel has just read the event.
                let event = unsafe { event.read_unaligned() };
                (all[at].events, all[at].data) = (event.events, event.u64);
            }
        });
    }
    set_errno(before);
    done
}

/// The sets from which a socket was removed.
pub struct Left(Vec<Entry>);

/// Removes `fd` from the sets that it is known to be in.
pub fn leave(fd: c_int) -> Left {
    let taken = ENTRIES.with(|all| all.extract_if(.., |e| e.fd == fd).collect::<Vec<Entry>>());
    let mut entries = taken.unwrap_or_default();
    // Set and socket may have been replaced since: a set that still has the socket accepts the
    // change.
    entries.retain(|e| control(e, libc::EPOLL_CTL_MOD) && control(e, libc::EPOLL_CTL_DEL));
    Left(entries)
}

impl Left {
    /// Adds the descriptor that now has the socket's number, and remembers it: if this connection
    /// fails, the program may try another.
    pub fn rejoin(self) {
        let entries: Vec<Entry> = self.0.into_iter().filter(|e| control(e, libc::EPOLL_CTL_ADD)).collect();
        ENTRIES.with(|all| entries.into_iter().for_each(|e| put(all, e)));
    }
}

fn put(all: &mut Vec<Entry>, entry: Entry) {
    all.retain(|e| (e.set, e.fd) != (entry.set, entry.fd));
    if all.len() == MAX {
        all.remove(0);
    }
    all.push(entry);
}

fn control(entry: &Entry, order: c_int) -> bool {
    let mut event = epoll_event { events: entry.events, u64: entry.data };
    // SAFETY: the event is a local.
    unsafe { (real().epoll_ctl)(entry.set, order, entry.fd, &raw mut event) == 0 }
}
