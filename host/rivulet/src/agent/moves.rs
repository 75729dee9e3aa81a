//! The agent's part in planned moves (`docs/moves.md`): which members are drained, and which
//! replica adopts each connection.
//!
//! A drained replica is the first candidate of no slot. Every agent gets the slots from the
//! controller and computes each client's replica from them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rivulet_bpf::trods::Pin;
use rivulet_server::service::{Service, Slots};
use rivulet_trods::hold::{Departed, Leave, Reads};
use rivulet_trods::ts::LeaveNamed;

use super::trods::{Place, kept, objects, prefix, record_keys};

/// For a pool: the services with connections that leave this replica; and the drained replicas that
/// it adopts connections from, with its index in the pool.
pub(super) fn of(place: &Place, incarnation: u32) -> (Vec<Leave>, Vec<(u8, Departed)>) {
    let (mut leave, mut follow) = (Vec::new(), Vec::new());
    let (pool, Ok(own)) = (place.member.pool, u8::try_from(place.member.replica)) else {
        return (leave, follow);
    };
    // Services with a store: their connections move by records.
    for (service, trods) in place.services.iter().filter_map(kept) {
        let Some(slots) = &service.slots else { continue };
        for member in trods.members.iter().filter(|m| is_drained(service, m.replica)) {
            let incarnation = if member.replica == own { incarnation } else { member.incarnation };
            let Ok(prefix) = prefix(service, pool, member.replica.into(), incarnation) else { continue };
            let owner = owner(slots.clone(), Arc::clone(&place.takers));
            let (servers, tor) = (trods.store.clone(), place.member.tor_mac);
            let keys = record_keys(service);
            if member.replica == own {
                let to = heir(owner, own, tor);
                leave.push(Leave { prefix, servers, keys, services: service.sockets().collect(), to });
            } else if incarnation != 0 {
                let drained = member.replica;
                let other = Box::new(move |client, service| match owner(client, service) {
                    Some(holder) if holder == own => None,
                    holder => Some(Pin { tor, holder: holder.unwrap_or(drained) }),
                });
                let reads = Reads::Told;
                follow.push((own, Departed { prefix, servers, keys, other, waits: false, reads }));
            }
        }
    }
    (leave, follow)
}

/// For a pool: the services with named connections that leave this replica, with their adopters.
pub(super) fn named(place: &Place) -> Vec<LeaveNamed> {
    let Ok(own) = u8::try_from(place.member.replica) else { return Vec::new() };
    let leave = |service: &Service| {
        let owner = owner(service.slots.clone()?, Arc::clone(&place.takers));
        let drains = kept(service).is_none() && is_drained(service, own);
        let to = heir(owner, own, place.member.tor_mac);
        Some(LeaveNamed { services: service.sockets().collect(), drains, to })
    };
    place.services.iter().filter(|service| objects(service).is_some()).filter_map(leave).collect()
}

/// Bit set of the other members that are drained for at least one service (bit r: replica r).
pub(super) fn drained(place: &Place) -> u64 {
    let members = |service: &Service| {
        let members = service.trods.iter().flat_map(|trods| &trods.members).map(|member| member.replica);
        members
            .filter(|r| u16::from(*r) != place.member.replica && is_drained(service, *r))
            .collect::<Vec<_>>()
    };
    place.services.iter().flat_map(members).fold(0, |all, replica| all | 1 << (replica & 63))
}

/// Whether this host's replica of a service is drained.
pub(super) fn has_drained(service: &Service) -> bool {
    let own = service.member.and_then(|member| u8::try_from(member.replica).ok());
    own.is_some_and(|own| is_drained(service, own))
}

/// Whether a member gets no connections of a service while other members do.
fn is_drained(service: &Service, member: u8) -> bool {
    let Some(slots) = &service.slots else { return false };
    !slots.pairs.is_empty() && slots.pairs.iter().all(|slot| slot.first != member)
}

/// The replica that gets a client's segments, given client and service.
fn owner(
    slots: Slots,
    takers: Arc<AtomicU64>,
) -> impl Fn(SocketAddr, SocketAddr) -> Option<u8> + Send + 'static {
    move |client, service| slots.owner(client, service, takers.load(Ordering::Relaxed))
}

