//! Ends the watch of connections: closed too early by their server, moved, held by another replica,
//! or idle.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::closing::Closing;
use super::{HoldError, Keeper, Watch, now_ms};
use crate::flow::{Action, Flow, Reason};
use crate::hold::connection::Connection;
use crate::record::{Age, Record};

/// Limit on the remembered records of other replicas; when it is exceeded, all are forgotten.
const MAX_ELSEWHERE: usize = 65_536;
/// Limit on the connections that the kernel was closing when the process started; further ones end
/// without a segment to the client.
const MAX_CLOSING: usize = 8192;
/// Time after which the kernel resets these; by then their records have been read, if there are
/// any.
const CLOSING: Duration = Duration::from_secs(1);
/// Number of connections checked in one call.
const SWEPT: usize = 256;

impl<K: Keeper> Watch<K> {
    /// Connections on which the server sent a FIN or RST in a place where none may pass, since the
    /// last call; [`Watch::judge`] decides about each.
    pub fn ended_early(&mut self) -> Vec<FlowKey> {
        std::mem::take(&mut self.early)
    }

    /// Clients of connections that the kernel does not know and did not reset, or whose RST may have
    /// been lost, since the last call, with their acknowledgement numbers.
    pub fn refused(&mut self) -> Vec<(FlowKey, u32)> {
        std::mem::take(&mut self.refused)
    }

