//! Where a packet to a destination goes first: interface, Ethernet addresses, source address, MTU.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rivulet_pktio::route;

/// How long the kernel's neighbour discovery may take.
const DISCOVERY: Duration = Duration::from_secs(3);
/// The discard port: a datagram to it makes the kernel resolve the neighbour and means nothing else.
const DISCARD: u16 = 9;

/// The first step towards a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub index: u32,
    /// Ethernet address to send to.
    pub mac: [u8; 6],
    /// Address of this host on the way.
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
    /// Nobody answers for the next hop's address.
    #[error("{0} does not answer on {1} (no Ethernet address after {t} s)", t = DISCOVERY.as_secs())]
    NoNeighbour(IpAddr, String),
    /// The kernel could not be asked.
    #[error("the neighbour table cannot be read: {0}")]
    Table(#[source] io::Error),
}

/// Finds the next hop towards `destination`; lets the kernel discover the neighbour where it must and
/// waits for that, 3 s at most.
pub fn resolve(destination: IpAddr) -> Result<NextHop, ResolveError> {
    let no_route = |e| ResolveError::NoRoute(destination, e);
    let route = route::route(destination, None).map_err(no_route)?;
    let interface = interface_name(route.interface).map_err(no_route)?;
    let hop = |mac| NextHop {
        interface: interface.clone(),
        index: route.interface,
        mac,
        source: route.source,
        mtu: route.mtu,
    };
    if route.local {
        return Ok(hop([0; 6]));
    }
    let neighbour = route.gateway.unwrap_or(destination);
    let deadline = Instant::now() + DISCOVERY;
    let mut asked = false;
    loop {
        if let Some(mac) = route::neighbour(route.interface, neighbour).map_err(ResolveError::Table)? {
            return Ok(hop(mac));
        }
        if !asked {
            asked = true;
            provoke(destination, route.source);
        }
        if Instant::now() > deadline {
            return Err(ResolveError::NoNeighbour(neighbour, interface));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes the kernel discover the neighbour. A failure shows as a neighbour that never appears.
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
