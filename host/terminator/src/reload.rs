//! The TLS configuration in force. It is read again when a file changes, and replaced on demand. If
//! a file cannot be used, the former configuration stays in force.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::server::ProducesTickets;

use crate::file_error::FileError;
use crate::files::{Files, Fingerprint};

struct Wanted {
    files: Files,
    fingerprint: Vec<Fingerprint>,
    /// Why `files` are not in force.
    problem: Option<String>,
}

pub(crate) struct Reload {
    /// Seals session tickets if no shared keys are configured.
    own_tickets: Arc<dyn ProducesTickets>,
    wanted: Mutex<Wanted>,
    in_force: RwLock<Arc<ServerConfig>>,
}

impl Reload {
    pub(crate) fn new(files: Files, own_tickets: Arc<dyn ProducesTickets>) -> Result<Self, FileError> {
        // Taken before the files are read, so that a change during the reading is noticed at the
        // next check.
        let fingerprint = files.fingerprint();
        let in_force = RwLock::new(Arc::new(files.load(&own_tickets)?));
        let wanted = Mutex::new(Wanted { files, fingerprint, problem: None });
        Ok(Self { own_tickets, wanted, in_force })
    }

    pub(crate) fn in_force(&self) -> Arc<ServerConfig> {
        self.in_force.read().clone()
    }

    pub(crate) fn problem(&self) -> Option<String> {
        self.wanted.lock().problem.clone()
    }

    pub(crate) fn replace(&self, files: Files) -> Result<(), FileError> {
        let mut wanted = self.wanted.lock();
        wanted.files = files;
        wanted.fingerprint = wanted.files.fingerprint();
        self.load(&mut wanted)
    }

    /// Reads the files again if one has changed.
    pub(crate) fn look(&self) {
        let mut wanted = self.wanted.lock();
        let now = wanted.files.fingerprint();
        if now == wanted.fingerprint {
            return;
        }
        wanted.fingerprint = now;
        if self.load(&mut wanted).is_ok() {
            tracing::info!("certificates and keys were read again");
        }
    }

    fn load(&self, wanted: &mut Wanted) -> Result<(), FileError> {
        let result = wanted.files.load(&self.own_tickets).map(|config| {
            *self.in_force.write() = Arc::new(config);
        });
        let problem = result.as_ref().err().map(ToString::to_string);
        if let Some(problem) = problem.as_ref().filter(|problem| wanted.problem.as_ref() != Some(problem)) {
            tracing::warn!("the former certificates and keys stay in use: {problem}");
        }
        wanted.problem = problem;
        result
    }
}
