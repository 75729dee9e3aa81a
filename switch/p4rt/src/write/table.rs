//! Table entries (P4Runtime section 9.1): insert, modify and delete, the default entry, const tables, direct
//! resources and idle timeouts.

use prost::Message as _;
use rivulet_engine::{CounterData, EntryAction, EntryKey, EntrySpec, MeterConfig};

use crate::config::Config;
use crate::error::{Result, denied, invalid, not_found, out_of_range, unimplemented};
use crate::index::Table;
use crate::ports::Ports;
use crate::proto::p4::config::v1::meter_spec;
use crate::proto::p4::v1 as p4;
use crate::write::action::Use;
use crate::write::matching;
use p4::update::Type;

impl Config {
    /// Applies an update of a table entry.
    pub fn write_table_entry(
        &mut self,
        r#type: Type,
        entry: &p4::TableEntry,
        ports: &dyn Ports,
    ) -> Result<()> {
        let table = self.table(entry.table_id)?;
        if entry.is_default_action {
            return self.write_default(r#type, entry, ports);
        }
        if r#type == Type::Delete {
            return self.delete_entry(entry);
        }
        let place = format!("table {}", table.name);
        if entry.is_const {
            return Err(invalid(format!("{place}: is_const cannot be written")));
        }
        check_resources(table, entry)?;
        if table.is_const && r#type == Type::Insert {
            return Err(denied(format!("{place}: its entries are const")));
        }
        let key = self.entry_key(table, entry)?;
        match r#type {
            Type::Insert => {
                let action = entry.action.as_ref();
                let action = action.ok_or_else(|| invalid(format!("{place}: an insert needs an action")))?;
                let action = self.read_action(table, action, Use::Entry, ports)?;
                let spec = spec(entry, key, action)?;
                self.exclusive(table, &spec.action)?;
                self.pipeline.insert(table.engine, &spec)?;
                self.count_one_shots(entry.table_id, None, Some(&spec.action));
                Ok(())
            }
            _ => self.modify_entry(entry, key, ports),
        }
    }

    fn modify_entry(&mut self, entry: &p4::TableEntry, key: EntryKey, ports: &dyn Ports) -> Result<()> {
        let table = self.table(entry.table_id)?;
        let before = self.pipeline.entry(table.engine, &key)?;
        if before.is_const || table.is_const {
            if entry.action.is_some() {
                return Err(denied(format!("table {}: the entry's action is const", table.name)));
            }
            if let Some(data) = &entry.counter_data {
                self.pipeline.set_direct_counter(table.engine, &key, counter_data(data)?)?;
            }
            if table.direct_meter.is_some() {
                self.pipeline.set_direct_meter(
                    table.engine,
                    &key,
                    meter(entry.meter_config.as_ref(), table)?,
                )?;
            }
            return Ok(());
        }
        let action = match &entry.action {
            Some(action) => self.read_action(table, action, Use::Entry, ports)?,
            None => before.spec.action.clone(),
        };
        let mut spec = spec(entry, key, action)?;
        spec.meter = meter(entry.meter_config.as_ref(), table)?;
        self.exclusive(table, &spec.action)?;
        self.pipeline.modify(table.engine, &spec)?;
        self.count_one_shots(entry.table_id, Some(&before.spec.action), Some(&spec.action));
        Ok(())
    }

    fn delete_entry(&mut self, entry: &p4::TableEntry) -> Result<()> {
        let table = self.table(entry.table_id)?;
        if table.is_const {
            return Err(denied(format!("table {}: its entries are const", table.name)));
        }
        let key = self.entry_key(table, entry)?;
        // Only tables with a profile can have one-shots, so only they are read first.
        let before = match table.profile {
            Some(_) => Some(self.pipeline.entry(table.engine, &key)?.spec.action),
            None => None,
        };
        self.pipeline.delete(table.engine, &key)?;
        self.count_one_shots(entry.table_id, before.as_ref(), None);
        Ok(())
    }

    fn write_default(&mut self, r#type: Type, entry: &p4::TableEntry, ports: &dyn Ports) -> Result<()> {
        let table = self.table(entry.table_id)?;
        let place = format!("default entry of table {}", table.name);
        if r#type != Type::Modify {
            return Err(invalid(format!("{place}: can only be modified")));
        }
        if !entry.r#match.is_empty() || entry.priority != 0 || entry.is_const {
            return Err(invalid(format!("{place}: has neither match nor priority nor is_const")));
        }
        if entry.idle_timeout_ns != 0 || entry.time_since_last_hit.is_some() {
            return Err(invalid(format!("{place}: has no idle timeout")));
        }
        check_resources(table, entry)?;
        if entry.counter_data.is_some() || entry.meter_config.is_some() {
            return Err(unimplemented(format!("{place}: v1model counts and meters hits only")));
        }
        if table.const_default || self.pipeline.default_entry(table.engine).is_const {
            return Err(denied(format!("{place}: is const")));
        }
        if table.profile.is_some() {
            return Err(denied(format!("{place}: is const, the table has an action profile")));
        }
        let action =
            entry.action.as_ref().map(|a| self.read_action(table, a, Use::Default, ports)).transpose()?;
        self.pipeline.set_default(table.engine, action.as_ref())?;
        let metadata = pack_metadata(entry);
        if action.is_none() || metadata.is_empty() {
            self.default_metadata.remove(&entry.table_id);
        } else {
            self.default_metadata.insert(entry.table_id, metadata);
        }
        Ok(())
    }

    /// The key of an entry, checked against the rules for priorities.
    pub fn entry_key(&self, table: &Table, entry: &p4::TableEntry) -> Result<EntryKey> {
        let place = format_args!("table {}", table.name);
        if table.fields.is_empty() {
            return Err(invalid(format!("{place}: has no key, only a default entry")));
        }
        let fields = matching::read(&table.fields, &entry.r#match, &place)?;
        match (table.has_priority, entry.priority) {
            (true, p) if p <= 0 => Err(invalid(format!("{place}: entries need a priority above 0, not {p}"))),
            (false, p) if p != 0 => Err(invalid(format!("{place}: entries have no priority, not {p}"))),
            (true, p) => Ok(EntryKey { fields, priority: p - self.shift(table) }),
            (false, _) => Ok(EntryKey { fields, priority: 0 }),
        }
    }

    /// Writes a direct counter through its table entry.
    pub fn write_direct_counter(&mut self, r#type: Type, entry: &p4::DirectCounterEntry) -> Result<()> {
        let (table, key) = self.direct_key("counter", r#type, entry.table_entry.as_ref())?;
        if !table.direct_counter {
            return Err(invalid(format!("table {}: has no direct counter", table.name)));
        }
        match &entry.data {
            Some(data) => Ok(self.pipeline.set_direct_counter(table.engine, &key, counter_data(data)?)?),
            None => self.pipeline.entry(table.engine, &key).map(drop).map_err(Into::into),
        }
    }

    /// Writes a direct meter through its table entry.
    pub fn write_direct_meter(&mut self, r#type: Type, entry: &p4::DirectMeterEntry) -> Result<()> {
        let (table, key) = self.direct_key("meter", r#type, entry.table_entry.as_ref())?;
        if table.direct_meter.is_none() {
            return Err(invalid(format!("table {}: has no direct meter", table.name)));
        }
        if entry.counter_data.is_some() {
            return Err(unimplemented(format!(
                "table {}: meters do not count packets by colour",
                table.name
            )));
        }
        let config = meter(entry.config.as_ref(), table)?;
        Ok(self.pipeline.set_direct_meter(table.engine, &key, config)?)
    }

    fn direct_key(
        &self,
        what: &str,
        r#type: Type,
        entry: Option<&p4::TableEntry>,
    ) -> Result<(&Table, EntryKey)> {
        if r#type != Type::Modify {
            return Err(invalid(format!("a direct {what} entry can only be modified")));
        }
        let entry = entry.ok_or_else(|| invalid(format!("a direct {what} entry needs its table entry")))?;
        let table = self.table(entry.table_id)?;
        if entry.is_default_action {
            return Err(unimplemented(format!("table {}: v1model counts and meters hits only", table.name)));
        }
        Ok((table, self.entry_key(table, entry)?))
    }

    /// Checks that no table of a profile mixes one-shots and members.
    fn exclusive(&self, table: &Table, action: &EntryAction) -> Result<()> {
        let Some(profile) = table.profile.and_then(|p| self.profiles.get(&p)) else { return Ok(()) };
        match action {
            EntryAction::OneShot(_) if profile.members + profile.groups.len() > 0 => Err(invalid(format!(
                "table {}: its profile is programmed with members, not one-shots",
                table.name
            ))),
            EntryAction::Member(_) | EntryAction::Group(_) if profile.one_shots > 0 => {
                Err(invalid(format!("table {}: its profile is programmed with one-shots", table.name)))
            }
            _ => Ok(()),
        }
    }

    fn count_one_shots(&mut self, table: u32, before: Option<&EntryAction>, after: Option<&EntryAction>) {
        let Some(profile) = self.index.tables.get(&table).and_then(|t| t.profile) else { return };
        let count = &mut self.profile_use(profile).one_shots;
        if matches!(before, Some(EntryAction::OneShot(_))) {
            *count = count.saturating_sub(1);
        }
        if matches!(after, Some(EntryAction::OneShot(_))) {
            *count += 1;
        }
    }
}

fn spec(entry: &p4::TableEntry, key: EntryKey, action: EntryAction) -> Result<EntrySpec> {
    let idle = entry.idle_timeout_ns;
    Ok(EntrySpec {
        idle_timeout_ns: u64::try_from(idle).map_err(|_| invalid(format!("an idle timeout of {idle} ns")))?,
        meter: entry.meter_config.as_ref().map(meter_config).transpose()?,
        counter: entry.counter_data.as_ref().map(counter_data).transpose()?,
        metadata: pack_metadata(entry),
        ..EntrySpec::new(key, action)
    })
}

/// Allows direct resources and timeouts only for tables that have them.
fn check_resources(table: &Table, entry: &p4::TableEntry) -> Result<()> {
    let place = format_args!("table {}", table.name);
    if entry.counter_data.is_some() && !table.direct_counter {
        return Err(invalid(format!("{place}: has no direct counter")));
    }
    if entry.meter_config.is_some() && table.direct_meter.is_none() {
        return Err(invalid(format!("{place}: has no direct meter")));
    }
    if let Some(config) = &entry.meter_config {
        meter(Some(config), table)?;
    }
    if entry.meter_counter_data.is_some() {
        return Err(unimplemented(format!("{place}: meters do not count packets by colour")));
    }
    if entry.time_since_last_hit.is_some() {
        return Err(invalid(format!("{place}: time_since_last_hit cannot be written")));
    }
    if entry.idle_timeout_ns != 0 && !table.idle_timeout {
        return Err(invalid(format!("{place}: does not support idle timeouts")));
    }
    Ok(())
}

fn meter(config: Option<&p4::MeterConfig>, table: &Table) -> Result<Option<MeterConfig>> {
    let r#type = table.direct_meter.unwrap_or(meter_spec::Type::TwoRateThreeColor);
    config.map(|c| typed_meter_config(c, r#type)).transpose()
}

/// Reads a counter's value.
pub fn counter_data(data: &p4::CounterData) -> Result<CounterData> {
    let number = |n: i64| u64::try_from(n).map_err(|_| invalid(format!("a counter of {n}")));
    Ok(CounterData { bytes: number(data.byte_count)?, packets: number(data.packet_count)? })
}

/// Builds the message for a counter's value.
pub fn write_counter_data(data: CounterData) -> p4::CounterData {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    p4::CounterData { byte_count: number(data.bytes), packet_count: number(data.packets) }
}

/// Reads rates and bursts as the meter's type allows them (P4Runtime section 9.4).
pub fn typed_meter_config(config: &p4::MeterConfig, r#type: meter_spec::Type) -> Result<MeterConfig> {
    let single = (config.pir, config.pburst) == (config.cir, config.cburst);
    match r#type {
        meter_spec::Type::TwoRateThreeColor if config.eburst != 0 => {
            Err(invalid("eburst is for single-rate meters"))
        }
        meter_spec::Type::SingleRateTwoColor if !single || config.eburst != 0 => {
            Err(invalid("a single-rate two-colour meter has pir = cir, pburst = cburst and no eburst"))
        }
        meter_spec::Type::SingleRateThreeColor if !single => {
            Err(invalid("a single-rate meter has pir = cir and pburst = cburst"))
        }
        meter_spec::Type::SingleRateThreeColor if config.eburst != 0 => {
            Err(unimplemented("v1model's meters are two-rate (RFC 2698): no excess burst"))
        }
        _ => meter_config(config),
    }
}

fn meter_config(config: &p4::MeterConfig) -> Result<MeterConfig> {
    let number = |n: i64| u64::try_from(n).map_err(|_| invalid(format!("a meter rate or burst of {n}")));
    let meter = MeterConfig {
        cir: number(config.cir)?,
        cburst: number(config.cburst)?,
        pir: number(config.pir)?,
        pburst: number(config.pburst)?,
    };
    if meter.pir < meter.cir {
        return Err(invalid(format!("a meter's pir {} below its cir {}", meter.pir, meter.cir)));
    }
    Ok(meter)
}

/// Builds the message for rates and bursts.
pub fn write_meter_config(config: MeterConfig) -> p4::MeterConfig {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    p4::MeterConfig {
        cir: number(config.cir),
        cburst: number(config.cburst),
        pir: number(config.pir),
        pburst: number(config.pburst),
        eburst: 0,
    }
}

/// Packs both kinds of metadata of an entry into the bytes that the engine stores with it; empty
/// without metadata.
#[allow(deprecated)]
pub fn pack_metadata(entry: &p4::TableEntry) -> Vec<u8> {
    p4::TableEntry {
        controller_metadata: entry.controller_metadata,
        metadata: entry.metadata.clone(),
        ..p4::TableEntry::default()
    }
    .encode_to_vec()
}

/// Reverses [`pack_metadata`]: an entry with only its metadata.
pub fn unpack_metadata(packed: &[u8]) -> p4::TableEntry {
    p4::TableEntry::decode(packed).unwrap_or_default()
}

/// Checks a position in an array: INVALID_ARGUMENT below 0, OUT_OF_RANGE past the end.
pub fn index_in(index: &p4::Index, size: usize, place: &dyn std::fmt::Display) -> Result<usize> {
    let at = usize::try_from(index.index).map_err(|_| invalid(format!("{place}: index {}", index.index)))?;
    if at >= size { Err(out_of_range(format!("{place}: index {at} of {size}"))) } else { Ok(at) }
}

/// NOT_FOUND for an object by number.
pub fn absent(what: &str, id: u32) -> crate::error::UpdateError {
    not_found(format!("{what} {id} does not exist"))
}
