//! Converts the controller's messages to the server's types and checks every field.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rivulet_packet::slot::{Affinity, Slot, SlotHash, SlotKey};
use rivulet_server::keys::{CookieEpoch, KeySet, NonceEpoch, SealKey, Secret, TorKeys};
use rivulet_server::service::{
    Certificate, Failure, Forwarded, InForce, Member, Plain, PoolMember, Service, ServiceError, Slots,
    TicketKey, Tls, Trods, Tunnel, sort_out,
};

use crate::proto;

/// Why a service of an update is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A field has an invalid length or value.
    #[error("service {service}: {field} is not {want}")]
    Field {
        /// Name of the service.
        service: String,
        /// The field, as the message names it.
        field: &'static str,
        /// The values that the field may have.
        want: &'static str,
    },
    /// Fields contradict each other.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// The accepted services of an update, and the refused ones.
#[derive(Debug, Default)]
pub struct Accepted {
    /// Accepted services.
    pub services: Vec<Service>,
    /// Refused services by number.
    pub refused: Vec<(u32, ConvertError)>,
}

impl Accepted {
    /// The errors of the first refused services as text; empty if there are none.
    #[must_use]
    pub fn error(&self) -> String {
        const SHOWN: usize = 3;
        let mut words: Vec<String> = self.refused.iter().take(SHOWN).map(|(_, e)| e.to_string()).collect();
        if self.refused.len() > SHOWN {
            words.push(format!("and {} services more", self.refused.len() - SHOWN));
        }
        words.join("; ")
    }

    /// Numbers of the refused services.
    #[must_use]
    pub fn refused_ids(&self) -> Vec<u32> {
        self.refused.iter().map(|(id, _)| *id).collect()
    }
}

/// Checks the services of an update. A refused service does not affect the others.
#[must_use]
pub fn services(update: &proto::Update) -> Accepted {
    let (mut services, mut refused) = (Vec::with_capacity(update.services.len()), Vec::new());
    for from in &update.services {
        match service(from) {
            Ok(service) => services.push(service),
            Err(e) => refused.push((from.id, e)),
        }
    }
    let (services, others) = sort_out(services);
    refused.extend(others.into_iter().map(|(id, e)| (u32::from(id), e.into())));
    Accepted { services, refused }
}

fn service(from: &proto::Service) -> Result<Service, ConvertError> {
    let bad = |field, want| ConvertError::Field { service: from.name.clone(), field, want };
    let small = |value: u32, field| u16::try_from(value).map_err(|_| bad(field, "below 65,536"));
    let addresses = from
        .addresses
        .iter()
        .map(|a| address(a).ok_or(bad("addresses", "4 or 16 bytes")))
        .collect::<Result<_, _>>()?;
    let seal = from
        .seal_keys
        .iter()
        .map(|k| {
            let master = secret(&k.master).ok_or(bad("seal_keys.master", "16 bytes"))?;
            Ok(SealKey { epoch: small(k.epoch, "seal_keys.epoch")?, master })
        })
        .collect::<Result<_, ConvertError>>()?;
    let nonce = from
        .nonce_keys
        .iter()
        .map(|k| {
            Ok(NonceEpoch {
                epoch: small(k.epoch, "nonce_keys.epoch")?,
                k: secret(&k.k).ok_or(bad("nonce_keys.k", "8 bytes"))?,
                k_prime: secret(&k.k_prime).ok_or(bad("nonce_keys.k_prime", "8 bytes"))?,
                opening: secret(&k.opening).ok_or(bad("nonce_keys.opening", "16 bytes"))?,
            })
        })
        .collect::<Result<_, ConvertError>>()?;
    let tor = from
        .tor_keys
        .iter()
        .map(|k| {
            Ok(TorKeys {
                epoch: small(k.epoch, "tor_keys.epoch")?,
                heartbeat: secret(&k.heartbeat).ok_or(bad("tor_keys.heartbeat", "8 bytes"))?,
                block: secret(&k.block).ok_or(bad("tor_keys.block", "8 bytes"))?,
            })
        })
        .collect::<Result<_, ConvertError>>()?;
    let cookie = from
        .cookie_keys
        .iter()
        .map(|k| {
            let key = secret(&k.key).ok_or(bad("cookie_keys.key", "8 bytes"))?;
            Ok(CookieEpoch { epoch: small(k.epoch, "cookie_keys.epoch")?, key })
        })
        .collect::<Result<_, ConvertError>>()?;
    let mode = |number, field| match proto::Plain::try_from(number) {
        Ok(proto::Plain::None) => Ok(Plain::None),
        Ok(proto::Plain::Kernel) => Ok(Plain::Kernel),
        Ok(proto::Plain::Stateless) => Ok(Plain::Stateless),
        Ok(proto::Plain::Trods) => Ok(Plain::Trods),
        Err(_) => Err(bad(field, "none, kernel, stateless or trods")),
    };
    let plain = mode(from.plain, "plain")?;
    let drains = match mode(from.plain_drains, "plain_drains")? {
        Plain::None => plain,
        drains => drains,
    };
    let content = match from.content {
        Some(version) => Some(InForce { version, epoch: small(from.content_epoch, "content_epoch")? }),
        None => None,
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
        tor_mac: from.tor_mac.as_slice().try_into().map_err(|_| bad("tor_mac", "6 bytes"))?,
        heartbeat: Duration::from_micros(from.heartbeat_interval_us.into()),
        bound: Duration::from_micros(from.liveness_bound_us.into()),
    };
    let end = |bytes: &[u8], field| address(bytes).ok_or(bad(field, "4 or 16 bytes"));
    let tunnels = from
        .tunnels
        .iter()
        .map(|t| Ok(Tunnel { local: end(&t.local, "tunnels.local")?, tor: end(&t.tor, "tunnels.tor")? }))
        .collect::<Result<_, ConvertError>>()?;
    let slots = if from.slots.is_empty() {
        None
    } else {
        let key = from.slot_key.as_slice().try_into().map_err(|_| bad("slot_key", "8 bytes"))?;
        let (pairs, []) = from.slots.as_chunks::<2>() else { return Err(bad("slots", "whole pairs")) };
        let pairs = pairs.iter().map(|&[first, second]| Slot { first, second }).collect();
        let affinity = match proto::Affinity::try_from(from.affinity) {
            Ok(proto::Affinity::Flow) => Affinity::Flow,
            Ok(proto::Affinity::Client) => Affinity::Client,
            Err(_) => return Err(bad("affinity", "by flow or by client")),
        };
        let hash = match proto::SlotHash::try_from(from.slot_hash) {
            Ok(proto::SlotHash::HalfSipHash) => SlotHash::HalfSipHash,
            Ok(proto::SlotHash::Crc32) => SlotHash::Crc32,
            Err(_) => return Err(bad("slot_hash", "HalfSipHash or CRC-32")),
        };
        Some(Slots { key: SlotKey::new(key, hash), affinity, pairs })
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
        trods: from.trods.as_ref().map(|t| trods(t, bad)).transpose()?,
        content,
        tls: from.tls.as_ref().map(|t| tls(t, &from.name)).transpose()?,
    })
}