/// The adopter of a connection that leaves this replica; `None`: no replica, or this one.
fn heir(
    owner: impl Fn(SocketAddr, SocketAddr) -> Option<u8> + Send + 'static,
    own: u8,
    tor: [u8; 6],
) -> Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send> {
    Box::new(move |client, service| {
        let holder = owner(client, service).filter(|holder| *holder != own)?;
        Some(Pin { tor, holder })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rivulet_bpf::kernel::{Feature, skipped};
    use rivulet_packet::slot::Slot;
    use rivulet_pktio::testing::Netns;
    use rivulet_trods::Wake;
    use rivulet_trods::lease::Term;

    use super::*;
    use crate::agent::trods::Guard;
    use crate::agent::trods::tests::service;

    const ALL: u64 = 0b111;

    /// This host is replica 1 of three; `pairs` are the candidates of the slots.
    fn place(pairs: [(u8, u8); 2]) -> Place {
        let mut service = service();
        service.trods.as_mut().unwrap().members[2].incarnation = 6;
        let pairs = pairs.map(|(first, second)| Slot { first, second });
        service.slots.as_mut().unwrap().pairs = Arc::new(pairs);
        let member = service.member.unwrap();
        let place = Place::new(member, Term::new(1, Duration::from_millis(20)), service);
        place.takers.store(ALL, Ordering::Relaxed);
        place
    }

    #[test]
    fn member_first_in_no_slot_is_drained() {
        let told = |pairs| {
            let (leave, follow) = of(&place(pairs), 9);
            let leave: Vec<String> = leave.into_iter().map(|leave| leave.prefix).collect();
            (leave, follow.into_iter().map(|(own, of)| (own, of.prefix)).collect::<Vec<_>>())
        };
        assert_eq!(told([(0, 1), (2, 1)]), (vec!["3-5.1.9".to_owned()], vec![]), "itself");
        assert_eq!(told([(1, 0), (2, 0)]), (vec![], vec![(1, "3-5.0.7".to_owned())]));
        let both = (vec![], vec![(1, "3-5.0.7".to_owned()), (1, "3-5.2.6".to_owned())]);
        assert_eq!(told([(1, 0), (1, 2)]), both);
        let mut alone = place([(0, 1), (0, 1)]);
        alone.services[0].slots.as_mut().unwrap().pairs = Arc::new([]);
        assert!(of(&alone, 9).0.is_empty(), "nobody else gets any");
        // Named connections leave without records if there is no store.
        let mut place = place([(0, 1), (2, 1)]);
        assert!(named(&place).is_empty(), "it has no list");
        place.services[0].trods.as_mut().unwrap().objects = Some("/list".into());
        assert!(!named(&place)[0].drains, "it has a store");
        place.services[0].trods.as_mut().unwrap().store.clear();
        let leave = named(&place);
        assert!(of(&place, 9).0.is_empty() && leave.len() == 1 && leave[0].drains);
        let (client, to) = ("192.0.2.7:1".parse().unwrap(), leave[0].services[0]);
        assert!((leave[0].to)(client, to).is_some_and(|pin| pin.holder != 1));
        place.takers.store(0b010, Ordering::Relaxed);
        assert_eq!((leave[0].to)(client, to), None, "nobody else takes it");
        place.services[0].slots.as_mut().unwrap().pairs = Arc::new([Slot { first: 1, second: 0 }]);
        assert!(!named(&place)[0].drains, "it is not drained");
    }

    #[test]
    fn connections_of_drained_member_go_to_live_candidate() {
        let place = place([(0, 2), (0, 2)]);
        let (client, to) = ("192.0.2.7:1".parse().unwrap(), place.services[0].sockets().next().unwrap());
        let holder = |takers| {
            place.takers.store(takers, Ordering::Relaxed);
            let (leave, _) = of(&place, 9);
            (leave[0].to)(client, to).map(|pin| pin.holder)
        };
        assert_eq!([holder(ALL), holder(0b110), holder(0b010), holder(0)], [Some(0), Some(2), None, None]);
    }
    /// While another process of the replica answers heartbeats, the agent has no pins, so the
    /// controller must send it no connections.
    #[test]
    fn agent_is_not_ready_while_another_process_answers() {
        if skipped(Feature::Tcx) {
            return;
        }
        let (Some(tor), Some(replica)) = (Netns::new("waits-t"), Netns::new("waits-r")) else { return };
        tor.veth("c0", &replica, "r0");
        let folder = tempfile::tempdir().unwrap();
        let asks = |waits| {
            let programs = folder.path().join("programs");
            let mut guard = Guard::new(&replica.interface("r0"), programs, 9.into(), Wake::Server, waits);
            let mut asks = vec![guard.is_asking()];
            guard.replace(&[service()]);
            assert_eq!(guard.trouble(), None);
            asks.push(guard.is_asking());
            guard.replace(&[]);
            asks.push(guard.is_asking());
            asks
        };
        assert_eq!(asks(true), [false, true, false], "nothing is protected yet");
        assert_eq!(asks(false), [false; 3], "the ToR has not heard it: it gets none");
    }

    #[test]
    fn service_that_cannot_be_protected_leaves_the_others_protected() {
        if skipped(Feature::Tcx) {
            return;
        }
        let (Some(tor), Some(replica)) = (Netns::new("lacks-t"), Netns::new("lacks-r")) else { return };
        tor.veth("c0", &replica, "r0");
        replica.ip("addr add 10.9.0.1/32 dev lo");
        replica.ip("addr add fd00:9::1/128 dev lo nodad");
        // Segments to clients' addresses are routed elsewhere, for IPv4 only.
        replica.ip("rule add fwmark 0x52495654 priority 50 blackhole");
        let services = ["10.9.0.1", "fd00:9::1"].map(|address| {
            let mut service = service();
            service.addresses = vec![address.parse().unwrap()];
            service.keys.service = if address.contains(':') { 6 } else { 4 };
            service.trods.as_mut().unwrap().as_server = false;
            service
        });
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("programs");
        let mut guard = Guard::new(&replica.interface("r0"), programs, 9.into(), Wake::Server, false);
        guard.replace(&services);
        assert_eq!(guard.trouble(), None);
        assert!(guard.lacks(4).is_some_and(|why| why.contains("clients' addresses")), "{:?}", guard.lacks(4));
        assert_eq!((guard.lacks(6), guard.counts().is_some()), (None, true));
        replica.ip("rule del fwmark 0x52495654 priority 50");
        guard.replace(&services);
        assert_eq!((guard.trouble(), guard.lacks(4), guard.lacks(6)), (None, None, None));
    }
}
