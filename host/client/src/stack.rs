//! The handle to a stack thread.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rivulet_pktio::IoChoice;
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection};

use crate::connection::{Permit, Shared};
use crate::core::Core;
use crate::destinations::Destination;
use crate::driver::NewConnection;
use crate::end::End;
use crate::error::ConnectError;
use crate::next_hop::{self, NextHop};
use crate::port::LocalPort;
use crate::stream::Stream;
use crate::tokens::{RememberError, Store, state_folder};

/// A user-space stack: one thread for any number of connections. The thread ends when the last
/// handle or stream is dropped.
#[derive(Clone)]
pub struct Stack {
    pub(crate) core: Arc<Core>,
    /// Opens a new connection for every connect, without sharing.
    separate: bool,
}

impl Stack {
    /// Starts the thread. Interfaces are opened with the first connection.
    pub fn start() -> io::Result<Stack> {
        Stack::with_config(Config::default())
    }

    /// As [`start`](Self::start), with a configuration for every connection. Its `mtu` and `seed`
    /// are ignored.
    pub fn with_config(config: Config) -> io::Result<Stack> {
        Stack::with_io(config, IoChoice::default())
    }

    /// As [`with_config`](Self::with_config), with a choice of packet I/O. If an interface does not
    /// support it, [`connect`](Self::connect) fails.
    pub fn with_io(config: Config, io: IoChoice) -> io::Result<Stack> {
        Ok(Stack { core: Arc::new(Core::start(config, io)?), separate: false })
    }

    /// What this stack has learned about a destination; `None` if nothing, or too long ago.
    #[must_use]
    pub fn destination(&self, remote: SocketAddr) -> Option<Destination> {
        self.core.destinations.get(remote)
    }

    /// Keeps unused address tokens in a file in this folder when the stack ends, for the user's
    /// next stack. Creates the folder if it is missing. The first call counts. Without a call the
    /// tokens are lost with the stack.
    ///
    /// # Errors
    /// [`RememberError`]: tokens will not be kept, and files in the folder are unchanged.
    pub fn remember(&self, folder: &Path) -> Result<(), RememberError> {
        self.core.destinations.remember(Store::open(folder)?);
        Ok(())
    }

    /// As [`remember`](Self::remember), in this user's [state folder](crate::state_folder) if there
    /// is one. A failure is only logged.
    pub fn remember_for_user(&self) {
        if let Some(folder) = state_folder()
            && let Err(e) = self.remember(&folder)
        {
            tracing::warn!(error = %e, "address tokens are not kept");
        }
    }

    /// A handle to the same stack that opens a separate connection, with a separate window, for
    /// each connect, like plain TCP.
    #[must_use]
    pub fn separate(&self) -> Stack {
        Stack { core: self.core.clone(), separate: true }
    }

    /// Ends the stack before its last handle is dropped, for a process that is about to exit.
    /// Connections without streams close, and nothing is sent or received afterwards. A connection
    /// whose window is worth keeping first returns it in exchange for a token, which takes a round
    /// trip, 300 ms at most. Threads that still wait for a stream wait forever.
    pub fn end(&self) {
        self.core.end(true);
    }

    /// Opens a stream to `remote`, on the existing connection or a new one. The SYN of a new
    /// connection leaves with the first data written, or without data on [`Stream::connect_now`].
    /// Returns as soon as the next hop is known; blocks only for neighbour discovery.
    pub fn connect(&self, remote: SocketAddr) -> Result<Stream, ConnectError> {
        self.connect_from(remote, None)
    }

    /// As [`connect`](Self::connect), from a given local address or port (port 0: any). With a
    /// given port the connection is not shared.
    pub fn connect_from(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<Stream, ConnectError> {
        let core = &self.core;
        let permit = core.permit()?;
        let hop = next_hop::resolve(remote.ip())?;
        if hop.mac == [0; 6] {
            return Err(ConnectError::Local(remote.ip()));
        }
        let source =
            local.map(|a| a.ip()).filter(|ip| !ip.is_unspecified() && ip.is_ipv4() == remote.is_ipv4());
        let source = source.unwrap_or(hop.source);
        let wanted = SocketAddr::new(source, local.map_or(0, |a| a.port()));
        if self.separate || wanted.port() != 0 {
            let shared = self.open(remote, wanted, hop, permit, false)?;
            return Ok(Stream::new(End::first(shared), core.clone()));
        }
        let service = core.services.of(source, remote);
        let mut current = service.lock();
        if let Some(end) = current.upgrade().and_then(|shared| End::join(shared, permit.clone())) {
            return Ok(Stream::new(end, core.clone()));
        }
        let end = End::first(self.open(remote, wanted, hop, permit, true)?);
        *current = Arc::downgrade(&end.shared);
        Ok(Stream::new(end, core.clone()))
    }

    /// A new connection.
    fn open(
        &self,
        remote: SocketAddr,
        wanted: SocketAddr,
        hop: NextHop,
        permit: Permit,
        shares: bool,
    ) -> Result<Arc<Shared>, ConnectError> {
        self.open_with(remote, wanted, hop, permit, shares, |config, local, now| {
            Connection::open(config, local, remote, now)
        })
    }

    /// Gives the connection that `make` returns, for a configuration and a local address, to the stack thread.
    pub(crate) fn open_with(
        &self,
        remote: SocketAddr,
        wanted: SocketAddr,
        mut hop: NextHop,
        permit: Permit,
        shares: bool,
        make: impl FnOnce(Config, SocketAddr, Time) -> Connection,
    ) -> Result<Arc<Shared>, ConnectError> {
        let core = &self.core;
        let source = wanted.ip();
        let port = LocalPort::reserve(wanted, remote).map_err(|e| ConnectError::Port(source, e))?;
        let link = core.interfaces.prepare(&mut hop, source, port.address().port())?;
        let mtu = if hop.mtu == 0 { link.mtu } else { link.mtu.min(hop.mtu) };

        let known = core.destinations.get(remote).and_then(|d| d.path_mtu).map_or(mtu, u32::from);
        let mtu = mtu.min(known).clamp(576, 9216) as u16;
        let config = core.config.clone();
        let token = core.destinations.take_token(source, remote).or_else(|| config.token.clone());
        // Without randomness from the kernel, ISN and timestamps can be guessed but still work.
        let seed = getrandom::u64().unwrap_or_default();
        let config = Config { mtu, token, seed, ..config };
        let connection = make(config, port.address(), core.mailbox.now());
        let shared = Shared::new(core.next_id(), core.mailbox.clone(), connection, port, permit, shares);
        let shared = Arc::new(shared);
        core.open(NewConnection { shared: shared.clone(), hop })?;
        Ok(shared)
    }
}
