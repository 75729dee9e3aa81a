//! Converts rules to entries of the XDP program's maps.

use std::net::IpAddr;

use rivulet_bpf::redirect::{LocalPorts, Table, TableError, Taking};

use super::{LocalRule, Rule, TcpRule};
use crate::OpenError;

/// The frames that AF_XDP takes from the kernel.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) table: Table,
    /// The local ports whose state the program uses.
    pub(crate) ports: Option<LocalPorts>,
}

impl Taken {
    /// Every frame.
    pub(crate) fn everything() -> Taken {
        Taken { table: Table::everything(), ports: None }
    }

    pub(crate) fn new<'a>(rules: impl Iterator<Item = &'a Rule>) -> Result<Taken, OpenError> {
        let mut taken = Taken { table: Table::default(), ports: None };
        for rule in rules {
            taken.add(rule).map_err(|e| OpenError::Config(format!("the receive filter: {e}")))?;
        }
        Ok(taken)
    }

    fn add(&mut self, rule: &Rule) -> Result<(), String> {
        let table = &mut self.table;
        let done = match rule {
            Rule::EtherType(kind) => table.ethertype(*kind),
            Rule::Tcp(rule) => tcp(table, rule),
            Rule::Local(LocalRule { exid, addresses, ports }) => {
                if self.ports.get_or_insert_with(|| ports.clone()) != ports {
                    return Err("AF_XDP supports one set of local ports".into());
                }
                each(addresses, |address| table.endpoint(address, None, Taking::Local { exid: *exid }))
            }
            Rule::Tunnel(rule) => table.tunnel(rule.source, rule.destination),
            // Copied, not taken.
            Rule::IcmpError(_) => Ok(()),
        };
        done.map_err(|e| e.to_string())
    }
}

fn tcp(table: &mut Table, rule: &TcpRule) -> Result<(), TableError> {
    let taking = rule.exid.map_or(Taking::All, |exid| Taking::Option { exid });
    each(&rule.destinations, |address| {
        if rule.destination_ports.is_empty() {
            return table.endpoint(address, None, taking);
        }
        rule.destination_ports.iter().try_for_each(|range| match (*range.start(), *range.end()) {
            (0, u16::MAX) => table.endpoint(address, None, taking),
            _ => range.clone().try_for_each(|port| table.endpoint(address, Some(port), taking)),
        })
    })
}

/// Calls `take` for each address, or once with `None` if the list is empty.
fn each(
    addresses: &[IpAddr],
    mut take: impl FnMut(Option<IpAddr>) -> Result<(), TableError>,
) -> Result<(), TableError> {
    match addresses {
        [] => take(None),
        some => some.iter().try_for_each(|a| take(Some(*a))),
    }
}
