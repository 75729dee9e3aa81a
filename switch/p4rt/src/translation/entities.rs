//! Translates whole entities where they enter and leave, and counts which strings the switch's
//! state uses: an update's entity is read before and after it, so that no kind of write needs to
//! know about strings.

use std::fmt::{Display, Formatter};

use super::{NameTables, Sdn, Snapshot, matches, number, text, to_u64};
use crate::bytestring::canonical;
use crate::config::Config;
use crate::error::Result;
use crate::index::{Field, Index};
use crate::proto::p4::v1 as p4;
use p4::entity::Entity;
use p4::field_match::FieldMatchType;
use p4::packet_replication_engine_entry::Type as Kind;
use p4::replica::PortKind;
use p4::table_action::Type as Action;

/// A translated value in an entity.
struct Slot<'e> {
    value: Value<'e>,
    sdn: Sdn,
    /// Bits in the data plane.
    width: u32,
    place: Place<'e>,
}

enum Value<'e> {
    Plain(&'e mut Vec<u8>),
    Match(&'e mut FieldMatchType),
}

/// Where a value is, for messages: an object and its part.
#[derive(Clone, Copy)]
struct Place<'e>(&'e str, &'e str);

impl Display for Place<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.0, self.1)
    }
}

type Visit<'v> = dyn FnMut(Slot<'_>) -> Result<()> + 'v;

