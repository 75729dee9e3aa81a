//! Checks a P4Info and builds its [`Index`].

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use rivulet_engine::{ActionId, DigestId, MatchKind, ProgramInfo};

use super::{
    Action, Array, Digest, Field, Index, Object, Param, Profile, Register, Table, TableAction, ValueSet,
};
use crate::data::DataType;
use crate::error::{Result, invalid};
use crate::packet_io::Header;
use crate::proto::p4::config::v1 as config;
use crate::translation::Types;
use config::action_ref::Scope;
use config::match_field::{Match, MatchType};
use config::p4_ids::Prefix;

/// A P4Info under check.
pub(super) struct Builder<'a> {
    pub p4info: &'a config::P4Info,
    pub program: &'a ProgramInfo,
    pub types: Types<'a>,
    pub index: Index,
    pub ids: HashSet<u32>,
}

/// The first name that is missing on the other side.
fn unnamed<'n>(
    program: impl Iterator<Item = &'n String>,
    p4info: impl Iterator<Item = &'n String>,
) -> Option<&'n String> {
    let known: HashSet<&String> = p4info.collect();
    program.into_iter().find(|name| !known.contains(name))
}

impl<'a> Builder<'a> {
    pub fn build(mut self) -> Result<Index> {
        let info = self.p4info;
        for a in &info.actions {
            self.action(a)?;
        }
        for p in &info.action_profiles {
            self.profile(p)?;
        }
        for t in &info.tables {
            self.table(t)?;
        }
        self.direct_resources()?;
        self.arrays()?;
        for r in &info.registers {
            self.register(r)?;
        }
        for v in &info.value_sets {
            self.value_set(v)?;
        }
        for d in &info.digests {
            self.digest(d)?;
        }
        for c in &info.controller_packet_metadata {
            let (_, name) =
                self.preamble(c.preamble.as_ref(), "controller_packet_metadata", Prefix::ControllerHeader)?;
            let header = || Header::new(c, &self.types, &self.program.headers);
            match name {
                "packet_in" => self.index.packet_in = header()?,
                "packet_out" => self.index.packet_out = header()?,
                other => {
                    return Err(invalid(format!("controller_packet_metadata {other} is neither direction")));
                }
            }
        }
        self.only_left_out()?;
        if let Some(e) = info.externs.iter().find(|e| !e.instances.is_empty()) {
            return Err(invalid(format!("extern {} is not part of v1model", e.extern_type_name)));
        }
        self.index.port_type = self.index.packet_out.port_type().or(self.index.packet_in.port_type());
        let fields = self.index.tables.values().flat_map(|t| &t.fields);
        let mut fields = fields.chain(self.index.value_sets.values().flat_map(|v| &v.fields));
        let mut params = self.index.actions.values().flat_map(|a| &a.params);
        self.index.translates = self.index.port_type.is_some()
            || fields.any(|f| f.sdn.is_some())
            || params.any(|p| p.sdn.is_some());
        self.index.name_types = self.types.into_found();
        Ok(self.index)
    }

    /// Identifier and name of an object; the identifier's highest byte contains its kind (P4Runtime
    /// section 6.3).
    fn preamble(
        &mut self,
        p: Option<&'a config::Preamble>,
        what: impl Display,
        prefix: Prefix,
    ) -> Result<(u32, &'a str)> {
        let p = p.ok_or_else(|| invalid(format!("a {what} of the P4Info has no preamble")))?;
        if p.id == 0 {
            return Err(invalid(format!("{what} {} has the id 0", p.name)));
        }
        if p.id >> 24 != prefix as u32 {
            let (id, prefix) = (p.id, prefix as u32);
            return Err(invalid(format!(
                "{what} {}: the id {id:#010x} does not start with {prefix:#04x}",
                p.name
            )));
        }
        if !self.ids.insert(p.id) {
            return Err(invalid(format!("{what} {}: the id {:#010x} is used twice", p.name, p.id)));
        }
        Ok((p.id, &p.name))
    }

