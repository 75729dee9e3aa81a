//! One call for many flows: the paper's way to cross a boundary once (§5, "Optimizations").

use super::{MAX_BULK, Manager, Status, Update};
use crate::{Error, FlowId, Nanos};

impl Manager {
    /// [`Manager::request`] for each of these (`cm_bulk_request`).
    ///
    /// # Errors
    /// There are more than [`MAX_BULK`]; then nothing is done. What became of each is told in their order.
    pub fn bulk_request(&mut self, now: Nanos, flows: &[FlowId]) -> Result<Vec<Result<(), Error>>, Error> {
        check(flows.len())?;
        Ok(flows.iter().map(|flow| self.request(now, *flow)).collect())
    }

    /// [`Manager::notify`] for each of these (`cm_bulk_notify`).
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

    /// [`Manager::update`] for each of these (`cm_bulk_update`).
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

    /// [`Manager::query`] for each of these (`cm_bulk_query`).
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
