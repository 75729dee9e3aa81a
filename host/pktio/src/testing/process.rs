//! Processes of a test, and the wait for what they do.

use std::io::{self, Read};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Longest wait for what must come: far more than it takes, since the machine may be busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition.
///
/// # Panics
/// If it does not come within [`PATIENCE`].
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

/// A process that ends with its owner.
#[derive(Debug)]
pub struct Process(pub Child);

impl Process {
    /// Whether it still runs.
    pub fn lives(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_none())
    }

    /// SIGTERM, and how it ended.
    ///
    /// # Panics
    /// If it goes on.
    #[expect(clippy::must_use_candidate, reason = "most tests only want the end")]
    pub fn stop(mut self) -> ExitStatus {
        if self.lives() {
            // SAFETY: a signal to a child of ours that was not waited for.
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