    /// Records an object that is missing in the program: p4c omits objects that no packet can reach
    /// from the JSON, but not from the P4Info.
    fn leave_out(&mut self, kind: Object, id: u32, name: &str) {
        self.index.left_out.insert(id, (kind, name.to_owned()));
    }

    /// A P4Info may name more than the program, but must not contradict it: if it names an unknown
    /// object, it must name all of the program's objects of that kind.
    fn only_left_out(&self) -> Result<()> {
        let (index, program) = (&self.index, self.program);
        for (kind, name) in index.left_out.values() {
            let other = match kind {
                Object::Table => {
                    let tables = program.tables.iter().filter(|t| !t.hidden).map(|t| &t.name);
                    unnamed(tables, index.tables.values().map(|t| &t.name))
                }
                Object::Profile => unnamed(
                    program.profiles.iter().map(|p| &p.name),
                    index.profiles.values().map(|p| &p.name),
                ),
                Object::Counter => unnamed(
                    program.counters.iter().map(|c| &c.name),
                    index.counters.values().map(|c| &c.name),
                ),
                Object::Meter => {
                    unnamed(program.meters.iter().map(|m| &m.name), index.meters.values().map(|m| &m.name))
                }
                Object::Register => unnamed(
                    program.registers.iter().map(|r| &r.name),
                    index.registers.values().map(|r| &r.name),
                ),
                Object::ValueSet => unnamed(
                    program.value_sets.iter().map(|v| &v.name),
                    index.value_sets.values().map(|v| &v.name),
                ),
                Object::Digest => {
                    unnamed(program.digests.iter().map(|d| &d.name), index.digests.values().map(|d| &d.name))
                }
            };
            if let Some(other) = other {
                return Err(invalid(format!(
                    "{kind} {name} is in the P4Info but not in the program, whose {kind} {other} the P4Info does \
                     not have"
                )));
            }
        }
        Ok(())
    }

    fn action(&mut self, action: &'a config::Action) -> Result<()> {
        let (id, name) = self.preamble(action.preamble.as_ref(), "action", Prefix::Action)?;
        let program = self.program;
        let all: Vec<usize> =
            (0..program.actions.len()).filter(|i| program.actions[*i].name == name).collect();
        // p4c may omit an action that no table uses from the JSON; then it cannot be written.
        let Some(first) = all.first() else {
            let params = Vec::new();
            self.index.actions.insert(id, Action { name: name.to_owned(), params });
            return Ok(());
        };
        let theirs = &program.actions[*first].params;
        if theirs.len() != action.params.len() {
            return Err(invalid(format!(
                "action {name} has {} parameters in the P4Info, {} in the program",
                action.params.len(),
                theirs.len()
            )));
        }
        let mut params = Vec::new();
        for (p, their) in action.params.iter().zip(theirs) {
            let place = format!("action {name}: parameter {}", p.name);
            if p.id == 0 || params.iter().any(|other: &Param| other.id == p.id) {
                return Err(invalid(format!("{place}: id {} is 0 or used twice", p.id)));
            }
            let sdn = self.types.form_of(p.type_name.as_ref(), p.bitwidth, their.width, &place)?;
            if p.annotations.iter().any(|a| a == "@secret" || a.starts_with("@secret(")) {
                self.index.secrets.insert((id, p.id));
            }
            params.push(Param { id: p.id, name: p.name.clone(), width: their.width, sdn });
        }
        for i in all {
            self.index.action_ids.insert(ActionId(i as u32), id);
        }
        self.index.actions.insert(id, Action { name: name.to_owned(), params });
        Ok(())
    }

    fn action_name(&self, id: u32, place: &str) -> Result<&str> {
        self.index.actions.get(&id).map(|a| a.name.as_str()).ok_or_else(|| {
            invalid(format!("{place} names action {id:#010x}, which the P4Info does not have"))
        })
    }

