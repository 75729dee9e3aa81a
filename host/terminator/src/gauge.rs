//! Counts objects that exist at present.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The number of [`Counted`] that exist.
#[derive(Debug, Default)]
pub(crate) struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    /// Counts one more object until the returned value is dropped.
    pub(crate) fn count(&self) -> Counted {
        self.0.fetch_add(1, Relaxed);
        Counted(self.0.clone())
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed) as u64
    }
}

/// An object that a [`Gauge`] counts.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
