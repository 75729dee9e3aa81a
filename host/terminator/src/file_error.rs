//! The error for a configured file that cannot be used.

use std::path::{Path, PathBuf};

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

impl FileError {
    pub(crate) fn new(path: &Path, problem: impl Into<String>) -> Self {
        Self { path: path.to_owned(), problem: problem.into() }
    }
}
