//! Why the command fails.

use std::io;

/// A failure, by exit code.
#[derive(Debug)]
pub(super) enum Failure {
    /// Exit code 1: this host refused something.
    Local(anyhow::Error),
    /// Exit code 2: flags that exclude each other. clap uses the same code for other wrong flags.
    Flags(anyhow::Error),
    /// Exit code 3: the daemon of the Congestion Manager is not running, or refused something.
    Daemon(anyhow::Error),
    /// Exit code 4: the receiver does not answer, or does not any more.
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

    /// A socket's error. Errors that the other end caused count as the receiver's.
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

/// An error of the library after the daemon has admitted this process.
impl From<libcm::Error> for Failure {
    fn from(error: libcm::Error) -> Failure {
        // The error names its source.
        Failure::Daemon(anyhow::anyhow!("{error}"))
    }
}
