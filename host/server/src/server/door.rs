//! What answers the plain clients of a service without state: content, and the answers in progress.

use std::sync::Arc;

use rivulet_packet::EthHeader;
use rivulet_plain::{Downloads, Protocol, Relay, Replica, Ring, Site, Table};

use crate::back_end::BackEnd;
use crate::service::Service;

/// Maximum number of large answers at a time, less than 5 kB each.
const DOWNLOADS: usize = 1 << 12;
/// Maximum number of small answers remembered, less than 8 MB; a new one replaces the one in its
/// slot.
const REMEMBERED: usize = 1 << 16;

/// The source of answers to plain clients.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A table of objects.
    Objects(Arc<Table>),
    /// A program reached by UDP.
    BackEnd(BackEnd),
}

impl Content {
    /// Identifies the content; never 0.
    pub(super) fn version(&self) -> u32 {
        match self {
            Content::Objects(table) => table.version(),
            // The answers of a back end are unknown here. The version only shows that no replica
            // serves files in its place.
            Content::BackEnd(back_end) => {
                1 + u32::from(back_end.deterministic) + 2 * u32::from(back_end.protocol == Protocol::Dns)
            }
        }
    }
}

/// What answers the plain clients of a service without state.
#[derive(Debug)]
pub(crate) enum Door {
    /// A table of objects.
    Objects(Box<Objects>),
    /// A back end.
    BackEnd(Relay),
}

impl Door {
    pub(super) fn set_mtu(&mut self, mtu: u16) {
        match self {
            Door::Objects(objects) => objects.replica.site.mtu = mtu,
            Door::BackEnd(relay) => relay.mtu = mtu,
        }
    }

    /// Takes over the answers in progress from `before`, if its content is the same. All replicas
    /// change their configuration at once, so otherwise no replica would remember the client of one
    /// that died.
    pub(super) fn inherit(&mut self, before: Door) {
        if let (Door::Objects(now), Door::Objects(before)) = (self, before)
            && now.replica.site.table.version() == before.replica.site.table.version()
        {
            now.replica.ring = before.replica.ring;
            now.downloads = before.downloads;
        }
    }

    /// Applies new limits on remembered answers; services with a back end remember no answers.
    pub(super) fn set_memory(&mut self, memory: Memory) {
        if let Door::Objects(objects) = self {
            let Objects { replica, downloads } = objects.as_mut();
            if memory.ring != replica.ring.is_some() {
                replica.ring = memory.ring();
            }
            if memory.large != downloads.is_some() {
                replica.site.large = memory.large;
                *downloads = memory.downloads();
            }
        }
    }
}

/// Objects, and the answers in progress.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(super) replica: Replica,
    /// Large answers, if they are enabled.
    pub(super) downloads: Option<Downloads<Back>>,
}

/// Ethernet addresses for segments to a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    pub(super) ethernet: EthHeader,
    pub(super) ether_type: u16,
}

/// Which answers in progress are remembered. All of this is soft state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Remember small answers.
    pub(super) ring: bool,
    /// Serve large answers, which are always remembered.
    pub(super) large: bool,
}

impl Memory {
    fn ring(self) -> Option<Ring> {
        self.ring.then(|| Ring::new(REMEMBERED))
    }

    fn downloads(self) -> Option<Downloads<Back>> {
        self.large.then(|| Downloads::new(DOWNLOADS))
    }
}

/// What answers the plain clients of a service without state, or continues answers begun that way.
/// `None` where the kernel answers, before there are keys and content, or while other content is in
/// force.
pub(super) fn door(service: &Service, content: Option<&Content>, mtu: u32, memory: Memory) -> Option<Door> {
    if !service.answers_plain() {
        return None;
    }
    let content = content?;
    if service.content.is_some_and(|wanted| wanted.version != content.version()) {
        return None;
    }
    let keys = service.keys.cookies(service.content.map_or(0, |wanted| wanted.epoch))?;
    let mtu = self::mtu(mtu);
    Some(match content {
        Content::Objects(table) => {
            let site = Site { keys, table: table.clone(), mtu, large: memory.large };
            let replica = Replica { site, ring: memory.ring() };
            Door::Objects(Box::new(Objects { replica, downloads: memory.downloads() }))
        }
        Content::BackEnd(back_end) => {
            let (protocol, deterministic) = (back_end.protocol, back_end.deterministic);
            Door::BackEnd(Relay { keys, protocol, deterministic, mtu })
        }
    })
}

/// Maximum packet length of a plain connection on this interface.
pub(super) fn mtu(link: u32) -> u16 {
    u16::try_from(link).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{CookieKey, CookieKeys, Entry, Object};

    use super::*;

    /// Content that begins with this byte, with this much room.
    fn objects(octet: u8, room: usize) -> Door {
        let object = Object { kind: "text/plain".into(), hash: [octet; 16], body: vec![octet].into() };
        let table = Table::new(vec![("a".into(), Entry::Object(object))], false).unwrap().into();
        let keys = CookieKeys { current: CookieKey::new([1; 8]), others: [None; 2] };
        let site = Site { keys, table, mtu: 1500, large: true };
        let replica = Replica { site, ring: Some(Ring::new(room)) };
        Door::Objects(Box::new(Objects { replica, downloads: Some(Downloads::new(room)) }))
    }

    fn room(door: &Door) -> (usize, usize) {
        let Door::Objects(objects) = door else { panic!("a back end") };
        (objects.replica.ring.as_ref().unwrap().octets(), objects.downloads.as_ref().unwrap().octets())
    }

    #[test]
    fn answers_in_progress_survive_an_update_of_the_same_content() {
        let before = room(&objects(1, 64));
        let mut door = objects(1, 4);
        assert_ne!(room(&door), before);
        door.inherit(objects(1, 64));
        assert_eq!(room(&door), before);
        door.inherit(objects(2, 16));
        assert_eq!(room(&door), before);
    }
}
