//! `Read` (P4Runtime section 13): entities of every kind, one or all of them. An unset or zero part
//! of a key is a wildcard.
//!
//! State that only controllers write (entries, members, groups) is captured at once, so that a read
//! is consistent with respect to writes. Messages are built one by one, and cells of arrays are
//! read one by one on demand: a program's registers as messages would need fifty times their
//! memory.

use std::collections::BTreeMap;
use std::fmt::Display;

use rivulet_engine::{DefaultEntry, Entry};

use crate::config::Config;
use crate::error::{Result, invalid, not_found, unimplemented};
use crate::index::{Array, Object, Profile, Register, Table, ValueSet};
use crate::proto::p4::v1 as p4;
use crate::write::action::unpack_watch;
use crate::write::matching;
use crate::write::table::{absent, index_in, unpack_metadata, write_counter_data, write_meter_config};
use p4::entity::Entity;
use p4::packet_replication_engine_entry::Type as Kind;

/// Results of one request of a read.
pub type Found<'c> = Box<dyn Iterator<Item = p4::Entity> + 'c>;

fn of(entity: Entity) -> p4::Entity {
    p4::Entity { entity: Some(entity) }
}

/// Results captured at once.
fn all<'c>(found: Vec<Entity>) -> Found<'c> {
    Box::new(found.into_iter().map(of))
}

