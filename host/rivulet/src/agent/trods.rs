//! The agent's part in TRODS (`docs/trods.md`): which services are protected and under which lease, what the ToR's answers to
//! heartbeats say of it, and whose connections are to be looked for.

use rivulet_agent::TrodsCounts;
use rivulet_bpf::trods::{Lease, Pin};
use rivulet_pktio::Interface;
use rivulet_server::heartbeat::Live;
use rivulet_server::service::{Failure, Member, Service};
use rivulet_trods::Settings;
use rivulet_trods::hold::{Absence, Departed};
use rivulet_trods::lease::{Term, clock};
use rivulet_trods::replica::{Protected, Replica};
use rivulet_trods::store::{self, StoreConfig, StoreError};

/// One place in a pool, and the services that are protected there.
#[derive(Debug)]
struct Place {
    member: Member,
    term: Term,
    /// The last absence of which it was asked what others hold since.
    asked: u64,
    services: Vec<Service>,
}

/// What protects the connections of this host.
#[derive(Debug)]
pub(super) struct Guard {
    interface: Interface,
    incarnation: u32,
    replica: Option<Replica>,
    /// In the order of their leases.
    places: Vec<Place>,
    /// Why nothing is protected that should be.
    trouble: Option<String>,
}

impl Guard {
    /// Nothing is protected, and nothing is asked of the kernel, before a service wants it.
    pub(super) fn new(interface: &Interface, incarnation: u32) -> Guard {
        Guard { interface: interface.clone(), incarnation, replica: None, places: Vec::new(), trouble: None }
    }

    /// These are the services from now on.
    pub(super) fn replace(&mut self, services: &[Service]) {
        let mut before = std::mem::take(&mut self.places);
        for service in services.iter().filter(|s| s.has_trods()) {
            let Some(member) = service.member else { continue };
            let of =
                |place: &Place| (place.member.pool, place.member.replica) == (member.pool, member.replica);
            if let Some(place) = self.places.iter_mut().find(|place| of(place)) {
                place.services.push(service.clone());
                continue;
            }
            // Below 64, as `Service::check` has seen.
            let (term, asked) = match before.iter().position(|place| place.member == member) {
                Some(at) => {
                    let place = before.swap_remove(at);
                    (place.term, place.asked)
                }
                None => (Term::new(member.replica as u8, member.bound), 0),
            };
            self.places.push(Place { member, term, asked, services: vec![service.clone()] });
        }
        if self.places.is_empty() {
            (self.replica, self.trouble) = (None, None);
            return;
        }
        self.trouble = self.protect().err().map(|e| format!("TRODS: {e:#}"));
        if let Some(trouble) = &self.trouble {
            tracing::error!("connections cannot be protected: {trouble}");
        }
    }

    fn protect(&mut self) -> anyhow::Result<()> {
        let replica = match &mut self.replica {
            Some(replica) => replica,
            none => none.insert(Replica::start(&self.interface)?),
        };
        let mut all = Vec::new();
        for (number, place) in (0u32..).zip(&self.places) {
            for service in &place.services {
                all.extend(protected(service, &place.member, number, self.incarnation)?);
            }
            // Without a key of the ToR's there are no answers, and nobody is excluded who is heard.
            let answered = place.services.iter().any(|s| s.keys.beat_key().is_some());
            let silent = Lease { until: u64::MAX, settling: 0 };
            replica.set_lease(number, if answered { place.term.lease() } else { silent });
        }
        replica.protect(all);
        Ok(())
    }

