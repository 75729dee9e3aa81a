//! The handle to a stack thread.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rivulet_pktio::IoChoice;
use rivulet_transport::client::{Config, Connection};

use crate::connection::{Place, Shared};
use crate::core::Core;
use crate::destinations::Destination;
use crate::driver::Opened;
use crate::end::End;
use crate::error::ConnectError;
use crate::next_hop::{self, NextHop};
use crate::port::LocalPort;
use crate::stream::Stream;
use crate::tokens::{RememberError, Store, state_folder};

/// A stack: one thread, any number of connections. The thread ends with the last handle, streams included.
#[derive(Clone)]
pub struct Stack {
    core: Arc<Core>,
    /// Every connect makes a connection.
    separate: bool,
}

impl Stack {
    /// Starts the thread. Nothing else is set up before the first connection.
    pub fn start() -> io::Result<Stack> {
        Stack::with_config(Config::default())
    }

    /// As [`start`](Self::start) with a configuration for every connection; its MTU and seed are not looked at.
    pub fn with_config(config: Config) -> io::Result<Stack> {
        Stack::with_io(config, IoChoice::default())
    }

    /// As [`with_config`](Self::with_config), with a choice of what moves the packets. An interface for which it cannot be
    /// had is an error of [`connect`](Self::connect).
    pub fn with_io(config: Config, io: IoChoice) -> io::Result<Stack> {
        Ok(Stack { core: Arc::new(Core::start(config, io)?), separate: false })
    }

    /// What earlier connections of this stack learned about a destination, none if nothing or too long ago.
    #[must_use]
    pub fn destination(&self, remote: SocketAddr) -> Option<Destination> {
        self.core.destinations.get(remote)
    }

    /// Address tokens that are left when the stack ends go into a file in this folder, which is made if need be, and are found there by
    /// the user's next stack; the first folder stands. Without it they end with the stack.
    ///
    /// # Errors
    /// [`RememberError`]: nothing is kept, and what is there is left as it is.
    pub fn remember(&self, folder: &Path) -> Result<(), RememberError> {
        self.core.destinations.remember(Store::open(folder)?);
        Ok(())
    }

    /// As [`remember`](Self::remember) in this user's [folder for state](crate::state_folder), if there is one; a failure is told in
    /// the log, no more.
    pub fn remember_for_user(&self) {
        if let Some(folder) = state_folder()
            && let Err(e) = self.remember(&folder)
        {
            tracing::warn!(error = %e, "address tokens are not kept");
        }
    }

    /// The same stack; what this handle connects are connections of their own, each with its own window, as those of plain TCP are.
    #[must_use]
    pub fn separate(&self) -> Stack {
        Stack { core: self.core.clone(), separate: true }
    }

    /// Ends the stack before its last handle is gone, as a process does that is about to exit: connections that waited for a further
    /// stream say that they end, and nothing more is sent or taken. A window that is worth it is given back first, for which a round trip is
    /// waited, 300 ms at most. Whoever still waits for a stream waits for ever.
    pub fn end(&self) {
        self.core.end(true);
    }

    /// Opens a stream to `remote`: on the connection that there is to it, or on a new one, whose SYN leaves with the first data
    /// written, bare if nothing is written for [`Stream::connect_now`]'s call. Returns as soon as the way there is known; blocks for
    /// neighbour discovery at most.
    pub fn connect(&self, remote: SocketAddr) -> Result<Stream, ConnectError> {
        self.connect_from(remote, None)
    }

    /// As [`connect`](Self::connect), from a local address or port (0: any) of the caller's choice. A port of its own makes it a
    /// connection of its own.
    pub fn connect_from(
        &self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<Stream, ConnectError> {
        let core = &self.core;
        let place = core.place()?;
        let hop = next_hop::resolve(remote.ip())?;
        if hop.mac == [0; 6] {
            return Err(ConnectError::Local(remote.ip()));
        }
        let source =
            local.map(|a| a.ip()).filter(|ip| !ip.is_unspecified() && ip.is_ipv4() == remote.is_ipv4());
        let source = source.unwrap_or(hop.source);
        let wanted = SocketAddr::new(source, local.map_or(0, |a| a.port()));
        if self.separate || wanted.port() != 0 {
            let shared = self.open(remote, wanted, hop, place, false)?;
            return Ok(Stream::new(End::first(shared), core.clone()));
        }
        let service = core.services.of(source, remote);
        let mut current = service.lock();
        if let Some(end) = current.upgrade().and_then(|shared| End::join(shared, place.clone())) {
            return Ok(Stream::new(end, core.clone()));
        }
        let end = End::first(self.open(remote, wanted, hop, place, true)?);
        *current = Arc::downgrade(&end.shared);
        Ok(Stream::new(end, core.clone()))
    }

    /// A new connection.
    fn open(
        &self,
        remote: SocketAddr,
        wanted: SocketAddr,
        mut hop: NextHop,
        place: Place,
        shares: bool,
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
        // Without the kernel's randomness ISN and timestamps are guessable, not wrong.
        let seed = getrandom::u64().unwrap_or_default();
        let config = Config { mtu, token, seed, ..config };
        let connection = Connection::open(config, port.address(), remote, core.mailbox.now());
        let shared = Shared::new(core.next_id(), core.mailbox.clone(), connection, port, place, shares);
        let shared = Arc::new(shared);
        core.open(Opened { shared: shared.clone(), hop })?;
        Ok(shared)
    }
}
