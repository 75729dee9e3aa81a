//! Receive filters: the packets of an interface that belong to a stack's connections.
//!
//! A packet socket receives copies, so its filter may be wide: every Rivulet segment to our
//! addresses, and every segment to local ports on which a connection is being opened, because that
//! server may answer with plain TCP. AF_XDP takes a frame away from the kernel and from every other
//! stack of this host, so its filter is exact: the local ports of this stack's connections, in a
//! map shared with the program in the kernel.

use std::collections::HashMap;
use std::net::IpAddr;

use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{LocalPorts, LocalRule, Rule, State, TcpRule};
use rivulet_pktio::{Filter, OpenError};

/// The addresses and local ports whose segments a stack wants to receive.
#[derive(Default)]
pub(crate) struct Claims {
    addresses: Vec<IpAddr>,
    /// Local ports of connections that are being opened. A server that supports only plain TCP may
    /// answer to these.
    opening: Vec<u16>,
    exact: Option<Exact>,
    /// An address was added after the filter was set.
    stale: bool,
}

struct Exact {
    /// Number of connections for each local port.
    users: HashMap<u16, usize>,
    /// The ports as the kernel's program sees them, each with the kinds of segments to take.
    ports: LocalPorts,
}

impl Exact {
    /// Updates the kernel's entry for a port to what its connections need.
    fn settle(&self, port: u16, opening: &[u16]) {
        let state = match (opening.contains(&port), self.users.contains_key(&port)) {
            (true, _) => State::Opening,
            (false, true) => State::Open,
            (false, false) => State::None,
        };
        self.ports.set(port, state);
    }
}

impl Claims {
    /// Starts without any claim. `exact` is for AF_XDP, where other programs do not get the frames
    /// taken.
    pub fn new(exact: bool) -> Result<Claims, OpenError> {
        let exact = match exact {
            true => {
                let ports = LocalPorts::new().map_err(|e| OpenError::Config(format!("AF_XDP: {e}")))?;
                Some(Exact { users: HashMap::new(), ports })
            }
            false => None,
        };
        Ok(Claims { exact, ..Claims::default() })
    }

    /// Switches to wide filters: from now on the interface delivers copies.
    pub fn widen(&mut self) {
        self.exact = None;
    }

    /// Adds a connection from this address and port. Returns true if the filter must be set again.
    pub fn add(&mut self, address: IpAddr, port: u16) -> bool {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
            self.stale = true;
        }
        self.opening.push(port);
        let Some(exact) = &mut self.exact else { return true };
        *exact.users.entry(port).or_default() += 1;
        exact.ports.set(port, State::Opening);
        self.stale
    }

    /// Records that the current filter was set.
    pub fn applied(&mut self) {
        self.stale = false;
    }

    /// Records that the server has answered a connection from this port, with Rivulet or plain TCP.
    /// Returns true if the filter must be set again.
    pub fn opened(&mut self, port: u16) -> bool {
        let Some(place) = self.opening.iter().position(|p| *p == port) else { return false };
        self.opening.swap_remove(place);
        match &self.exact {
            Some(exact) => {
                exact.settle(port, &self.opening);
                false
            }
            None => self.opening.is_empty(),
        }
    }

    /// Removes a connection from this port.
    pub fn release(&mut self, port: u16) {
        let Some(exact) = &mut self.exact else { return };
        let Some(users) = exact.users.get_mut(&port) else { return };
        *users -= 1;
        if *users == 0 {
            exact.users.remove(&port);
            exact.settle(port, &self.opening);
        }
    }

    /// The filter for the current claims.
    pub fn filter(&self) -> Result<Filter, OpenError> {
        self.taking(self.exact.as_ref())
    }

    /// The filter for the same claims once they are [widened](Self::widen).
    pub fn wide_filter(&self) -> Result<Filter, OpenError> {
        self.taking(None)
    }

    fn taking(&self, exact: Option<&Exact>) -> Result<Filter, OpenError> {
        let destinations = || self.addresses.clone();
        let mut rules = vec![Rule::IcmpError(destinations())];
        match exact {
            Some(Exact { ports, .. }) => {
                let ports = ports.clone();
                rules.push(Rule::Local(LocalRule { exid: EX_ID, addresses: destinations(), ports }));
            }
            None => {
                let any = TcpRule { destinations: destinations(), ..TcpRule::default() };
                rules.push(Rule::Tcp(TcpRule { exid: Some(EX_ID), ..any.clone() }));
                if let (Some(first), Some(last)) = (self.opening.iter().min(), self.opening.iter().max()) {
                    // The range may include ports of other programs; the stack ignores their
                    // segments.
                    rules.push(Rule::Tcp(TcpRule { destination_ports: vec![*first..=*last], ..any }));
                }
            }
        }
        Filter::new(&rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A SYN-ACK of plain TCP, without Rivulet's option.
    fn plain(port: u16) -> Vec<u8> {
        let mut f = vec![2; 12];
        f.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80]);
        f.extend(port.to_be_bytes());
        f.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 1, 0, 0, 0, 0, 0]);
        f
    }

    #[test]
    fn a_packet_socket_listens_for_plain_tcp_while_connections_open() {
        let mut claims = Claims::new(false).unwrap();
        let address = IpAddr::from([10, 0, 0, 2]);
        assert!(claims.add(address, 1000) && claims.add(address, 1010));
        let accepts = |claims: &Claims, port| claims.filter().unwrap().accepts(&plain(port));
        assert!(accepts(&claims, 1000) && accepts(&claims, 1010) && !accepts(&claims, 1011));
        assert!(!claims.opened(1000) && claims.opened(1010), "set anew when none is left");
        assert!(!claims.opened(1010), "told twice");
        assert!(!accepts(&claims, 1000) && !accepts(&claims, 1010));
    }

    #[test]
    fn af_xdp_takes_only_ports_of_connections() {
        if rivulet_pktio::testing::lacks_af_xdp() {
            return;
        }
        let mut claims = Claims::new(true).unwrap();
        let state = |claims: &Claims, port| claims.exact.as_ref().unwrap().ports.get(port);
        let address = IpAddr::from([10, 0, 0, 2]);
        assert!(claims.add(address, 1000));
        assert!(claims.add(address, 1000), "not set yet");
        claims.release(1000);
        claims.opened(1000);
        claims.applied();
        assert!(
            !claims.add(address, 1010) && !claims.add(address, 1000),
            "only addresses are in the program"
        );
        assert_eq!(
            [1000, 1005, 1010].map(|p| state(&claims, p)),
            [State::Opening, State::None, State::Opening]
        );
        // Two connections to different servers may share one local port.
        claims.opened(1000);
        assert_eq!(state(&claims, 1000), State::Opening);
        claims.opened(1000);
        claims.release(1000);
        assert_eq!(state(&claims, 1000), State::Open);
        claims.release(1000);
        claims.release(1000);
        assert_eq!([1000, 1010].map(|p| state(&claims, p)), [State::None, State::Opening]);
    }
}
