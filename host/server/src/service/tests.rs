use super::*;
use rivulet_packet::slot::SlotHash;

fn service() -> Service {
    Service {
        member: Some(Member {
            pool: 1,
            replica: 0,
            tor_mac: [2, 0, 0, 0, 0, 1],
            heartbeat: Duration::from_millis(2),
            bound: Duration::from_millis(20),
        }),
        trust_tor: true,
        slots: Some(Slots {
            key: SlotKey::new([1; 8], SlotHash::HalfSipHash),
            affinity: Affinity::Flow,
            pairs: Arc::new([Slot { first: 0, second: 1 }, Slot { first: 1, second: 0 }]),
        }),
        ..Service::standalone(
            "www",
            vec!["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()],
            80,
            KeySet::generate(1).unwrap(),
            Plain::Kernel,
        )
    }
}

/// The store has one server on a separate host, and one on this replica's.
fn with_trods() -> Service {
    let member = |replica: u8| PoolMember {
        replica,
        name: format!("r{replica}"),
        address: IpAddr::from([10, 0, 2, replica]),
        incarnation: 7,
    };
    let trods = Trods {
        store: vec!["10.0.2.9:11211".parse().unwrap(), "10.0.2.0:11211".parse().unwrap()],
        copies: 2,
        failure: Failure::Open,
        deterministic: false,
        as_server: false,
        trust_unknown: false,
        objects: None,
        members: vec![member(0), member(1)],
    };
    Service { plain: Plain::Trods, drains: Plain::Trods, trods: Some(trods), ..service() }
}

fn trods_of(service: &mut Service) -> &mut Trods {
    service.trods.as_mut().unwrap()
}

fn tunnel(local: &str) -> Tunnel {
    Tunnel { local: local.parse().unwrap(), tor: "10.0.3.254".parse().unwrap() }
}

#[test]
fn affinity_keeps_all_flows_of_a_client_on_one_replica() {
    let service = service();
    let flows = service.slots.unwrap();
    let clients = Slots { affinity: Affinity::Client, ..flows.clone() };
    let owners = |slots: &Slots, client: IpAddr| {
        let to = [80, 443].map(|port| SocketAddr::new(service.addresses[0], port));
        let from = (1..100).map(move |port| SocketAddr::new(client, port));
        let pairs = from.flat_map(|client| to.map(|service| (client, service)));
        pairs.map(|(c, s)| slots.owner(c, s, 0b11).unwrap()).collect::<std::collections::BTreeSet<_>>()
    };
    let mut of_clients = std::collections::BTreeSet::new();
    for last in 1..30 {
        let client = [192, 0, 2, last].into();
        let one = owners(&clients, client);
        assert_eq!(one.len(), 1, "{client}: {one:?}");
        of_clients.extend(one);
        assert_eq!(owners(&flows, client).len(), 2);
    }
    assert_eq!(of_clients.len(), 2, "clients are spread");
}

#[test]
fn values_out_of_range_are_refused() {
    service().check().unwrap();
    type Change = fn(&mut Service);
    let cases: [(&str, Change); 18] = [
        ("above 10 min", |s| s.member.as_mut().unwrap().bound = Duration::from_secs(601)),
        ("one host's", |s| s.addresses.push("fe80::1".parse().unwrap())),
        ("the port", |s| s.port = 0),
        ("no address", |s| s.addresses.clear()),
        ("one host's", |s| s.addresses.push("224.0.0.1".parse().unwrap())),
        ("horizon", |s| s.horizon = Duration::ZERO),
        ("index", |s| s.member.as_mut().unwrap().replica = 64),
        ("Ethernet", |s| s.member.as_mut().unwrap().tor_mac = [0xff; 6]),
        ("interval", |s| s.member.as_mut().unwrap().heartbeat = Duration::ZERO),
        ("bound", |s| s.member.as_mut().unwrap().bound = Duration::ZERO),
        ("more than 16 tunnels", |s| s.tunnels = vec![tunnel("10.0.2.1"); 17]),
        ("without a place", |s| (s.member, s.tunnels) = (None, vec![tunnel("10.0.2.1")])),
        ("of one family", |s| s.tunnels = vec![tunnel("fd00:2::1")]),
        ("power of two", |s| s.slots.as_mut().unwrap().pairs = Arc::new([])),
        ("above 63", |s| s.slots.as_mut().unwrap().pairs = Arc::new([Slot { first: 0, second: 64 }])),
        ("nothing drains", |s| s.plain = Plain::None),
        ("nothing drains", |s| s.drains = Plain::None),
        ("two hosts'", |s| s.tunnels = vec![tunnel("0.0.0.0")]),
    ];
    for (part, change) in cases {
        let mut bad = service();
        change(&mut bad);
        let error = bad.check().expect_err(part).to_string();
        assert!(error.contains(part), "{error}");
    }
    let named = |s: &mut Service, path: &str| {
        trods_of(s).store.clear();
        trods_of(s).objects = Some(path.into());
    };
    let mut good = with_trods();
    named(&mut good, "/list");
    good.check().unwrap();
    trods_of(&mut good).store = trods_of(&mut with_trods()).store.clone();
    good.check().unwrap();
    let trods: [(&str, Change); 16] = [
        ("at no path", |s| {
            trods_of(s).store.clear();
            trods_of(s).objects = Some("list".into());
        }),
        ("settings of TRODS", |s| s.trods = None),
        ("settings of TRODS", |s| (s.plain, s.drains) = (Plain::Kernel, Plain::Kernel)),
        ("between stateless TCP and TRODS", |s| s.drains = Plain::Stateless),
        ("without a place", |s| s.member = None),
        ("without slots", |s| s.slots = None),
        ("not among the pool", |s| s.member.as_mut().unwrap().replica = 2),
        ("1 to 8", |s| trods_of(s).store.clear()),
        ("one host's port", |s| trods_of(s).store[0].set_port(0)),
        ("one host's port", |s| trods_of(s).store[0].set_ip([127, 0, 0, 1].into())),
        ("stands twice", |s| trods_of(s).store[1] = trods_of(s).store[0]),
        ("are 1 or 2", |s| trods_of(s).copies = 3),
        ("more copies", |s| trods_of(s).store.truncate(1)),
        ("host alone", |s| (trods_of(s).copies, _) = (1, trods_of(s).store.remove(0))),
        ("not in order", |s| trods_of(s).members.reverse()),
        ("1 to 63", |s| trods_of(s).members[1].name.clear()),
    ];
    with_trods().check().unwrap();
    Service { drains: Plain::Kernel, ..with_trods() }.check().unwrap();
    for (part, change) in trods {
        let mut bad = with_trods();
        change(&mut bad);
        let error = bad.check().expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(check_all(&[service(), service()]).unwrap_err().to_string().contains("twice"));
}

/// The nth service of a replica, in a pool shared by all.
fn nth(n: u16) -> Service {
    let [high, low] = n.to_be_bytes();
    let keys = KeySet { service: n + 1, ..KeySet::generate(1).unwrap() };
    Service { addresses: vec![IpAddr::from([10, 8, high, low])], keys, ..service() }
}

#[test]
fn a_replica_has_1024_services_and_the_next_is_refused() {
    let all: Vec<_> = (0..MAX_SERVICES as u16 + 2).map(nth).collect();
    let (good, refused) = sort_out(all.clone());
    assert_eq!((good.len(), MAX_SERVICES), (1024, 1024));
    let refused: Vec<_> = refused.into_iter().map(|(id, why)| (id, why.to_string())).collect();
    let why = "service www: more than 1024 services".to_string();
    assert_eq!(refused, [(1025, why.clone()), (1026, why)]);
    assert!(check_all(&all).is_err() && check_all(&good).is_ok());
}

#[test]
fn fault_of_one_service_leaves_the_others() {
    let mut all: Vec<_> = (0..6).map(nth).collect();
    all[1].addresses = vec!["127.0.0.1".parse().unwrap()];
    all[2].addresses = all[0].addresses.clone();
    (all[4].member.as_mut().unwrap().pool, all[4].member.as_mut().unwrap().heartbeat) =
        (7, Duration::from_micros(99));
    let (good, refused) = sort_out(all);
    assert_eq!(good.iter().map(|s| s.keys.service).collect::<Vec<_>>(), [1, 4, 6]);
    let refused: Vec<_> = refused.into_iter().map(|(id, why)| format!("{id} {why}")).collect();
    let parts =
        ["2 service www: an address", "3 service www: 10.8.0.0:80 stands", "5 service www: the heartbeat"];
    for (refused, part) in refused.iter().zip(parts) {
        assert!(refused.starts_with(part), "{refused}");
    }
    assert_eq!(refused.len(), parts.len());
}

#[test]
fn heartbeats_of_all_pools_are_bounded() {
    let pools = |count: u16, heartbeat: Duration| -> Vec<Service> {
        let place = |n: u16| {
            let mut service = nth(n);
            let member = service.member.as_mut().unwrap();
            (member.pool, member.heartbeat) = (n, heartbeat);
            service
        };
        (0..count).map(place).collect()
    };
    assert!(check_all(&pools(1024, Duration::from_millis(11))).is_ok());
    let error = check_all(&pools(1024, Duration::from_millis(2))).unwrap_err().to_string();
    assert!(error.contains("more than 100000 heartbeats a second"), "{error}");
}
