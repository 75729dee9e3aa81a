//! When connections are looked at because addresses or routes of this machine changed.

use std::os::fd::{AsFd, BorrowedFd};

use rivulet_pktio::route::Changes;
use rivulet_transport::{Micros, Time};

/// Least interval of scans, microseconds: a scan looks at each connection, and a router can announce thousands of routes.
const SCAN_INTERVAL: Micros = 20_000;
/// After a change the next hop's Ethernet address may take this long to be discovered, microseconds.
const DISCOVERY: Micros = 3_000_000;

/// The kernel's announcements of changed addresses and routes, and when connections are looked at next.
pub(crate) struct AddressWatch {
    /// `None` without the kernel's announcements: connections then stay at their addresses.
    changes: Option<Changes>,
    scanned: Time,
    /// Connections are looked at until then, because one has lost its address and could not move yet.
    until: Option<Time>,
    pending: bool,
}

impl AddressWatch {
    /// Subscribes in the network namespace of this thread.
    pub fn open() -> AddressWatch {
        let changes = Changes::open();
        let changes =
            changes.inspect_err(|error| tracing::warn!(%error, "changes of addresses are not noticed")).ok();
        AddressWatch { changes, scanned: Time(0), until: None, pending: false }
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(Changes::as_fd)
    }

    /// When the next scan is due, if one is.
    pub fn due(&self) -> Option<Time> {
        (self.pending || self.until.is_some()).then_some(self.scanned + SCAN_INTERVAL)
    }

    /// Reads all announcements, and returns whether connections are to be looked at now.
    pub fn take(&mut self, now: Time) -> bool {
        if self.changes.as_ref().is_some_and(Changes::take) {
            self.pending = true;
            self.until = Some(now + DISCOVERY);
        }
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            (self.pending, self.scanned) = (false, now);
            self.until.take_if(|until| *until <= now);
        }
        is_due
    }

    /// No connection lacks its address: the next change is waited for.
    pub fn rest(&mut self) {
        self.until = None;
    }
}