impl Config {
    /// One object by its identifier, or all for 0.
    fn one_or_all<'a, T>(
        &self,
        map: &'a BTreeMap<u32, T>,
        id: u32,
        kind: Object,
    ) -> Result<Vec<(u32, &'a T)>> {
        match id {
            0 => Ok(map.iter().map(|(id, object)| (*id, object)).collect()),
            id => Ok(vec![(id, self.index.find(map, id, kind)?)]),
        }
    }

    /// Executes one request of a read.
    ///
    /// # Errors
    /// As in the specification for each kind.
    pub fn read<'c>(&'c self, request: &Entity) -> Result<Found<'c>> {
        if !self.index.translates {
            return self.read_data_plane(request);
        }
        let mut request = request.clone();
        if let Err(error) = self.request_to_data_plane(&mut request) {
            // No entry can have a string without a value.
            let is_entry = matches!(request, Entity::TableEntry(_)) && error.code == tonic::Code::NotFound;
            return if is_entry { Ok(all(Vec::new())) } else { Err(error) };
        }
        let found = self.read_data_plane(&request)?;
        Ok(Box::new(found.map(|mut e| {
            e.entity.iter_mut().for_each(|e| self.to_controller(e));
            e
        })))
    }

    /// As [`read`](Self::read), without translation.
    pub fn read_data_plane<'c>(&'c self, request: &Entity) -> Result<Found<'c>> {
        match request {
            Entity::TableEntry(e) => self.read_tables(e),
            Entity::ActionProfileMember(e) => self.read_members(e),
            Entity::ActionProfileGroup(e) => self.read_groups(e),
            Entity::MeterEntry(e) => self.read_meters(e),
            Entity::DirectMeterEntry(e) => self.read_direct_meters(e),
            Entity::CounterEntry(e) => self.read_counters(e),
            Entity::DirectCounterEntry(e) => self.read_direct_counters(e),
            Entity::PacketReplicationEngineEntry(e) => self.read_replication(e),
            Entity::ValueSetEntry(e) => self.read_value_sets(e),
            Entity::RegisterEntry(e) => self.read_registers(e),
            Entity::DigestEntry(e) => self.read_digests(e),
            Entity::ExternEntry(e) if e.extern_type_id == 0 && e.extern_id == 0 => Ok(all(Vec::new())),
            Entity::ExternEntry(_) => Err(crate::write::profile::no_extern()),
        }
    }

    fn read_tables<'c>(&'c self, request: &p4::TableEntry) -> Result<Found<'c>> {
        if request.table_id == 0 {
            if !request.r#match.is_empty() || request.action.is_some() {
                return Err(invalid("a read of all tables cannot be filtered by match or action"));
            }
        } else {
            let table = self.table(request.table_id)?;
            if request.time_since_last_hit.is_some() && !table.idle_timeout {
                return Err(invalid(format!("table {}: does not support idle timeouts", table.name)));
            }
        }
        let tables = self.one_or_all(&self.index.tables, request.table_id, Object::Table)?;
        let wanted = request.clone();
        let passing = move |e: p4::TableEntry| passes(&wanted, &e).then(|| of(Entity::TableEntry(e)));
        if request.is_default_action {
            let entry = |(_, t): (u32, &Table)| self.default_entry(t, &self.pipeline.default_entry(t.engine));
            let found: Vec<_> = tables.into_iter().map(entry).filter_map(passing).collect();
            return Ok(Box::new(found.into_iter()));
        }
        let mut found = Vec::new();
        for (_, table) in tables {
            found.extend(self.entries(table, request)?.into_iter().map(|entry| (table, entry)));
        }
        let wanted = request.clone();
        let entry = move |(table, entry): (&Table, Entry)| self.table_entry(table, &entry, &wanted);
        Ok(Box::new(found.into_iter().map(entry).filter_map(passing)))
    }

    /// Entries of a table with the request's key, or all without one. A key without an entry finds
    /// none.
    fn entries(&self, table: &Table, request: &p4::TableEntry) -> Result<Vec<Entry>> {
        if request.r#match.is_empty() || table.fields.is_empty() {
            return Ok(self.pipeline.entries(table.engine));
        }
        if table.has_priority && request.priority == 0 {
            let place = format_args!("table {}", table.name);
            let key = matching::read(&table.fields, &request.r#match, &place)?;
            let wanted = matching::write(&table.fields, &key);
            let same = |e: &Entry| matching::write(&table.fields, &e.spec.key.fields) == wanted;
            return Ok(self.pipeline.entries(table.engine).into_iter().filter(same).collect());
        }
        let key = self.entry_key(table, request)?;
        match self.pipeline.entry(table.engine, &key) {
            Ok(entry) => Ok(vec![entry]),
            Err(rivulet_engine::WriteError::NotFound(_)) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Builds the message for an entry, with the direct resources that the request asks for.
    #[allow(deprecated)]
    pub fn table_entry(&self, table: &Table, entry: &Entry, request: &p4::TableEntry) -> p4::TableEntry {
        let spec = &entry.spec;
        let kept = unpack_metadata(&spec.metadata);
        let elapsed = i64::try_from(entry.idle_ns).unwrap_or(i64::MAX);
        p4::TableEntry {
            table_id: table.id,
            r#match: matching::write(&table.fields, &spec.key.fields),
            action: Some(self.write_action(table, &spec.action)),
            priority: self.priority(table, spec.key.priority),
            controller_metadata: kept.controller_metadata,
            metadata: kept.metadata,
            meter_config: spec
                .meter
                .filter(|_| request.meter_config.is_some() && table.direct_meter.is_some())
                .map(write_meter_config),
            counter_data: spec
                .counter
                .filter(|_| request.counter_data.is_some() && table.direct_counter)
                .map(write_counter_data),
            idle_timeout_ns: i64::try_from(spec.idle_timeout_ns).unwrap_or(i64::MAX),
            time_since_last_hit: (request.time_since_last_hit.is_some() && table.idle_timeout)
                .then_some(p4::table_entry::IdleTimeout { elapsed_ns: elapsed }),
            is_const: entry.is_const,
            ..p4::TableEntry::default()
        }
    }

    #[allow(deprecated)]
    pub fn default_entry(&self, table: &Table, entry: &DefaultEntry) -> p4::TableEntry {
        let no_metadata = Vec::new();
        let kept = unpack_metadata(self.default_metadata.get(&table.id).unwrap_or(&no_metadata));
        // The default of a table with a profile is NoAction, which the program omits.
        let no_action = || {
            let id = table
                .actions
                .keys()
                .find(|id| self.index.actions.get(id).is_some_and(|a| a.name == "NoAction"));
            id.map(|id| p4::TableAction {
                r#type: Some(p4::table_action::Type::Action(p4::Action {
                    action_id: *id,
                    params: Vec::new(),
                })),
            })
        };
        p4::TableEntry {
            table_id: table.id,
            action: entry.action.as_ref().map(|a| self.write_action(table, a)).or_else(no_action),
            is_default_action: true,
            is_const: entry.is_const || table.const_default || table.profile.is_some(),
            controller_metadata: kept.controller_metadata,
            metadata: kept.metadata,
            ..p4::TableEntry::default()
        }
    }

    fn read_members<'c>(&'c self, request: &p4::ActionProfileMember) -> Result<Found<'c>> {
        let mut found = Vec::new();
        let profiles = self.one_or_all(&self.index.profiles, request.action_profile_id, Object::Profile)?;
        for (id, profile) in profiles {
            let before = found.len();
            let all = self.pipeline.members(profile.engine).into_iter();
            found.extend(
                all.filter(|(m, _)| [0, *m].contains(&request.member_id)).map(|(m, call)| (id, m, call)),
            );
            none(
                found.len() == before,
                request.action_profile_id,
                request.member_id,
                &format_args!("member of {}", profile.name),
            )?;
        }
        Ok(Box::new(found.into_iter().map(|(action_profile_id, member_id, call)| {
            let action = Some(self.write_call(&call));
            of(Entity::ActionProfileMember(p4::ActionProfileMember { action_profile_id, member_id, action }))
        })))
    }

    fn read_groups<'c>(&'c self, request: &p4::ActionProfileGroup) -> Result<Found<'c>> {
        let mut found = Vec::new();
        let profiles = self.one_or_all(&self.index.profiles, request.action_profile_id, Object::Profile)?;
        for (id, profile) in profiles.into_iter().filter(|(_, p)| p.with_selector) {
            let before = found.len();
            let all = self.pipeline.groups(profile.engine).into_iter();
            found.extend(
                all.filter(|(g, _)| [0, *g].contains(&request.group_id))
                    .map(|(g, group)| (id, profile, g, group)),
            );
            none(
                found.len() == before,
                request.action_profile_id,
                request.group_id,
                &format_args!("group of {}", profile.name),
            )?;
        }
        Ok(Box::new(found.into_iter().map(|(id, profile, group_id, group)| {
            of(Entity::ActionProfileGroup(self.group(id, profile, group_id, &group)))
        })))
    }

    fn group(
        &self,
        id: u32,
        profile: &Profile,
        group_id: u32,
        group: &rivulet_engine::Group,
    ) -> p4::ActionProfileGroup {
        let max_size = self.profiles.get(&id).and_then(|p| p.groups.get(&group_id)).copied().unwrap_or(0);
        let member = |m: &rivulet_engine::GroupMember| p4::action_profile_group::Member {
            member_id: m.member,
            weight: if profile.weights_disallowed { 0 } else { m.weight as i32 },
            watch_kind: unpack_watch(&m.watch_port).map(Into::into),
        };
        let members = group.members.iter().map(member).collect();
        p4::ActionProfileGroup { action_profile_id: id, group_id, members, max_size }
    }

    fn read_counters<'c>(&'c self, request: &p4::CounterEntry) -> Result<Found<'c>> {
        let mut found = Vec::new();
        for (id, counter) in self.one_or_all(&self.index.counters, request.counter_id, Object::Counter)? {
            found.push((id, counter, array_cells(request.counter_id, request.index.as_ref(), counter)?));
        }
        Ok(Box::new(found.into_iter().flat_map(move |(counter_id, counter, cells)| {
            cells.filter_map(move |at| {
                let data = Some(write_counter_data(self.pipeline.counter(counter.engine, at).ok()?));
                Some(of(Entity::CounterEntry(p4::CounterEntry { counter_id, index: index(at), data })))
            })
        })))
    }

    fn read_meters<'c>(&'c self, request: &p4::MeterEntry) -> Result<Found<'c>> {
        if request.counter_data.is_some() {
            return Err(unimplemented("meters do not count packets by colour"));
        }
        let mut found = Vec::new();
        for (id, meter) in self.one_or_all(&self.index.meters, request.meter_id, Object::Meter)? {
            found.push((id, meter, array_cells(request.meter_id, request.index.as_ref(), meter)?));
        }
        Ok(Box::new(found.into_iter().flat_map(move |(meter_id, meter, cells)| {
            cells.filter_map(move |at| {
                let config = self.pipeline.meter(meter.engine, at).ok()?.map(write_meter_config);
                let entry = p4::MeterEntry { meter_id, index: index(at), config, counter_data: None };
                Some(of(Entity::MeterEntry(entry)))
            })
        })))
    }

    fn read_registers<'c>(&'c self, request: &p4::RegisterEntry) -> Result<Found<'c>> {
        let mut found = Vec::new();
        for (id, register) in self.one_or_all(&self.index.registers, request.register_id, Object::Register)? {
            found.push((id, register, register_cells(request, register)?));
        }
        Ok(Box::new(found.into_iter().flat_map(move |(register_id, register, cells)| {
            let names = self.names.snapshot();
            cells.filter_map(move |at| {
                let value = self.pipeline.register(register.engine, at).ok()?;
                let data = Some(register.data.write(&mut std::iter::once(value.as_slice()), &names));
                Some(of(Entity::RegisterEntry(p4::RegisterEntry { register_id, index: index(at), data })))
            })
        })))
    }

    fn read_direct_counters<'c>(&'c self, request: &p4::DirectCounterEntry) -> Result<Found<'c>> {
        let found = self.direct(request.table_entry.as_ref(), "counter", |t| t.direct_counter)?;
        Ok(Box::new(found.into_iter().map(|(table, entry)| {
            let data = entry.spec.counter.map(write_counter_data);
            let table_entry = Some(self.key_only(table, &entry));
            of(Entity::DirectCounterEntry(p4::DirectCounterEntry { table_entry, data }))
        })))
    }

    fn read_direct_meters<'c>(&'c self, request: &p4::DirectMeterEntry) -> Result<Found<'c>> {
        if request.counter_data.is_some() {
            return Err(unimplemented("meters do not count packets by colour"));
        }
        let found = self.direct(request.table_entry.as_ref(), "meter", |t| t.direct_meter.is_some())?;
        Ok(Box::new(found.into_iter().map(|(table, entry)| {
            let config = entry.spec.meter.map(write_meter_config);
            let table_entry = Some(self.key_only(table, &entry));
            of(Entity::DirectMeterEntry(p4::DirectMeterEntry { table_entry, config, counter_data: None }))
        })))
    }

    /// Entries with a requested direct resource: by key, of one table, or of all tables that have
    /// it.
    fn direct(
        &self,
        wanted: Option<&p4::TableEntry>,
        what: &str,
        has: impl Fn(&Table) -> bool,
    ) -> Result<Vec<(&Table, Entry)>> {
        let everything = p4::TableEntry::default();
        let wanted = wanted.unwrap_or(&everything);
        if wanted.is_default_action {
            return Err(unimplemented(format!("v1model has no direct {what} for default entries")));
        }
        let mut all = Vec::new();
        for (_, table) in self.one_or_all(&self.index.tables, wanted.table_id, Object::Table)? {
            if has(table) {
                all.extend(self.entries(table, wanted)?.into_iter().map(|e| (table, e)));
            } else if wanted.table_id != 0 {
                return Err(invalid(format!("table {}: has no direct {what}", table.name)));
            }
        }
        if all.is_empty() && !wanted.r#match.is_empty() {
            return Err(not_found("there is no such table entry"));
        }
        Ok(all)
    }

    fn key_only(&self, table: &Table, entry: &Entry) -> p4::TableEntry {
        p4::TableEntry {
            table_id: table.id,
            r#match: matching::write(&table.fields, &entry.spec.key.fields),
            priority: self.priority(table, entry.spec.key.priority),
            ..p4::TableEntry::default()
        }
    }

    fn read_replication(&self, request: &p4::PacketReplicationEngineEntry) -> Result<Found<'_>> {
        let entry = |kind: Kind| {
            of(Entity::PacketReplicationEngineEntry(p4::PacketReplicationEngineEntry { r#type: Some(kind) }))
        };
        let group = move |g: &p4::MulticastGroupEntry| entry(Kind::MulticastGroupEntry(g.clone()));
        let session = move |c: &p4::CloneSessionEntry| entry(Kind::CloneSessionEntry(c.clone()));
        let one = |found: p4::Entity| Ok(Box::new(std::iter::once(found)) as Found);
        match request.r#type.as_ref() {
            Some(Kind::MulticastGroupEntry(g)) => match g.multicast_group_id {
                0 => Ok(Box::new(self.multicast.values().map(group))),
                id => one(group(self.multicast.get(&id).ok_or_else(|| absent("multicast group", id))?)),
            },
            Some(Kind::CloneSessionEntry(c)) => match c.session_id {
                0 => Ok(Box::new(self.clones.values().map(session))),
                id => one(session(self.clones.get(&id).ok_or_else(|| absent("clone session", id))?)),
            },
            None => Ok(Box::new(self.multicast.values().map(group).chain(self.clones.values().map(session)))),
        }
    }

    fn read_value_sets(&self, request: &p4::ValueSetEntry) -> Result<Found<'_>> {
        let sets = self.one_or_all(&self.index.value_sets, request.value_set_id, Object::ValueSet)?;
        let entry = |(value_set_id, set): (u32, &ValueSet)| {
            let member = |m: &Vec<_>| p4::ValueSetMember { r#match: matching::write(&set.fields, m) };
            let members = self.pipeline.value_set(set.engine).iter().map(member).collect();
            Entity::ValueSetEntry(p4::ValueSetEntry { value_set_id, members })
        };
        Ok(all(sets.into_iter().map(entry).collect()))
    }

    fn read_digests(&self, request: &p4::DigestEntry) -> Result<Found<'_>> {
        let entry = |(id, config): (&u32, &p4::digest_entry::Config)| {
            Entity::DigestEntry(p4::DigestEntry { digest_id: *id, config: Some(*config) })
        };
        if request.digest_id != 0 {
            self.index.find(&self.index.digests, request.digest_id, Object::Digest)?;
            let config = self.digests.get_key_value(&request.digest_id);
            let config = config.ok_or_else(|| not_found(format!("digest {} is off", request.digest_id)))?;
            return Ok(all(vec![entry(config)]));
        }
        Ok(all(self.digests.iter().map(entry).collect()))
    }
}

