//! Indirect counters and meters, registers, value sets and digests (P4Runtime sections 9.3, 9.4, 9.6 to 9.8).

use std::collections::HashSet;

use crate::config::Config;
use crate::error::{Result, exhausted, exists, invalid, unimplemented};
use crate::index::Object;
use crate::proto::p4::v1 as p4;
use crate::write::matching;
use crate::write::table::{absent, counter_data, index_in, typed_meter_config};
use p4::update::Type;

fn only_modify(r#type: Type, what: &str) -> Result<()> {
    if r#type == Type::Modify { Ok(()) } else { Err(invalid(format!("{what} can only be modified"))) }
}

impl Config {
    /// Writes one cell of a counter or, without an index, all cells.
    pub fn write_counter(&mut self, r#type: Type, entry: &p4::CounterEntry) -> Result<()> {
        only_modify(r#type, "a counter entry")?;
        let counter = self.index.find(&self.index.counters, entry.counter_id, Object::Counter)?;
        let data = entry.data.as_ref().map(counter_data).transpose()?;
        for at in cells(entry.index.as_ref(), counter.size, &counter.name)? {
            if let Some(data) = data {
                self.pipeline.set_counter(counter.engine, at, data)?;
            }
        }
        Ok(())
    }

    /// Configures one cell of a meter or, without an index, all cells.
    pub fn write_meter(&mut self, r#type: Type, entry: &p4::MeterEntry) -> Result<()> {
        only_modify(r#type, "a meter entry")?;
        let meter = self.index.find(&self.index.meters, entry.meter_id, Object::Meter)?;
        if entry.counter_data.is_some() {
            return Err(unimplemented(format!("meter {}: does not count packets by colour", meter.name)));
        }
        let config = entry.config.as_ref().map(|c| typed_meter_config(c, meter.meter_type)).transpose();
        let config = config.map_err(|e| e.at(&format_args!("meter {}", meter.name)))?;
        for at in cells(entry.index.as_ref(), meter.size, &meter.name)? {
            self.pipeline.set_meter(meter.engine, at, config)?;
        }
        Ok(())
    }

    /// Writes one cell of a register or, without an index, all cells.
    pub fn write_register(&mut self, r#type: Type, entry: &p4::RegisterEntry) -> Result<()> {
        only_modify(r#type, "a register entry")?;
        let register = self.index.find(&self.index.registers, entry.register_id, Object::Register)?;
        let place = format_args!("register {}", register.name);
        let values = register.data.read(entry.data.as_ref(), &self.names.snapshot(), &place)?;
        let value = values.first().ok_or_else(|| invalid(format!("{place}: no data")))?;
        for at in cells(entry.index.as_ref(), register.size, &register.name)? {
            self.pipeline.set_register(register.engine, at, value)?;
        }
        Ok(())
    }

    /// Replaces the members of a value set.
    pub fn write_value_set(&mut self, r#type: Type, entry: &p4::ValueSetEntry) -> Result<()> {
        only_modify(r#type, "a value set")?;
        let set = self.index.find(&self.index.value_sets, entry.value_set_id, Object::ValueSet)?;
        let place = format_args!("value set {}", set.name);
        if entry.members.len() > set.size {
            return Err(exhausted(format!("{place}: {} members of {}", entry.members.len(), set.size)));
        }
        let mut seen = HashSet::new();
        let mut members = Vec::new();
        for member in &entry.members {
            let key = matching::read(&set.fields, &member.r#match, &place)?;
            if !seen.insert(key.clone()) {
                return Err(exists(format!("{place}: a member is there twice")));
            }
            members.push(key);
        }
        Ok(self.pipeline.set_value_set(set.engine, &members)?)
    }

    /// Enables a digest, changes its settings, or disables it.
    pub fn write_digest(&mut self, r#type: Type, entry: &p4::DigestEntry) -> Result<()> {
        let digest = self.index.find(&self.index.digests, entry.digest_id, Object::Digest)?;
        match (r#type, self.digests.contains_key(&entry.digest_id)) {
            (Type::Insert, true) => return Err(exists(format!("digest {} is on", digest.name))),
            (Type::Modify | Type::Delete, false) => return Err(absent("digest entry", entry.digest_id)),
            _ => {}
        }
        if r#type == Type::Delete {
            digest.engine.iter().try_for_each(|e| self.pipeline.enable_digest(*e, false))?;
            self.digests.remove(&entry.digest_id);
            return Ok(());
        }
        let config = entry.config.unwrap_or_default();
        if config.max_timeout_ns < 0 || config.max_list_size < 0 || config.ack_timeout_ns < 0 {
            return Err(invalid(format!("digest {}: sizes and times cannot be negative", digest.name)));
        }
        digest.engine.iter().try_for_each(|e| self.pipeline.enable_digest(*e, true))?;
        self.digests.insert(entry.digest_id, config);
        Ok(())
    }
}

fn cells(index: Option<&p4::Index>, size: usize, name: &str) -> Result<std::ops::Range<usize>> {
    match index {
        Some(index) => index_in(index, size, &name).map(|at| at..at + 1),
        None => Ok(0..size),
    }
}
