//! A lock with a bounded wait. In the child of a fork its owner may be a thread that does not exist
//! there.

use std::sync::{Mutex, TryLockError};

/// Attempts to take the lock; between two of them other threads run.
const TRIES: usize = 10_000;

/// A mutex whose critical sections are short.
pub struct BoundedLock<T>(Mutex<T>);

impl<T> BoundedLock<T> {
    /// Unlocked.
    pub const fn new(value: T) -> BoundedLock<T> {
        BoundedLock(Mutex::new(value))
    }

    /// Calls `work` with the value; `None` if the lock stays taken.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        for _ in 0..TRIES {
            match self.0.try_lock() {
                Ok(mut guard) => return Some(work(&mut guard)),
                Err(TryLockError::Poisoned(guard)) => return Some(work(&mut guard.into_inner())),
                // SAFETY: plain system call.
                Err(TryLockError::WouldBlock) => unsafe { libc::sched_yield() },
            };
        }
        None
    }
}
