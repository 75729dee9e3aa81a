use super::*;
use rivulet_packet::TorKey;

/// All services, or the first error.
fn services(update: &proto::Update) -> Result<Vec<Service>, ConvertError> {
    let Accepted { services, mut refused } = super::services(update);
    if refused.is_empty() { Ok(services) } else { Err(refused.remove(0).1) }
}

fn good() -> proto::Service {
    proto::Service {
        id: 1,
        name: "www".into(),
        addresses: vec![vec![10, 9, 0, 1], vec![0xfd; 16]],
        port: 80,
        pool: 1,
        replica: 2,
        tor_mac: vec![2, 0, 0, 0, 0, 1],
        heartbeat_interval_us: 2000,
        liveness_bound_us: 20_000,
        trust_tor: true,
        plain: proto::Plain::Stateless.into(),
        seal_keys: vec![proto::SealKey { epoch: 3, master: vec![1; 16] }],
        nonce_keys: vec![proto::NonceKey {
            epoch: 4,
            k: vec![1; 8],
            k_prime: vec![2; 8],
            opening: vec![3; 16],
        }],
        usable_seal_epoch: 3,
        usable_nonce_epoch: 4,
        horizon_us: 4_000_000,
        tunnels: vec![proto::Tunnel { local: vec![10, 0, 2, 1], tor: vec![10, 0, 3, 254] }],
        slot_key: vec![4; 8],
        slots: vec![0, 1, 1, 0],
        tor_keys: vec![proto::TorKey { epoch: 0x105, heartbeat: vec![5; 8], block: vec![6; 8] }],
        usable_tor_epoch: 0x105,
        cookie_keys: [7u8, 8].map(|n| proto::CookieKey { epoch: n.into(), key: vec![n; 8] }).into(),
        usable_cookie_epoch: 7,
        plain_drains: proto::Plain::Kernel.into(),
        trods: None,
        content: Some(0x0102_0304),
        content_epoch: 7,
        affinity: proto::Affinity::Client.into(),
        slot_hash: proto::SlotHash::Crc32.into(),
        tls: None,
    }
}

fn with_tls() -> proto::Service {
    let tls = proto::Tls {
        certificates: vec![proto::Certificate { certificate: "/a.pem".into(), key: "/a.key".into() }],
        server: "127.0.0.1:80".into(),
        forwarded: proto::Forwarded::Proxy.into(),
        client_ca: String::new(),
        ticket_keys: [7u8, 8, 9].map(|n| proto::TicketKey { epoch: n.into(), key: vec![n; 32] }).into(),
        usable_ticket_epoch: 8,
    };
    proto::Service { plain: proto::Plain::Kernel.into(), tls: Some(tls), ..good() }
}

