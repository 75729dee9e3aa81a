//! Counts the open connections, and remembers the failures of those that ended.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Limit on simultaneous connections; each has two threads.
const MAX_CONNECTIONS: usize = 2048;
/// Limit on the remembered failures that programs have not read.
const MAX_ENDED: usize = 1024;

/// Counters that the copying threads update.
#[derive(Debug)]
pub(super) struct Activity {
    open: AtomicUsize,
    /// Milliseconds from `started` to the last transfer.
    last: AtomicU64,
    started: Instant,
}

impl Activity {
    pub(super) fn new() -> Activity {
        Activity { open: AtomicUsize::new(0), last: AtomicU64::new(0), started: Instant::now() }
    }

    /// Number of connections that their programs have not closed.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Whether no bytes were transferred for this long.
    pub(super) fn idle_since(&self, time: Duration) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last) > time
    }
}

/// One open connection, until it is dropped.
pub(super) struct Counted(Arc<Activity>);

impl Counted {
    /// Counts one more connection; `None` at the maximum.
    pub(super) fn new(activity: &Arc<Activity>) -> Option<Counted> {
        let counted = Counted(activity.clone());
        (activity.open.fetch_add(1, Ordering::AcqRel) < MAX_CONNECTIONS).then_some(counted)
    }

    pub(super) fn moved(&self) {
        self.0.last.store(self.0.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Errors of failed connections, until they are read. The oldest ones are dropped first.
#[derive(Debug, Default)]
pub(super) struct Ended(Mutex<VecDeque<(u64, i32)>>);

impl Ended {
    /// Records that connection `id` failed with this errno.
    fn put(&self, id: u64, errno: i32) {
        let mut list = self.0.lock();
        if list.len() >= MAX_ENDED {
            list.pop_front();
        }
        list.push_back((id, errno));
    }

    /// Takes the error of a connection; 0 if there is none.
    pub(super) fn take(&self, id: u64) -> i32 {
        let mut list = self.0.lock();
        let found = list.iter().position(|(of, _)| *of == id).and_then(|at| list.remove(at));
        found.map_or(0, |(_, errno)| errno)
    }
}

/// Record of the failures of connections.
pub(super) struct Failures {
    pub(super) ended: Arc<Ended>,
    pub(super) id: u64,
}

impl Failures {
    pub(super) fn note(&self, error: &io::Error) {
        self.ended.put(self.id, errno_of(error));
    }
}

/// The errno that connect(2) or a later call returns for an error of the stack.
pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        io::ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
        io::ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        _ => libc::ECONNRESET,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_once_and_bounded() {
        let ended = Ended::default();
        ended.put(1, libc::ECONNREFUSED);
        assert_eq!((ended.take(1), ended.take(1), ended.take(2)), (libc::ECONNREFUSED, 0, 0));
        (0..2 * MAX_ENDED as u64).for_each(|id| ended.put(id, libc::ETIMEDOUT));
        assert_eq!((ended.take(0), ended.take(2 * MAX_ENDED as u64 - 1)), (0, libc::ETIMEDOUT));
        assert!(ended.0.lock().len() < MAX_ENDED);
    }

    #[test]
    fn connections_are_counted_and_bounded() {
        let activity = Arc::new(Activity::new());
        let all: Vec<_> = (0..MAX_CONNECTIONS).map(|_| Counted::new(&activity).unwrap()).collect();
        assert!(Counted::new(&activity).is_none());
        assert_eq!(activity.open(), MAX_CONNECTIONS);
        drop(all);
        assert_eq!(activity.open(), 0);
    }
}
