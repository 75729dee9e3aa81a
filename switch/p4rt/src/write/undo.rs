//! Inverse updates, derived from the state before an update. Counters are reset to their former
//! values, so packets counted between an update and its undoing are lost.

use crate::config::Config;
use crate::proto::p4::v1 as p4;
use p4::entity::Entity;
use p4::packet_replication_engine_entry::Type as Kind;
use p4::update::Type;

impl Config {
    /// Updates that restore what an update will change, to be applied in reverse order. Empty for
    /// an update that will fail.
    pub fn inverse(&self, update: &p4::Update) -> Vec<p4::Update> {
        let Some(entity) = update.entity.as_ref().and_then(|e| e.entity.as_ref()) else { return Vec::new() };
        let inverse = match Type::try_from(update.r#type) {
            Ok(Type::Insert) => return vec![build(Type::Delete, entity.clone())],
            Ok(Type::Modify) => Type::Modify,
            Ok(Type::Delete) => Type::Insert,
            _ => return Vec::new(),
        };
        let before = before(entity, inverse);
        let found = self.read(&before).into_iter().flatten().filter_map(|e| e.entity);
        found.filter(|e| !matches_all(&before) || matches_all(e)).map(|e| build(inverse, e)).collect()
    }
}

/// Whether an entry of a table matches every packet. A read with its key, which has no field, is one
/// of all entries.
fn matches_all(entity: &Entity) -> bool {
    matches!(entity, Entity::TableEntry(e) if e.r#match.is_empty())
}

fn build(r#type: Type, mut entity: Entity) -> p4::Update {
    if let Entity::TableEntry(entry) = &mut entity {
        // Reads report it, but writes refuse it.
        entry.is_const = false;
        entry.time_since_last_hit = None;
    }
    p4::Update { r#type: r#type as i32, entity: Some(p4::Entity { entity: Some(entity) }) }
}

/// A read of everything that an update may change.
fn before(entity: &Entity, inverse: Type) -> Entity {
    let key_of = |e: &p4::TableEntry| p4::TableEntry {
        table_id: e.table_id,
        r#match: e.r#match.clone(),
        priority: e.priority,
        is_default_action: e.is_default_action,
        ..p4::TableEntry::default()
    };
    match entity {
        Entity::TableEntry(e) => {
            let counter = inverse == Type::Insert || e.counter_data.is_some();
            Entity::TableEntry(p4::TableEntry {
                meter_config: Some(p4::MeterConfig::default()),
                counter_data: counter.then(p4::CounterData::default),
                ..key_of(e)
            })
        }
        Entity::DirectCounterEntry(e) => Entity::DirectCounterEntry(p4::DirectCounterEntry {
            table_entry: e.table_entry.as_ref().map(key_of),
            data: None,
        }),
        Entity::DirectMeterEntry(e) => Entity::DirectMeterEntry(p4::DirectMeterEntry {
            table_entry: e.table_entry.as_ref().map(key_of),
            ..p4::DirectMeterEntry::default()
        }),
        Entity::MeterEntry(e) => {
            Entity::MeterEntry(p4::MeterEntry { config: None, counter_data: None, ..*e })
        }
        Entity::PacketReplicationEngineEntry(e) => {
            let r#type = e.r#type.as_ref().map(|t| match t {
                Kind::MulticastGroupEntry(g) => Kind::MulticastGroupEntry(p4::MulticastGroupEntry {
                    multicast_group_id: g.multicast_group_id,
                    ..Default::default()
                }),
                Kind::CloneSessionEntry(c) => Kind::CloneSessionEntry(p4::CloneSessionEntry {
                    session_id: c.session_id,
                    ..Default::default()
                }),
            });
            Entity::PacketReplicationEngineEntry(p4::PacketReplicationEngineEntry { r#type })
        }
        other => other.clone(),
    }
}