    /// The ToR answered a heartbeat of this place that left at `sent`, of the agent's clock in nanoseconds.
    pub(super) fn answered(&mut self, member: &Member, live: &Live, sent: u64) {
        let Some(replica) = &self.replica else { return };
        let back = replica.back();
        for (number, place) in (0u32..).zip(&mut self.places) {
            for (_, absence) in back.iter().filter(|(of, _)| *of == number) {
                place.term.back(*absence);
            }
            if (place.member.pool, place.member.replica) != (member.pool, member.replica) {
                continue;
            }
            let gone = place.term.answered(sent, live.alive, live.plain, clock());
            replica.set_lease(number, place.term.lease());
            if let Some(absence) = place.term.away().filter(|absence| *absence > place.asked) {
                place.asked = absence;
                replica.away(place.absence((number, absence), live.alive));
            }
            for dead in (0..64).filter(|dead| gone >> dead & 1 == 1) {
                for service in &place.services {
                    if let Some(departed) = departed(service, &place.member, dead, live.plain) {
                        replica.departed(departed);
                    }
                }
            }
        }
    }

    /// Why a service is not protected that should be.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Whether it is being asked what others hold: before that is known clients are not to come here again.
    pub(super) fn is_asking(&self) -> bool {
        self.places.iter().any(|place| place.term.away().is_some_and(|absence| absence == place.asked))
    }

    /// For the report to the controller.
    pub(super) fn counts(&self) -> Option<TrodsCounts> {
        let counts = self.replica.as_ref()?.counts();
        Some(TrodsCounts {
            incarnation: self.incarnation,
            protected: counts.protected,
            unprotected: counts.unprotected,
            adopted: counts.adopted,
            refused: counts.refused,
        })
    }
}

impl Place {
    /// Who of those that are alive may have gone on with connections of this replica.
    fn absence(&self, number: (u32, u64), alive: u64) -> Absence {
        let mut absence =
            Absence { number, others: Vec::new(), servers: Vec::new(), tor: self.member.tor_mac };
        for service in &self.services {
            let Some(trods) = &service.trods else { continue };
            let others = trods.members.iter().filter(|m| u16::from(m.replica) != self.member.replica);
            for other in others.filter(|m| alive >> m.replica & 1 == 1 && m.incarnation != 0) {
                if let Ok(prefix) = prefix(service, self.member.pool, other.replica.into(), other.incarnation)
                {
                    absence.others.push((other.replica, prefix));
                }
            }
            let fresh = trods.store.iter().filter(|server| !absence.servers.contains(server));
            let fresh: Vec<_> = fresh.copied().collect();
            absence.servers.extend(fresh);
        }
        absence
    }
}

/// What the keys of a replica's records of a service begin with.
fn prefix(service: &Service, pool: u16, replica: u16, incarnation: u32) -> Result<String, StoreError> {
    store::prefix(&format!("{pool}-{}", service.keys.service), &replica.to_string(), incarnation.into())
}

fn protected(
    service: &Service,
    member: &Member,
    lease: u32,
    incarnation: u32,
) -> Result<Option<Protected>, StoreError> {
    let Some(trods) = &service.trods else { return Ok(None) };
    let own = trods.members.iter().filter(|m| u16::from(m.replica) == member.replica).map(|m| m.address);
    let store = StoreConfig {
        servers: trods.store.clone(),
        own: own.collect(),
        copies: trods.copies,
        prefix: prefix(service, member.pool, member.replica, incarnation)?,
        patience: store::PATIENCE,
    };
    let settings = Settings { closed: trods.failure == Failure::Closed };
    Ok(Some(Protected { sockets: service.sockets().collect(), lease, settings, store }))
}

