//! From the controller's messages to what the server takes, with every field checked.

use std::net::IpAddr;
use std::time::Duration;

use rivulet_packet::slot::{Slot, SlotKey};
use rivulet_server::keys::{CookieEpoch, KeySet, NonceEpoch, SealKey, Secret, TorKeys};
use rivulet_server::service::{Member, Plain, Service, ServiceError, Slots, Tunnel, check_all};

use crate::proto;

/// Why an update is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A field has a length or a value that it cannot have.
    #[error("service {service}: {field} is not {want}")]
    Field {
        /// Name of the service.
        service: String,
        /// The field, as the message names it.
        field: &'static str,
        /// What it should be.
        want: &'static str,
    },
    /// The fields contradict each other.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The services of an update.
pub fn services(update: &proto::Update) -> Result<Vec<Service>, ConvertError> {
    let services: Vec<Service> = update.services.iter().map(service).collect::<Result<_, _>>()?;
    check_all(&services)?;
    Ok(services)
}

fn service(from: &proto::Service) -> Result<Service, ConvertError> {
    let bad = |field, want| ConvertError::Field { service: from.name.clone(), field, want };
    let small = |value: u32, field| u16::try_from(value).map_err(|_| bad(field, "below 65,536"));
    let addresses = from
        .addresses
        .iter()
        .map(|a| address(a).ok_or(bad("addresses", "4 or 16 octets")))
        .collect::<Result<_, _>>()?;
    let seal = from
        .seal_keys
        .iter()
        .map(|k| {
            let master = secret(&k.master).ok_or(bad("seal_keys.master", "16 octets"))?;
            Ok(SealKey { epoch: small(k.epoch, "seal_keys.epoch")?, master })
        })
        .collect::<Result<_, ConvertError>>()?;
    let nonce = from
        .nonce_keys
        .iter()
        .map(|k| {
            Ok(NonceEpoch {
                epoch: small(k.epoch, "nonce_keys.epoch")?,
                k: secret(&k.k).ok_or(bad("nonce_keys.k", "8 octets"))?,
                k_prime: secret(&k.k_prime).ok_or(bad("nonce_keys.k_prime", "8 octets"))?,
                opening: secret(&k.opening).ok_or(bad("nonce_keys.opening", "16 octets"))?,
            })
        })
        .collect::<Result<_, ConvertError>>()?;
    let tor = from
        .tor_keys
        .iter()
        .map(|k| {
            Ok(TorKeys {
                epoch: small(k.epoch, "tor_keys.epoch")?,
                heartbeat: secret(&k.heartbeat).ok_or(bad("tor_keys.heartbeat", "8 octets"))?,
                block: secret(&k.block).ok_or(bad("tor_keys.block", "8 octets"))?,
            })
        })
        .collect::<Result<_, ConvertError>>()?;
    let cookie = from
        .cookie_keys
        .iter()
        .map(|k| {
            let key = secret(&k.key).ok_or(bad("cookie_keys.key", "8 octets"))?;
            Ok(CookieEpoch { epoch: small(k.epoch, "cookie_keys.epoch")?, key })
        })
        .collect::<Result<_, ConvertError>>()?;
    let mode = |number, field| match proto::Plain::try_from(number) {
        Ok(proto::Plain::None) => Ok(Plain::None),
        Ok(proto::Plain::Kernel) => Ok(Plain::Kernel),
        Ok(proto::Plain::Stateless) => Ok(Plain::Stateless),
        Ok(proto::Plain::Trods) | Err(_) => Err(bad(field, "none, kernel or stateless")),
    };
    let plain = mode(from.plain, "plain")?;
    let drains = match mode(from.plain_drains, "plain_drains")? {
        Plain::None => plain,
        drains => drains,
    };
    let keys = KeySet {
        service: small(from.id, "id")?,
        usable_seal: small(from.usable_seal_epoch, "usable_seal_epoch")?,
        usable_nonce: small(from.usable_nonce_epoch, "usable_nonce_epoch")?,
        usable_tor: small(from.usable_tor_epoch, "usable_tor_epoch")?,
        usable_cookie: small(from.usable_cookie_epoch, "usable_cookie_epoch")?,
        seal,
        nonce,
        tor,
        cookie,
    };
    let member = Member {
        pool: small(from.pool, "pool")?,
        replica: small(from.replica, "replica")?,
        tor_mac: from.tor_mac.as_slice().try_into().map_err(|_| bad("tor_mac", "6 octets"))?,
        heartbeat: Duration::from_micros(from.heartbeat_interval_us.into()),
        bound: Duration::from_micros(from.liveness_bound_us.into()),
    };
    let end = |octets: &[u8], field| address(octets).ok_or(bad(field, "4 or 16 octets"));
    let tunnels = from
        .tunnels
        .iter()
        .map(|t| Ok(Tunnel { local: end(&t.local, "tunnels.local")?, tor: end(&t.tor, "tunnels.tor")? }))
        .collect::<Result<_, ConvertError>>()?;
    let slots = if from.slots.is_empty() {
        None
    } else {
        let key = from.slot_key.as_slice().try_into().map_err(|_| bad("slot_key", "8 octets"))?;
        let (pairs, []) = from.slots.as_chunks::<2>() else { return Err(bad("slots", "whole pairs")) };
        let pairs = pairs.iter().map(|&[first, second]| Slot { first, second }).collect();
        Some(Slots { key: SlotKey::new(key), pairs })
    };
    Ok(Service {
        name: from.name.clone(),
        addresses,
        port: small(from.port, "port")?,
        keys,
        member: Some(member),
        trust_tor: from.trust_tor,
        plain,
        drains,
        horizon: Duration::from_micros(from.horizon_us.into()),
        tunnels,
        slots,
    })
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
    }
}

