//! The process that sends heartbeats between two agents, as the next agent sees it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::beside;

/// Byte on the process's socket: it is no longer needed.
pub(super) const OVER: u8 = b'.';

/// The socket at which the next agent finds the process.
pub(super) fn door(socket: &Path) -> PathBuf {
    beside(socket, ".stand-in")
}

/// The process that replaces the former agent.
#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Connects to the process, if there is one.
    pub fn find(socket: &Path) -> Option<Predecessor> {
        UnixStream::connect(door(socket)).ok().map(Predecessor)
    }

    /// Ends the stand-in.
    pub fn release(mut self) {
        // One that has ended meanwhile is not needed either.
        let _ = self.0.write_all(&[OVER]);
    }
}