/// A member that is gone, if it ever said under which incarnation its records are; `plain`: who takes what clients send.
fn departed(service: &Service, member: &Member, dead: u8, plain: u64) -> Option<Departed> {
    let (trods, slots) = (service.trods.as_ref()?, service.slots.clone()?);
    let incarnation = trods.member(dead).map(|m| m.incarnation).filter(|incarnation| *incarnation != 0)?;
    let prefix = prefix(service, member.pool, dead.into(), incarnation).ok()?;
    let (own, tor) = (member.replica, member.tor_mac);
    // Whoever is nobody's is anybody's who gets an answer, but nobody's to probe.
    let other = move |client, service| match slots.owner(client, service, plain) {
        Some(owner) if u16::from(owner) == own => None,
        owner => Some(Pin { tor, holder: owner.unwrap_or(dead) }),
    };
    let waits = plain >> (own & 63) & 1 == 0;
    Some(Departed { prefix, servers: trods.store.clone(), other: Box::new(other), waits })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Duration;

    use rivulet_packet::slot::{Slot, SlotKey};
    use rivulet_server::keys::KeySet;
    use rivulet_server::service::{Plain, PoolMember, Slots, Trods};

    use super::*;

    fn service() -> Service {
        let member = |replica: u8, incarnation| PoolMember {
            replica,
            name: format!("r{replica}"),
            address: [10, 0, 2, replica].into(),
            incarnation,
        };
        Service {
            name: "www".into(),
            addresses: vec!["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()],
            port: 80,
            keys: KeySet::generate(5).unwrap(),
            member: Some(Member {
                pool: 3,
                replica: 1,
                tor_mac: [2, 0, 0, 0, 0, 0xfe],
                heartbeat: Duration::from_millis(2),
                bound: Duration::from_millis(20),
            }),
            trust_tor: true,
            plain: Plain::Trods,
            drains: Plain::Trods,
            horizon: Duration::from_secs(4),
            tunnels: Vec::new(),
            content: None,
            slots: Some(Slots {
                key: SlotKey::new([1; 8]),
                pairs: Arc::new([Slot { first: 0, second: 1 }, Slot { first: 0, second: 2 }]),
            }),
            trods: Some(Trods {
                store: vec!["10.0.2.9:11211".parse().unwrap()],
                copies: 1,
                failure: Failure::Closed,
                deterministic: false,
                members: vec![member(0, 7), member(1, 8), member(2, 0)],
            }),
        }
    }

    #[test]
    fn a_service_says_where_its_records_go() {
        let service = service();
        let member = service.member.unwrap();
        let protected = protected(&service, &member, 4, 8).unwrap().unwrap();
        assert_eq!((protected.lease, protected.settings), (4, Settings { closed: true }));
        assert_eq!(protected.sockets, service.sockets().collect::<Vec<_>>());
        assert_eq!((&*protected.store.prefix, protected.store.copies), ("3-5.1.8", 1));
        assert_eq!(protected.store.own, ["10.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    }

    #[test]
    fn whoever_was_away_asks_those_that_were_there() {
        let service = service();
        let mut place = Place {
            member: service.member.unwrap(),
            term: Term::new(1, Duration::from_millis(20)),
            asked: 0,
            services: vec![service.clone()],
        };
        let absence = place.absence((4, 1), 0b111);
        assert_eq!((absence.number, absence.tor), ((4, 1), [2, 0, 0, 0, 0, 0xfe]));
        assert_eq!(absence.others, [(0, "3-5.0.7".into())], "nobody knows the other's incarnation");
        assert_eq!(absence.servers, service.trods.as_ref().unwrap().store);
        assert!(place.absence((4, 1), 0b110).others.is_empty(), "who is gone holds nothing");
        place.services.push(service);
        assert_eq!(place.absence((4, 1), 0b111).servers.len(), 1);
    }

    #[test]
    fn who_is_gone_is_looked_for_by_all_and_probed_by_one() {
        let service = service();
        let member = service.member.unwrap();
        let departed = |dead| departed(&service, &member, dead, 0b110);
        assert!(departed(2).is_none() && departed(3).is_none(), "nobody knows its incarnation");
        let gone = departed(0).unwrap();
        assert_eq!((&*gone.prefix, gone.servers), ("3-5.0.7", vec!["10.0.2.9:11211".parse().unwrap()]));
        let to = service.sockets().next().unwrap();
        let mut ours = 0;
        for port in 1..1000 {
            let client = SocketAddr::from(([192, 0, 2, 7], port));
            let owner = service.slots.as_ref().unwrap().owner(client, to, 0b110).unwrap();
            let other = (owner != 1).then_some(Pin { tor: member.tor_mac, holder: owner });
            assert_eq!((gone.other)(client, to), other);
            ours += u32::from(owner == 1);
        }
        assert!((300..700).contains(&ours), "{ours} of 999");
    }
}
