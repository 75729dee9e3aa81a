//! Reads tables, defaults, and direct counters and meters.

use super::*;

impl Ctl {
    pub(super) fn read(
        &self,
        program: &Program,
        shared: &Shared,
        table: TableId,
        slot: u32,
        e: &CtlEntry,
    ) -> Entry {
        let info = &program.info.tables[table.index()];
        let cell = shared.tables[table.index()].get(slot);
        let idle_us = cell.map_or(0, |c| shared.now_us.load(Relaxed).saturating_sub(c.last_us.load(Relaxed)));
        let spec = EntrySpec {
            key: program.tables[table.index()].key.entry_key(&e.key),
            action: e.action.clone(),
            idle_timeout_ns: e.idle_timeout_ns,
            meter: e.meter,
            counter: cell.filter(|_| info.has_counters).map(|c| c.get()),
            metadata: e.metadata.clone(),
        };
        let idle_ns = if info.support_timeout { idle_us.saturating_mul(1000) } else { 0 };
        Entry { spec, is_const: e.is_const, idle_ns }
    }

    pub(crate) fn entries(&self, program: &Program, shared: &Shared, table: TableId) -> Vec<Entry> {
        let Some(t) = self.tables.get(table.index()) else { return Vec::new() };
        let mut all: Vec<(u64, u32)> =
            t.entries.iter().enumerate().filter_map(|(s, e)| Some((e.as_ref()?.seq, s as u32))).collect();
        all.sort_unstable();
        let read = |(_, s): (u64, u32)| {
            t.entries[s as usize].as_ref().map(|e| self.read(program, shared, table, s, e))
        };
        all.into_iter().filter_map(read).collect()
    }

    pub(crate) fn entry(
        &mut self,
        program: &Program,
        shared: &Shared,
        table: TableId,
        key: &EntryKey,
    ) -> Result<Entry, WriteError> {
        let (_, slot) = self.find(program, table, key)?;
        match &self.tables[table.index()].entries[slot as usize] {
            Some(e) => Ok(self.read(program, shared, table, slot, e)),
            None => Err(WriteError::NotFound("an entry".into())),
        }
    }

    pub(crate) fn default_entry(&self, program: &Program, table: TableId) -> DefaultEntry {
        let Some(t) = self.tables.get(table.index()) else {
            return DefaultEntry { action: None, is_const: false, counter: None };
        };
        let plan = &program.tables[table.index()];
        let own = || plan.default.as_ref().map(|w| EntryAction::Call(call_of(program, w)));
        let action = t.default.as_ref().map(|d| d.0.clone()).or_else(own);
        DefaultEntry { action, is_const: plan.const_default, counter: None }
    }

    pub(crate) fn set_default(
        &mut self,
        program: &Program,
        table: TableId,
        action: Option<&EntryAction>,
    ) -> Result<(), WriteError> {
        self.table(table)?;
        let info = &program.info.tables[table.index()];
        let plan = &program.tables[table.index()];
        if plan.const_default {
            return Err(WriteError::Const(format!("the default action of table {}", info.name)));
        }
        if let (Some(EntryAction::Call(c)), Some(only)) = (action, plan.const_action)
            && c.action != only
        {
            return Err(WriteError::Const(format!("the default action of table {}", info.name)));
        }
        self.ready()?;
        let (act, new) = match action {
            Some(a) => {
                let (act, canon, shot) = self.resolve(program, table, a)?;
                (act, Some((canon, shot)))
            }
            None => {
                let own = plan.default.as_ref().map(|w| Act::Call {
                    action: w.action.0,
                    local: w.local,
                    words: w.words.clone(),
                });
                (own.unwrap_or_default(), None)
            }
        };
        self.push(Op::Default { table: table.0, act });
        let old = std::mem::replace(&mut self.tables[table.index()].default, new);
        if let Some((action, shot)) = old {
            self.release(program, table, &action, shot);
        }
        Ok(())
    }

    pub(crate) fn set_direct_counter(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
        value: CounterData,
    ) -> Result<(), WriteError> {
        let (_, slot) = self.find(program, table, key)?;
        if !program.info.tables[table.index()].has_counters {
            return Err(WriteError::Invalid("the table has no direct counters".into()));
        }
        self.send(Op::EntryCounter { table: table.0, slot, value })
    }

    pub(crate) fn set_direct_meter(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
        config: Option<MeterConfig>,
    ) -> Result<(), WriteError> {
        let (_, slot) = self.find(program, table, key)?;
        if program.info.tables[table.index()].direct_meter.is_none() {
            return Err(WriteError::Invalid("the table has no direct meter".into()));
        }
        check_meter(config.as_ref())?;
        self.send(Op::EntryMeter { table: table.0, slot, config })?;
        if let Some(e) = &mut self.tables[table.index()].entries[slot as usize] {
            e.meter = config;
        }
        Ok(())
    }

    pub(crate) fn take_idle(&mut self, program: &Program, shared: &Shared) -> Vec<(TableId, Entry)> {
        let now = shared.now_us.load(Relaxed);
        let mut out = Vec::new();
        for (i, info) in program.info.tables.iter().enumerate().filter(|(_, t)| t.support_timeout) {
            let table = TableId(i as u32);
            let mut due = Vec::new();
            for (slot, e) in self.tables[i].entries.iter_mut().enumerate() {
                let Some(e) = e.as_mut().filter(|e| e.idle_timeout_ns != 0) else { continue };
                let Some(cell) = shared.tables[i].get(slot as u32) else { continue };
                let last = cell.last_us.load(Relaxed);
                if now.saturating_sub(last) >= e.idle_timeout_ns.div_ceil(1000) && e.reported != last {
                    e.reported = last;
                    due.push(slot as u32);
                }
            }
            let _ = info;
            for slot in due {
                if let Some(e) = &self.tables[i].entries[slot as usize] {
                    out.push((table, self.read(program, shared, table, slot, e)));
                }
            }
        }
        out
    }
}
