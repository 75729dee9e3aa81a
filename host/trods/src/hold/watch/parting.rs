//! Connections that leave the watch: ended too early by their server, moved, held by another
//! replica, or idle.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::{HoldError, Keeper, Watch, now_ms};
use crate::flow::{Action, Flow, Reason};
use crate::hold::connection::Connection;
use crate::record::{Age, Record};

/// Maximum number of remembered connections of others; when it is exceeded all are forgotten.
const MAX_ELSEWHERE: usize = 65_536;
/// Most connections that the kernel was closing when the process began; further ones end silently.
const MAX_CLOSING: usize = 8192;
/// Time after which the kernel ends these: by then their records have been read, if there are any.
const CLOSING: Duration = Duration::from_secs(1);
/// Number of connections that are checked at a time.
const SWEPT: usize = 256;

impl<K: Keeper> Watch<K> {
    /// Connections with a FIN or RST of their server at the wrong place, since the last call, to be
    /// [judged](Watch::judge).
    pub fn ended_early(&mut self) -> Vec<FlowKey> {
        std::mem::take(&mut self.early)
    }

    /// Clients of connections that the kernel does not know and did not reset, since the last call, with their
    /// acknowledgement numbers.
    pub fn refused(&mut self) -> Vec<(FlowKey, u32)> {
        std::mem::take(&mut self.refused)
    }

    /// Notes the connections that the kernel was closing when this process began. A record may
    /// exist for one of them: then its FIN must not leave. Without a record only the kernel knows
    /// the connection, and its client may be waiting: if the kernel forgot it at once, no replica
    /// would reset the client.
    ///
    /// # Errors
    /// A system call fails.
    pub(super) fn keep_closing(&mut self, service: SocketAddr) -> Result<(), HoldError> {
        for client in self.hold.closing(service)? {
            let key = FlowKey::new(client, service);
            self.hold.programs.park(&key)?;
            if self.closing.len() < MAX_CLOSING {
                self.closing.insert(key, None);
            } else {
                self.hold.abort(&key)?;
                self.hold.programs.unpark(&key)?;
            }
        }
        Ok(())
    }

    /// Makes the kernel reset the clients of connections that it was closing when this process
    /// began and that have no record. To be called about ten times a second.
    ///
    /// # Errors
    /// A system call fails.
    pub fn reset_closing(
        &mut self,
        now: Instant,
        looks_for: impl Fn(&FlowKey) -> bool,
    ) -> Result<(), HoldError> {
        for (key, mut since) in std::mem::take(&mut self.closing) {
            // The adopter has made this kernel forget the socket.
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
            since = self.may_send(&key.service()).then(|| since.unwrap_or(now));
            if since.is_none_or(|since| now.saturating_duration_since(since) < CLOSING) {
                self.closing.insert(key, since);
                continue;
            }
            tracing::debug!(client = %key.client(), "reset: it ended with its server, and no record tells of it");
            self.hold.programs.unpark(&key)?;
            self.hold.abort(&key)?;
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

    /// Reports for a connection that ended early whether its server accepts others. A living server
    /// meant the end, and the limits are removed. If its process died, or the connection was
    /// adopted, and there is a server now, the connection can be adopted on this host: this returns
    /// its record. It is parked then, and only its number in the store is left here. Otherwise it
    /// waits for an adopter or the next report.
    ///
    /// # Errors
    /// A system call fails.
    pub fn judge(&mut self, key: &FlowKey, accepts: bool) -> Result<Option<Record>, HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let (died, adopted) = (connection.died, connection.adopted);
        tracing::debug!(client = %key.client(), accepts, died, adopted, "ended early");
        connection.judged = false;
        if !accepts {
            // A server that restarts at once is not detected otherwise.
            connection.note_early(key, &mut self.early);
            return Ok(None);
        }
        if !connection.died && !connection.adopted {
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
        // The server's FIN came before the client's FIN was stored, and has left since: only the client's last ACK is missing.
        if !connection.died && connection.flow.closes() && !connection.flow.ends_early() {
            return Ok(None);
        }
        self.withdraw(key)?;
        Ok(Some(record))
    }

    /// Parks a connection that will be adopted on this host: only its number in the store is left
    /// here.
    ///
    /// # Errors
    /// A system call fails.
    pub fn withdraw(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.hold.programs.park(key)?;
        self.drop_socket(key)
    }

    /// Replays a client's packet that was parked.
    pub fn hear_again(&mut self, key: &FlowKey, packet: &[u8]) {
        self.hold.hear_again(key, packet);
    }

    /// Lists the connections of these services.
    #[must_use]
    pub fn keys(&self, services: &[SocketAddr]) -> Vec<FlowKey> {
        self.connections.keys().filter(|key| services.contains(&key.service())).copied().collect()
    }

    /// The record with which another replica can resume a connection as it is now, while this one
    /// may send on it.
    ///
    /// # Errors
    /// A system call fails.
    pub fn movable(&mut self, key: &FlowKey) -> Result<Option<Record>, HoldError> {
        // Includes the client's data since the last turn, which no other replica has.
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
    /// in the store is left.
    ///
    /// # Errors
    /// A system call fails.
    pub fn move_to(&mut self, key: &FlowKey, to: Pin) -> Result<(), HoldError> {
        // First of all it is muted.
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

    /// Ends a connection that was to be adopted on this host, because its client is gone.
    pub fn forget(&mut self, key: &FlowKey) {
        self.keeper.forget(key);
    }

    /// Checks some connections, different ones each time. A connection that was idle for the [idle
    /// time](Self::set_idle) is over, because its server, or the server's kernel, has given it up;
    /// a [stale](Keeper::is_stale) record is stored again. To be called about ten times a second.
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
            // The programs have no limits for it: a later SYN between the same ports replaced it, and that connection never began.
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

    /// Another replica has a record of a connection. Unless this one has a newer state, the other
    /// has resumed it, and nothing more is sent on it here. False if this one, or a third replica,
    /// has a newer state: records that a dead adopter had read stay in place until they are
    /// deleted.
    ///
    /// # Errors
    /// A system call fails.
    pub fn hand_over(&mut self, key: &FlowKey, to: Pin, theirs: &Age) -> Result<bool, HoldError> {
        let is_outdated = self.is_ahead(key, theirs) || self.is_elsewhere(key, theirs);
        tracing::debug!(client = %key.client(), ?theirs, holder = to.holder, is_outdated, "held elsewhere");
        if is_outdated {
            return Ok(false);
        }
        // First of all it is muted.
        self.hold.programs.pin(key, to)?;
        if self.elsewhere.len() >= MAX_ELSEWHERE {
            self.elsewhere.clear();
        }
        self.elsewhere.insert(*key, *theirs);
        self.abandon(key)?;
        Ok(true)
    }

    /// Whether another replica was seen to have a newer state of a connection than a record that
    /// was left behind.
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

    /// Drops all state of a connection, in the kernel too: it is resumed at another sequence
    /// number. Segments that the kernel sends meanwhile do not leave, because the connection is
    /// pinned or parked.
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

    /// Frees a connection that is no more, and forgets it.
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
