//! Multicast groups and clone sessions (P4Runtime section 9.5). They are read back as written, so
//! that a client of any release finds the fields that it knows: ports as numbers or bytes,
//! metadata.

use std::collections::HashSet;
use std::fmt::Display;

use rivulet_engine::{CloneSession, Replica};

use crate::bytestring::{canonical, to_u32};
use crate::config::Config;
use crate::error::{Result, exists, invalid, unimplemented};
use crate::proto::p4::v1 as p4;
use crate::write::table::absent;
use p4::packet_replication_engine_entry::Type as Kind;
use p4::replica::PortKind;
use p4::update::Type;

/// `egress_port` of v1model has 9 bits.
const MAX_PORT: u32 = 511;
/// Queue priorities of v1model have 3 bits.
const MAX_CLASS_OF_SERVICE: u32 = 7;
/// Largest number of replicas of a group or session; the packet path also limits a packet's copies.
const MAX_REPLICAS: usize = 4096;

impl Config {
    /// Applies an update of a multicast group or a clone session.
    pub fn write_replication(
        &mut self,
        r#type: Type,
        entry: &p4::PacketReplicationEngineEntry,
    ) -> Result<()> {
        match entry.r#type.as_ref() {
            Some(Kind::MulticastGroupEntry(group)) => self.write_multicast(r#type, group),
            Some(Kind::CloneSessionEntry(session)) => self.write_clone(r#type, session),
            None => Err(invalid("a packet replication entry is neither group nor session")),
        }
    }

    fn write_multicast(&mut self, r#type: Type, group: &p4::MulticastGroupEntry) -> Result<()> {
        let id = group.multicast_group_id;
        let place = format_args!("multicast group {id}");
        let engine_id = u16::try_from(id)
            .ok()
            .filter(|id| *id > 0)
            .ok_or_else(|| invalid(format!("{place}: ids are 1 to 65535")))?;
        present(r#type, self.multicast.contains_key(&id), "multicast group", id)?;
        if r#type == Type::Delete {
            self.pipeline.set_multicast_group(engine_id, None)?;
            self.multicast.remove(&id);
            return Ok(());
        }
        let replicas = read_replicas(&group.replicas, &place)?;
        self.pipeline.set_multicast_group(engine_id, Some(&replicas))?;
        let group =
            p4::MulticastGroupEntry { replicas: canonical_replicas(&group.replicas), ..group.clone() };
        self.multicast.insert(id, group);
        Ok(())
    }

    fn write_clone(&mut self, r#type: Type, session: &p4::CloneSessionEntry) -> Result<()> {
        let id = session.session_id;
        let place = format_args!("clone session {id}");
        if id == 0 {
            return Err(invalid(format!("{place}: the id cannot be 0")));
        }
        present(r#type, self.clones.contains_key(&id), "clone session", id)?;
        if r#type == Type::Delete {
            self.pipeline.set_clone_session(id, None)?;
            self.clones.remove(&id);
            return Ok(());
        }
        if session.class_of_service > MAX_CLASS_OF_SERVICE {
            return Err(invalid(format!("{place}: class of service is 0 to {MAX_CLASS_OF_SERVICE}")));
        }
        let bytes = session.packet_length_bytes;
        let config = CloneSession {
            replicas: read_replicas(&session.replicas, &place)?,
            multicast_group: None,
            packet_length_bytes: u32::try_from(bytes)
                .map_err(|_| invalid(format!("{place}: truncated to {bytes} bytes")))?,
            class_of_service: session.class_of_service,
        };
        self.pipeline.set_clone_session(id, Some(&config))?;
        let session =
            p4::CloneSessionEntry { replicas: canonical_replicas(&session.replicas), ..session.clone() };
        self.clones.insert(id, session);
        Ok(())
    }
}

fn present(r#type: Type, there: bool, what: &str, id: u32) -> Result<()> {
    match r#type {
        Type::Insert if there => Err(exists(format!("{what} {id} exists"))),
        Type::Modify | Type::Delete if !there => Err(absent(what, id)),
        _ => Ok(()),
    }
}

#[allow(deprecated)]
fn read_replicas(replicas: &[p4::Replica], place: &dyn Display) -> Result<Vec<Replica>> {
    if replicas.len() > MAX_REPLICAS {
        return Err(invalid(format!("{place}: more than {MAX_REPLICAS} replicas")));
    }
    let mut seen = HashSet::new();
    let mut read = Vec::new();
    for replica in replicas {
        if !replica.backup_replicas.is_empty() {
            return Err(unimplemented(format!("{place}: backup replicas are not served")));
        }
        let port = match replica.port_kind.as_ref() {
            Some(PortKind::EgressPort(port)) => Some(*port),
            Some(PortKind::Port(bytes)) if !bytes.is_empty() => to_u32(bytes),
            _ => return Err(invalid(format!("{place}: a replica has no port"))),
        };
        let port = port
            .filter(|p| *p <= MAX_PORT)
            .ok_or_else(|| invalid(format!("{place}: ports are 0 to {MAX_PORT}")))?;
        let instance = u16::try_from(replica.instance)
            .map_err(|_| invalid(format!("{place}: instance {} is above 65535", replica.instance)))?;
        let one = Replica { port, instance };
        if !seen.insert(one) {
            return Err(invalid(format!("{place}: port {port} with instance {instance} is there twice")));
        }
        read.push(one);
    }
    Ok(read)
}

#[allow(deprecated)]
fn canonical_replicas(replicas: &[p4::Replica]) -> Vec<p4::Replica> {
    let one = |r: &p4::Replica| p4::Replica {
        port_kind: r.port_kind.as_ref().map(|kind| match kind {
            PortKind::Port(bytes) => PortKind::Port(canonical(bytes).to_vec()),
            PortKind::EgressPort(port) => PortKind::EgressPort(*port),
        }),
        ..r.clone()
    };
    replicas.iter().map(one).collect()
}