    /// Notes the connections that the kernel was closing when this process started. If a record of
    /// one exists, its FIN must not be sent. Without a record only the kernel knows the connection,
    /// and its client may be waiting: if the kernel dropped it at once, no replica would reset the
    /// client.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn keep_closing(&mut self, service: SocketAddr) -> Result<(), HoldError> {
        for client in self.hold.closing(service)? {
            let key = FlowKey::new(client, service);
            self.hold.programs.park(&key)?;
            if self.closing.len() < MAX_CLOSING {
                self.closing.insert(key, Closing::default());
            } else {
                self.hold.abort(&key)?;
                self.hold.programs.unpark(&key)?;
            }
        }
        Ok(())
    }

    /// Makes the kernel reset the clients of connections that it was closing when this process
    /// started and that have no record. That RST may be lost, or not be at the sequence number that
    /// the client expects, and no TCP repeats it: the clients are among the [refused](Self::refused)
    /// and are probed. To be called about ten times a second.
    ///
    /// # Errors
    /// A system call fails.
    pub fn reset_closing(
        &mut self,
        now: Instant,
        looks_for: impl Fn(&FlowKey) -> bool,
    ) -> Result<(), HoldError> {
        for (key, mut closing) in std::mem::take(&mut self.closing) {
            // The adopter has removed this socket from the kernel.
            if self.connections.contains_key(&key) {
                continue;
            }
            if looks_for(&key) {
                self.hold.abort(&key)?;
                continue;
            }
            if self.hold.programs.pinned(&key)?.is_some() {
                self.hold.abort(&key)?;
                self.hold.programs.unpark(&key)?;
                continue;
            }
            closing.since = self.may_send(&key.service()).then(|| closing.since.unwrap_or(now));
            if closing.since.is_none_or(|since| now.saturating_duration_since(since) < CLOSING) {
                self.closing.insert(key, closing);
                continue;
            }
            tracing::debug!(client = %key.client(), "reset the client: its connection ended with its server and has no record");
            self.hold.programs.unpark(&key)?;
            self.hold.abort(&key)?;
            self.refused.push((key, closing.acked));
        }
        Ok(())
    }

    /// Resets the client of an adopted connection.
    ///
    /// # Errors
    /// A system call fails.
    pub fn refuse(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.let_go(key, Reason::Closed)
    }

    /// Closes an adopted connection that is idle.
    ///
    /// # Errors
    /// A system call fails.
    pub fn leave(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.leaves = true;
        let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
        if self.hold.programs.set_limits(key, &connection.limits(acked))? {
            self.hold.send_withheld(key)?;
        }
        Ok(())
    }

    /// Decides about a connection that its server closed too early; `accepts`: the server accepts
    /// connections. If the server's process lives, the close was intended, and the limits are
    /// removed. If its process died, or this process relays the connection, and a server accepts
    /// connections now, this host can adopt the connection: its record is returned, it is parked,
    /// and only its number in the store is kept here. Otherwise it waits for an adopter or the next
    /// call.
    ///
    /// # Errors
    /// A system call fails.
    pub fn judge(&mut self, key: &FlowKey, accepts: bool) -> Result<Option<Record>, HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let (died, relayed) = (connection.died, connection.is_relayed());
        // The terminator's announcement of its FIN came behind it.
        if !died && connection.flow.closes() && !connection.flow.ends_early() {
            connection.judged = false;
            return Ok(None);
        }
        tracing::debug!(client = %key.client(), accepts, died, relayed, "ended early");
        connection.judged = false;
        if !accepts {
            // No other event shows a server that restarts at once.
            connection.note_early(key, &mut self.early);
            return Ok(None);
        }
        if !died && !relayed {
            self.let_go(key, Reason::Closed)?;
            return Ok(None);
        }
        let served = self.services.get(&key.service());
        let Some(record) =
            connection.flow.settled().filter(|_| served.is_some_and(|s| s.may_send(&self.leases)))
        else {
            connection.note_early(key, &mut self.early);
            return Ok(None);
        };
        // The server's FIN was held until the client's FIN was stored, and has been sent since:
        // only the client's last ACK is missing.
        if !connection.died && connection.flow.closes() && !connection.flow.ends_early() {
            return Ok(None);
        }
        self.withdraw(key)?;
        Ok(Some(record))
    }

    /// Parks a connection that this host will adopt: only its number in the store is kept here.
    ///
    /// # Errors
    /// A system call fails.
    pub fn withdraw(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.hold.programs.park(key)?;
        self.drop_socket(key)
    }

    /// Replays a parked packet of a client.
    pub fn hear_again(&mut self, key: &FlowKey, packet: &[u8]) {
        self.hold.hear_again(key, packet);
    }

    /// Lists the connections of these services.
    #[must_use]
    pub fn keys(&self, services: &[SocketAddr]) -> Vec<FlowKey> {
        self.connections.keys().filter(|key| services.contains(&key.service())).copied().collect()
    }

    /// The record with which another replica can resume a connection in its present state; `None`
    /// if it has none.
    ///
    /// # Errors
    /// A system call fails.
    pub fn movable(&mut self, key: &FlowKey) -> Result<Option<Record>, HoldError> {
        // Client data since the last turn is only here, so it must be seen first.
        self.catch_up()?;
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let served = self.services.get(&key.service());
        if !served.is_some_and(|s| s.may_send(&self.leases)) {
            return Ok(None);
        }
        if let Some(limits) = self.hold.programs.limits(key)? {
            connection.flow.acknowledged(limits.acked);
        }
        Ok(connection.flow.movable())
    }

    /// Leaves a connection to another replica: nothing more is sent on it here, and only its number
    /// in the store is kept.
    ///
    /// # Errors
    /// A system call fails.
    pub fn move_to(&mut self, key: &FlowKey, to: Pin) -> Result<(), HoldError> {
        // The connection is muted before its state is dropped.
        self.hold.programs.pin(key, to)?;
        self.drop_socket(key)
    }

    /// Drops a parked or pinned connection here, except for its number in the store, which the next
    /// adopter needs.
    fn drop_socket(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.hold.clear(key)?;
        if let Some(connection) = self.connections.remove(key) {
            for frame in connection.held {
                self.hold.forget(frame);
            }
        }
        self.hold.abort(key)
    }

    /// Ends a connection that this host was to adopt, because its client is gone.
    pub fn forget(&mut self, key: &FlowKey) {
        self.keeper.forget(key);
    }

    /// Checks the next few connections. One without an event for the [idle time](Self::set_idle)
    /// counts as closed, because its server, or the server's kernel, has given it up; a
    /// [stale](Keeper::is_stale) record is stored again. To be called about ten times a second.
    ///
    /// # Errors
    /// A system call fails.
    pub fn sweep(&mut self) -> Result<(), HoldError> {
        let now = now_ms();
        if self.swept.is_empty() {
            self.swept.extend(self.connections.keys());
        }
        for key in self.swept.split_off(self.swept.len().saturating_sub(SWEPT)) {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            // The BPF map has no limits for it: a later SYN between the same ports replaced it, and
            // that connection never began.
            let limits = self.hold.programs.limits(&key)?;
            let idle = self.idle.as_millis() as u64;
            if limits.is_some_and(|limits| connection.last_activity(limits.acked, now) + idle > now) {
                if self.keeper.is_stale(&key) {
                    self.tell(&key, Flow::renew);
                }
                continue;
            }
            if let Some(connection) = self.connections.remove(&key) {
                self.end(&key, connection)?;
            }
        }
        self.act()
    }

    fn let_go(&mut self, key: &FlowKey, reason: Reason) -> Result<(), HoldError> {
        self.tell(key, |flow, out| flow.let_go(reason, out));
        self.act()
    }

    /// Notes that another replica has a record of a connection. Unless the state here is newer,
    /// that replica has resumed it, and nothing more is sent on it here. Returns `false` if this
    /// replica, or a third one, has a newer state: records that a dead adopter had read stay in the
    /// store until they are deleted.
    ///
    /// # Errors
    /// A system call fails.
    pub fn hand_over(&mut self, key: &FlowKey, to: Pin, theirs: &Age) -> Result<bool, HoldError> {
        let is_outdated = self.is_ahead(key, theirs) || self.is_elsewhere(key, theirs);
        tracing::debug!(client = %key.client(), ?theirs, holder = to.holder, is_outdated, "held elsewhere");
        if is_outdated {
            return Ok(false);
        }
        // The connection is muted before its state is dropped.
        self.hold.programs.pin(key, to)?;
        if self.elsewhere.len() >= MAX_ELSEWHERE {
            self.elsewhere.clear();
        }
        self.elsewhere.insert(*key, *theirs);
        self.abandon(key)?;
        Ok(true)
    }

    /// Whether another replica was seen to have a newer state of a connection than the record of
    /// age `left`.
    #[must_use]
    pub fn is_elsewhere(&self, key: &FlowKey, left: &Age) -> bool {
        self.elsewhere.get(key).is_some_and(|theirs| theirs.is_after(left))
    }

    /// Whether a connection is watched.
    #[must_use]
    pub fn has(&self, key: &FlowKey) -> bool {
        self.connections.contains_key(key)
    }

    /// Whether this replica has a newer state of a connection than another replica's record.
    #[must_use]
    pub fn is_ahead(&self, key: &FlowKey, theirs: &Age) -> bool {
        self.connections.get(key).is_some_and(|connection| !connection.flow.is_behind(theirs))
    }

    /// Drops all state of a connection, in the kernel too, because it is resumed at another
    /// sequence number. The connection is pinned or parked, so segments that the kernel sends
    /// meanwhile are not let through.
    ///
    /// # Errors
    /// A system call fails.
    pub fn abandon(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        if let Some(connection) = self.connections.remove(key) {
            self.end(key, connection)?;
        }
        self.hold.clear(key)?;
        self.hold.abort(key)
    }

    /// Removes the limits of a connection that has ended, and forgets it.
    pub(super) fn end(&mut self, key: &FlowKey, mut connection: Connection) -> Result<(), HoldError> {
        connection.flow.closed(&mut self.said);
        if self.said.drain(..).any(|action| action == Action::Forget) {
            self.keeper.forget(key);
        }
        self.hold.programs.free(key)?;
        for frame in connection.held {
            self.hold.forget(frame);
        }
        Ok(())
    }
}