fn trods(
    from: &proto::Trods,
    bad: impl Fn(&'static str, &'static str) -> ConvertError,
) -> Result<Trods, ConvertError> {
    let server = |text: &String| text.parse::<SocketAddr>().map_err(|_| bad("trods.store", "ADDRESS:PORT"));
    let member = |m: &proto::PoolMember| {
        Ok(PoolMember {
            replica: u8::try_from(m.replica).map_err(|_| bad("trods.members.replica", "below 64"))?,
            name: m.name.clone(),
            address: address(&m.address).ok_or(bad("trods.members.address", "4 or 16 bytes"))?,
            incarnation: m.incarnation,
        })
    };
    Ok(Trods {
        store: from.store.iter().map(server).collect::<Result<_, _>>()?,
        copies: u8::try_from(from.copies).map_err(|_| bad("trods.copies", "1 or 2"))?,
        failure: if from.closed { Failure::Closed } else { Failure::Open },
        deterministic: from.deterministic,
        as_server: from.as_server,
        trust_unknown: from.trust_unknown,
        objects: (!from.objects.is_empty()).then(|| from.objects.clone()),
        members: from.members.iter().map(member).collect::<Result<_, ConvertError>>()?,
    })
}

pub(crate) fn tls(from: &proto::Tls, service: &str) -> Result<Tls, ConvertError> {
    let bad = |field, want| ConvertError::Field { service: service.to_owned(), field, want };
    let epoch = |value, field| u16::try_from(value).map_err(|_| bad(field, "below 65,536"));
    let certificate =
        |c: &proto::Certificate| Certificate { certificate: c.certificate.clone(), key: c.key.clone() };
    let key = |k: &proto::TicketKey| {
        let key = secret(&k.key).ok_or(bad("tls.ticket_keys.key", "32 bytes"))?;
        Ok(TicketKey { epoch: epoch(k.epoch, "tls.ticket_keys.epoch")?, key })
    };
    Ok(Tls {
        certificates: from.certificates.iter().map(certificate).collect(),
        server: from.server.parse().map_err(|_| bad("tls.server", "ADDRESS:PORT"))?,
        forwarded: match proto::Forwarded::try_from(from.forwarded) {
            Ok(proto::Forwarded::Headers) => Forwarded::Headers,
            Ok(proto::Forwarded::Proxy) => Forwarded::Proxy,
            Ok(proto::Forwarded::None) => Forwarded::None,
            Err(_) => return Err(bad("tls.forwarded", "headers, proxy or none")),
        },
        client_ca: (!from.client_ca.is_empty()).then(|| from.client_ca.clone()),
        ticket_keys: from.ticket_keys.iter().map(key).collect::<Result<_, ConvertError>>()?,
        usable_ticket: epoch(from.usable_ticket_epoch, "tls.usable_ticket_epoch")?,
    })
}

pub(crate) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn secret<const N: usize>(bytes: &[u8]) -> Option<Secret<N>> {
    bytes.try_into().ok().map(Secret)
}

#[cfg(test)]
mod tests;
