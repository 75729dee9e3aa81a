//! Threads of a test that are another user's, in a network namespace and a cgroup of their own.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;

use super::Netns;

/// A cgroup (version 2) of threads, since tests share a process; removed when dropped.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Below this one, called as the namespace is.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn new(root: &Path, ns: &Netns) -> Cgroup {
        let path = root.join(ns.name());
        fs::create_dir(&path).expect("a cgroup");
        fs::write(path.join("cgroup.type"), "threaded").expect("a cgroup of threads");
        Cgroup(path)
    }

    /// Its folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Has the calling thread be in it.
    ///
    /// # Panics
    /// If it may not.
    pub fn enter(&self) {
        fs::write(self.0.join("cgroup.threads"), "0").expect("a thread enters a cgroup");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Netns {
    /// Runs in a thread in this namespace and a cgroup as a user, with no right.
    ///
    /// # Panics
    /// If the test is not root, and as `f` does.
    pub fn as_user<T: Send>(&self, cgroup: &Cgroup, uid: u32, f: impl FnOnce() -> T + Send) -> T {
        thread::scope(|s| {
            let run = s.spawn(|| {
                cgroup.enter();
                let file = fs::File::open(format!("/run/netns/{}", self.name())).expect("the namespace");
                // SAFETY: of this thread alone, as is all that follows.
                let rc = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(rc, 0, "setns: {}", io::Error::last_os_error());
                // SAFETY: the call itself: libc's would change all threads.
                let rc = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
                assert_eq!(rc, 0, "setresuid: {}", io::Error::last_os_error());
                f()
            });
            run.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }
}
