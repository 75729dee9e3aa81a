//! The interfaces that a stack has open, shared between the threads that open connections and the one
//! that moves the packets.

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

/// Octets of receive queue, in the kernel's accounting: some two thousand frames, which take this thread a few
/// milliseconds. A longer one would only be delay.
const RX_BYTES: usize = 4 << 20;

/// One interface.
pub(crate) struct Port {
    pub io: Box<dyn PacketIo>,
    /// To be waited for without the lock: a copy of the descriptor, since `io` may be opened anew meanwhile.
    pub readiness: Arc<OwnedFd>,
    pub link: LinkInfo,
    /// When the receive queue was last found empty: what is in it came later.
    pub emptied: Time,
    /// Which packets are ours.
    claims: Claims,
    choice: IoChoice,
}

impl Port {
    fn is(&self, hop: &NextHop) -> bool {
        self.io.interface().name() == hop.interface
    }

    /// Opens the interface of that name again, after it was deleted and made anew. Where it is not fit for AF_XDP as the
    /// former one was, and either would do, by AF_PACKET.
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

    /// The server at the other end of this local port has shown what it speaks. Once a connection: several may have one
    /// local port.
    pub fn opened(&mut self, port: u16) {
        if self.claims.opened(port) {
            self.refilter();
        }
    }

    /// The connection of this local port is over.
    pub fn release(&mut self, port: u16) {
        self.claims.release(port);
    }

    /// The connection that this local port was prepared for does not begin.
    fn give_up(&mut self, port: u16) {
        self.opened(port);
        self.release(port);
    }

    /// Sets the filter anew. One that is too wide for a while does no harm, so a failure is only told.
    fn refilter(&mut self) {
        if let Err(e) = self.set_filter() {
            tracing::warn!(error = %e, "receive filter");
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

/// How an interface is opened.
fn config(filter: Filter) -> Config {
    Config {
        rx_bytes: RX_BYTES,
        checksum: ChecksumPolicy::Complete,
        promiscuous: false,
        filter: Some(filter),
        ..Config::default()
    }
}

/// All of them, by the kernel index that each had at first.
#[derive(Clone, Default)]
pub(crate) struct Interfaces {
    ports: Arc<Mutex<HashMap<u32, Port>>>,
    io: IoChoice,
}

impl Interfaces {
    /// None yet; each is to be opened this way.
    pub fn new(io: IoChoice) -> Interfaces {
        Interfaces { ports: Arc::default(), io }
    }

    /// Sees to it that packets of our connections from `source` come to us on the way `hop`.
    pub fn prepare(&self, hop: &mut NextHop, source: IpAddr, local: u16) -> Result<LinkInfo, ConnectError> {
        let mut ports = self.ports.lock();
        // One that was deleted and made again has another number, and is the one that we have open.
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
