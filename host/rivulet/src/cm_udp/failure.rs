//! Why the command fails.

use std::io;

/// A failure, by exit code.
#[derive(Debug)]
pub(super) enum Failure {
    /// 1: this host.
    Local(anyhow::Error),
    /// 2: flags that do not go together; others clap refuses, with the same code.
    Flags(anyhow::Error),
    /// 3: the daemon of the Congestion Manager.
    Daemon(anyhow::Error),
    /// 4: the receiver is not there, or no longer.
    Receiver(anyhow::Error),
}

impl Failure {
    pub fn code(&self) -> u8 {
        match self {
            Failure::Local(_) => 1,
            Failure::Flags(_) => 2,
            Failure::Daemon(_) => 3,
            Failure::Receiver(_) => 4,
        }
    }

    pub fn message(&self) -> String {
        let (Failure::Local(e) | Failure::Flags(e) | Failure::Daemon(e) | Failure::Receiver(e)) = self;
        format!("{e:#}")
    }

    /// A socket's: those that come from the other end are the receiver's.
    pub fn of(error: io::Error, what: impl Into<String>) -> Failure {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut, UnexpectedEof};
        let theirs = matches!(
            error.kind(),
            BrokenPipe
                | ConnectionAborted
                | ConnectionRefused
                | ConnectionReset
                | HostUnreachable
                | NetworkUnreachable
                | TimedOut
                | UnexpectedEof
        );
        let error = anyhow::Error::new(error).context(what.into());
        if theirs { Failure::Receiver(error) } else { Failure::Local(error) }
    }
}

/// The library's, once the daemon let us in.
impl From<libcm::Error> for Failure {
    fn from(error: libcm::Error) -> Failure {
        // The error names its source.
        Failure::Daemon(anyhow::anyhow!("{error}"))
    }
}
