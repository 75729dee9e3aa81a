//! A lock that is not waited for without end: in the child of a fork it may be held by a thread that is not there.

use std::sync::{Mutex, TryLockError};

/// How often a lock that another thread has is tried; each time the others get their turn.
const TRIES: usize = 10_000;

/// What is locked for moments only.
pub struct Brief<T>(Mutex<T>);

impl<T> Brief<T> {
    /// Unlocked.
    pub const fn new(value: T) -> Brief<T> {
        Brief(Mutex::new(value))
    }

    /// Does something with it; `None` if nobody gives the lock back.
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
