//! Threads of a test that run as another user, in their own network namespace and cgroup.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread;

use super::Netns;

/// A threaded cgroup (version 2), because tests share a process; removed when dropped.
#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates the cgroup below `root`, named like the namespace.
    ///
    /// # Panics
    /// If it cannot be created.
    #[must_use]
    pub fn new(root: &Path, ns: &Netns) -> Cgroup {
        let path = root.join(ns.name());
        fs::create_dir(&path).expect("a cgroup");
        fs::write(path.join("cgroup.type"), "threaded").expect("a cgroup of threads");
        Cgroup(path)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves the calling thread into it.
    ///
    /// # Panics
    /// If that is not permitted.
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
    /// Runs `f` in a thread in this namespace and cgroup, as a user without privileges.
    ///
    /// # Panics
    /// If the test is not root, and if `f` panics.
    pub fn as_user<T: Send>(&self, cgroup: &Cgroup, uid: u32, f: impl FnOnce() -> T + Send) -> T {
        thread::scope(|s| {
            let run = s.spawn(|| {
                cgroup.enter();
                let file = fs::File::open(format!("/run/netns/{}", self.name())).expect("the namespace");
                // SAFETY: affects only this thread, like all that follows.
                let rc = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(rc, 0, "setns: {}", io::Error::last_os_error());
                // SAFETY: a raw system call, because libc's function would change all threads.
                let rc = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
                assert_eq!(rc, 0, "setresuid: {}", io::Error::last_os_error());
                f()
            });
            run.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
        })
    }
}