#[test]
fn tls_is_converted_and_the_usable_ticket_key_comes_first() {
    let update = |service| services(&proto::Update { version: 1, services: vec![service] });
    let tls = update(with_tls()).unwrap().remove(0).tls.unwrap();
    assert_eq!((tls.server.to_string(), tls.forwarded), ("127.0.0.1:80".to_owned(), Forwarded::Proxy));
    assert_eq!(tls.tickets().iter().map(|key| key.epoch).collect::<Vec<_>>(), [8, 9, 7]);
    type Change = fn(&mut proto::Tls);
    let cases: [(&str, Change); 8] = [
        ("tls.server", |t| t.server = "localhost:80".into()),
        ("tls.forwarded", |t| t.forwarded = 3),
        ("tls.ticket_keys.key", |t| t.ticket_keys[0].key.push(0)),
        ("tls.ticket_keys.epoch", |t| t.ticket_keys[0].epoch = 65_536),
        ("16 epochs", |t| t.ticket_keys[0].epoch = 9),
        ("16 epochs", |t| t.ticket_keys[0].epoch = 0),
        ("usable ticket epoch", |t| t.usable_ticket_epoch = 6),
        ("the service itself", |t| t.server = "10.9.0.1:80".into()),
    ];
    for (part, change) in cases {
        let mut bad = with_tls();
        change(bad.tls.as_mut().unwrap());
        let error = update(bad).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// Rows of TLS settings with the verdict of the controller's own check on each
/// (`controller/tests/test_agent_rules.py`).
#[test]
fn verdicts_on_tls_match_the_controllers_check() {
    let rows = include_str!("../../tests/tls_rules.txt");
    for row in rows.lines() {
        let columns: Vec<String> = row.split('\t').map(|c| c.replace("%00", "\0")).collect();
        let [verdict, plain, count, certificate, key, server, client_ca] = &columns[..] else {
            panic!("{row}")
        };
        let base = if plain == "trods" { with_trods() } else { good() };
        let certificate = proto::Certificate { certificate: certificate.clone(), key: key.clone() };
        let tls = proto::Tls {
            certificates: vec![certificate; count.parse().unwrap()],
            server: server.clone(),
            client_ca: client_ca.clone(),
            ..with_tls().tls.unwrap()
        };
        let plain = proto::Plain::from_str_name(&format!("PLAIN_{}", plain.to_uppercase())).unwrap();
        let drains = proto::Plain::None.into();
        let service = proto::Service { plain: plain.into(), plain_drains: drains, tls: Some(tls), ..base };
        let accepted = super::services(&proto::Update { version: 1, services: vec![service] });
        assert_eq!(accepted.refused.is_empty(), verdict == "yes", "{row}: {}", accepted.error());
    }
    assert!(rows.lines().count() > 50);
}

fn with_trods() -> proto::Service {
    let member = |replica: u8| proto::PoolMember {
        replica: replica.into(),
        name: format!("r{replica}"),
        address: vec![10, 0, 2, replica],
        incarnation: 70 + u32::from(replica),
    };
    let trods = proto::Trods {
        store: vec!["10.0.2.9:11211".into(), "[fd00:2::9]:11212".into()],
        copies: 2,
        closed: true,
        deterministic: true,
        members: [0, 1, 2].map(member).into(),
        objects: String::new(),
        as_server: true,
        trust_unknown: false,
    };
    let plain = proto::Plain::Trods.into();
    proto::Service { plain, plain_drains: 0, trods: Some(trods), ..good() }
}

#[test]
fn service_is_converted_completely() {
    let update = proto::Update { version: 1, services: vec![good()] };
    let services = services(&update).unwrap();
    let service = &services[0];
    assert_eq!((service.port, service.keys.usable_seal, service.keys.usable_nonce), (80, 3, 4));
    assert_eq!(service.addresses[0].to_string(), "10.9.0.1");
    assert_eq!(service.member.unwrap().replica, 2);
    assert_eq!(service.tunnels[0].tor.to_string(), "10.0.3.254");
    assert_eq!(service.keys.beat_key(), Some((5, TorKey::new([5; 8]))));
    assert_eq!(service.keys.block_key(5), Some(TorKey::new([6; 8])));
    assert_eq!(service.keys.block_key(6), None);
    let cookies: Vec<_> = service.keys.cookie.iter().map(|c| (c.epoch, c.key.0)).collect();
    assert_eq!((service.keys.usable_cookie, &cookies[..]), (7, &[(7, [7; 8]), (8, [8; 8])][..]));
    let slots = service.slots.as_ref().unwrap();
    assert_eq!((slots.key, slots.affinity), (SlotKey::new([4; 8], SlotHash::Crc32), Affinity::Client));
    assert_eq!(service.content, Some(InForce { version: 0x0102_0304, epoch: 7 }));
    let before = proto::Service { content: None, ..good() };
    let update = proto::Update { version: 1, services: vec![before] };
    assert_eq!(super::services(&update).services[0].content, None, "a controller of before decides nothing");
    assert_eq!(&slots.pairs[..], [Slot { first: 0, second: 1 }, Slot { first: 1, second: 0 }]);
}

#[test]
fn mode_of_plain_tcp_is_converted() {
    let plain = |number: i32| {
        let service = proto::Service { plain: number, plain_drains: 0, ..good() };
        services(&proto::Update { version: 1, services: vec![service] }).map(|services| services[0].plain)
    };
    assert!(matches!(plain(0), Ok(Plain::None)) && matches!(plain(1), Ok(Plain::Kernel)));
    assert!(matches!(plain(2), Ok(Plain::Stateless)));
    for number in [4, -1] {
        let error = plain(number).unwrap_err().to_string();
        assert!(error.contains("plain is not none, kernel, stateless or trods"), "{error}");
    }
    assert!(plain(3).unwrap_err().to_string().contains("settings of TRODS"));
    let drains = |plain: i32, plain_drains: i32| {
        let service = proto::Service { plain, plain_drains, ..good() };
        services(&proto::Update { version: 1, services: vec![service] }).map(|services| services[0].drains)
    };
    assert!(matches!(drains(1, 2), Ok(Plain::Stateless)) && matches!(drains(2, 1), Ok(Plain::Kernel)));
    assert!(matches!(drains(1, 0), Ok(Plain::Kernel)) && matches!(drains(0, 0), Ok(Plain::None)));
    assert!(drains(0, 1).unwrap_err().to_string().contains("nothing drains"));
    assert!(drains(1, 4).unwrap_err().to_string().contains("plain_drains"));
    assert!(drains(2, 3).unwrap_err().to_string().contains("between stateless TCP and TRODS"));
}

#[test]
fn settings_of_trods_are_converted() {
    let update = |service| services(&proto::Update { version: 1, services: vec![service] });
    let ending = proto::Service { plain: 1, plain_drains: 3, ..with_trods() };
    for (service, plain, drains) in
        [(with_trods(), Plain::Trods, Plain::Trods), (ending, Plain::Kernel, Plain::Trods)]
    {
        let service = update(service).unwrap().remove(0);
        assert_eq!((service.plain, service.drains), (plain, drains));
        let trods = service.trods.unwrap();
        let store: Vec<_> = trods.store.iter().map(SocketAddr::to_string).collect();
        assert_eq!(store, ["10.0.2.9:11211", "[fd00:2::9]:11212"]);
        assert_eq!((trods.copies, trods.failure, trods.deterministic), (2, Failure::Closed, true));
        assert_eq!((trods.as_server, trods.trust_unknown), (true, false));
        let member = trods.member(1).unwrap();
        assert_eq!((&*member.name, member.incarnation), ("r1", 71));
        assert_eq!(member.address.to_string(), "10.0.2.1");
        assert_eq!((trods.members.len(), trods.member(3)), (3, None));
    }
    type Change = fn(&mut proto::Trods);
    let cases: [(&str, Change); 6] = [
        ("trods.store", |t| t.store[0] = "memory:11211".into()),
        ("trods.store", |t| t.store[0] = "10.0.2.9".into()),
        ("trods.copies", |t| t.copies = 257),
        ("trods.members.replica", |t| t.members[0].replica = 256),
        ("trods.members.address", |t| t.members[0].address.clear()),
        ("1 to 8", |t| t.store.clear()),
    ];
    for (part, change) in cases {
        let mut bad = with_trods();
        change(bad.trods.as_mut().unwrap());
        let error = update(bad).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn invalid_values_are_refused_with_the_field_name() {
    type Change = fn(&mut proto::Service);
    let cases: [(&str, Change); 22] = [
        ("addresses", |s| s.addresses.push(vec![1, 2])),
        ("tor_mac", |s| s.tor_mac.clear()),
        ("port", |s| s.port = 65_536),
        ("master", |s| s.seal_keys[0].master.push(0)),
        ("k_prime", |s| s.nonce_keys[0].k_prime.clear()),
        ("usable seal epoch", |s| s.usable_seal_epoch = 9),
        ("index", |s| s.replica = 64),
        ("service number", |s| s.id = 0),
        ("tunnels.tor", |s| s.tunnels[0].tor.clear()),
        ("slot_key", |s| s.slot_key.clear()),
        ("slots", |s| s.slots.push(0)),
        ("affinity", |s| s.affinity = 2),
        ("slot_hash", |s| s.slot_hash = 2),
        ("tor_keys.heartbeat", |s| s.tor_keys[0].heartbeat.push(0)),
        ("tor_keys.block", |s| s.tor_keys[0].block.clear()),
        ("ToRs' keys", |s| s.usable_tor_epoch = 9),
        ("cookie_keys.key", |s| s.cookie_keys[0].key.push(0)),
        ("cookie_keys.epoch", |s| s.cookie_keys[0].epoch = 65_536),
        ("usable cookie epoch", |s| s.usable_cookie_epoch = 9),
        ("content_epoch", |s| s.content_epoch = 65_536),
        ("power of two", |s| s.slots.extend([0, 1])),
        ("a tunnel", |s| s.tunnels[0].local = vec![0xfd; 16]),
    ];
    for (part, change) in cases {
        let mut bad = good();
        change(&mut bad);
        let error = services(&proto::Update { version: 1, services: vec![bad] }).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn refused_service_is_named_and_others_are_accepted() {
    let nth = |id: u32| proto::Service { id, addresses: vec![vec![10, 9, 1, id as u8]], ..good() };
    let mut update = proto::Update { version: 1, services: (1..=9).map(nth).collect() };
    for (id, address) in [(2, [127, 0, 0, 1]), (4, [0; 4]), (5, [255; 4]), (6, [224, 0, 0, 5])] {
        update.services[id - 1].addresses = vec![address.into()];
    }
    update.services[7].heartbeat_interval_us = 50;
    let accepted = super::services(&update);
    let served: Vec<_> = accepted.services.iter().map(|s| s.keys.service).collect();
    assert_eq!((served, accepted.refused_ids()), (vec![1, 3, 7, 9], vec![2, 4, 5, 6, 8]));
    let error = accepted.error();
    assert!(error.starts_with("service www: an address that is not one host's; "), "{error}");
    assert!(error.ends_with("and 2 services more"), "{error}");
    assert_eq!(super::services(&proto::Update { version: 1, services: vec![nth(1)] }).error(), "");
}

/// Rows of values with the verdict of the controller's own check on each
/// (`controller/tests/test_agent_rules.py`).
#[test]
fn verdicts_match_the_controllers_check() {
    let rows = include_str!("../../tests/agent_rules.txt");
    for row in rows.lines() {
        let columns: Vec<&str> = row.split_ascii_whitespace().collect();
        let [verdict, numbers @ .., addresses, racks] = &columns[..] else { panic!("{row}") };
        let numbers: Vec<u32> =
            numbers.iter().map(|n| n.parse::<u64>().unwrap().try_into().unwrap_or(u32::MAX)).collect();
        let &[services, pools, heartbeat, liveness, horizon, port] = &numbers[..] else { panic!("{row}") };
        let bytes = |text: &str| match text.parse::<IpAddr>().unwrap() {
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        };
        let place = |n: u32| proto::Service {
            id: n + 1,
            addresses: match n {
                0 => addresses.split(',').map(bytes).collect(),
                _ => vec![vec![10, 8, (n / 250) as u8, (n % 250 + 1) as u8]],
            },
            port,
            pool: n % pools,
            heartbeat_interval_us: heartbeat,
            liveness_bound_us: liveness,
            horizon_us: horizon,
            tunnels: (1..=racks.parse().unwrap())
                .map(|n| proto::Tunnel { local: vec![10, 2, 0, 1], tor: vec![10, 3, 0, n] })
                .collect(),
            ..good()
        };
        let update = proto::Update { version: 1, services: (0..services).map(place).collect() };
        let accepted = super::services(&update);
        assert_eq!(accepted.refused.is_empty(), *verdict == "yes", "{row}: {}", accepted.error());
    }
    assert!(rows.lines().count() > 150);
}
