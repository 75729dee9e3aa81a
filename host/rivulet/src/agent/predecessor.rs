//! The stand-in process that sends heartbeats between two agents, as the next agent sees it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::beside;

/// The byte that ends the stand-in: the next agent sends heartbeats now.
pub(super) const OVER: u8 = b'.';

/// Path of the socket by which the next agent finds the stand-in.
pub(super) fn door(socket: &Path) -> PathBuf {
    beside(socket, ".stand-in")
}

/// The connection to the former agent's stand-in.
#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

impl Predecessor {
    /// Connects to the stand-in, if one is running.
    pub fn find(socket: &Path) -> Option<Predecessor> {
        UnixStream::connect(door(socket)).ok().map(Predecessor)
    }

    /// Ends the stand-in.
    pub fn release(mut self) {
        // An error means that the stand-in has ended by itself.
        let _ = self.0.write_all(&[OVER]);
    }
}