    fn profile(&mut self, profile: &'a config::ActionProfile) -> Result<()> {
        use config::action_profile::SelectorSizeSemantics;
        let (id, name) = self.preamble(profile.preamble.as_ref(), Object::Profile, Prefix::ActionProfile)?;
        let Some(engine) = self.program.profile(name) else {
            self.leave_out(Object::Profile, id, name);
            return Ok(());
        };
        let program = &self.program.profiles[engine.index()];
        if program.has_selector != profile.with_selector {
            return Err(invalid(format!(
                "action profile {name}: only one of P4Info and program has a selector"
            )));
        }
        let actions =
            program.actions.iter().filter_map(|a| Some((*self.index.action_ids.get(a)?, *a))).collect();
        let sum_of_members = match &profile.selector_size_semantics {
            Some(SelectorSizeSemantics::SumOfMembers(s)) => {
                Some(u32::try_from(s.max_member_weight).unwrap_or(0))
            }
            _ => None,
        };
        let profile = Profile {
            id,
            name: name.to_owned(),
            engine,
            with_selector: profile.with_selector,
            max_group_size: u32::try_from(profile.max_group_size).unwrap_or(0),
            size: u64::try_from(profile.size).unwrap_or(0),
            sum_of_members,
            weights_disallowed: profile.weights_disallowed,
            actions,
        };
        self.index.profiles.insert(id, profile);
        Ok(())
    }

    fn table(&mut self, table: &'a config::Table) -> Result<()> {
        let (id, name) = self.preamble(table.preamble.as_ref(), Object::Table, Prefix::Table)?;
        let Some(engine) = self.program.table(name) else {
            self.leave_out(Object::Table, id, name);
            return Ok(());
        };
        let program = &self.program.tables[engine.index()];
        let place = format!("table {name}");
        if program.key.len() != table.match_fields.len() {
            return Err(invalid(format!(
                "{place} has {} key fields in the P4Info, {} in the program",
                table.match_fields.len(),
                program.key.len()
            )));
        }
        let mut fields: Vec<Field> = Vec::new();
        for (m, key) in table.match_fields.iter().zip(&program.key) {
            let place = format!("{place}: key {}", m.name);
            fields.push(field(&self.types, m, key.width, Some(key.kind), &place, &fields)?);
        }
        let mut actions = HashMap::new();
        for r in &table.action_refs {
            let action = self.action_name(r.id, &place)?;
            let scope = Scope::try_from(r.scope)
                .map_err(|_| invalid(format!("{place}: action {action} has an unknown scope {}", r.scope)))?;
            let found = match program.profile {
                Some(p) => self.program.profile_action(p, action).or_else(|| program.action(action)),
                None => program.action(action),
            };
            match found {
                Some(engine) => {
                    actions.insert(r.id, TableAction { engine, scope });
                }
                // The JSON does not list the default action of a table with a profile.
                None if program.profile.is_some() || scope == Scope::DefaultOnly => {}
                None => return Err(invalid(format!("{place}: the program's table has no action {action}"))),
            }
        }
        let profile = (table.implementation_id != 0).then_some(table.implementation_id);
        let named = profile.map(|p| {
            let p = self.index.profiles.get(&p);
            p.map(|p| p.engine)
                .ok_or_else(|| invalid(format!("{place}: its implementation is not in the P4Info")))
        });
        if named.transpose()? != program.profile {
            return Err(invalid(format!("{place}: P4Info and program do not have the same action profile")));
        }
        let has_priority = fields
            .iter()
            .any(|f| matches!(f.kind, MatchType::Ternary | MatchType::Range | MatchType::Optional));
        if has_priority != program.kind.has_priority() {
            return Err(invalid(format!(
                "{place}: P4Info and program differ on whether entries have a priority"
            )));
        }
        let notify = config::table::IdleTimeoutBehavior::NotifyControl;
        let table = Table {
            id,
            name: name.to_owned(),
            engine,
            fields,
            actions,
            profile,
            is_const: table.is_const_table || program.const_entries,
            const_default: table.const_default_action_id != 0,
            idle_timeout: table.idle_timeout_behavior == notify as i32 && program.support_timeout,
            direct_counter: false,
            direct_meter: None,
            has_priority,
        };
        self.index.table_ids.insert(engine, id);
        self.index.tables.insert(id, table);
        Ok(())
    }