/// Visits every translated value of an entity.
fn visit(index: &Index, entity: &mut Entity, f: &mut Visit<'_>) -> Result<()> {
    match entity {
        Entity::TableEntry(e) => visit_entry(index, e, f),
        Entity::DirectCounterEntry(p4::DirectCounterEntry { table_entry: Some(e), .. })
        | Entity::DirectMeterEntry(p4::DirectMeterEntry { table_entry: Some(e), .. }) => {
            visit_entry(index, e, f)
        }
        Entity::ActionProfileMember(m) => m.action.iter_mut().try_for_each(|a| visit_action(index, a, f)),
        Entity::ActionProfileGroup(g) => g.members.iter_mut().try_for_each(|m| match &mut m.watch_kind {
            Some(p4::action_profile_group::member::WatchKind::WatchPort(port)) => visit_port(index, port, f),
            _ => Ok(()),
        }),
        Entity::ValueSetEntry(set) => {
            let Some(known) = index.value_sets.get(&set.value_set_id) else { return Ok(()) };
            set.members.iter_mut().try_for_each(|m| visit_key(&known.fields, &mut m.r#match, &known.name, f))
        }
        Entity::PacketReplicationEngineEntry(e) => {
            let replicas = match &mut e.r#type {
                Some(Kind::MulticastGroupEntry(group)) => &mut group.replicas,
                Some(Kind::CloneSessionEntry(session)) => &mut session.replicas,
                None => return Ok(()),
            };
            replicas.iter_mut().try_for_each(|r| match &mut r.port_kind {
                Some(PortKind::Port(port)) => visit_port(index, port, f),
                _ => Ok(()),
            })
        }
        _ => Ok(()),
    }
}

fn visit_entry(index: &Index, entry: &mut p4::TableEntry, f: &mut Visit<'_>) -> Result<()> {
    let Some(table) = index.tables.get(&entry.table_id) else { return Ok(()) };
    visit_key(&table.fields, &mut entry.r#match, &table.name, f)?;
    match entry.action.as_mut().and_then(|a| a.r#type.as_mut()) {
        Some(Action::Action(action)) => visit_action(index, action, f),
        Some(Action::ActionProfileActionSet(set)) => {
            set.action_profile_actions.iter_mut().try_for_each(|member| {
                member.action.iter_mut().try_for_each(|a| visit_action(index, a, f))?;
                match &mut member.watch_kind {
                    Some(p4::action_profile_action::WatchKind::WatchPort(port)) => visit_port(index, port, f),
                    _ => Ok(()),
                }
            })
        }
        _ => Ok(()),
    }
}

fn visit_key(fields: &[Field], key: &mut [p4::FieldMatch], name: &str, f: &mut Visit<'_>) -> Result<()> {
    key.iter_mut().try_for_each(|m| {
        let field = fields.iter().find(|field| field.id == m.field_id);
        let Some((field, sdn)) = field.and_then(|field| Some((field, field.sdn?))) else { return Ok(()) };
        let Some(value) = m.field_match_type.as_mut() else { return Ok(()) };
        let place = Place(name, &field.name);
        f(Slot { value: Value::Match(value), sdn, width: field.width, place })
    })
}

fn visit_action(index: &Index, action: &mut p4::Action, f: &mut Visit<'_>) -> Result<()> {
    let Some(known) = index.actions.get(&action.action_id) else { return Ok(()) };
    action.params.iter_mut().try_for_each(|p| {
        let param = known.params.iter().find(|param| param.id == p.param_id);
        let Some((param, sdn)) = param.and_then(|param| Some((param, param.sdn?))) else { return Ok(()) };
        let place = Place(&known.name, &param.name);
        f(Slot { value: Value::Plain(&mut p.value), sdn, width: param.width, place })
    })
}

/// Visits a port of a replica or a watched port, if the program's ports are strings.
fn visit_port(index: &Index, port: &mut Vec<u8>, f: &mut Visit<'_>) -> Result<()> {
    let Some((sdn, width)) = index.port_type else { return Ok(()) };
    if port.is_empty() {
        return Ok(());
    }
    f(Slot { value: Value::Plain(port), sdn, width, place: Place("port", "a replica's or a watched one") })
}

impl Config {
    /// Translates an entity of a controller. With `assign`, unknown strings get a value.
    ///
    /// # Errors
    /// As in [`Snapshot::to_data_plane`](super::Snapshot::to_data_plane) and
    /// [`NameTable::assign`](super::NameTable::assign).
    pub fn translate_update(&mut self, entity: &mut Entity, assign: bool) -> Result<()> {
        let Config { index, names, .. } = self;
        to_data_plane(index, entity, &mut |at, name, place| {
            let table = &mut names.0[at];
            if assign { table.assign(name).map_err(|e| e.at(place)) } else { known(table, name, place) }
        })
    }

    /// Translates a request of a read.
    ///
    /// # Errors
    /// NOT_FOUND if it has a string that nothing uses.
    pub fn request_to_data_plane(&self, entity: &mut Entity) -> Result<()> {
        to_data_plane(&self.index, entity, &mut |at, name, place| known(&self.names.0[at], name, place))
    }

    /// Translates an entity for controllers.
    pub fn to_controller(&self, entity: &mut Entity) {
        // Visits do not fail: every value of the state has a form, at the least a number.
        let _ = visit(&self.index, entity, &mut |slot| {
            match (slot.value, slot.sdn) {
                (Value::Match(m), Sdn::Number(sdn)) => matches::to_controller(m, sdn, slot.width),
                (Value::Match(m), Sdn::Name(at)) => {
                    if let Some(value) = matches::only_value(m) {
                        self.name(at, value);
                    }
                }
                (Value::Plain(_), Sdn::Number(_)) => {}
                (Value::Plain(value), Sdn::Name(at)) => self.name(at, value),
            }
            Ok(())
        });
    }

    fn name(&self, at: usize, value: &mut Vec<u8>) {
        let Some(number) = to_u64(value) else { return };
        let name = self.names.0[at].names().name(number);
        *value = name.unwrap_or_else(|| number.to_string()).into_bytes();
    }

    /// The string values that an entity of the data plane's form uses.
    fn uses(&self, mut entity: Entity) -> Vec<(usize, u64)> {
        let mut all = Vec::new();
        let _ = visit(&self.index, &mut entity, &mut |slot| {
            let value = match slot.value {
                Value::Plain(value) => Some(value),
                Value::Match(m) => matches::only_value(m),
            };
            if let (Sdn::Name(at), Some(value)) = (slot.sdn, value.and_then(|v| to_u64(v))) {
                all.push((at, value));
            }
            Ok(())
        });
        all
    }

    /// The string values that the entity with this one's key uses now.
    pub fn uses_now(&self, entity: &Entity) -> Vec<(usize, u64)> {
        let now = match entity {
            Entity::TableEntry(e) => self.table(e.table_id).ok().and_then(|table| {
                if e.is_default_action {
                    let now = self.pipeline.default_entry(table.engine);
                    return Some(Entity::TableEntry(self.default_entry(table, &now)));
                }
                let now = self.pipeline.entry(table.engine, &self.entry_key(table, e).ok()?).ok()?;
                Some(Entity::TableEntry(self.table_entry(table, &now, &p4::TableEntry::default())))
            }),
            Entity::ActionProfileMember(m) => self.profile(m.action_profile_id).ok().and_then(|profile| {
                let action = Some(self.write_call(&self.pipeline.member(profile.engine, m.member_id)?));
                Some(Entity::ActionProfileMember(p4::ActionProfileMember { action, ..*m }))
            }),
            Entity::ActionProfileGroup(g) if g.action_profile_id != 0 && g.group_id != 0 => {
                self.read_one(entity)
            }
            Entity::ValueSetEntry(set) if set.value_set_id != 0 => self.read_one(entity),
            Entity::PacketReplicationEngineEntry(e) => match &e.r#type {
                Some(Kind::MulticastGroupEntry(group)) if group.multicast_group_id != 0 => {
                    self.read_one(entity)
                }
                Some(Kind::CloneSessionEntry(session)) if session.session_id != 0 => self.read_one(entity),
                _ => None,
            },
            _ => None,
        };
        now.map_or_else(Vec::new, |entity| self.uses(entity))
    }

    fn read_one(&self, entity: &Entity) -> Option<Entity> {
        self.read_data_plane(entity).ok()?.next()?.entity
    }

    /// Counts the uses of all strings from the whole state.
    pub fn count_uses(&mut self) {
        if self.names.0.is_empty() {
            return;
        }
        let mut all = Vec::new();
        let is_cell = |e: &Entity| {
            matches!(e, Entity::CounterEntry(_) | Entity::MeterEntry(_) | Entity::RegisterEntry(_))
        };
        for (request, _) in crate::device::everything().into_iter().filter(|(e, _)| !is_cell(e)) {
            if let Ok(found) = self.read_data_plane(&request) {
                all.extend(found.filter_map(|e| Some(self.uses(e.entity?))).flatten());
            }
        }
        all.into_iter().for_each(|(at, value)| self.names.0[at].retain(value));
    }

    /// The strings that packets and digests may carry; a copy of the others would slow writes down.
    pub fn message_names(&self) -> Snapshot {
        let tables = self.names.0.iter().zip(&self.index.name_types);
        Snapshot(
            tables
                .map(|(n, t)| if t.in_messages { n.names().clone() } else { self.no_names.clone() })
                .collect(),
        )
    }

    /// Counts what an update changed.
    pub fn follow_uses(&mut self, before: Vec<(usize, u64)>, after: Vec<(usize, u64)>) {
        let NameTables(tables) = &mut self.names;
        after.into_iter().for_each(|(at, value)| tables[at].retain(value));
        before.into_iter().for_each(|(at, value)| tables[at].release(value));
    }
}

fn known(table: &super::NameTable, name: &str, place: &dyn Display) -> Result<u64> {
    let value = table.names().value(name);
    value.ok_or_else(|| crate::error::not_found(format!("{place}: nothing uses {name:?}")))
}

type Lookup<'l> = dyn FnMut(usize, &str, &dyn Display) -> Result<u64> + 'l;

fn to_data_plane(index: &Index, entity: &mut Entity, lookup: &mut Lookup<'_>) -> Result<()> {
    visit(index, entity, &mut |slot| {
        let place = slot.place;
        let value = match (slot.value, slot.sdn) {
            (Value::Match(m), Sdn::Number(sdn)) => {
                return matches::to_data_plane(m, sdn, slot.width, &place);
            }
            (Value::Match(m), Sdn::Name(_)) => matches::whole(m, &place)?,
            (Value::Plain(value), _) => value,
        };
        *value = match slot.sdn {
            Sdn::Number(sdn) => number(value, sdn, slot.width, &place)?,
            Sdn::Name(at) => {
                let number = lookup(at, text(value, &place)?, &place)?;
                canonical(&number.to_be_bytes()).to_vec()
            }
        };
        Ok(())
    })
}
