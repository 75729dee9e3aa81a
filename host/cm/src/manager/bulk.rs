//! Bulk calls: many operations in one crossing of the user-kernel boundary (the paper's §5,
//! "Optimizations").

use super::{MAX_BULK, Manager, Status, Update};
use crate::{Error, FlowId, Nanos};

impl Manager {
    /// Calls [`Manager::request`] for each flow (`cm_bulk_request`) and returns the results in
    /// order.
    ///
    /// # Errors
    /// More than [`MAX_BULK`] operations; then none is done.
    pub fn bulk_request(&mut self, now: Nanos, flows: &[FlowId]) -> Result<Vec<Result<(), Error>>, Error> {
        check(flows.len())?;
        Ok(flows.iter().map(|flow| self.request(now, *flow)).collect())
    }

    /// Calls [`Manager::notify`] for each item (`cm_bulk_notify`).
    ///
    /// # Errors
    /// As [`Manager::bulk_request`].
    pub fn bulk_notify(
        &mut self,
        now: Nanos,
        sent: &[(FlowId, u32)],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        check(sent.len())?;
        Ok(sent.iter().map(|(flow, nsent)| self.notify(now, *flow, *nsent)).collect())
    }

    /// Calls [`Manager::update`] for each item (`cm_bulk_update`).
    ///
    /// # Errors
    /// As [`Manager::bulk_request`].
    pub fn bulk_update(
        &mut self,
        now: Nanos,
        updates: &[(FlowId, Update)],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        check(updates.len())?;
        Ok(updates.iter().map(|(flow, update)| self.update(now, *flow, *update)).collect())
    }

    /// Calls [`Manager::query`] for each flow (`cm_bulk_query`).
    ///
    /// # Errors
    /// As [`Manager::bulk_request`].
    pub fn bulk_query(
        &mut self,
        now: Nanos,
        flows: &[FlowId],
    ) -> Result<Vec<Result<Option<Status>, Error>>, Error> {
        check(flows.len())?;
        Ok(flows.iter().map(|flow| self.query(now, *flow)).collect())
    }
}

fn check(count: usize) -> Result<(), Error> {
    if count > MAX_BULK { Err(Error::Bulk) } else { Ok(()) }
}
