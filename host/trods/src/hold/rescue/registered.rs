//! Records that are not searched for: this host cannot resume their connections, or its terminator
//! has them.

use std::time::Instant;

use rivulet_bpf::trods::FlowKey;

use super::{Found, HoldError, Keeper, Rescue, Watch};
use crate::record::Record;

impl Rescue {
    /// Whether this replica can resume the connection from the record. If BPF programs made the
    /// timestamps, this replica needs such programs, and the state that the timestamps name must
    /// not be newer than the record.
    pub(super) fn can_resume<K: Keeper>(
        &self,
        record: &Record,
        key: &FlowKey,
        watch: &Watch<K>,
    ) -> Result<bool, HoldError> {
        let programs = watch.hold().programs();
        if record.handshake.stamps.is_none() {
            return Ok(true);
        }
        if !programs.issues() {
            tracing::warn!(client = %key.client(), "its timestamps cannot be made here");
            return Ok(false);
        }
        let own = programs.stamps().named(key)?;
        Ok(own.is_none_or(|own| record.acknowledged().wrapping_sub(own.client_next) as i32 > 0))
    }

    /// Ends the search for a connection because the terminator, which still has it, registers it.
    ///
    /// # Errors
    /// A system call fails.
    pub fn cancel<K: Keeper>(&mut self, key: &FlowKey, watch: &Watch<K>) -> Result<(), HoldError> {
        let Some(orphan) = self.orphans.remove(key) else { return Ok(()) };
        let Found { origin, stored, .. } = orphan.found;
        self.outdated.extend(origin.map(|origin| (Instant::now(), origin, stored)));
        watch.hold().programs().unpark(key).map_err(HoldError::from)
    }

    /// Deletes a record of an earlier process or replica if this host has the terminator's
    /// connection and a newer record of it.
    pub(super) fn outdate<K: Keeper>(&mut self, key: &FlowKey, found: Found, watch: &Watch<K>) {
        if found.record.tls.is_some() && watch.is_stored(key) {
            self.outdated.extend(found.origin.map(|origin| (Instant::now(), origin, found.stored)));
        }
    }
}
