//! Connections of this host's TLS terminator, as it reports them.

use std::collections::HashSet;
use std::net::SocketAddr;

use rivulet_bpf::trods::FlowKey;

use super::{HoldError, Keeper, Watch};
use crate::flow::{Asked, Flow, Reason, StoreOutcome};
use crate::hold::connection::Connection;
use crate::hold::watch::now_ms;
use crate::record::{Handshake, Record};

impl<K: Keeper> Watch<K> {
    /// New connections to these ports are a TLS terminator's.
    pub fn set_terminated(&mut self, ports: HashSet<u16>) {
        self.terminators.ports = ports;
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
            self.terminators.answers.push((*key, asked, StoreOutcome::Unwatched));
        }
        self.act()
    }

    /// Watches a connection again that an earlier process of this host watched, and stores its
    /// record. [`Watch::take_answers`] has the result later; it is `Unwatched` if another replica
    /// has the connection, or this one has adopted it.
    ///
    /// # Errors
    /// A system call fails.
    pub fn register(
        &mut self,
        key: &FlowKey,
        asked: Asked,
        record: Record,
        adopted: bool,
    ) -> Result<(), HoldError> {
        self.catch_up()?;
        let served = self.services.get(&key.service()).map(|service| service.settings);
        let is_elsewhere = self.has(key) || self.hold.programs.pinned(key)?.is_some();
        // BPF programs that translated its numbers ended with the earlier process.
        let Some(settings) = served.filter(|_| !is_elsewhere && record.handshake.stamps.is_none()) else {
            self.terminators.answers.push((*key, asked, StoreOutcome::Unwatched));
            return Ok(());
        };
        let connection = Connection::registered(asked, record, adopted, &settings, now_ms(), &mut self.said);
        if let Err(error) = self.hold.programs.insert(key, &connection.limits(connection.limits.data)) {
            tracing::debug!(%error, client = %key.client(), "not registered");
            self.said.clear();
            self.terminators.answers.push((*key, asked, StoreOutcome::Unwatched));
            return Ok(());
        }
        tracing::debug!(client = %key.client(), "registered");
        self.terminators.forget_begun(key, &mut self.status.unprotected);
        self.connections.insert(*key, connection);
        self.actions.extend(self.said.drain(..).map(|action| (*key, action)));
        self.act()
    }

    /// Whether the kernel had the connection when this process began, so that the terminator may
    /// still register it.
    pub fn awaits_registration(&mut self, key: &FlowKey) -> bool {
        self.terminators.may_register(key)
    }

    /// Handshake and record version of a terminator's connection.
    pub fn identity(&self, key: &FlowKey) -> Option<(Handshake, u32)> {
        self.connections.get(key)?.flow.identity()
    }

    /// Whether the connection is a terminator's and its record is stored under this process.
    pub fn is_stored(&self, key: &FlowKey) -> bool {
        self.connections
            .get(key)
            .is_some_and(|connection| connection.stored && connection.flow.is_terminated())
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
        std::mem::take(&mut self.terminators.answers)
    }
}
