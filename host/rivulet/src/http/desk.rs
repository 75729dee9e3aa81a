//! Runs work that can block, above all on a slow disk, on separate threads: the packet path asks,
//! and asks again later.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Number of threads: one file fewer than this can be slow without delaying the others.
const THREADS: usize = 4;
/// Maximum number of waiting jobs; further ones are refused, and requested again later.
const MAX_JOBS: usize = 4096;
/// After a wait that timed out, no caller waits for this long, microseconds: the disk is slow.
const SLOW: u64 = 50_000;

/// Identifies a job; equal jobs run only once at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// The content of this name is to be had.
    Load(Box<[u8]>),
    /// Check whether the file has changed.
    Check(Box<[u8]>),
    /// Whether a file begins with the content of this hash.
    Former([u8; 16]),
    /// This block of the mapping at this address is to be in memory.
    Page(usize, usize),
    /// Writes a piece of the upload with this identity: offset and length.
    Write([u8; 16], u64, usize),
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<(Key, Job)>,
    /// Jobs in advance, done when no other work is left.
    later: VecDeque<(Key, Job)>,
    pending: HashSet<Key>,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
    started: Instant,
    slow_until: AtomicU64,
}

/// The threads, which end with this. Jobs that have not begun are dropped.
pub(super) struct Desk(Arc<Shared>);

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.0.state.lock().stop = true;
        self.0.wake.notify_all();
    }
}

impl Desk {
    /// Starts the threads.
    pub(super) fn open() -> std::io::Result<Desk> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            started: Instant::now(),
            slow_until: AtomicU64::new(0),
        });
        let desk = Desk(shared);
        for _ in 0..THREADS {
            let shared = desk.0.clone();
            std::thread::Builder::new().name("disk".into()).spawn(move || shared.work())?;
        }
        Ok(desk)
    }

    /// Has a job done unless there is one of this kind, and waits for it, for `patience` at most. True if it is done.
    pub(super) fn ask(&self, key: Key, patience: Duration, job: impl FnOnce() + Send + 'static) -> bool {
        let shared = &self.0;
        let mut state = shared.state.lock();
        if !state.pending.contains(&key) {
            if state.jobs.len() >= MAX_JOBS {
                return false;
            }
            state.pending.insert(key.clone());
            state.jobs.push_back((key.clone(), Box::new(job)));
            shared.wake.notify_one();
        }
        let now = || shared.started.elapsed().as_micros() as u64;
        if patience.is_zero() || shared.slow_until.load(Ordering::Relaxed) > now() {
            return false;
        }
        let until = Instant::now() + patience;
        while state.pending.contains(&key) {
            if shared.done.wait_until(&mut state, until).timed_out() {
                shared.slow_until.store(now() + SLOW, Ordering::Relaxed);
                return false;
            }
        }
        true
    }

    /// Runs a job when no other work is left.
    pub(super) fn ask_later(&self, key: Key, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if state.later.len() < MAX_JOBS && state.pending.insert(key.clone()) {
            state.later.push_back((key, Box::new(job)));
            self.0.wake.notify_one();
        }
    }

    /// True while there is anything to do.
    pub(super) fn is_busy(&self) -> bool {
        !self.0.state.lock().pending.is_empty()
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.stop {
            let next = state.jobs.pop_front();
            let Some((key, job)) = next.or_else(|| state.later.pop_front()) else {
                self.wake.wait(&mut state);
                continue;
            };
            drop(state);
            // A job that panics has printed its message; the thread stays for other jobs.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
            state = self.state.lock();
            state.pending.remove(&key);
            self.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_slow_job_is_not_waited_for_and_done_once() {
        let desk = Desk::open().unwrap();
        let (go, wait) = channel::<()>();
        let (done, all) = channel();
        let of_job = done.clone();
        let key = Key::Load(b"slow"[..].into());
        let slow = move || {
            wait.recv().unwrap();
            of_job.send("slow").unwrap();
        };
        assert!(!desk.ask(key.clone(), Duration::from_millis(1), slow));
        assert!(!desk.ask(key.clone(), Duration::from_millis(1), || panic!("there is one")));
        assert!(desk.is_busy());
        // Others are not held up by it.
        let of_job = done.clone();
        desk.ask(Key::Load(b"fast"[..].into()), Duration::ZERO, move || of_job.send("fast").unwrap());
        assert_eq!(all.recv().unwrap(), "fast");
        go.send(()).unwrap();
        assert_eq!(all.recv().unwrap(), "slow");
        // A finished job may be asked for again; a patient caller waits, unless the disk was slow
        // just now.
        let patient = Duration::from_secs(60);
        while !desk.ask(key.clone(), patient, || ()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
