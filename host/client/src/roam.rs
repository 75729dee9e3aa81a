//! Connections whose local address disappeared continue from another address of this machine (section 1).
//!
//! The kernel announces changes of addresses and routes. A connection that has lost its address is suspended, and resumed
//! from the source address of the kernel's route, as soon as there is one. The server challenges the new address first.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection, ConnectionError};

use crate::connection::{Ending, Line};
use crate::driver::Driver;
use crate::error::ConnectError;
use crate::next_hop;
use crate::port::LocalPort;

/// Whether this machine no longer has an address.
fn lacks_address(address: IpAddr) -> bool {
    let bound = UdpSocket::bind(SocketAddr::new(address, 0));
    bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

impl Driver {
    /// Moves connections that have lost their address.
    pub(crate) fn roam(&mut self) {
        let now = self.mailbox.now();
        if !self.watch.take(now) {
            return;
        }
        let mut lost = Vec::new();
        let mut known = std::collections::HashMap::new();
        for (id, entry) in &self.entries {
            let state = entry.shared.state.lock();
            let local = state.connection.local();
            // A connection that is being opened ends with its address.
            if state.connected
                && state.ending == Ending::Open
                && *known.entry(local.ip()).or_insert_with(|| lacks_address(local.ip()))
            {
                lost.push(*id);
            }
        }
        if lost.is_empty() {
            self.watch.rest();
        }
        for id in lost {
            if let Err(error) = self.relocate(id, now) {
                tracing::debug!(%error, "a connection has lost its address and cannot move yet");
            }
        }
    }

    /// Resumes a connection from the source address of the route to its server.
    fn relocate(&mut self, id: u32, now: Time) -> Result<(), ConnectError> {
        let Some(entry) = self.entries.get_mut(&id) else { return Ok(()) };
        let shared = entry.shared.clone();
        let Some(mut hop) = next_hop::resolve_now(shared.remote.ip())? else { return Ok(()) };
        if hop.mac == [0; 6] {
            return Err(ConnectError::Local(shared.remote.ip()));
        }
        let wanted = SocketAddr::new(hop.source, 0);
        let port =
            LocalPort::reserve(wanted, shared.remote).map_err(|e| ConnectError::Port(hop.source, e))?;
        let local = port.address();
        let link = self.interfaces.prepare(&mut hop, local.ip(), local.port())?;
        let mtu = if hop.mtu == 0 { link.mtu } else { link.mtu.min(hop.mtu) }.clamp(576, 9216) as u16;
        let mut ports = self.interfaces.lock();
        let mut state = shared.state.lock();
        let before = state.connection.local();
        let idle = Connection::open(Config::default(), local, shared.remote, now);
        let connection = std::mem::replace(&mut state.connection, idle);
        match connection.relocated(local, mtu, now) {
            Some(connection) => state.connection = connection,
            None => state.finish_with(Ending::Failed(ConnectionError::TimedOut)),
        }
        // Readers and writers look at the new connection.
        state.lines.values_mut().for_each(Line::wake);
        drop(state);
        if let Some(old) = ports.get_mut(&entry.hop.index) {
            old.release(before.port());
        }
        if let Some(new) = ports.get_mut(&hop.index) {
            // The server is known to support Rivulet.
            new.opened(local.port());
        }
        drop(ports);
        entry.hop = hop;
        *shared.port.lock() = Some(port);
        self.flows.remove(&(shared.remote, before));
        self.flows.insert((shared.remote, local), id);
        tracing::info!(%before, %local, remote = %shared.remote, "a connection continues from another address");
        self.queue(id);
        Ok(())
    }
}