    fn direct_resources(&mut self) -> Result<()> {
        for c in &self.p4info.direct_counters {
            let (_, name) = self.preamble(c.preamble.as_ref(), "direct counter", Prefix::DirectCounter)?;
            let place = format!("direct counter {name}");
            if self.index.left_out.contains_key(&c.direct_table_id) {
                continue;
            }
            let table = self.index.tables.get_mut(&c.direct_table_id);
            let table = table.ok_or_else(|| invalid(format!("{place}: its table is not in the P4Info")))?;
            if !self.program.tables[table.engine.index()].has_counters {
                return Err(invalid(format!("{place}: the program's table {} has no counter", table.name)));
            }
            table.direct_counter = true;
        }
        for m in &self.p4info.direct_meters {
            let (_, name) = self.preamble(m.preamble.as_ref(), "direct meter", Prefix::DirectMeter)?;
            let place = format!("direct meter {name}");
            if self.index.left_out.contains_key(&m.direct_table_id) {
                continue;
            }
            let table = self.index.tables.get_mut(&m.direct_table_id);
            let table = table.ok_or_else(|| invalid(format!("{place}: its table is not in the P4Info")))?;
            if self.program.tables[table.engine.index()].direct_meter.is_none() {
                return Err(invalid(format!("{place}: the program's table {} has no meter", table.name)));
            }
            table.direct_meter = Some(meter_type(m.spec.as_ref(), &place)?);
        }
        Ok(())
    }

    fn arrays(&mut self) -> Result<()> {
        for c in &self.p4info.counters {
            let (id, name) = self.preamble(c.preamble.as_ref(), Object::Counter, Prefix::Counter)?;
            let Some(engine) = self.program.counter(name) else {
                self.leave_out(Object::Counter, id, name);
                continue;
            };
            let size = self.program.counters[engine.index()].size;
            let meter_type = config::meter_spec::Type::TwoRateThreeColor;
            self.index.counters.insert(id, Array { name: name.to_owned(), engine, size, meter_type });
        }
        for m in &self.p4info.meters {
            let (id, name) = self.preamble(m.preamble.as_ref(), Object::Meter, Prefix::Meter)?;
            let Some(engine) = self.program.meter(name) else {
                self.leave_out(Object::Meter, id, name);
                continue;
            };
            let size = self.program.meters[engine.index()].size;
            let meter_type = meter_type(m.spec.as_ref(), &format!("meter {name}"))?;
            self.index.meters.insert(id, Array { name: name.to_owned(), engine, size, meter_type });
        }
        Ok(())
    }

    fn register(&mut self, register: &'a config::Register) -> Result<()> {
        let (id, name) = self.preamble(register.preamble.as_ref(), Object::Register, Prefix::Register)?;
        let place = format!("register {name}");
        let Some(engine) = self.program.register(name) else {
            self.leave_out(Object::Register, id, name);
            return Ok(());
        };
        let program = &self.program.registers[engine.index()];
        let mut data = DataType::resolve(register.type_spec.as_ref(), &self.types, &place)?;
        // A single plain value, as in BMv2's registers.
        if !data.fit(&[program.width]) {
            return Err(invalid(format!(
                "{place} has cells of {:?} bits in the P4Info, {} in the program",
                data.leaves(),
                program.width
            )));
        }
        data.translated().iter().for_each(|(sdn, width)| self.types.note_width(*sdn, *width, false));
        let size = program.size;
        self.index.registers.insert(id, Register { name: name.to_owned(), engine, size, data });
        Ok(())
    }

