//! Loads the table of stateless TCP at its first use, on a separate thread: a directory may be
//! large, and the packet path must not wait for the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use rivulet_plain::Table;
use rivulet_server::service::Service;

use super::table;
use crate::http::Marks;

/// Interval of checks whether the table is loaded.
pub(super) const SOON: Duration = Duration::from_millis(20);

/// The table of a directory's objects, once it is loaded.
pub(super) struct Shelf {
    dir: PathBuf,
    /// Whether names that are not in the table are left to the kernel's TCP.
    unknown: bool,
    /// Whether large files are in the table too.
    large: bool,
    /// Pictures that differ between clients are the kernel's.
    marks: Option<Marks>,
    state: State,
}

enum State {
    Unread,
    Reading(JoinHandle<anyhow::Result<Table>>),
    There,
}

/// What the services require of the table.
pub(super) enum Wanted {
    /// The services require no table, or it is loaded already.
    Nothing,
    /// The table, which has just been loaded.
    This(Arc<Table>),
    /// The table is not loaded yet.
    NotYet,
}

impl Shelf {
    pub(super) fn new(dir: &Path, unknown: bool, large: bool, marks: Option<&Marks>) -> Shelf {
        Shelf { dir: dir.to_owned(), unknown, large, marks: marks.cloned(), state: State::Unread }
    }

    /// What these services require. If reading failed, the next call reads again.
    pub(super) fn wanted(&mut self, services: &[Service]) -> anyhow::Result<Wanted> {
        // A controller needs the content's version before it lets services answer from the table.
        if !services.iter().any(|service| service.answers_plain() || service.content.is_some()) {
            return Ok(Wanted::Nothing);
        }
        match std::mem::replace(&mut self.state, State::Unread) {
            State::There => {
                self.state = State::There;
                Ok(Wanted::Nothing)
            }
            State::Unread => {
                let (dir, unknown, large) = (self.dir.clone(), self.unknown, self.large);
                let marks = self.marks.clone();
                let reader = move || {
                    table::read(&dir, unknown, large, marks)
                        .with_context(|| format!("objects for stateless TCP in {}", dir.display()))
                };
                let thread = std::thread::Builder::new().name("objects".into()).spawn(reader);
                self.state = State::Reading(thread.context("a thread for the objects")?);
                Ok(Wanted::NotYet)
            }
            State::Reading(thread) if !thread.is_finished() => {
                self.state = State::Reading(thread);
                Ok(Wanted::NotYet)
            }
            State::Reading(thread) => {
                let table =
                    thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("reading the objects failed")))?;
                tracing::info!(entries = table.len(), version = table.version(), "objects for stateless TCP");
                self.state = State::There;
                Ok(Wanted::This(Arc::new(table)))
            }
        }
    }

    /// Loads the table that these services require, and waits for it.
    pub(super) fn await_table(&mut self, services: &[Service]) -> anyhow::Result<Option<Arc<Table>>> {
        loop {
            match self.wanted(services)? {
                Wanted::Nothing => return Ok(None),
                Wanted::This(table) => return Ok(Some(table)),
                Wanted::NotYet => std::thread::sleep(SOON),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rivulet_server::keys::KeySet;
    use rivulet_server::service::Plain;

    fn service(plain: Plain) -> Service {
        Service::standalone("www", vec!["10.9.0.1".parse().unwrap()], 80, KeySet::generate(1).unwrap(), plain)
    }

    #[test]
    fn table_is_read_once_and_only_if_required() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "a").unwrap();
        let mut shelf = Shelf::new(dir.path(), false, false, None);
        for plain in [Plain::None, Plain::Kernel] {
            assert!(shelf.await_table(&[service(plain)]).unwrap().is_none());
        }
        assert!(matches!(shelf.state, State::Unread));
        let services = [service(Plain::Kernel), service(Plain::Stateless)];
        assert_eq!(shelf.await_table(&services).unwrap().map(|table| table.len()), Some(1));
        assert!(shelf.await_table(&services).unwrap().is_none(), "it was given");
    }

    #[test]
    fn unreadable_folder_is_reported_and_retried() {
        let dir = tempfile::tempdir().unwrap();
        let www = dir.path().join("www");
        let mut shelf = Shelf::new(&www, false, false, None);
        let services = [service(Plain::Stateless)];
        for _ in 0..2 {
            let error = format!("{:#}", shelf.await_table(&services).unwrap_err());
            assert!(error.contains("objects for stateless TCP in") && error.contains("www"), "{error}");
        }
        std::fs::create_dir(&www).unwrap();
        assert!(shelf.await_table(&services).unwrap().is_some());
    }
}