fn secret<const N: usize>(octets: &[u8]) -> Option<Secret<N>> {
    octets.try_into().ok().map(Secret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rivulet_packet::TorKey;

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
        }
    }

    #[test]
    fn a_service_arrives_whole() {
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
        assert_eq!(slots.key, SlotKey::new([4; 8]));
        assert_eq!(&slots.pairs[..], [Slot { first: 0, second: 1 }, Slot { first: 1, second: 0 }]);
    }

    #[test]
    fn the_mode_of_plain_tcp_arrives() {
        let plain = |number: i32| {
            let service = proto::Service { plain: number, plain_drains: 0, ..good() };
            services(&proto::Update { version: 1, services: vec![service] }).map(|services| services[0].plain)
        };
        assert!(matches!(plain(0), Ok(Plain::None)) && matches!(plain(1), Ok(Plain::Kernel)));
        assert!(matches!(plain(2), Ok(Plain::Stateless)));
        for number in [3, 4, -1] {
            assert!(
                plain(number).unwrap_err().to_string().contains("plain is not none, kernel or stateless")
            );
        }
        let drains = |plain: i32, plain_drains: i32| {
            let service = proto::Service { plain, plain_drains, ..good() };
            services(&proto::Update { version: 1, services: vec![service] })
                .map(|services| services[0].drains)
        };
        assert!(matches!(drains(1, 2), Ok(Plain::Stateless)) && matches!(drains(2, 1), Ok(Plain::Kernel)));
        assert!(matches!(drains(1, 0), Ok(Plain::Kernel)) && matches!(drains(0, 0), Ok(Plain::None)));
        assert!(drains(0, 1).unwrap_err().to_string().contains("nothing drains"));
        assert!(drains(1, 3).unwrap_err().to_string().contains("plain_drains"));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        type Change = fn(&mut proto::Service);
        let cases: [(&str, Change); 19] = [
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
            ("tor_keys.heartbeat", |s| s.tor_keys[0].heartbeat.push(0)),
            ("tor_keys.block", |s| s.tor_keys[0].block.clear()),
            ("ToRs' keys", |s| s.usable_tor_epoch = 9),
            ("cookie_keys.key", |s| s.cookie_keys[0].key.push(0)),
            ("cookie_keys.epoch", |s| s.cookie_keys[0].epoch = 65_536),
            ("usable cookie epoch", |s| s.usable_cookie_epoch = 9),
            ("power of two", |s| s.slots.extend([0, 1])),
            ("a tunnel", |s| s.tunnels[0].local = vec![0xfd; 16]),
        ];
        for (part, change) in cases {
            let mut bad = good();
            change(&mut bad);
            let error =
                services(&proto::Update { version: 1, services: vec![bad] }).expect_err(part).to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
