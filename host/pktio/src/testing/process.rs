//! Processes of a test, and waiting for conditions.

use std::io::{self, Read};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for an expected event: far more than it needs, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
///
/// # Panics
/// If it does not become true within [`PATIENCE`].
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads once, and again where the call was interrupted.
///
/// A socket with a timeout answers `Interrupted` without any signal handler when its process was stopped and continued, frozen or
/// suspended in the call (signal(7)), as machines that run tests do.
///
/// # Errors
/// Any other error of `read`.
pub fn read_once(from: &mut (impl Read + ?Sized), into: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(into) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Runs `work` on this thread while a signal with an empty handler comes a thousand times a second.
///
/// As when the process is stopped and continued, a call on a socket with a timeout ends with EINTR then, and any other call is
/// restarted by the kernel (`SA_RESTART`, signal(7)).
///
/// # Panics
/// If the handler cannot be installed.
pub fn under_signals<T>(work: impl FnOnce() -> T) -> T {
    extern "C" fn handle(_: libc::c_int) {}
    // SAFETY: the structure is whole, the handler touches nothing, and the thread that gets the signal outlives the scope.
    let target = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        libc::pthread_self()
    };
    /// Ends the signals also when `work` panics.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                // SAFETY: the scope's own thread waits for this one before it ends.
                unsafe { libc::pthread_kill(target, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _done = Done(&done);
        work()
    })
}

/// A process that is killed when its owner is dropped.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Whether it is still running.
    pub fn lives(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Sends SIGTERM and returns the exit status.
    ///
    /// # Panics
    /// If it does not end.
    #[expect(clippy::must_use_candidate, reason = "most tests only want the end")]
    pub fn stop(mut self) -> ExitStatus {
        if self.lives() {
            // SAFETY: a signal to an own child that was not reaped.
            unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        }
        eventually("the end after SIGTERM", || !self.lives());
        self.0.wait().expect("a child of ours")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
