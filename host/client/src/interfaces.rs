//! The interfaces that a stack has open, shared between the threads that open connections and the
//! thread that moves packets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_pktio::{
    Backend, ChecksumPolicy, Config, Filter, Interface, IoChoice, IoError, LinkInfo, PacketIo,
};

use rivulet_transport::Time;

use crate::claims::Claims;
use crate::error::ConnectError;
use crate::next_hop::NextHop;

/// Size of the receive queue in bytes, as the kernel accounts them: about 2,000 frames, which this
/// thread handles in a few milliseconds. A longer queue would only add delay.
const RX_BYTES: usize = 4 << 20;

/// One open interface.
pub(crate) struct Port {
    pub io: Box<dyn PacketIo>,
    /// A duplicate of the descriptor of `io`. The stack thread polls it without the lock, while
    /// another thread may reopen `io`.
    pub readiness: Arc<OwnedFd>,
    pub link: LinkInfo,
    /// When the receive queue was last found empty. Frames in it arrived later.
    pub emptied: Time,
    /// Selects the packets that belong to this stack.
    claims: Claims,
    choice: IoChoice,
}

impl Port {
    fn is(&self, hop: &NextHop) -> bool {
        self.io.interface().name() == hop.interface
    }

    /// Opens the interface of the same name again after it was deleted and created. If it no longer
    /// supports AF_XDP and the configuration allows either, uses AF_PACKET.
    pub fn reopen(&mut self) -> Result<(), ConnectError> {
        let claims = &self.claims;
        self.choice.reopen(&mut self.io, || Ok(config(claims.wide_filter()?)))?;
        self.io.set_stamps(true);
        self.readiness = readiness(self.io.as_ref())?;
        if self.io.backend() == Backend::AfPacket {
            self.claims.widen();
        }
        Ok(())
    }

    /// Records that the server answered, with Rivulet or plain TCP. To be called once for each
    /// connection, since several may share a local port.
    pub fn opened(&mut self, port: u16) {
        if self.claims.opened(port) {
            self.refilter();
        }
    }

    /// Removes the connection of this local port.
    pub fn release(&mut self, port: u16) {
        self.claims.release(port);
    }

    /// Undoes `prepare` for a connection that could not be opened.
    fn give_up(&mut self, port: u16) {
        self.opened(port);
        self.release(port);
    }

    /// Sets the filter again. A filter that stays too wide does no harm, so a failure is only
    /// logged.
    fn refilter(&mut self) {
        if let Err(e) = self.set_filter() {
            tracing::warn!(error = %e, "cannot set the receive filter");
        }
    }

    fn set_filter(&mut self) -> Result<(), ConnectError> {
        self.io.set_filter(Some(&self.claims.filter()?))?;
        self.claims.applied();
        Ok(())
    }
}

fn readiness(io: &dyn PacketIo) -> Result<Arc<OwnedFd>, ConnectError> {
    Ok(Arc::new(io.as_fd().try_clone_to_owned().map_err(ConnectError::Descriptor)?))
}

/// Configuration to open an interface with.
fn config(filter: Filter) -> Config {
    Config {
        rx_bytes: RX_BYTES,
        checksum: ChecksumPolicy::Complete,
        promiscuous: false,
        filter: Some(filter),
        ..Config::default()
    }
}

/// All open interfaces, by the kernel index that each had when it was first opened.
#[derive(Clone, Default)]
pub(crate) struct Interfaces {
    ports: Arc<Mutex<HashMap<u32, Port>>>,
    io: IoChoice,
}

impl Interfaces {
    /// Starts without interfaces; `io` selects how each will be opened.
    pub fn new(io: IoChoice) -> Interfaces {
        Interfaces { ports: Arc::default(), io }
    }

    /// Opens the interface of `hop`, or adds to its filter, so that packets to `source` and port
    /// `local` are received.
    pub fn prepare(&self, hop: &mut NextHop, source: IpAddr, local: u16) -> Result<LinkInfo, ConnectError> {
        let mut ports = self.ports.lock();
        // An interface that was deleted and created again has a new index; the open one keeps its
        // key.
        if let Some(key) = ports.iter().find_map(|(key, p)| p.is(hop).then_some(*key)) {
            hop.index = key;
        }
        if let Some(port) = ports.get_mut(&hop.index) {
            port.link = match port.io.link() {
                Err(IoError::Gone(_)) => {
                    port.reopen()?;
                    port.io.link()?
                }
                link => link?,
            };
            if port.claims.add(source, local)
                && let Err(e) = port.set_filter()
            {
                port.give_up(local);
                return Err(e);
            }
            return Ok(port.link);
        }
        let interface = Interface::new(None, &hop.interface)?;
        let mut claims = None;
        let opened = self.io.open(&interface, |backend| {
            let mut own = Claims::new(backend == Backend::AfXdp)?;
            own.add(source, local);
            Ok(config(claims.insert(own).filter()?))
        })?;
        let (link, mut io) = (opened.io.link()?, opened.io);
        io.set_stamps(true);
        let readiness = readiness(io.as_ref())?;
        let mut claims = claims.unwrap_or_default();
        claims.applied();
        let emptied = Time(0);
        ports.insert(hop.index, Port { io, readiness, link, emptied, claims, choice: self.io });
        Ok(link)
    }

    /// The interfaces, for the thread that moves the packets.
    pub fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<u32, Port>> {
        self.ports.lock()
    }
}
