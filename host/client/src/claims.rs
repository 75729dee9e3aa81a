//! Which packets of an interface belong to a stack's connections.
//!
//! A packet socket gets copies, so there the filter is wide: every segment of ours to our addresses, and what
//! comes to local ports whose server may still turn out to speak plain TCP. What AF_XDP takes nobody else gets, another
//! stack of this host neither, so there it is exact: the local ports of this stack's connections, in sets that the
//! program in the kernel shares.

use std::collections::HashMap;
use std::net::IpAddr;

use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{PortSet, Rule, TcpRule};
use rivulet_pktio::{Filter, OpenError};

/// Addresses, and local ports, that are ours.
#[derive(Default)]
pub(crate) struct Claims {
    addresses: Vec<IpAddr>,
    /// Local ports of connections that are being opened: to these a server of plain TCP may answer.
    opening: Vec<u16>,
    exact: Option<Exact>,
    /// An address came since the filter was set.
    stale: bool,
}

struct Exact {
    /// Connections by local port.
    users: HashMap<u16, usize>,
    /// The ports with any.
    ours: PortSet,
    /// Those in `opening`.
    opening: PortSet,
}

impl Claims {
    /// None yet. `exact`: what is taken nobody else gets.
    pub fn new(exact: bool) -> Result<Claims, OpenError> {
        let set = || PortSet::new().map_err(|e| OpenError::Config(format!("AF_XDP: a BPF map: {e}")));
        let exact = match exact {
            true => Some(Exact { users: HashMap::new(), ours: set()?, opening: set()? }),
            false => None,
        };
        Ok(Claims { exact, ..Claims::default() })
    }

    /// From now on copies are enough: what is taken others get too.
    pub fn widen(&mut self) {
        self.exact = None;
    }

    /// A connection from there begins. True if the filter must be set anew.
    pub fn add(&mut self, address: IpAddr, port: u16) -> bool {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
            self.stale = true;
        }
        self.opening.push(port);
        let Some(exact) = &mut self.exact else { return true };
        *exact.users.entry(port).or_default() += 1;
        exact.ours.set(port, true);
        exact.opening.set(port, true);
        self.stale
    }

    /// The filter was set.
    pub fn applied(&mut self) {
        self.stale = false;
    }

    /// The other end of a connection from this port has shown what it speaks. True if the filter must be set anew.
    pub fn opened(&mut self, port: u16) -> bool {
        let Some(place) = self.opening.iter().position(|p| *p == port) else { return false };
        self.opening.swap_remove(place);
        match &self.exact {
            Some(exact) => {
                exact.opening.set(port, self.opening.contains(&port));
                false
            }
            None => self.opening.is_empty(),
        }
    }

    /// A connection from this port is over.
    pub fn release(&mut self, port: u16) {
        let Some(exact) = &mut self.exact else { return };
        let Some(users) = exact.users.get_mut(&port) else { return };
        *users -= 1;
        if *users == 0 {
            exact.users.remove(&port);
            exact.ours.set(port, false);
        }
    }

    /// What is to be taken.
    pub fn filter(&self) -> Result<Filter, OpenError> {
        self.taking(self.exact.as_ref())
    }

    /// What would be, once these are [widened](Self::widen).
    pub fn wide_filter(&self) -> Result<Filter, OpenError> {
        self.taking(None)
    }

    fn taking(&self, exact: Option<&Exact>) -> Result<Filter, OpenError> {
        let destinations = || self.addresses.clone();
        let ours = TcpRule { exid: Some(EX_ID), destinations: destinations(), ..TcpRule::default() };
        let any = TcpRule { destinations: destinations(), ..TcpRule::default() };
        let errors = Rule::IcmpError(destinations());
        let mut rules = vec![errors];
        match exact {
            Some(Exact { ours: set, opening, .. }) => {
                rules.push(Rule::Tcp(TcpRule { destination_port_set: Some(set.clone()), ..ours }));
                rules.push(Rule::Tcp(TcpRule { destination_port_set: Some(opening.clone()), ..any }));
            }
            None => {
                rules.push(Rule::Tcp(ours));
                if let (Some(first), Some(last)) = (self.opening.iter().min(), self.opening.iter().max()) {
                    // The range may take in ports that are not ours; their segments are passed over.
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

    /// A bare SYN-ACK, as plain TCP has it.
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
    fn af_xdp_takes_the_ports_of_connections_alone() {
        let mut claims = match Claims::new(true) {
            Ok(claims) => claims,
            Err(e) => {
                eprintln!("SKIPPED: {e}");
                return;
            }
        };
        let sets = |claims: &Claims, port| {
            let exact = claims.exact.as_ref().unwrap();
            (exact.ours.contains(port), exact.opening.contains(port))
        };
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
            [1000, 1005, 1010].map(|p| sets(&claims, p)),
            [(true, true), (false, false), (true, true)]
        );
        // Two connections to different servers may have one local port.
        claims.opened(1000);
        assert_eq!(sets(&claims, 1000), (true, true));
        claims.opened(1000);
        claims.release(1000);
        assert_eq!(sets(&claims, 1000), (true, false));
        claims.release(1000);
        claims.release(1000);
        assert_eq!([1000, 1010].map(|p| sets(&claims, p)), [(false, false), (true, true)]);
    }
}