/// Whether an entry passes the filters of a request (P4Runtime section 9.1.6).
#[allow(deprecated)]
fn passes(request: &p4::TableEntry, entry: &p4::TableEntry) -> bool {
    use p4::table_action::Type;
    let action_id = |e: &p4::TableEntry| match e.action.as_ref().and_then(|a| a.r#type.as_ref()) {
        Some(Type::Action(a)) => Some(a.action_id),
        _ => None,
    };
    (request.priority == 0 || request.priority == entry.priority)
        && (request.controller_metadata == 0 || request.controller_metadata == entry.controller_metadata)
        && (request.metadata.is_empty() || request.metadata == entry.metadata)
        && action_id(request).is_none_or(|id| id == 0 || action_id(entry) == Some(id))
}

/// NOT_FOUND if a request named one object by both identifiers and it does not exist.
fn none(nothing: bool, outer: u32, inner: u32, what: &dyn Display) -> Result<()> {
    if nothing && outer != 0 && inner != 0 {
        Err(not_found(format!("no {what} has the id {inner}")))
    } else {
        Ok(())
    }
}

fn index(at: usize) -> Option<p4::Index> {
    Some(p4::Index { index: i64::try_from(at).unwrap_or(i64::MAX) })
}

fn cells(id: u32, index: Option<&p4::Index>, size: usize, name: &str) -> Result<std::ops::Range<usize>> {
    match index {
        Some(_) if id == 0 => Err(invalid("an index without the id of its array")),
        Some(index) => index_in(index, size, &name).map(|at| at..at + 1),
        None => Ok(0..size),
    }
}

fn array_cells<T>(id: u32, index: Option<&p4::Index>, array: &Array<T>) -> Result<std::ops::Range<usize>> {
    cells(id, index, array.size, &array.name)
}

fn register_cells(request: &p4::RegisterEntry, register: &Register) -> Result<std::ops::Range<usize>> {
    cells(request.register_id, request.index.as_ref(), register.size, &register.name)
}
