//! The next hop towards a destination: interface, Ethernet addresses, source address, MTU.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rivulet_pktio::route;

/// Time allowed for the kernel's neighbour discovery (ARP or NDP).
const DISCOVERY: Duration = Duration::from_secs(3);
/// The discard port (RFC 863). A datagram to it makes the kernel resolve the neighbour.
const DISCARD: u16 = 9;

/// The next hop towards a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub index: u32,
    /// Ethernet address to send to.
    pub mac: [u8; 6],
    /// Source address for this route.
    pub source: IpAddr,
    /// Path MTU known to the kernel for this route; 0 if none.
    pub mtu: u32,
}

/// Why a destination cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The kernel has no route.
    #[error("no route to {0}: {1}")]
    NoRoute(IpAddr, #[source] io::Error),
    /// The next hop does not answer neighbour discovery.
    #[error("{0} does not answer on {1} (no Ethernet address after {t} s)", t = DISCOVERY.as_secs())]
    NoNeighbour(IpAddr, String),
    /// The kernel's neighbour table cannot be read.
    #[error("the neighbour table cannot be read: {0}")]
    Table(#[source] io::Error),
}

/// Finds the next hop towards `destination`. If the kernel does not know the neighbour, starts its
/// discovery and waits, 3 s at most.
pub fn resolve(destination: IpAddr) -> Result<NextHop, ResolveError> {
    let deadline = Instant::now() + DISCOVERY;
    let mut asked = false;
    loop {
        let (hop, neighbour) = look_up(destination)?;
        if let Some(mac) = neighbour.mac {
            return Ok(NextHop { mac, ..hop });
        }
        if !asked {
            asked = true;
            provoke(destination, hop.source);
        }
        if Instant::now() > deadline {
            return Err(ResolveError::NoNeighbour(neighbour.address, hop.interface));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The same without waiting. `None`: the discovery of the neighbour was started.
pub(crate) fn resolve_now(destination: IpAddr) -> Result<Option<NextHop>, ResolveError> {
    let (hop, neighbour) = look_up(destination)?;
    if neighbour.mac.is_none() {
        provoke(destination, hop.source);
    }
    Ok(neighbour.mac.map(|mac| NextHop { mac, ..hop }))
}

/// The neighbour that packets go to.
struct Neighbour {
    address: IpAddr,
    /// Zeros for a destination on this machine; `None` if the kernel does not know it.
    mac: Option<[u8; 6]>,
}

/// The kernel's route, and its neighbour. The hop has no Ethernet address yet.
fn look_up(destination: IpAddr) -> Result<(NextHop, Neighbour), ResolveError> {
    let no_route = |e| ResolveError::NoRoute(destination, e);
    let route = route::route(destination, None).map_err(no_route)?;
    let interface = interface_name(route.interface).map_err(no_route)?;
    let address = route.gateway.unwrap_or(destination);
    let mac = match route.local {
        true => Some([0; 6]),
        false => route::neighbour(route.interface, address).map_err(ResolveError::Table)?,
    };
    let (index, source, mtu) = (route.interface, route.source, route.mtu);
    Ok((NextHop { interface, index, mac: [0; 6], source, mtu }, Neighbour { address, mac }))
}

/// Makes the kernel discover the neighbour. On a failure the neighbour does not appear in the
/// table, and `resolve` times out.
fn provoke(destination: IpAddr, source: IpAddr) {
    if let Ok(socket) = UdpSocket::bind(SocketAddr::new(source, 0)) {
        let _ = socket.send_to(&[], SocketAddr::new(destination, DISCARD));
    }
}

fn interface_name(index: u32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that if_indextoname requires.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: on success the buffer holds a terminated string.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}
