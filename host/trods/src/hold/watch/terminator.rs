//! Connections of this host's TLS terminator, as it reports them.

use std::collections::HashSet;
use std::net::SocketAddr;

use rivulet_bpf::trods::FlowKey;

use super::{HoldError, Keeper, Watch};
use crate::flow::{Asked, Flow, Reason, StoreOutcome};
use crate::record::Record;

impl<K: Keeper> Watch<K> {
    /// New connections to these ports are a TLS terminator's.
    pub fn set_terminated(&mut self, ports: HashSet<u16>) {
        self.terminators.0 = ports;
    }

    /// Stores a record that the terminator made. [`Watch::take_answers`] has the result later.
    ///
    /// # Errors
    /// A system call fails.
    pub fn submit(&mut self, key: &FlowKey, asked: Asked, record: Record) -> Result<(), HoldError> {
        // The terminator may know the connection before its handshake was taken in here.
        self.catch_up()?;
        if self.has(key) {
            self.tell(key, |flow, out| flow.submit(asked, record, out));
        } else {
            self.terminators.1.push((*key, asked, StoreOutcome::Unwatched));
        }
        self.act()
    }

    /// Ends the protection of a connection, for a reason of the terminator's.
    ///
    /// # Errors
    /// A system call fails.
    pub fn unprotect(&mut self, key: &FlowKey, reason: Reason) -> Result<(), HoldError> {
        self.catch_up()?;
        self.tell(key, |flow, out| flow.let_go(reason, out));
        self.act()
    }

    /// Lets the terminator's FIN leave, which has this number from the service's first byte.
    ///
    /// # Errors
    /// A system call fails.
    pub fn end_at(&mut self, key: &FlowKey, at: u32) -> Result<(), HoldError> {
        self.tell(key, |flow: &mut Flow, out| flow.end_at(at, out));
        self.act()
    }

    /// Resets the client of a connection that the terminator cannot continue.
    ///
    /// # Errors
    /// A system call fails.
    pub fn reset(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.unprotect(key, Reason::Closed)?;
        self.hold.abort(key)
    }

    /// The watched services.
    pub fn services(&self) -> impl Iterator<Item = &SocketAddr> {
        self.services.keys()
    }

    /// What came of the terminator's records since the last call.
    pub fn take_answers(&mut self) -> Vec<(FlowKey, Asked, StoreOutcome)> {
        std::mem::take(&mut self.terminators.1)
    }
}