    fn value_set(&mut self, set: &'a config::ValueSet) -> Result<()> {
        let (id, name) = self.preamble(set.preamble.as_ref(), Object::ValueSet, Prefix::ValueSet)?;
        let place = format!("value set {name}");
        let Some(engine) = self.program.value_set(name) else {
            self.leave_out(Object::ValueSet, id, name);
            return Ok(());
        };
        let program = &self.program.value_sets[engine.index()];
        if program.fields.len() != set.r#match.len() {
            return Err(invalid(format!(
                "{place} has {} fields in the P4Info, {} in the program",
                set.r#match.len(),
                program.fields.len()
            )));
        }
        let mut fields: Vec<Field> = Vec::new();
        for (m, width) in set.r#match.iter().zip(&program.fields) {
            let place = format!("{place}: field {}", m.name);
            fields.push(field(&self.types, m, *width, None, &place, &fields)?);
        }
        let size = usize::try_from(set.size).unwrap_or(0);
        self.index.value_sets.insert(id, ValueSet { name: name.to_owned(), engine, size, fields });
        Ok(())
    }

    fn digest(&mut self, digest: &'a config::Digest) -> Result<()> {
        let (id, name) = self.preamble(digest.preamble.as_ref(), Object::Digest, Prefix::Digest)?;
        let place = format!("digest {name}");
        let all = self.program.digests.iter().zip(0..).filter(|(d, _)| d.name == name);
        let (programs, engine): (Vec<_>, Vec<_>) = all.map(|(d, i)| (d, DigestId(i))).unzip();
        let Some(program) = programs.first() else {
            self.leave_out(Object::Digest, id, name);
            return Ok(());
        };
        let mut data = DataType::resolve(digest.type_spec.as_ref(), &self.types, &place)?;
        if let Some(other) = programs.iter().find(|p| !data.fit(&p.fields) || p.fields != program.fields) {
            return Err(invalid(format!(
                "{place} has fields of {:?} bits in the P4Info, {:?} in the program",
                data.leaves(),
                other.fields
            )));
        }
        data.translated().iter().for_each(|(sdn, width)| self.types.note_width(*sdn, *width, true));
        let widths = program.fields.clone();
        self.index.digests.insert(id, Digest { id, name: name.to_owned(), engine, data, widths });
        Ok(())
    }
}

fn meter_type(spec: Option<&config::MeterSpec>, place: &str) -> Result<config::meter_spec::Type> {
    let value = spec.map_or(0, |s| s.r#type);
    config::meter_spec::Type::try_from(value).map_err(|_| invalid(format!("{place}: unknown type {value}")))
}

/// Checks a field of a key against the program's; `program` is `None` for value sets, which have no
/// match kinds.
fn field(
    types: &Types<'_>,
    m: &config::MatchField,
    width: u32,
    program: Option<MatchKind>,
    place: &str,
    before: &[Field],
) -> Result<Field> {
    if m.id == 0 || before.iter().any(|f| f.id == m.id) {
        return Err(invalid(format!("{place}: id {} is 0 or used twice", m.id)));
    }
    let kind = match m.r#match {
        Some(Match::MatchType(t)) => MatchType::try_from(t).ok().filter(|t| *t != MatchType::Unspecified),
        _ => None,
    }
    .ok_or_else(|| invalid(format!("{place}: not a match type of v1model")))?;
    let same = match program {
        None => true,
        Some(MatchKind::Exact | MatchKind::Valid) => kind == MatchType::Exact,
        Some(MatchKind::Lpm) => kind == MatchType::Lpm,
        Some(MatchKind::Ternary) => matches!(kind, MatchType::Ternary | MatchType::Optional),
        Some(MatchKind::Range) => kind == MatchType::Range,
    };
    if !same {
        return Err(invalid(format!(
            "{place} is {} in the P4Info, not so in the program",
            kind.as_str_name()
        )));
    }
    let sdn = types.form_of(m.type_name.as_ref(), m.bitwidth, width, place)?;
    Ok(Field { id: m.id, name: m.name.clone(), width, sdn, kind })
}
