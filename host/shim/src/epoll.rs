//! Epoll sets that a socket was put into before `connect`: what comes in its place goes in too.
//!
//! epoll(7) knows a file, not its number, so the descriptor that replaces the socket would have left its sets. Only
//! sockets that may still be connected are remembered, and the sets are asked whether they have them.

use libc::{c_int, epoll_event};

use crate::brief::Brief;
use crate::fd::is_unconnected_tcp;
use crate::real::{errno, real, set_errno};

/// Entries that are remembered; the oldest go first.
const MAX: usize = 4096;

#[derive(Clone, Copy)]
struct Entry {
    set: c_int,
    fd: c_int,
    events: u32,
    data: u64,
}

static ENTRIES: Brief<Vec<Entry>> = Brief::new(Vec::new());

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
        // SAFETY: the kernel has just read it.
        let event = unsafe { event.read_unaligned() };
        let entry = Entry { set, fd, events: event.events, data: event.u64 };
        ENTRIES.with(|all| put(all, entry));
    } else if order == libc::EPOLL_CTL_MOD || order == libc::EPOLL_CTL_DEL {
        ENTRIES.with(|all| {
            let Some(at) = all.iter().position(|e| (e.set, e.fd) == (set, fd)) else { return };
            if order == libc::EPOLL_CTL_DEL {
                all.swap_remove(at);
            } else {
                // SAFETY: the kernel has just read it.
                let event = unsafe { event.read_unaligned() };
                (all[at].events, all[at].data) = (event.events, event.u64);
            }
        });
    }
    set_errno(before);
    done
}

/// The sets that a socket was in.
pub struct Left(Vec<Entry>);

/// Takes `fd` out of the sets that it is known to be in.
pub fn leave(fd: c_int) -> Left {
    let taken = ENTRIES.with(|all| all.extract_if(.., |e| e.fd == fd).collect::<Vec<Entry>>());
    let mut entries = taken.unwrap_or_default();
    // Neither the set nor the socket need be those of then: a set that has the socket takes the change.
    entries.retain(|e| control(e, libc::EPOLL_CTL_MOD) && control(e, libc::EPOLL_CTL_DEL));
    Left(entries)
}

impl Left {
    /// What has the number of the socket now is put in. It is remembered as the socket was: where this connection
    /// fails another may be tried.
    pub fn come_back(self) {
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
