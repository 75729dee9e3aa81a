//! Why downloads fail.

use std::path::PathBuf;

/// Why a download failed, by exit code.
#[derive(Debug)]
pub(super) enum Failure {
    /// Exit code 1: a local error.
    Local(anyhow::Error),
    /// Exit code 2: no connection could be opened.
    Connect(anyhow::Error),
    /// Exit code 3: the server's status is an error.
    Status(u16, String),
    /// Exit code 4: the connection broke and could not be resumed.
    Broken(anyhow::Error),
    /// Exit code 5: a signal came, and the download is to be written to this file.
    Suspended(PathBuf),
}

impl Failure {
    pub(super) fn code(&self) -> u8 {
        match self {
            Failure::Local(_) => 1,
            Failure::Connect(_) => 2,
            Failure::Status(..) => 3,
            Failure::Broken(_) => 4,
            Failure::Suspended(_) => 5,
        }
    }

    pub(super) fn message(&self) -> String {
        match self {
            Failure::Local(e) | Failure::Connect(e) | Failure::Broken(e) => format!("{e:#}"),
            Failure::Suspended(file) => {
                format!("suspended: go on with rivulet get --resume {}", file.display())
            }
            Failure::Status(code, reason) => format!("the server answered {code} {reason}"),
        }
    }
}
