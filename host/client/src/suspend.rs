//! Suspension of a connection, and its resumption by another process, on another machine, or from another address
//! (section 1).

use std::net::SocketAddr;

use rivulet_transport::client::{Config, Connection, ResumeError};

use crate::connection::{Ending, MAIN};
use crate::end::End;
use crate::error::ConnectError;
use crate::next_hop;
use crate::stack::Stack;
use crate::stream::Stream;

/// Why a suspended connection cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumptionError {
    /// The bytes are not those of [`Stack::suspend`].
    #[error(transparent)]
    Damaged(#[from] ResumeError),
    /// No connection can be opened to its server.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Stack {
    /// Ends a stream and its connection here, and serializes the connection for [`resume`](Self::resume). Bytes that
    /// were received and not read are part of it; requests in flight are sent again after the resumption. `None`: the
    /// connection has other streams, is not open, or is plain TCP, and `stream` has ended all the same.
    #[must_use]
    pub fn suspend(&self, stream: Stream) -> Option<Vec<u8>> {
        let shared = stream.shared().clone();
        let suspended = {
            let mut state = shared.state.lock();
            let is_alone = state.ending == Ending::Open && state.lines.keys().eq([&MAIN]);
            if !is_alone || stream.end.id != MAIN {
                return None;
            }
            let (config, now) = (Config::default(), shared.mailbox.now());
            // Nothing was written to the replacement, so it sends nothing when it closes.
            let idle = Connection::open(config, state.connection.local(), shared.remote, now);
            let connection = std::mem::replace(&mut state.connection, idle);
            state.finish_with(Ending::Aborted);
            connection.suspend()
        };
        drop(stream);
        shared.touch();
        suspended
    }

    /// Resumes a suspended connection, from any address. The server checks that the address is this machine's before it
    /// sends more than it gets. A stream whose server refuses it, because the keys of that time are gone, fails at the
    /// next read.
    pub fn resume(&self, suspended: &[u8]) -> Result<Stream, ResumptionError> {
        let core = &self.core;
        let local = SocketAddr::from(([0, 0, 0, 0], 0));
        let remote = Connection::resume(suspended, core.config.clone(), local, core.mailbox.now())?.remote();
        let permit = core.permit()?;
        let hop = next_hop::resolve(remote.ip()).map_err(ConnectError::from)?;
        if hop.mac == [0; 6] {
            return Err(ConnectError::Local(remote.ip()).into());
        }
        let wanted = SocketAddr::new(hop.source, 0);
        let shared = self.open_with(remote, wanted, hop, permit, false, |config, local, now| {
            // It was read above. A new connection, to which nothing is written, fails at the application's timeout.
            Connection::resume(suspended, config.clone(), local, now)
                .unwrap_or_else(|_| Connection::open(config, local, remote, now))
        })?;
        let end = End::first(shared.clone());
        shared.state.lock().connected = true;
        Ok(Stream::new(end, core.clone()))
    }
}
