//! The update that is to be taken up.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rivulet_server::service::Service;

/// An update that could not be taken up is tried again after this time: its interface may be back by then.
const AGAIN: Duration = Duration::from_secs(1);

/// The newest of an [`Agent`](crate::Agent)'s updates, and not before when it is to be taken up.
#[derive(Debug, Default)]
pub struct Due(Option<(u64, Vec<Service>, Instant)>);

impl Due {
    /// Version and services of what is to be taken up now. What cannot be is given [back](Self::again).
    pub fn take(&mut self, updates: &Receiver<(u64, Vec<Service>)>) -> Option<(u64, Vec<Service>)> {
        while let Ok((version, services)) = updates.try_recv() {
            self.0 = Some((version, services, Instant::now()));
        }
        let (version, services, _) = self.0.take_if(|(.., at)| *at <= Instant::now())?;
        Some((version, services))
    }

    /// It could not be taken up; a newer one comes in its place.
    pub fn again(&mut self, version: u64, services: Vec<Service>) {
        self.later(version, services, AGAIN);
    }

    /// Something that it needs is not there yet: the same, after this time.
    pub fn later(&mut self, version: u64, services: Vec<Service>, after: Duration) {
        self.0 = Some((version, services, Instant::now() + after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_taken_up_comes_again_unless_there_is_a_newer_one() {
        let (to, updates) = std::sync::mpsc::channel();
        let mut due = Due::default();
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
