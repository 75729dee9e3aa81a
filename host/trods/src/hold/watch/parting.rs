//! Connections that are not to stay: that their server ended where it should not, that move, that another replica holds, and on which nobody
//! says anything.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::{HoldError, Keeper, Watch, now_ms};
use crate::flow::{Action, Flow, Reason};
use crate::hold::connection::Connection;
use crate::record::{Age, Record};

/// Connections of others that are remembered; beyond it all are forgotten, as if they had not been seen.
const MAX_ELSEWHERE: usize = 65_536;
/// Connections that the kernel was ending when the process began; what is beyond it ends without a word.
const MAX_CLOSING: usize = 8192;
/// The kernel ends these when their records must have been read, if there are any.
const CLOSING: Duration = Duration::from_secs(1);
/// Connections that are looked at at once.
const SWEPT: usize = 256;

impl<K: Keeper> Watch<K> {
    /// Connections whose server sent FIN or RST where it should not, since this was called last, to be [judged](Watch::judge).
    pub fn ended_early(&mut self) -> Vec<FlowKey> {
        std::mem::take(&mut self.early)
    }

    /// Clients of connections that the kernel does not know and did not reset, since this was called last, and what they acknowledged.
    pub fn refused(&mut self) -> Vec<(FlowKey, u32)> {
        std::mem::take(&mut self.refused)
    }

    /// Keeps what the kernel was ending when this process began. A record may tell how to go on with it: then its FIN must not leave. Of what has
    /// none the kernel alone knows, and its client may only be waiting: forgotten at once it would be reset by no replica.
    ///
    /// # Errors
    /// The system's.
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

