//! The update that waits to be applied.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rivulet_server::service::Service;

/// Interval of retries of an update that could not be applied, for example because its interface is
/// down.
const AGAIN: Duration = Duration::from_secs(1);

/// The newest update of an [`Agent`](crate::Agent), and the time when it may be applied.
#[derive(Debug, Default)]
pub struct PendingUpdate(Option<(u64, Vec<Service>, Instant)>);

impl PendingUpdate {
    /// Returns the version and services of an update to apply now. If it cannot be applied, pass it
    /// to [`again`](Self::again).
    pub fn take(&mut self, updates: &Receiver<(u64, Vec<Service>)>) -> Option<(u64, Vec<Service>)> {
        while let Ok((version, services)) = updates.try_recv() {
            self.0 = Some((version, services, Instant::now()));
        }
        let (version, services, _) = self.0.take_if(|(.., at)| *at <= Instant::now())?;
        Some((version, services))
    }

    /// Retries the update after a pause, unless a newer one replaces it.
    pub fn again(&mut self, version: u64, services: Vec<Service>) {
        self.later(version, services, AGAIN);
    }

    /// Retries the update after this time, because something that it needs is not there yet.
    pub fn later(&mut self, version: u64, services: Vec<Service>, after: Duration) {
        self.0 = Some((version, services, Instant::now() + after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_update_is_retried_unless_a_newer_one_arrived() {
        let (to, updates) = std::sync::mpsc::channel();
        let mut due = PendingUpdate::default();
        let mut next = || due.take(&updates).map(|(version, _)| version);
        assert_eq!(next(), None);
        to.send((1, Vec::new())).unwrap();
        to.send((2, Vec::new())).unwrap();
        assert_eq!((next(), next()), (Some(2), None), "the newest, once");
        let given = Instant::now();
        due.again(2, Vec::new());
        let version = loop {
            match due.take(&updates) {
                Some((version, _)) => break version,
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        assert_eq!(version, 2);
        assert!(given.elapsed() >= AGAIN);
        due.again(2, Vec::new());
        to.send((3, Vec::new())).unwrap();
        assert_eq!(due.take(&updates).map(|(version, _)| version), Some(3), "at once");
        assert!(due.take(&updates).is_none(), "and not the old one");
    }
}
