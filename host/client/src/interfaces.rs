//! The interfaces that a stack has open, shared between the threads that open connections and the one
//! that moves the packets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{Rule, TcpRule};
use rivulet_pktio::{AfPacket, ChecksumPolicy, Config, Filter, Interface, LinkInfo, PacketIo};

use crate::next_hop::NextHop;
use crate::stack::ConnectError;

/// Octets of receive queue, in the kernel's accounting: some two thousand frames, which take this thread a few
/// milliseconds. A longer one would only be delay.
const RX_BYTES: usize = 4 << 20;

/// One interface.
pub(crate) struct Port {
    pub io: Box<dyn PacketIo>,
    pub link: LinkInfo,
    /// Addresses of this host that connections use here.
    addresses: Vec<IpAddr>,
    /// Local ports of connections that are being opened: to these a server of plain TCP may answer.
    opening: Vec<u16>,
}

impl Port {
    /// The server at the other end of this local port has shown what it speaks.
    pub fn opened(&mut self, port: u16) {
        let before = self.opening.len();
        self.opening.retain(|p| *p != port);
        if self.opening.is_empty() && before > 0 {
            self.refilter();
        }
    }

    /// Sets the filter anew. One that is too wide for a while does no harm, so a failure is only told.
    fn refilter(&mut self) {
        let result = filter(&self.addresses, &self.opening).map(|f| self.io.set_filter(Some(&f)));
        if let Err(e) = result {
            tracing::warn!(error = %e, "receive filter");
        }
    }
}

/// All of them, by kernel index.
#[derive(Clone, Default)]
pub(crate) struct Interfaces {
    ports: Arc<Mutex<HashMap<u32, Port>>>,
}

impl Interfaces {
    /// Sees to it that packets of our connections from `source` come to us on the way `hop`.
    pub fn prepare(&self, hop: &NextHop, source: IpAddr, local: u16) -> Result<LinkInfo, ConnectError> {
        let mut ports = self.ports.lock();
        if let Some(port) = ports.get_mut(&hop.index) {
            port.link = port.io.link()?;
            if !port.addresses.contains(&source) {
                port.addresses.push(source);
            }
            port.opening.push(local);
            port.io.set_filter(Some(&filter(&port.addresses, &port.opening)?))?;
            return Ok(port.link);
        }
        let (addresses, opening) = (vec![source], vec![local]);
        let interface = Interface::new(None, &hop.interface)?;
        let config = Config {
            rx_bytes: RX_BYTES,
            checksum: ChecksumPolicy::Complete,
            promiscuous: false,
            filter: Some(filter(&addresses, &opening)?),
            ..Config::default()
        };
        let io = AfPacket::open(&interface, config)?;
        let link = io.link()?;
        ports.insert(hop.index, Port { io: Box::new(io), link, addresses, opening });
        Ok(link)
    }

    /// The interfaces, for the thread that moves the packets.
    pub fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<u32, Port>> {
        self.ports.lock()
    }
}

/// Segments of ours to these addresses.
fn segments(addresses: &[IpAddr]) -> TcpRule {
    TcpRule { exid: Some(EX_ID), destinations: addresses.to_vec(), ..TcpRule::default() }
}

fn filter(addresses: &[IpAddr], opening: &[u16]) -> Result<Filter, ConnectError> {
    let mut rules = vec![Rule::Tcp(segments(addresses)), Rule::IcmpError(addresses.to_vec())];
    if let (Some(first), Some(last)) = (opening.iter().min(), opening.iter().max()) {
        // The range may take in ports that are not ours; their segments are passed over.
        rules.push(Rule::Tcp(TcpRule {
            destinations: addresses.to_vec(),
            destination_ports: vec![*first..=*last],
            ..TcpRule::default()
        }));
    }
    Ok(Filter::new(&rules)?)
}