    /// Has the kernel reset the clients of connections that it was ending when this process began, which no record tells of. To be called ten
    /// times a second or so.
    ///
    /// # Errors
    /// The system's.
    pub fn reset_closing(
        &mut self,
        now: Instant,
        looks_for: impl Fn(&FlowKey) -> bool,
    ) -> Result<(), HoldError> {
        for (key, mut since) in std::mem::take(&mut self.closing) {
            // Whichever replica goes on with it has had its socket forgotten.
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
            since = self.speaks(&key.service()).then(|| since.unwrap_or(now));
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

    /// The client of a connection that was adopted is reset.
    ///
    /// # Errors
    /// The system's.
    pub fn refuse(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.let_go(key, Reason::Closed)
    }

    /// A connection that was adopted, and on which nothing is said, was closed.
    ///
    /// # Errors
    /// The system's.
    pub fn leave(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        connection.leaves = true;
        let acked = self.hold.programs.limits(key)?.map_or(connection.first, |l| l.acked);
        if self.hold.programs.set_limits(key, &connection.limits(acked))? {
            self.hold.send_withheld(key)?;
        }
        Ok(())
    }

    /// Says of a connection that ended early whether its server accepts others. One that lives meant it, and the connection is let
    /// go. If its process died, or it was adopted, and there is a server now, the connection is to be adopted on this host: then this gives its
    /// record. It is parked, and nothing else is left of it here but its place in the store. Elsewhere it waits for whoever
    /// adopts it, or to be told of again.
    ///
    /// # Errors
    /// The system's.
    pub fn judge(&mut self, key: &FlowKey, accepts: bool) -> Result<Option<Record>, HoldError> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let (died, adopted) = (connection.died, connection.adopted);
        tracing::debug!(client = %key.client(), accepts, died, adopted, "ended early");
        connection.judged = false;
        if !accepts {
            // A server that is started again at once is missed by nobody else.
            connection.note_early(key, &mut self.early);
            return Ok(None);
        }
        if !connection.died && !connection.adopted {
            self.let_go(key, Reason::Closed)?;
            return Ok(None);
        }
        let served = self.services.get(&key.service());
        let Some(record) =
            connection.flow.settled().filter(|_| served.is_some_and(|s| s.speaks(&self.leases)))
        else {
            connection.note_early(key, &mut self.early);
            return Ok(None);
        };
        // It came before the end of the client's was stored, and has left since: only the client's last word is missing.
        if !connection.died && connection.flow.closes() && !connection.flow.ends_early() {
            return Ok(None);
        }
        self.withdraw(key)?;
        Ok(Some(record))
    }

    /// Parks a connection that is to be adopted on this host: nothing else is left of it here but its place in the store.
    ///
    /// # Errors
    /// The system's.
    pub fn withdraw(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.hold.programs.park(key)?;
        self.drop_socket(key)
    }

    /// Has a client's packet come in that nobody heard.
    pub fn hear_again(&mut self, key: &FlowKey, packet: &[u8]) {
        self.hold.hear_again(key, packet);
    }

    /// The connections of these services.
    #[must_use]
    pub fn keys(&self, services: &[SocketAddr]) -> Vec<FlowKey> {
        self.connections.keys().filter(|key| services.contains(&key.service())).copied().collect()
    }

    /// The record from which another replica can go on with a connection as it is now, while this one may speak on it.
    ///
    /// # Errors
    /// The system's.
    pub fn movable(&mut self, key: &FlowKey) -> Result<Option<Record>, HoldError> {
        // What its client said since the last turn nobody else would hear.
        self.catch_up()?;
        let Some(connection) = self.connections.get_mut(key) else { return Ok(None) };
        let served = self.services.get(&key.service());
        if !served.is_some_and(|s| s.speaks(&self.leases)) {
            return Ok(None);
        }
        if let Some(limits) = self.hold.programs.limits(key)? {
            connection.flow.acknowledged(limits.acked);
        }
        Ok(connection.flow.movable())
    }

    /// A connection is another replica's from now on: nothing is said on it here any more, and nothing is left of it but its
    /// place in the store.
    ///
    /// # Errors
    /// The system's.
    pub fn move_to(&mut self, key: &FlowKey, to: Pin) -> Result<(), HoldError> {
        // First of all it is muted.
        self.hold.programs.pin(key, to)?;
        self.drop_socket(key)
    }

    /// Leaves of a connection that is parked or pinned what others, or it itself later, go on with: its place in the store.
    fn drop_socket(&mut self, key: &FlowKey) -> Result<(), HoldError> {
        self.hold.clear(key)?;
        if let Some(connection) = self.connections.remove(key) {
            for frame in connection.held {
                self.hold.forget(frame);
            }
        }
        self.hold.abort(key)
    }

    /// The client of a connection that was to be adopted on this host is gone.
    pub fn forget(&mut self, key: &FlowKey) {
        self.keeper.forget(key);
    }

    /// Looks at some connections, others each time: one on which nothing was said for [so long](Self::set_idle) is over, since
    /// its server, or the server's kernel, has given it up; a record that is [stale](Keeper::is_stale) is stored again. To be
    /// called ten times a second or so.
    ///
    /// # Errors
    /// The system's.
    pub fn sweep(&mut self) -> Result<(), HoldError> {
        let now = now_ms();
        if self.swept.is_empty() {
            self.swept.extend(self.connections.keys());
        }
        for key in self.swept.split_off(self.swept.len().saturating_sub(SWEPT)) {
            let Some(connection) = self.connections.get_mut(&key) else { continue };
            // Without limits the programs have forgotten it, for another one between its ports that never began.
            let limits = self.hold.programs.limits(&key)?;
            let idle = self.idle.as_millis() as u64;
            if limits.is_some_and(|limits| connection.speaks(limits.acked, now) + idle > now) {
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

    /// Another replica has a record of a connection: if this one knows nothing newer, that one went on with it, and nothing is
    /// said on it here any more. False if it does, of its own or of a third one's: what one that died meanwhile had read lies
    /// where it was until somebody deletes it.
    ///
    /// # Errors
    /// The system's.
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

    /// Whether another replica was seen to know more of a connection than a record says that was left behind: that one goes on.
    #[must_use]
    pub fn is_elsewhere(&self, key: &FlowKey, left: &Age) -> bool {
        self.elsewhere.get(key).is_some_and(|theirs| theirs.is_after(left))
    }

    /// Whether a connection is watched.
    #[must_use]
    pub fn has(&self, key: &FlowKey) -> bool {
        self.connections.contains_key(key)
    }

    /// Whether this replica knows more of a connection than a record of another's.
    #[must_use]
    pub fn is_ahead(&self, key: &FlowKey, theirs: &Age) -> bool {
        self.connections.get(key).is_some_and(|connection| !connection.flow.is_behind(theirs))
    }

    /// Gives up what is here of a connection, in the kernel too: it is gone on with at another place of its sequence numbers. What
    /// the kernel says at that does not leave, since the connection is pinned or parked.
    ///
    /// # Errors
    /// The system's.
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
