//! Runs work that can block, mostly on a slow disk, on separate threads: the packet path requests
//! it, and asks again later.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Number of threads: one file fewer than this can be slow without delaying the others.
const THREADS: usize = 4;
/// Limit on the waiting jobs; further ones are refused, and requested again later.
const MAX_JOBS: usize = 4096;
/// After a wait that timed out, no caller waits for this long, microseconds: the disk is slow.
const SLOW: u64 = 50_000;

/// Identifies a job; of equal jobs only one runs at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Load the content with this name.
    Load(Box<[u8]>),
    /// Check whether the file with this name has changed.
    Check(Box<[u8]>),
    /// Check whether a file begins with the content that has this hash.
    Former([u8; 16]),
    /// Load a block into memory: address of the mapping, number of the block.
    Page(usize, usize),
    /// Compute the index of the picture with this hash.
    Index([u8; 16]),
    /// Write a piece of the upload with this identity: offset and length.
    Write([u8; 16], u64, usize),
}

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<(Key, Job)>,
    /// Jobs in advance, which run when no others wait.
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

/// The threads, which end when this is dropped. Jobs that have not begun are dropped.
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

    /// Starts a job, unless an equal one is waiting or running, and waits for it for at most
    /// `patience`. Returns whether it is done.
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

    /// Queues a job that runs when no others wait.
    pub(super) fn ask_later(&self, key: Key, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock();
        if state.later.len() < MAX_JOBS && state.pending.insert(key.clone()) {
            state.later.push_back((key, Box::new(job)));
            self.0.wake.notify_one();
        }
    }

    /// Whether any job waits or runs.
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
            // A job that panics has printed its message; the thread continues with other jobs.
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
    fn slow_job_runs_once_and_blocks_no_caller() {
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
        // The slow job does not delay others.
        let of_job = done.clone();
        desk.ask(Key::Load(b"fast"[..].into()), Duration::ZERO, move || of_job.send("fast").unwrap());
        assert_eq!(all.recv().unwrap(), "fast");
        go.send(()).unwrap();
        assert_eq!(all.recv().unwrap(), "slow");
        // A finished job may be requested again. A patient caller waits, unless the disk was slow a
        // moment ago.
        let patient = Duration::from_secs(60);
        while !desk.ask(key.clone(), patient, || ()) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
